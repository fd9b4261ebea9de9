"""Traces of transactions and subscriptions, as OpenTelemetry's SDK exports them."""

import asyncio
import gc
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import SpanKind, StatusCode

from stilltide import Subscription, TransactionClient
from stilltide.errors import ArgumentError, NotAwaitedError
from stilltide.pipeline.tracing import tracing_of
from stilltide.schemas.headers import TXN, Headers
from stilltide.testing import MemoryCluster
from tests.support.traces import (
    PARENT,
    PARENT_SPAN,
    Traces,
    context_of,
    current_span_id,
    links_of,
    traced,
)


def subscribed(cluster: MemoryCluster, **options: Any) -> Subscription:
    """A subscription of a group of its own."""
    return Subscription("orders", group="billing", connector=cluster.connector, **options)


async def sent(cluster: MemoryCluster, *headers: Headers) -> list[dict[str, bytes | None]]:
    """Sends a record for each headers in one transaction; the headers that readers see of each."""
    async with (
        TransactionClient(connector=cluster.connector) as client,
        client.transaction() as txn,
    ):
        for each in headers:
            await txn.send("orders", b"o", headers=each)
    seen = [record.headers or () for record in await cluster.committed("orders")]
    for each in seen:
        names = [name.lower() for name, _ in each]
        assert len(names) == len(set(names)), "a header is doubled"
    return [{name: value for name, value in each if name != TXN} for each in seen]


async def test_the_callers_context_travels_with_a_record(cluster: MemoryCluster, traces: Traces):
    """W3C trace context and baggage; the header names the span of the send."""
    with traces.tracer.start_as_current_span("request"):
        token = context.attach(baggage.set_baggage("tenant", "blue & green"))
        (headers,) = await sent(cluster, [("id", b"7")])
        context.detach(token)
    send, transaction = traces.span("send orders"), traces.span("transaction")
    found = context_of(send)
    assert headers == {
        "id": b"7",
        "traceparent": b"00-%032x-%016x-%02x" % (found.trace_id, found.span_id, found.trace_flags),
        "baggage": b"tenant=blue+%26+green",
    }
    assert send.parent == context_of(transaction)
    assert transaction.parent == context_of(traces.span("request"))
    assert send.kind is SpanKind.PRODUCER
    assert send.attributes == {
        "messaging.system": "kafka",
        "messaging.client.id": "stilltide",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
    }


@pytest.mark.parametrize(
    ("own", "added"),
    [
        ([("traceparent", PARENT.encode())], {"baggage"}),
        ([("Traceparent", PARENT.encode())], {"baggage"}),
        ([("traceparent", b"\xff\xfe")], {"baggage"}),
        ([("traceparent", None)], {"baggage"}),
        ([("tracestate", b"a=1")], {"baggage"}),
        ([("traceparent", PARENT.encode()), ("tracestate", b"a=1")], {"baggage"}),
        ([("baggage", b"own=1")], {"traceparent"}),
        ([("BAGGAGE", b"")], {"traceparent"}),
        ([("traceparent", b""), ("baggage", b"own=1")], set()),
    ],
)
async def test_a_header_of_the_application_stays_alone(
    cluster: MemoryCluster, traces: Traces, own: Headers, added: set[str]
):
    """What the application has set is not replaced, doubled, or mixed with another trace."""
    token = context.attach(baggage.set_baggage("tenant", "blue"))
    (headers,) = await sent(cluster, own)
    context.detach(token)
    assert set(headers) == {name for name, _ in own} | added
    assert dict(own).items() <= headers.items()
    send = traces.span("send orders")
    if dict(own).get("traceparent") == PARENT.encode():
        assert send.kind is SpanKind.CLIENT, "the record was created by another span"
        assert links_of(send) == [PARENT_SPAN]


async def test_what_is_not_sampled_says_so_to_the_reader(cluster: MemoryCluster):
    """No span is exported, and the context travels all the same."""
    with traced(Traces(ParentBased(ALWAYS_OFF))) as traces:
        (headers,) = await sent(cluster, ())
        assert int((headers["traceparent"] or b"")[-2:], 16) & 1 == 0
        async with subscribed(cluster) as orders:
            async for _ in orders:
                assert current_span_id()
                break
        assert not traces.names


async def test_each_record_has_what_is_current_at_its_send(cluster: MemoryCluster):
    """Also in a trace that is not sampled, where the headers of a transaction are kept."""
    with traced(Traces(ParentBased(ALWAYS_OFF))) as traces:
        async with (
            TransactionClient(connector=cluster.connector) as client,
            client.transaction() as txn,
        ):
            await txn.send("orders", b"first")
            token = context.attach(baggage.set_baggage("tenant", "blue"))
            await txn.send("orders", b"blue")
            context.detach(token)
            await txn.send("orders", b"own", headers=[("traceparent", PARENT.encode())])
            with pytest.raises(ArgumentError):
                await txn.send("orders", b"wrong", headers={"a": b"b"})  # pyright: ignore[reportArgumentType]
            await txn.send("orders", b"last")
        assert not traces.names
    first, blue, own, last = [dict(it.headers or ()) for it in await cluster.committed("orders")]
    assert first == last
    assert blue == {**first, "baggage": b"tenant=blue"}
    assert own == {**first, "traceparent": PARENT.encode()}


async def test_a_transaction_tells_its_steps(cluster: MemoryCluster, traces: Traces):
    """Opened, registered, committed: events of one span, which has the transaction's id."""
    async with (
        TransactionClient(connector=cluster.connector, name="shop") as client,
        client.transaction() as txn,
    ):
        await txn.send("orders", b"o")
        await txn.send("invoices", b"i")
    span = traces.span("transaction")
    assert span.kind is SpanKind.INTERNAL
    assert [event.name for event in span.events] == ["open", "register", "commit"]
    assert span.attributes == {
        "messaging.system": "kafka",
        "messaging.client.id": "shop",
        "stilltide.transaction.id": str(txn.id),
        "stilltide.transaction.outcome": "committed",
    }
    assert span.status.status_code is StatusCode.UNSET


async def test_a_transaction_that_fails_has_an_error(cluster: MemoryCluster, traces: Traces):
    """The exception that leaves the block, or that a call raises; an abort alone is no error."""
    async with TransactionClient(connector=cluster.connector) as client:
        with pytest.raises(LookupError):  # noqa: PT012 - the block is what fails
            async with client.transaction() as txn:
                await txn.send("orders", b"o")
                raise LookupError("no such order")
        txn = client.transaction()
        never = txn.send("orders", b"o")
        await txn.send("orders", b"o")
        with pytest.raises(NotAwaitedError):
            await txn.commit()
        never.close()
        async with client.transaction() as txn:
            await txn.send("orders", b"o")
            await txn.flush()
            await txn.abort()
    raised, refused, aborted = traces.spans("transaction")
    for span in (raised, refused, aborted):
        assert (span.attributes or {})["stilltide.transaction.outcome"] == "aborted"
    assert raised.status.description == "LookupError: no such order"
    assert (raised.attributes or {})["error.type"] == "LookupError"
    assert (refused.attributes or {})["error.type"] == "NotAwaitedError"
    assert aborted.status.status_code is StatusCode.UNSET
    assert [event.name for event in aborted.events] == ["open", "register", "abort"]


async def test_a_prepared_transaction_tells_of_it(cluster: MemoryCluster, traces: Traces):
    """Decided in the block, or left to its token."""
    async with TransactionClient(connector=cluster.connector) as client:
        async with client.transaction() as txn:
            await txn.send("orders", b"o")
            await txn.prepare()
            await txn.commit()
        async with client.transaction() as txn:
            await txn.send("orders", b"o")
            token = await txn.prepare()
        await client.resume(token).abort()
    decided, left = traces.spans("transaction")
    assert [event.name for event in decided.events][-3:] == ["prepare", "prepared", "commit"]
    assert (decided.attributes or {})["stilltide.transaction.outcome"] == "committed"
    assert (left.attributes or {})["stilltide.transaction.outcome"] == "prepared"


async def test_a_transaction_without_a_block_has_a_span(cluster: MemoryCluster, traces: Traces):
    """It begins at the first use, and ends with its end, or when the program drops it."""
    async with TransactionClient(connector=cluster.connector) as client:
        txn = client.transaction()
        await txn.send("orders", b"o")
        assert current_span_id() == 0
        await txn.commit()
        await client.transaction().send("orders", b"dropped")
        assert len(traces.spans("transaction")) == 1
    del txn, client
    await asyncio.sleep(0)
    gc.collect()
    outcomes = [
        (it.attributes or {})["stilltide.transaction.outcome"] for it in traces.spans("transaction")
    ]
    assert outcomes == ["committed", "left"]


async def test_a_wrong_record_is_refused_as_without_traces(cluster: MemoryCluster, traces: Traces):
    """Wrong headers get the error of `send`, and the span has it."""
    async with TransactionClient(connector=cluster.connector) as client:
        for headers in ({"a": b"b"}, [None], [(1, b"b")], 7, [("a", "b")]):
            with pytest.raises(ArgumentError):
                async with client.transaction() as txn:
                    await txn.send("orders", b"o", headers=headers)  # pyright: ignore[reportArgumentType]
    for span in traces.spans("send orders"):
        assert (span.attributes or {})["error.type"] == "ArgumentError"


async def test_names_are_those_of_the_conventions(cluster: MemoryCluster, traces: Traces):
    """The version that spans name has every attribute of `messaging`."""
    await sent(cluster, ())
    async with subscribed(cluster) as orders:
        async for _ in orders:
            break
    known = {
        value
        for key, value in vars(messaging_attributes).items()
        if isinstance(value, str) and key.startswith("MESSAGING_")
    }
    for name in ("send orders", "process orders", "transaction"):
        span = traces.span(name)
        assert span.instrumentation_scope is not None
        assert span.instrumentation_scope.schema_url in {it.value for it in Schemas}
        assert {it for it in span.attributes or {} if it.startswith("messaging.")} <= known


_OFF = """
import asyncio, sys
{first}
from stilltide import Subscription, TransactionClient
from stilltide.testing import MemoryCluster

async def main():
    async with MemoryCluster({{"orders": 1}}) as cluster:
        async with TransactionClient(connector=cluster.connector) as client:
            async with client.transaction() as txn:
                await txn.send("orders", b"o", headers=[("id", b"7")])
        async with Subscription("orders", group="g", connector=cluster.connector) as orders:
            async for message in orders:
                print([name for name, _ in message.headers])
                break

asyncio.run(main())
print("stilltide.pipeline.tracing.spans" in sys.modules, "opentelemetry" in sys.modules)
"""


@pytest.mark.parametrize(
    ("first", "loaded"),
    [
        ("", "False False"),
        ("sys.modules['opentelemetry'] = None", "False True"),
        ("import opentelemetry.trace, opentelemetry.propagate", "True True"),
        ("import os; os.environ['OTEL_SDK_DISABLED'] = 'true'", "False False"),
    ],
)
def test_without_a_provider_nothing_is_added(first: str, loaded: str):
    """No header and no import, also where the package is not installed."""
    done = subprocess.run(
        [sys.executable, "-c", _OFF.format(first=first)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-2:] == ["['txn', 'id']", loaded], done.stderr


def test_a_provider_that_is_switched_off_is_none(monkeypatch: pytest.MonkeyPatch):
    """OTEL_SDK_DISABLED switches the SDK off, whatever the program sets."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with traced(Traces()):
        assert tracing_of("client") is None
