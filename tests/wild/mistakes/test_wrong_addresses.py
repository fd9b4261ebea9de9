"""A wrong port was told after 14 s by a client and after 64 s by a subscription, in four errors.

What a user saw: four chained errors with the same hint twice, and "191 more like it since" in the
log; `kafka://host:port` ended after 15 s with "No brokers configured". Each entry point now says
one error at once, before a client of Kafka is made.
"""

import asyncio
import logging
import socket
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from faststream.confluent import KafkaBroker
from pyspark.sql import SparkSession

from stilltide import Subscription, TransactionClient, sync
from stilltide import spark as entries
from stilltide.errors import InvalidTextError, StilltideError
from stilltide.faststream import Transactions
from stilltide.pipeline.cli.main import run
from tests.wild.mistakes.test_commands_on_a_cluster import (
    COMMANDS,
    ELSEWHERE,
    await_line,
    interrupted,
    started,
)

LIMIT_S = 5.0
LINES_MAX = 6


@pytest.fixture(scope="module")
def nobody() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


async def client(at: str) -> None:
    """A client."""
    async with TransactionClient(at):
        pass


async def subscription(at: str) -> None:
    """A subscription."""
    async with Subscription(["orders"], group="g", bootstrap_servers=at):
        pass


async def acknowledging(at: str) -> None:
    """A subscription that asks workers, too."""
    async with Subscription(
        ["orders"], group="g", bootstrap_servers=at, acknowledgements=True, deliveries_max=2
    ):
        pass


async def pattern(at: str) -> None:
    """A subscription that looks for its topics."""
    async with Subscription("orders-*", group="g", bootstrap_servers=at):
        pass


async def handlers(at: str) -> None:
    """Handlers of FastStream."""
    async with Transactions(KafkaBroker(at), at):
        pass


def sync_client(at: str) -> None:
    """A client without an event loop."""
    with sync.TransactionClient(at):
        pass


def sync_subscription(at: str) -> None:
    """A subscription without an event loop."""
    with sync.Subscription(["orders"], group="g", bootstrap_servers=at):
        pass


AWAITED: tuple[Callable[[str], Awaitable[None]], ...] = (
    client,
    subscription,
    acknowledging,
    pattern,
    handlers,
)
BLOCKING: tuple[Callable[[str], None], ...] = (sync_client, sync_subscription)


def told(work: Callable[[], object], at: str) -> None:
    """The work ends by one error, in time, that names the address."""
    began_s = time.monotonic()
    with pytest.raises(StilltideError) as caught:
        work()
    took_s = time.monotonic() - began_s
    error = caught.value
    assert error.primary == f"no broker answers at {at}"
    assert took_s < LIMIT_S
    text = "".join(traceback.format_exception(error))
    assert text.count("Traceback") == 1, text
    said = str(error)
    assert len(said.splitlines()) <= LINES_MAX
    assert said.count("hint:") == 1


@pytest.mark.parametrize("work", AWAITED, ids=lambda it: it.__name__)
def test_what_is_awaited(
    nobody: str, work: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """One error, and no line of a client of Kafka."""
    told(lambda: asyncio.run(work(nobody)), nobody)
    assert not [it for it in caplog.records if it.levelno >= logging.WARNING]


@pytest.mark.parametrize("work", BLOCKING, ids=lambda it: it.__name__)
def test_what_blocks(nobody: str, work: Callable[[str], None]) -> None:
    """As what is awaited."""
    told(lambda: work(nobody), nobody)


@pytest.mark.parametrize("work", [*AWAITED[:3], *BLOCKING], ids=lambda it: it.__name__)
@pytest.mark.parametrize("at", ["kafka://127.0.0.1:9092", "127.0.0.1"])
def test_an_address_of_another_form(work: Callable[[str], Any], at: str) -> None:
    """It is refused before anything is asked."""
    with pytest.raises(InvalidTextError, match="is not host:port"):
        ended(work, at)


def ended(work: Callable[[str], Any], at: str) -> None:
    """Runs to the end, also what is awaited."""
    returned = work(at)
    if asyncio.iscoroutine(returned):
        asyncio.run(returned)


def of_spark(session: SparkSession, at: str, folder: str) -> dict[str, Callable[[], object]]:
    """The functions of `stilltide.spark` that ask a cluster."""
    frame = session.createDataFrame([("v",)], ["value"])
    table = f"parquet:{folder}/table"
    return {
        "append_committed": lambda: entries.append_committed(session, at, ["orders"], table),
        "committed_batches": lambda: next(iter(entries.committed_batches(session, at, ["orders"]))),
        "read_committed": lambda: entries.read_committed(session, at, ["orders"]),
        "read_committed after a snapshot": lambda: entries.read_committed(
            session, at, ["orders"], take_snapshot=True
        ),
        "read_native_committed": lambda: entries.read_native_committed(session, at, ["orders"]),
        "stream": lambda: entries.stream(
            session, at, ["orders"], lambda *_: None, checkpoint=f"{folder}/checkpoint"
        ),
        "write": lambda: entries.write(frame, at, topic="orders", progress=f"{folder}/progress"),
    }


def test_what_uses_spark(spark: SparkSession, nobody: str, tmp_path: Any) -> None:
    """Each function says it before Spark has a job."""
    for work in of_spark(spark, nobody, str(tmp_path)).values():
        told(work, nobody)


UNTIL_STOPPED = {
    "console": ["console", "--port", "0", "--clusters", "a={at}"],
    "index run": ["index", "run", "orders", "--bootstrap-servers", "{at}"],
    "publish": ["publish", "orders", "--to", "orders.committed", "--bootstrap-servers", "{at}"],
    "replicate": ["replicate", "--from", "a", "--to", "b", "--clusters", "a={at} b=127.0.0.1:1"],
    "worker": ["worker", "--web-port", "0", "--bootstrap-servers", "{at}"],
}
"""Commands that wait for their cluster (B9), or show it once it answers, with their words."""

SHOWS = {"doctor", "status"}
"""Commands that show a cluster that is away, and go on with others."""

ASKING = [
    name
    for name in COMMANDS
    if name not in {*UNTIL_STOPPED, *SHOWS}
    and ELSEWHERE.get(name, "") not in {"asks no cluster", "has a cluster of its own"}
]

WORDS = {
    "produce": ["produce", "orders", "/dev/null"],
    "topics create": ["topics", "create", "orders"],
    "audit follow": ["audit", "follow", "--topics", "orders"],
    "audit run": ["audit", "run", "--topics", "orders"],
    "repair": ["repair", "txn-log"],
    "table follow": ["table", "follow", "--topics", "orders", "--to", "parquet:table"],
}


@pytest.mark.parametrize("name", ASKING)
def test_a_command(
    nobody: str,
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
) -> None:
    """It ends by exit code 1 with one error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STILLTIDE_BOOTSTRAP_SERVERS", nobody)
    line = WORDS.get(name) or COMMANDS[name].line(nobody)
    began_s = time.monotonic()
    code = run(["--log-level", "error", *line])
    took_s = time.monotonic() - began_s
    printed = capsys.readouterr()
    if code == 0:
        pytest.fail(printed.out)
    assert f"no broker answers at {nobody}" in printed.err
    assert len(printed.err.splitlines()) <= LINES_MAX, printed.err
    assert printed.err.count("hint:") <= 1
    assert took_s < LIMIT_S


@pytest.mark.parametrize("name", sorted(UNTIL_STOPPED))
def test_a_command_that_waits_says_so(nobody: str, name: str) -> None:
    """In one line, within seconds, with the next step; Ctrl-C ends it."""
    words = [word.format(at=nobody) for word in UNTIL_STOPPED[name]]
    with started(*words) as child:
        line = await_line(child, [f"no broker answers at {nobody}"])
        assert "correct the address" in line
        done = interrupted(child)
    assert "Traceback" not in done.errors


def test_a_status(nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The cluster is away, at its address; exit code 3."""
    began_s = time.monotonic()
    code = run(["status", "--clusters", f"a={nobody}"])
    took_s = time.monotonic() - began_s
    printed = capsys.readouterr()
    assert (code, printed.err) == (3, "")
    assert f"no broker of {nobody} answers" in printed.out
    assert took_s < LIMIT_S
