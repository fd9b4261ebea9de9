"""Propagators of traces that fail on what strangers wrote, or that name headers in their own case.

What users saw: a consumer under OpenTelemetry ended by a `TypeError` of a propagator at a record
whose headers it did not know (Jaeger's and OpenTracing's did so), and the record was never given to
the application, though its position was committed later. And X-Ray's header `X-Amzn-Trace-Id` was
not found, since names were looked for in lower case.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import (
    CarrierT,
    Getter,
    Setter,
    TextMapPropagator,
    default_getter,
    default_setter,
)
from opentelemetry.sdk.trace import Span, SpanProcessor

from stilltide import Subscription, TransactionClient, sync
from stilltide.testing import MemoryCluster, SyncMemoryCluster
from tests.support.traces import Traces, traced

SPAN = trace.SpanContext(0xABC, 0xDEF, is_remote=True, trace_flags=trace.TraceFlags(1))
X_RAY = "X-Amzn-Trace-Id"


class Failing(TextMapPropagator):
    """Fails at every call."""

    def extract(self, *_: Any, **__: Any) -> Context:
        """As one that takes a missing header for text."""
        raise TypeError("expected string or bytes-like object")

    def inject(self, *_: Any, **__: Any) -> None:
        """As one of baggage that is no text of UTF-8."""
        "\ud800".encode()

    @property
    def fields(self) -> set[str]:
        """None."""
        return set()


class XRay(TextMapPropagator):
    """As AWS X-Ray's: the name of its header has capitals."""

    def extract(
        self,
        carrier: CarrierT,
        context: Context | None = None,
        getter: Getter[CarrierT] = default_getter,
    ) -> Context:
        """The trace of the header."""
        texts = getter.get(carrier, X_RAY)
        found = context or Context()
        if texts == ["Root=1"]:
            found = trace.set_span_in_context(trace.NonRecordingSpan(SPAN), found)
        return found

    def inject(
        self,
        carrier: CarrierT,
        context: Context | None = None,  # noqa: ARG002 - of propagators
        setter: Setter[CarrierT] = default_setter,
    ) -> None:
        """A header of another trace."""
        setter.set(carrier, X_RAY, "Root=2")

    @property
    def fields(self) -> set[str]:
        """The header."""
        return {X_RAY}


@pytest.fixture
def traces() -> Iterator[Traces]:
    """Everything is traced; afterwards propagators are what they were."""
    before = propagate.get_global_textmap()
    with traced(Traces()) as made:
        yield made
    propagate.set_global_textmap(before)


@pytest.fixture
async def cluster() -> Any:
    """A cluster with a worker."""
    async with MemoryCluster({"orders": 1}) as made:
        yield made


def subscribed(cluster: MemoryCluster) -> Subscription:
    """A member of a group."""
    return Subscription("orders", group="billing", connector=cluster.connector)


async def test_a_propagator_that_fails_hides_no_message(cluster: MemoryCluster, traces: Traces):
    """A loop, a call for one message, and batches have each message, and its processing a span."""
    for value in (b"0", b"1", b"2", b"3"):
        cluster.append("orders", value, headers=[("uber-trace-id", b"none")])
    propagate.set_global_textmap(Failing())
    values: list[bytes] = []
    async with subscribed(cluster) as orders:
        async for message in orders:
            values.append(message.value)
            break
        values.append((await anext(orders)).value)
        async for batch in orders.batches():
            values += batch.values
            break
        await orders.commit()
    assert values == [b"0", b"1", b"2", b"3"]
    assert len(traces.spans("process orders")) == 3
    assert context.get_current() == Context()


class Refusing(SpanProcessor):
    """Takes no span."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002
        """As one that is closed."""
        raise RuntimeError(f"{span.name}: the processor is closed")


async def test_a_processor_of_spans_that_fails_hides_no_message(
    cluster: MemoryCluster, traces: Traces
):
    """As above."""
    cluster.append("orders", b"0")
    cluster.append("orders", b"1")
    traces.provider.add_span_processor(Refusing())
    async with subscribed(cluster) as orders:
        async for message in orders:
            assert message.value == b"0"
            break
        assert (await anext(orders)).value == b"1"


def test_threads_have_each_message(traces: Traces):
    """As above, with `stilltide.sync`."""
    with SyncMemoryCluster({"orders": 1}) as cluster:
        cluster.append("orders", b"0", headers=[("uber-trace-id", b"none")])
        propagate.set_global_textmap(Failing())
        with sync.Subscription("orders", group="g", connector=cluster.connector) as orders:
            assert next(orders).value == b"0"
    assert traces.spans("process orders")


@pytest.mark.parametrize("sampled", [True, False])
async def test_a_propagator_that_fails_refuses_no_record(
    cluster: MemoryCluster, traces: Traces, *, sampled: bool
):
    """The record is sent without what the propagator would have added."""
    propagate.set_global_textmap(Failing())
    unsampled = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False))
    async with TransactionClient(connector=cluster.connector) as client:
        with trace.use_span(trace.INVALID_SPAN if sampled else unsampled):
            async with client.transaction() as txn:
                await txn.send("orders", b"0", headers=[("source", b"web")])
    async with subscribed(cluster) as orders:
        message = await anext(orders)
    assert [name for name, _ in message.headers or ()] == ["txn", "source"]
    assert bool(traces.spans("send orders")) is sampled


async def test_names_of_propagators_have_any_case(cluster: MemoryCluster, traces: Traces):
    """A trace is found by a name with capitals, and goes on as it is where it is set already."""
    propagate.set_global_textmap(XRay())
    cluster.append("orders", b"0", headers=[("x-amzn-trace-id", b"Root=1")])
    async with subscribed(cluster) as orders:
        await anext(orders)
        await orders.commit()
    (span,) = traces.spans("process orders")
    assert [link.context.span_id for link in span.links] == [SPAN.span_id]
    async with (
        TransactionClient(connector=cluster.connector) as client,
        client.transaction() as txn,
    ):
        await txn.send("orders", b"1", headers=[(X_RAY, b"Root=1")])
        await txn.send("orders", b"2")
    async with asyncio.timeout(60), subscribed(cluster) as orders:
        sent = [await anext(orders) for _ in range(2)]
    texts = [[value for name, value in it.headers or () if name == X_RAY] for it in sent]
    assert texts == [[b"Root=1"], [b"Root=2"]]
