"""The context of a message: current while it is processed, and in no other task or thread."""

import asyncio
import contextlib
import gc
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry import baggage, context
from opentelemetry.trace import SpanKind, StatusCode

from stilltide import Subscription, TransactionClient, sync
from stilltide.pipeline.errors import SerializerError, UndecodableError
from stilltide.schemas.values import EndOffset, TopicPartition
from stilltide.testing import MemoryCluster, SyncMemoryCluster
from tests.support.traces import (
    PARENT,
    PARENT_SPAN,
    Traces,
    context_of,
    current_span_id,
    links_of,
)


def subscribed(cluster: MemoryCluster, **options: Any) -> Subscription:
    """A subscription of a group of its own."""
    return Subscription("orders", group="billing", connector=cluster.connector, **options)


async def test_the_body_of_a_loop_is_the_processing(cluster: MemoryCluster, traces: Traces):
    """The body's context has the message's trace and baggage, for this message alone."""
    cluster.append("orders", b"0", headers=[("traceparent", PARENT.encode()), ("baggage", b"n=0")])
    cluster.append("orders", None)
    cluster.append("orders", b"2", headers=[("traceparent", PARENT.encode()), ("baggage", b"n=2")])
    spans: list[int] = []
    bags: list[object] = []
    async with subscribed(cluster) as orders:
        async for message in orders:
            await asyncio.sleep(0)
            spans.append(current_span_id())
            bags.append(baggage.get_baggage("n"))
            with traces.tracer.start_as_current_span(f"work {message.offset}"):
                pass
            if message.offset == 2:
                break
        assert current_span_id() == 0
        assert baggage.get_baggage("n") is None
    first, plain, last = processed = traces.spans("process orders")
    assert [context_of(span).span_id for span in processed] == spans
    assert bags == ["0", None, "2"]
    for number, span in enumerate(processed):
        assert traces.span(f"work {number}").parent == context_of(span)
        assert span.kind is SpanKind.CONSUMER
    for span in (first, last):
        assert links_of(span) == [PARENT_SPAN]
        assert span.parent is not None
        assert span.parent.span_id == PARENT_SPAN, "no other span was current"
    assert plain.parent is None
    assert not plain.links
    assert plain.attributes == {
        "messaging.system": "kafka",
        "messaging.client.id": "stilltide-subscription",
        "messaging.consumer.group.name": "billing",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 1,
        "messaging.kafka.message.tombstone": True,
    }
    assert "receive orders" not in traces.names


async def test_messages_within_a_span_are_its_children(cluster: MemoryCluster, traces: Traces):
    """A span of the application stays the parent; the producer is a link; the wait is a span."""
    for _ in range(2):
        cluster.append("orders", b"o", headers=[("traceparent", PARENT.encode())])
    with traces.tracer.start_as_current_span("job") as job:
        async with subscribed(cluster) as orders:
            async for message in orders:
                if message.offset == 1:
                    break
        assert current_span_id() == job.get_span_context().span_id
    for name in ("process orders", "receive orders"):
        for span in traces.spans(name):
            assert span.parent == context_of(traces.span("job"))
            assert links_of(span) == [PARENT_SPAN]
    assert {it.kind for it in traces.spans("receive orders")} == {SpanKind.CLIENT}


async def _break(orders: Subscription) -> None:
    async for _ in orders:
        break


async def _return(orders: Subscription) -> int:
    async def inner() -> int:
        async for message in orders:
            return message.offset
        return -1

    return await inner()


async def _error(orders: Subscription) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - as above
        async for message in orders:
            assert message.offset / 0


async def _error_of_a_function(orders: Subscription) -> None:
    async def inner() -> None:
        async for message in orders:
            assert message.offset / 0

    with pytest.raises(ZeroDivisionError) as caught:  # its traceback has the frame of the loop
        await inner()
    assert current_span_id() == 0
    del caught


async def _cancelled(orders: Subscription) -> None:
    async def inner() -> None:
        async for _ in orders:
            waits.set()
            await asyncio.Event().wait()

    waits = asyncio.Event()
    task = asyncio.create_task(inner())
    await waits.wait()
    task.cancel()
    await asyncio.wait([task])


async def _timed_out_in_the_body(orders: Subscription) -> None:
    with pytest.raises(TimeoutError):  # noqa: PT012 - as above
        async with asyncio.timeout(None) as limit:
            async for _ in orders:
                limit.reschedule(asyncio.get_running_loop().time())
                await asyncio.Event().wait()


async def _timed_out_while_waiting(orders: Subscription) -> None:
    with pytest.raises(TimeoutError):  # noqa: PT012 - as above
        async with asyncio.timeout(None) as limit:
            async for _ in orders:
                limit.reschedule(asyncio.get_running_loop().time() + 0.01)


async def _anext(orders: Subscription) -> None:
    await anext(orders)
    assert current_span_id()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await anext(orders)


async def _batches(orders: Subscription) -> None:
    async for batch in orders.batches():
        assert current_span_id()
        assert batch
        break


async def _closed(orders: Subscription) -> None:
    messages = aiter(orders)
    await anext(messages)
    assert current_span_id()
    await messages.aclose()  # pyright: ignore[reportAttributeAccessIssue] - a generator


@pytest.mark.parametrize(
    "leave",
    [
        _break,
        _return,
        _error,
        _error_of_a_function,
        _cancelled,
        _timed_out_in_the_body,
        _timed_out_while_waiting,
        _anext,
        _batches,
        _closed,
    ],
)
async def test_no_context_is_left_behind(
    cluster: MemoryCluster,
    traces: Traces,
    leave: Callable[[Subscription], Coroutine[Any, Any, Any]],
):
    """However a loop is left, what was current before is current again, and the span has ended."""
    cluster.append("orders", b"o")
    async with subscribed(cluster) as orders:
        before = context.get_current()
        await leave(orders)
        assert context.get_current() is before
        assert traces.names == ["process orders"]


async def test_read_to_processes_each_message(cluster: MemoryCluster, traces: Traces):
    """The loop ends by itself."""
    for _ in range(2):
        cluster.append("orders", b"o")
    async with subscribed(cluster) as orders:
        async for _ in orders.read_to({TopicPartition("orders", 0): EndOffset(2)}):
            assert current_span_id()
        assert current_span_id() == 0
    assert traces.names == ["process orders"] * 2


async def test_tasks_have_contexts_of_their_own(cluster: MemoryCluster, traces: Traces):
    """Several tasks take messages in turn: each is in its own message, also while others go on."""
    for _ in range(6):
        cluster.append("orders", b"o")
    turn = asyncio.Lock()
    together = asyncio.Barrier(3)

    async def work(orders: Subscription) -> list[int]:
        seen: list[int] = []
        for _ in range(2):
            async with turn:
                await anext(orders)
            mine = current_span_id()
            await together.wait()
            assert current_span_id() == mine
            seen.append(mine)
        return seen

    async with subscribed(cluster) as orders:
        seen = await asyncio.gather(*(work(orders) for _ in range(3)))
        await asyncio.sleep(0)  # the event loop forgets the tasks
        gc.collect()
        spans = {context_of(span).span_id for span in traces.spans("process orders")}
        assert spans == {one for each in seen for one in each}, "each span has ended with its task"
        assert len(spans) == 6


async def test_a_task_of_the_body_stays_in_its_message(cluster: MemoryCluster, traces: Traces):
    """A task that the body has started keeps the context, and may read on by itself."""
    for _ in range(3):
        cluster.append("orders", b"o")
    going = asyncio.Event()

    async def work() -> int:
        await going.wait()
        return current_span_id()

    async def read_on(orders: Subscription) -> int:
        await anext(orders)
        return current_span_id()

    async with subscribed(cluster) as orders:
        await anext(orders)
        first = current_span_id()
        task = asyncio.create_task(work())
        await anext(orders)
        second = current_span_id()
        third = await asyncio.create_task(read_on(orders))
        assert current_span_id() == second, "the other task changes nothing here"
        going.set()
        assert await task == first
        assert len({first, second, third}) == 3


async def test_loops_within_loops(cluster: MemoryCluster, traces: Traces):
    """The message of an inner subscription is within that of the outer one, and goes first."""
    for topic in ("orders", "invoices") * 2:
        cluster.append(topic, b"r")
    async with (
        subscribed(cluster) as orders,
        Subscription("invoices", group="g", connector=cluster.connector) as invoices,
    ):
        async for order in orders:
            await anext(invoices)
            if order.offset == 1:
                break
        assert current_span_id() == 0
        gc.collect()
    outer, inner = traces.spans("process orders"), traces.spans("process invoices")
    assert [span.parent for span in inner] == [context_of(span) for span in outer]


async def test_messages_in_a_transaction(cluster: MemoryCluster, traces: Traces):
    """A transaction of several messages: each within the transaction, sends within messages."""
    for _ in range(3):
        cluster.append("orders", b"o", headers=[("traceparent", PARENT.encode())])
    async with (
        TransactionClient(connector=cluster.connector) as client,
        subscribed(cluster, acknowledgements=True) as orders,
    ):
        message = await anext(orders)
        async with client.transaction() as txn:
            await txn.acknowledge(orders, message)
            for _ in range(2):
                await txn.acknowledge(orders, await anext(orders))
                await txn.send("invoices", b"i")
        assert (await cluster.committed("invoices"))[1].headers
        orders.tracing = None
    first, *others = traces.spans("process orders")
    transaction = traces.span("transaction")
    assert transaction.parent == context_of(first)
    assert [span.parent for span in others] == [context_of(transaction)] * 2
    sends = traces.spans("send invoices")
    assert [span.parent for span in sends] == [context_of(span) for span in others]


async def test_a_batch_links_to_its_messages(cluster: MemoryCluster, traces: Traces):
    """One span for a batch, with a link for each message that has a trace."""
    async with (
        TransactionClient(connector=cluster.connector) as client,
        client.transaction() as txn,
    ):
        for _ in range(3):
            await txn.send("orders", b"o")
    cluster.append("orders", b"plain")
    async with subscribed(cluster) as orders:
        taken = 0
        async for batch in orders.batches():
            taken += len(batch)
            if taken == 4:
                break
    batches = traces.spans("process orders")
    assert sum((it.attributes or {})["messaging.batch.message_count"] for it in batches) == 4  # pyright: ignore[reportArgumentType, reportCallIssue]
    sends = [context_of(span).span_id for span in traces.spans("send orders")]
    assert [one for it in batches for one in links_of(it)] == sends
    assert all(span.parent is None for span in batches)


def _for(orders: sync.Subscription) -> None:
    for _ in orders:
        assert current_span_id()
        break


def _next(orders: sync.Subscription) -> None:
    next(orders)
    assert current_span_id()
    orders.close()


def _for_batches(orders: sync.Subscription) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - as above
        for batch in orders.batches():
            assert current_span_id() / (len(batch) - 1)


@pytest.mark.parametrize("leave", [_for, _next, _for_batches])
def test_threads_have_contexts_of_their_own(
    traces: Traces, leave: Callable[[sync.Subscription], None]
):
    """`stilltide.sync`: the context is current in the thread that processes, and not behind."""
    with SyncMemoryCluster({"orders": 1, "invoices": 1}) as cluster:
        cluster.append("orders", b"o", headers=[("traceparent", PARENT.encode())])
        connector = cluster.connector
        with (
            sync.TransactionClient(connector=connector) as client,
            sync.Subscription("orders", group="g", connector=connector) as orders,
        ):
            inside = 0
            for message in orders:
                with client.transaction() as txn:
                    txn.send("invoices", message.value)
                    inside = current_span_id()
                break
            assert current_span_id() == 0
            process, transaction = traces.span("process orders"), traces.span("transaction")
            assert context_of(transaction).span_id == inside
            assert transaction.parent == context_of(process)
            assert traces.span("send invoices").parent == context_of(transaction)
            cluster.append("orders", b"o")
            with ThreadPoolExecutor(1) as other:
                other.submit(leave, orders).result()
                assert other.submit(current_span_id).result() == 0
            assert traces.names.count("process orders") == 2


async def test_decoded_messages_are_traced_as_bytes_are(cluster: MemoryCluster, traces: Traces):
    """A record that cannot be decoded is no message, and a value that is refused a failed send."""
    trace = [("traceparent", PARENT.encode())]
    for value in (b"1", b"no number", b"2"):
        cluster.append("orders", value, headers=trace)
    values: list[int] = []
    async with subscribed(cluster, value_deserializer=int) as orders:
        while len(values) < 2:
            with contextlib.suppress(UndecodableError):
                async for message in orders:
                    assert current_span_id() != 0
                    values.append(message.value)
                    if len(values) == 2:
                        break
            assert current_span_id() == 0
    assert values == [1, 2]
    assert [links_of(span) for span in traces.spans("process orders")] == [[PARENT_SPAN]] * 2
    async with (
        TransactionClient(connector=cluster.connector, value_serializer=str.encode) as client,
        client.transaction() as txn,
    ):
        await txn.send("orders", "3")
        with pytest.raises(SerializerError):
            await txn.send("orders", 4)
    sent, failed = traces.spans("send orders")
    assert sent.status.status_code is not StatusCode.ERROR
    assert failed.status.status_code is StatusCode.ERROR
