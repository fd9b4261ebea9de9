"""Traces through a real broker: from a request over a publish and two services to a handler."""

import asyncio
import importlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from opentelemetry import baggage, context

from stilltide import Subscription, TransactionClient
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.faststream import Transactions
from stilltide.schemas.headers import TXN
from stilltide.schemas.replication.origins import ORIGIN
from stilltide.schemas.topics import TopicSpec
from tests.support.processes.worker_process import running_worker
from tests.support.traces import Traces, context_of, current_span_id, links_of, traced

WAIT_S = 240.0
TOPICS = ("orders", "orders.committed", "invoices", "taken-confluent", "taken-kafka")


@pytest.fixture(scope="module")
def served(empty_kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker with a worker, which publishes the orders."""
    bootstrap = empty_kafka.bootstrap

    async def create() -> None:
        admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
        await admin.ensure_topics([TopicSpec(name, 1) for name in TOPICS])
        await admin.close()

    asyncio.run(create())
    log = tmp_path_factory.mktemp("tracing") / "worker.log"
    with running_worker(bootstrap, Path(log), "--publish", "orders:orders.committed"):
        yield bootstrap


@pytest.fixture
def traces() -> Iterator[Traces]:
    """Everything is traced."""
    with traced(Traces()) as made:
        yield made


async def messages(
    served: str, topic: str
) -> AsyncGenerator[tuple[bytes | None, dict[str, bytes | None]], None]:
    """Values and the application's headers of a topic, as long as they are asked for."""
    group = f"reader-{topic}"
    async with Subscription(topic, group=group, bootstrap_servers=served) as subscription:
        subscription.tracing = None
        while True:
            message = await anext(subscription)
            headers = {it: value for it, value in message.headers or () if it not in (TXN, ORIGIN)}
            yield message.value, headers


async def test_one_trace_from_the_request_to_the_last_record(served: str, traces: Traces):
    """A request's trace goes on in the service that reads a publish; its headers are kept."""
    async with asyncio.timeout(WAIT_S), TransactionClient(served) as client:
        with traces.tracer.start_as_current_span("request"):
            token = context.attach(baggage.set_baggage("tenant", "blue"))
            async with client.transaction() as txn:
                await txn.send("orders", b"order", headers=[("id", b"\xff\x00")])
            context.detach(token)
        async with Subscription(
            "orders.committed", group="billing", bootstrap_servers=served
        ) as orders:
            async for message in orders:
                assert baggage.get_baggage("tenant") == "blue"
                async with client.transaction() as txn:
                    await txn.send("invoices", message.value)
                break
            assert current_span_id() == 0
        seen: list[dict[str, bytes | None]] = []
        for topic in ("orders", "orders.committed", "invoices"):
            async with aclosing(messages(served, topic)) as records:
                seen.append((await anext(records))[1])
    sent, invoiced = traces.span("send orders"), traces.span("send invoices")
    processed = traces.span("process orders.committed")
    order, published, invoice = seen
    assert order == published
    assert order["id"] == b"\xff\x00"
    for headers, span in ((order, sent), (invoice, invoiced)):
        ids = context_of(span).trace_id, context_of(span).span_id
        assert (headers["traceparent"] or b"").startswith(b"00-%032x-%016x-" % ids)
        assert headers["baggage"] == b"tenant=blue"
        assert context_of(span).trace_id == context_of(traces.span("request")).trace_id
    assert links_of(processed) == [context_of(sent).span_id]
    _, transaction = traces.spans("transaction")
    assert transaction.parent == context_of(processed)
    assert invoiced.parent == context_of(transaction)
    assert [event.name for event in transaction.events][-1] == "commit"


@pytest.mark.parametrize("kind", ["confluent", "kafka"])
async def test_a_handler_of_faststream_processes_its_message(
    kind: str, served: str, traces: Traces
):
    """The message is current in the handler, also where another task has read it."""
    broker = importlib.import_module(f"faststream.{kind}").KafkaBroker(served)
    source, done = f"taken-{kind}", asyncio.Event()
    inside: list[int] = []

    @broker.subscriber(source, group_id=source, auto_offset_reset="earliest", max_workers=2)
    async def invoice(body: str) -> None:
        inside.append(current_span_id())
        await broker.publish(f"invoice of {body}", topic="invoices")
        done.set()

    async with asyncio.timeout(WAIT_S):
        async with TransactionClient(served) as client, client.transaction() as txn:
            await txn.send(source, kind.encode(), headers=[("content-type", b"text/plain")])
        async with Transactions(broker, served):
            await broker.start()
            await done.wait()
            await broker.stop()
        async with aclosing(messages(served, "invoices")) as records:
            headers: dict[str, bytes | None] = {}
            value = None
            while value != b"invoice of " + kind.encode():
                value, headers = await anext(records)
    sent, process = traces.span(f"send {source}"), traces.span(f"process {source}")
    _, transaction = traces.spans("transaction")
    assert inside == [context_of(transaction).span_id]
    assert transaction.parent == context_of(process)
    assert links_of(process) == [context_of(sent).span_id]
    (published,) = traces.spans("send invoices")
    assert b"%016x" % context_of(published).span_id in (headers["traceparent"] or b"")
