"""docs/services.md: each file of the page runs as the page says."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest
from confluent_kafka import Producer

from stilltide import KafkaConfig, KafkaConnector
from stilltide.connectors.local.addresses import free_port
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.connector import closing
from stilltide.sync import Subscription
from tests.support.looks import block_between_looks
from tests.support.processes.local import create_topic
from tests.support.processes.worker_process import running_worker

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/services.md"
TOPICS = ("web.orders", "web.payments", "web.invoices", "web.clicks")
TIMEOUT_S = 360.0

_FILE = re.compile(r'^```python title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)

ASK_FASTAPI = """
from fastapi.testclient import TestClient
from api import app

with TestClient(app) as http:
    for number in (1, 2):
        assert http.post(f"/orders/{number}").status_code == 201
"""
ASK_DJANGO = """
from shop_wsgi import application
from django.test import Client

assert callable(application)
answer = Client().post("/orders/5")
assert answer.status_code == 201, answer.content
assert answer.json()["transaction"]
assert Client().get("/orders/5").status_code == 405
"""


@pytest.fixture(scope="module")
def served(empty_kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker with a worker and the topics of the page."""
    bootstrap = empty_kafka.bootstrap
    with running_worker(bootstrap, tmp_path_factory.mktemp("served") / "worker.log"):
        for topic in TOPICS:
            create_topic(bootstrap, topic)
        yield bootstrap


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of the page."""
    for name, text in _FILE.findall(PAGE.read_text()):
        (tmp_path / name).write_text(text)
    return tmp_path


def run(folder: Path, served: str, *arguments: str) -> str:
    """Runs Python in the folder of the files to its end; its stdout."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"KAFKA": served, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def running(folder: Path, served: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Runs Python in the folder of the files until the block ends; says what it wrote if asked."""
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env=os.environ | {"KAFKA": served, "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
            text=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(TIMEOUT_S)
        finally:
            process.kill()


def take(served: str, topic: str, wanted: set[bytes]) -> list[bytes]:
    """Reads a topic as a new group until all that is wanted was read; what was read of it."""
    found: list[bytes] = []
    group = f"test-{topic}-{monotonic()}"
    with Subscription(topic, group=group, bootstrap_servers=served) as records:
        for record in records:
            if record.value in wanted:
                found.append(record.value)
            if set(found) == wanted:
                return found
    raise AssertionError("an open subscription does not end")


def post(port: int, path: str, process: subprocess.Popen[str], log: Path) -> int:
    """The status of a request, repeated until the server listens."""
    until_s = monotonic() + TIMEOUT_S
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method="POST")
    while True:
        assert process.poll() is None, log.read_text()
        assert monotonic() < until_s, log.read_text()
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - as above
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except (urllib.error.URLError, ConnectionError):
            block_between_looks()  # the server does not listen yet


def test_fastapi_opens_the_client_for_its_lifespan(served: str, folder: Path):
    """Requests of the application are transactions."""
    run(folder, served, "-c", ASK_FASTAPI)
    wanted = {b"order 1", b"order 2"}
    assert sorted(take(served, "web.orders", wanted)) == sorted(wanted)


def test_flask_in_workers_that_gunicorn_forked(served: str, folder: Path):
    """With the application preloaded, each worker opens its client after the fork."""
    port = free_port()
    numbers = range(100, 120)
    with running(folder, served, "-m", "gunicorn", "--bind", f"127.0.0.1:{port}") as gunicorn:
        log_path = folder / "log"
        for number in numbers:
            assert post(port, f"/orders/{number}", gunicorn, log_path) == 201, log_path.read_text()
    log = (folder / "log").read_text()
    assert "Traceback" not in log, log
    assert len(set(re.findall(r"Booting worker with pid: (\d+)", log))) == 2
    wanted = {b"payment of order %d" % number for number in numbers}
    assert sorted(take(served, "web.payments", wanted)) == sorted(wanted)


def test_django_opens_the_client_with_its_application(served: str, folder: Path):
    """A view writes a transaction."""
    run(folder, served, "-c", ASK_DJANGO)
    assert take(served, "web.orders", {b"order 5"}) == [b"order 5"]


def test_a_handler_of_faststream_is_a_transaction(served: str, folder: Path):
    """Each message that the handler gets has one invoice (`test_faststream.py` has the rest)."""
    producer = Producer({"bootstrap.servers": served})
    for number in range(3):
        producer.produce("web.clicks", b"click %d" % number)
    assert producer.flush(TIMEOUT_S) == 0
    with running(folder, served, "handler.py"):
        wanted = {b"invoice of click %d" % number for number in range(3)}
        assert sorted(take(served, "web.invoices", wanted)) == sorted(wanted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda it: it.name)
@pytest.mark.parametrize("name", ["reading.py", "reading_sync.py"])
def test_a_program_ends_well_by_both_signals(
    served: str, folder: Path, name: str, number: signal.Signals
):
    """It leaves its group at once, so that the next one goes on where it has committed."""
    order = f"order of {name} and {number.name}".encode()
    producer = Producer({"bootstrap.servers": served})
    producer.produce("web.orders", order)
    assert producer.flush(TIMEOUT_S) == 0
    log = folder / "log"
    with running(folder, served, name) as process:
        while f"handled {order!r}" not in log.read_text():
            assert process.poll() is None, log.read_text()
            block_between_looks()
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == 0, log.read_text()
    assert "Traceback" not in log.read_text()
    assert not asyncio.run(members(served, "reading"))


async def members(served: str, group: str) -> set[str]:
    """The members of a group."""
    async with closing(KafkaConnector(KafkaConfig(served)).group_admin()) as groups:
        return await groups.members(group)


def test_unit_tests_of_an_application_need_no_kafka(folder: Path):
    """The tests of the page run by pytest, without an address of a broker."""
    options = ["--quiet", "--import-mode=importlib", "--override-ini", "pythonpath=."]
    said = run(folder, "", "-m", "pytest", *options, "--rootdir", str(folder))
    assert "3 passed" in said


def test_every_file_of_the_page_was_found():
    """The pattern finds what it looks for, or the tests above would say nothing."""
    assert {name for name, _ in _FILE.findall(PAGE.read_text())} == {
        "api.py",
        "flask_shop.py",
        "gunicorn.conf.py",
        "handler.py",
        "orders.py",
        "reading.py",
        "reading_sync.py",
        "shop_settings.py",
        "shop_urls.py",
        "shop_wsgi.py",
        "test_orders.py",
        "test_orders_sync.py",
    }
