"""docs/databases.md: each program runs as the page says, on a real broker and a real PostgreSQL."""

import asyncio
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from confluent_kafka import Producer

from stilltide import Subscription
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.schemas.decisions import DDL
from tests.support.databases.postgres import PostgresServer
from tests.support.looks import between_looks
from tests.support.processes.child import Child
from tests.support.processes.local import create_topic
from tests.support.processes.worker_process import running_worker

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/databases.md"
WAIT_S = 300.0
CLICKS = 60

_FILE = re.compile(r'^```python title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)

ASK_FASTAPI = """
from fastapi.testclient import TestClient
from orders_api import app

with TestClient(app, raise_server_exceptions=False) as http:
    answers = [http.post(f"/orders/{number}").status_code for number in (1, 2, 2, 3)]
    assert answers == [201, 201, 500, 201], answers
"""
ASK_DJANGO = """
import os
import django
from django.conf import settings

settings.configure(
    SECRET_KEY="of this test",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF="orders_urls",
    DATABASES={"default": {
        "ENGINE": "django.db.backends.postgresql", "NAME": "postgres",
        "USER": os.environ["PGUSER"], "HOST": os.environ["PGHOST"],
    }},
)
django.setup()
from django.test import Client
from orders_urls import decisions, transactions

with transactions, decisions:
    http = Client(raise_request_exception=False)
    answers = [http.post(f"/orders/{number}").status_code for number in (1, 2, 2, 3)]
    assert answers == [201, 201, 500, 201], answers
"""


@pytest.fixture(scope="module")
def served(
    empty_kafka: LocalCluster, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a broker with a worker that asks the database."""
    log = tmp_path_factory.mktemp("recipes") / "worker.log"
    deciders = " ".join(f"{name}={postgres.conninfo}" for name in ("orders-db", "shop-db"))
    with running_worker(empty_kafka.bootstrap, log, deciders=deciders, resolve_after_ms=1000):
        yield empty_kafka.bootstrap


class Shop(NamedTuple):
    """A folder with the files of the page, and what they find.

    Attributes:
        folder: where the files are.
        topics: the topics that the test has in the place of those of the page, by name.
        served: address of the broker.
        postgres: the database.
        variables: the environment of the programs.
    """

    folder: Path
    topics: dict[str, str]
    served: str
    postgres: PostgresServer
    variables: dict[str, str]

    def run(self, *arguments: str) -> str:
        """Runs Python in the folder to its end; its stdout."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=os.environ | self.variables,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    async def visible(self, topic: str, count: int) -> list[str]:
        """The first records that readers see of a topic."""
        group = f"reader-{self.topics[topic]}"
        async with (
            asyncio.timeout(WAIT_S),
            Subscription(self.topics[topic], group=group, bootstrap_servers=self.served) as records,
        ):
            return [((await anext(records)).value or b"").decode() for _ in range(count)]

    def rows(self) -> list[int]:
        """The orders that the database holds."""
        with psycopg.connect(self.postgres.conninfo) as db:
            return [row[0] for row in db.execute("SELECT number FROM orders ORDER BY number")]


@pytest.fixture
def shop(served: str, postgres: PostgresServer, tmp_path: Path) -> Shop:
    """The files of the page with topics and tables of the test's own."""
    topics = {name: f"{name}-{os.urandom(4).hex()}" for name in ("orders", "clicks", "invoices")}
    for topic in topics.values():
        create_topic(served, topic)
    with psycopg.connect(postgres.conninfo) as db:
        db.execute("DROP TABLE IF EXISTS stilltide_decisions")
        db.execute("DROP TABLE IF EXISTS orders")
        db.execute("CREATE TABLE orders (number BIGINT PRIMARY KEY)")
        for statement in DDL["postgresql"]:
            db.execute(statement)
    for name, text in _FILE.findall(PAGE.read_text()):
        own = re.sub(r'"(orders|clicks|invoices)"', lambda it: f'"{topics[it[1]]}"', text)
        (tmp_path / name).write_text(own)
    variables = {
        "KAFKA": served,
        "DATABASE": postgres.url("psycopg"),
        "PGHOST": str(postgres.folder),
        "PGUSER": postgres.user,
        "PYTHONPATH": str(ROOT),
    }
    return Shop(tmp_path, topics, served, postgres, variables)


@pytest.mark.parametrize("ask", [ASK_FASTAPI, ASK_DJANGO], ids=["fastapi", "django"])
async def test_a_request_is_a_row_and_a_record(ask: str, shop: Shop):
    """A row that the database refuses leaves no record; the others have one each."""
    shop.run("-c", ask)
    assert shop.rows() == [1, 2, 3]
    assert await shop.visible("orders", 3) == ["order 1", "order 2", "order 3"]


@pytest.mark.parametrize("name", ["invoicing.py", "handler.py"])
async def test_consumed_stored_and_answered(name: str, shop: Shop):
    """All three or none, also when the program is killed in the middle."""
    if name == "invoicing.py":
        shop.variables["DATABASE"] = shop.postgres.conninfo
    producer = Producer({"bootstrap.servers": shop.served})
    for number in range(CLICKS):
        producer.produce(shop.topics["clicks"], b"%d" % number)
    assert producer.flush(WAIT_S) == 0
    command, log = [sys.executable, str(shop.folder / name)], shop.folder / "log"
    async with asyncio.timeout(WAIT_S):
        async with Child(command, log, shop.variables) as child:
            while len(shop.rows()) < CLICKS // 4:
                assert child.running, child.said
                await between_looks()
            await child.kill()
        stored = len(shop.rows())
        async with Child(command, log, shop.variables):
            invoices = await shop.visible("invoices", CLICKS)
            while len(shop.rows()) < CLICKS:
                await between_looks()
    assert stored < CLICKS, "killed in the middle"
    assert shop.rows() == list(range(CLICKS))
    assert sorted(invoices) == sorted(f"invoice of {number}" for number in range(CLICKS))


async def test_the_shop_of_the_compose_file(shop: Shop):
    """It dies at each tenth sale, between two commits, and rows and records are the same."""
    program = str(ROOT / "deploy/shop/shop.py")
    shop.variables["DATABASE"] = shop.postgres.conninfo
    with psycopg.connect(shop.postgres.conninfo) as db:
        db.execute("DROP TABLE IF EXISTS sales")
    for sold in (10, 20):
        with pytest.raises(AssertionError, match=f"sale {sold}: its row is committed; dying"):
            shop.run(program)
    assert shop.run(program, "check") == "20 rows, 20 records, the same\n"


async def test_sqlite(shop: Shop):
    """The program prints what the page says; a row that is refused leaves no record."""
    printed = shop.run("till.py").strip()
    assert f"prints `{printed}`" in PAGE.read_text()
    with closing(sqlite3.connect(shop.folder / "till.sqlite")) as db:
        assert db.execute("SELECT number FROM orders").fetchall() == [(1,), (2,)]
    assert await shop.visible("orders", 2) == ["order 1", "order 2"]
