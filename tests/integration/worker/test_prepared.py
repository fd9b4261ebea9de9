"""A row and its records on a real broker: program and worker are killed, and another decides."""

import asyncio
import json
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.schemas.coordinator.prepared_tokens import decode_token, encode_token
from stilltide.schemas.decisions import DDL
from stilltide.schemas.errors import PreparedTokenError
from tests.support.processes.local import STILLTIDE
from tests.support.processes.worker_process import WorkerProcess, create_topics

PROGRAM = """
import os, signal, sqlite3, sys
from stilltide.sync import Decisions, TransactionClient

bootstrap, topic, path, step = sys.argv[1:]
db = sqlite3.connect(path)
with TransactionClient(bootstrap_servers=bootstrap, name="orders") as client:
    with client.transaction() as txn:
        txn.send(topic, b"of the dead program", partition=0)
        db.execute("INSERT INTO orders VALUES ('of the dead program')")
        if step == "token":
            print(txn.prepare(), flush=True)
        else:
            Decisions("orders-db", f"sqlite:///{path}").enlist(txn, db)
        if step == "committed":
            db.commit()
        os.kill(os.getpid(), signal.SIGKILL)
"""
"""Prepares, and dies before anybody has decided."""


@pytest.fixture
async def topic(bootstrap: str) -> str:
    """A topic of the test's own."""
    name = f"orders-{uuid4().hex[:8]}"
    await create_topics(bootstrap, name)
    return name


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A file of SQLite with the table of decisions and one of orders."""
    path = tmp_path / "orders.sqlite"
    with closing(sqlite3.connect(path)) as db:
        for statement in DDL["sqlite"]:
            db.execute(statement)
        db.commit()
        db.execute("CREATE TABLE orders (id TEXT)")
    return path


def worker(bootstrap: str, log_path: Path) -> WorkerProcess:
    """A worker that comes back under its name, without waiting for a session to end."""
    return WorkerProcess(bootstrap, log_path, "--instance-id", "prepared")


async def output(*command: object) -> tuple[int, str]:
    """Exit code and output of a command."""
    child = await asyncio.create_subprocess_exec(*map(str, command), stdout=asyncio.subprocess.PIPE)
    text, _ = await child.communicate()
    return child.returncode or 0, text.decode()


def rows(database: Path) -> list[str]:
    """The orders that the database holds."""
    with closing(sqlite3.connect(database)) as db:
        return [row[0] for row in db.execute("SELECT id FROM orders")]


async def visible(bootstrap: str, topic: str, client: TransactionClient) -> list[str]:
    """What readers see of partition 0, up to a record that is committed now."""
    async with client.transaction() as txn:
        await txn.send(topic, b"last", partition=0)
    connector, values = KafkaConnector(KafkaConfig(bootstrap_servers=bootstrap)), list[str]()
    async with Subscription([topic], group=f"g-{uuid4()}", connector=connector) as messages:
        while "last" not in values:
            values.append(((await anext(messages)).value or b"").decode())
    return values[:-1]


@pytest.mark.parametrize("step", ["committed", "uncommitted"])
async def test_l4_the_row_decides_for_a_program_that_was_killed(
    bootstrap: str, topic: str, database: Path, log_path: Path, step: str
):
    """Rows and visible records are the same, though program and worker were killed in between."""
    async with worker(bootstrap, log_path) as doomed:
        await doomed.serving()
        code, _ = await output(sys.executable, "-c", PROGRAM, bootstrap, topic, database, step)
        assert code == -signal.SIGKILL
        await doomed.kill()
    async with worker(bootstrap, log_path) as successor:
        await successor.serving()
        at = ("--bootstrap-servers", bootstrap, "-o", "json")
        _, listed = await output(STILLTIDE, "txn", "list", "--state", "prepared", *at)
        assert len(json.loads(listed)) == 1  # L1: also after the worker's end
        decider = ("--decider", f"orders-db=sqlite:///{database}", "--after-s", "0")
        code, resolved = await output(STILLTIDE, "txn", "resolve", *decider, *at)
        outcome = "committed" if step == "committed" else "aborted"
        (ended,) = json.loads(resolved)
        assert (code, ended["outcome"]) == (0, outcome)
        _, history = await output(STILLTIDE, "txn", "history", "--last", "5", *at)
        _, described = await output(STILLTIDE, "txn", "describe", ended["txn"], *at)
        told = [it for it in json.loads(history) if it["txn"] == ended["txn"]]
        for row in (*told, *json.loads(described)):
            assert row["outcome"] == outcome
            assert row["decided_by"] == "resolver of orders-db"
            assert row["reason"] == f"its row in the database is {outcome}"
        connector = KafkaConnector(KafkaConfig(bootstrap_servers=bootstrap))
        async with TransactionClient(connector=connector) as client:
            assert await visible(bootstrap, topic, client) == rows(database)
    assert len(rows(database)) == (step == "committed")


async def test_l2_another_process_ends_what_a_killed_one_has_prepared(
    bootstrap: str, topic: str, database: Path, log_path: Path
):
    """The token is all that is left of the program; readers wait for the decision."""
    async with worker(bootstrap, log_path) as running:
        await running.serving()
        code, token = await output(
            sys.executable, "-c", PROGRAM, bootstrap, topic, database, "token"
        )
        assert code == -signal.SIGKILL
        connector = KafkaConnector(KafkaConfig(bootstrap_servers=bootstrap))
        async with TransactionClient(connector=connector) as client:
            other = encode_token(decode_token(token)._replace(topic_id=bytes(16)))
            with pytest.raises(PreparedTokenError, match="older than the topics"):
                await client.resume(other).abort()
            prepared = client.resume(token)
            assert (await prepared.describe()).outcome == "prepared"
            await prepared.commit()
            assert await visible(bootstrap, topic, client) == ["of the dead program"]
