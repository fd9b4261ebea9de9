"""Mistakes of programs: each is found at the call, by a typed error that says what to write."""
# ruff: noqa: PT012 - an error is raised on leaving the transaction's block, not by one statement

import asyncio
import os
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from structlog.testing import capture_logs

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.drivers.service.ask import requests
from stilltide.pipeline.errors import (
    ArgumentError,
    ForkedError,
    NotAwaitedError,
    OtherLoopError,
    RequestTimeoutError,
    TransactionStateError,
    UsageError,
)
from stilltide.schemas.topics import system_topics
from stilltide.schemas.values import TopicPartition
from tests.support.coordinator.worker_client import visible, written

CHILD_OK = 7


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"value": "text"}, "the value is a str, not bytes\n  hint: encode it: text.encode()"),
        ({"value": {"order": 1}}, "the value is a dict, not bytes\n  hint: serialize it, for"),
        ({"value": bytearray(b"v")}, "the value is a bytearray, not bytes\n  hint: copy it"),
        ({"value": b"v", "key": "7"}, "the key is a str, not bytes"),
        ({"value": b"v", "key": 7}, "the key is a int, not bytes\n  hint: serialize it to bytes"),
        (
            {"value": b"v", "headers": {"id": b"7"}},
            "the headers are a dict, not a list of (name, value)\n  hint: a dict is written as",
        ),
        ({"value": b"v", "headers": ["id"]}, "a header is 'id', not a pair of a name and a value"),
        ({"value": b"v", "headers": [(b"id", b"7")]}, "a header is (b'id', b'7'), not a pair"),
        ({"value": b"v", "headers": [("id", "7")]}, "the value of header 'id' is a str, not bytes"),
        (
            {"value": b"v", "headers": [("stra\udcdfe", b"7")]},
            r"the name of header 'stra\udcdfe' is not UTF-8, or holds a NUL",
        ),
        ({"value": b"v", "headers": [("txn\0", b"")]}, r"the name of header 'txn\x00' is not"),
    ],
)
async def test_a_wrong_type_is_found_by_send(
    broker: MemoryBroker, client: TransactionClient, record: dict[str, Any], said: str
):
    """The error is a `TypeError`, too, and names the topic; nothing of the record is kept."""
    with pytest.raises(TypeError, match="^orders: " + re.escape(said)) as raised:
        async with client.transaction() as txn:
            await txn.send("orders", **record)
    assert isinstance(raised.value, ArgumentError)
    assert txn.state == "aborted"
    assert written(broker, "orders") == []


async def test_bytes_of_a_subclass_are_bytes(connector: MemoryConnector, client: TransactionClient):
    """A value that is bytes in every respect is sent; so is None."""
    value = type("Payload", (bytes,), {})(b"v")
    async with client.transaction() as txn:
        await txn.send("orders", value, key=value, headers=(["id", value], ("none", None)))
        await txn.send("orders", None)
    assert await visible(connector) == {("orders", b"v"): 1, ("orders", None): 1}


@pytest.mark.filterwarnings("ignore:coroutine 'Transaction._send' was never awaited")
@pytest.mark.parametrize(
    ("count", "said"),
    [(1, "1 send was never awaited"), (3, "3 sends were never awaited")],
)
async def test_a_send_without_await_is_found_by_the_commit(
    connector: MemoryConnector, client: TransactionClient, count: int, said: str
):
    """The records would be lost in silence, so the commit aborts the transaction instead."""
    with pytest.raises(NotAwaitedError, match=said):
        async with client.transaction() as txn:
            await txn.send("orders", b"awaited")
            for _ in range(count):
                txn.send("orders", b"lost")
    assert txn.state == "aborted"
    assert await visible(connector) == {}


@pytest.mark.filterwarnings("ignore:coroutine '.*' was never awaited")
async def test_an_acknowledgement_without_await_is_found_by_the_commit(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
):
    """A commit without the acknowledgement would write the same again for the same message."""
    broker.append(TopicPartition("orders", 0), None, b"o", None)
    async with Subscription(
        ["orders"], group="g", connector=connector, acknowledgements=True
    ) as orders:
        message = await anext(orders)
        with pytest.raises(NotAwaitedError, match="1 acknowledge was never awaited"):
            async with client.transaction() as txn:
                await txn.send("payments", b"copy")
                txn.acknowledge(orders, message)
    assert await visible(connector) == {("orders", b"o"): 1}


async def test_a_send_that_has_not_ended_is_found_by_the_commit(
    broker: MemoryBroker, client: TransactionClient
):
    """A task that still looks its topic up would send after the commit has counted."""
    assert client._cluster is not None
    async with client._cluster.topics._lock:  # no topic can be looked up
        with pytest.raises(NotAwaitedError, match="1 send has not ended"):
            async with client.transaction() as txn:
                late = asyncio.create_task(txn.send("orders", b"late"))
                await asyncio.sleep(0)
    with pytest.raises(TransactionStateError, match="has ended: aborted"):
        await late
    assert written(broker, "orders") == []


async def test_sends_of_tasks_that_end_inside_of_the_block_are_committed(
    connector: MemoryConnector, client: TransactionClient
):
    """Tasks may send, and other threads make what the event loop awaits."""
    async with client.transaction() as txn:
        await asyncio.gather(*(txn.send("orders", b"o") for _ in range(5)))
        made_elsewhere = await asyncio.to_thread(txn.send, "payments", b"thread")
        await made_elsewhere
    assert await visible(connector) == {("orders", b"o"): 5, ("payments", b"thread"): 1}


async def test_a_commit_that_was_cancelled_can_be_repeated(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
):
    """While a commit waits, the transaction takes nothing more; after its time-out it goes on."""
    async with client.transaction() as txn:
        await txn.send("orders", b"first")
        await txn.flush()
        broker.hold("orders")
        await txn.send("orders", b"second")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), asyncio.TaskGroup() as tasks:
                tasks.create_task(txn.commit())
                await asyncio.sleep(0)
                with pytest.raises(TransactionStateError, match="is being committed"):
                    await txn.send("orders", b"too late")
        broker.release()
        await txn.send("orders", b"third")
        await txn.commit()
    assert txn.state == "committed"
    assert await visible(connector) == {
        ("orders", value): 1 for value in (b"first", b"second", b"third")
    }


async def test_a_transaction_is_entered_once(client: TransactionClient):
    """A finished transaction takes nothing more; an open one has one owner."""
    async with client.transaction() as txn:
        with pytest.raises(TransactionStateError, match="entered before, and is open"):
            await txn.__aenter__()
    with pytest.raises(TransactionStateError, match="entered before, and is committed"):
        async with txn:
            pass


async def test_an_open_client_is_not_opened_again(
    connector: MemoryConnector, client: TransactionClient
):
    """The first connections would be lost without being closed."""
    with pytest.raises(UsageError, match="the client is open"):
        await client.__aenter__()
    async with Subscription(["orders"], group="g", connector=connector) as subscription:
        with pytest.raises(UsageError, match="the subscription is open"):
            await subscription.__aenter__()


async def entered(client: TransactionClient) -> None:
    """Enters a transaction."""
    async with client.transaction():
        pass


Call = Callable[[TransactionClient, Subscription], Coroutine[Any, Any, object]]
CALLS: dict[str, Call] = {
    "transaction": lambda client, _: entered(client),
    "close": lambda client, _: client.close(),
    "next": lambda _, subscription: subscription.__anext__(),
    "commit": lambda _, subscription: subscription.commit(),
    "leave": lambda _, subscription: subscription.__aexit__(None, None, None),
}


@pytest.mark.parametrize("name", CALLS)
async def test_another_event_loop_is_refused(
    connector: MemoryConnector, client: TransactionClient, name: str
):
    """A call from a thread with a loop of its own would wait for ever; an error says what helps."""
    with ThreadPoolExecutor() as threads:
        async with Subscription(["orders"], group="g", connector=connector) as subscription:
            called = threads.submit(lambda: asyncio.run(CALLS[name](client, subscription)))
            with pytest.raises(OtherLoopError, match=r"stilltide\.sync"):
                await asyncio.wrap_future(called)


async def test_a_forked_process_is_refused(client: TransactionClient):
    """A process that was forked has no threads and no connections of the client."""
    if (child := os.fork()) == 0:
        code = 1
        try:
            asyncio.events._set_running_loop(None)
            asyncio.run(entered(client))
        except ForkedError as error:
            code = CHILD_OK if f"opened in process {os.getppid()}" in str(error) else 2
        finally:
            os._exit(code)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == CHILD_OK


async def test_a_silent_coordinator_is_told_of(
    connector: MemoryConnector, monkeypatch: pytest.MonkeyPatch
):
    """Without a worker, the log says what to check long before the request times out."""
    monkeypatch.setattr(requests, "SILENT_MS", 20.0)
    await connector.admin().ensure_topics(system_topics(coordinators=1, partitions=1))
    async with TransactionClient(connector=connector, request_timeout_s=0.5) as client:
        with capture_logs() as lines, pytest.raises(RequestTimeoutError):
            async with client.transaction() as txn:
                await txn.send("orders", b"o")
    (line,) = [it for it in lines if it["event"] == "no_answer_yet"]
    assert line["owner"] == "coordinator 0"
    assert "a worker runs for this cluster" in line["check"]
