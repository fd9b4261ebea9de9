"""Anybody's bytes in logs and topics of requests: counted, said once, and nobody ends."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.pipeline.drivers.shared.passed_over import LINES_MAX, PassedOver
from stilltide.pipeline.drivers.snapshots.client import SnapshotLine
from stilltide.pipeline.metrics.worker import WorkerMetrics
from stilltide.schemas.coordinator import requests
from stilltide.schemas.coordinator.transactions import ListTransactions
from stilltide.schemas.framing import encode_batch
from stilltide.schemas.headers import EntryStamp
from stilltide.schemas.service.envelopes import Request
from stilltide.schemas.topics import (
    ACK_REQUESTS,
    PENDING_ACK_LOG,
    SNAPSHOT_REQUESTS,
    TXN_LOG,
    TXN_REQUESTS,
    TopicSpec,
)
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.coordinator.worker_memory import PARTITIONS, MemoryWorker, until
from tests.support.schemas.wire import too_deep

ORDERS = TopicPartition("orders", 0)

pytestmark = pytest.mark.topics(TopicSpec(ORDERS.topic, 1))
REQUEST = requests.encode_request(Request(b"client", 1, 0, 0, ListTransactions()))
LOGS = [TopicPartition(TXN_LOG, 0), TopicPartition(PENDING_ACK_LOG, 1)]
REQUESTS = [
    TopicPartition(TXN_REQUESTS, 0),
    TopicPartition(ACK_REQUESTS, 0),
    TopicPartition(SNAPSHOT_REQUESTS, 1),
]


@pytest.fixture
async def worker(connector: MemoryConnector) -> AsyncIterator[MemoryWorker]:
    """A worker with every kind of owner that is asked."""
    async with MemoryWorker(connector, snapshots=SnapshotLimits()) as made:
        yield made


def counted(worker: MemoryWorker, name: str, data: TopicPartition) -> float | None:
    """A sample of a partition."""
    labels = {"cluster": "test", "topic": data.topic, "partition": str(data.partition)}
    return worker.metrics.registry.get_sample_value(f"stilltide_{name}_total", labels)


async def serves(connector: MemoryConnector, worker: MemoryWorker) -> None:
    """A transaction commits, a snapshot is taken, and no owner has ended."""
    async with TransactionClient(connector=connector) as client:
        async with client.transaction() as txn:
            await txn.send(ORDERS.topic, b"v")
        assert txn.state == "committed"
    async with SnapshotLine(connector, "test", timeout_s=10) as line:
        await line.take(ORDERS)
    assert not worker.ends


def lines(said: list[Any]) -> list[tuple[str, int, int, str | None]]:
    """Topic, partition, offset and first bytes of each record that was passed over."""
    return [
        (it["topic"], it["partition"], it["offset"], it["begins"])
        for it in said
        if it["event"] in {"log_entry_passed_over", "requests_passed_over"}
    ]


@pytest.mark.parametrize("data", LOGS, ids=str)
async def test_foreign_entries_are_counted_and_said_once(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker, data: TopicPartition
):
    """B6: whoever wrote them, their place and escaped beginning are said; nobody ends."""
    assert counted(worker, "log_foreign_entries", data) == 0
    owner = (worker.coordinators if data.topic == TXN_LOG else worker.pending_acks)[data.partition]
    with capture_logs() as said:
        first = broker.append(data, None, b"x\n", None)
        stale = broker.append(data, None, b"y" * 99, EntryStamp(Offset(9), 1).to_headers())
        fence = broker.records(data)[0].value
        broker.append(data, None, fence, None)  # the owner is fenced, and replays the log
        await until(lambda: not owner.serving)
        await until(lambda: owner.serving)
        await serves(connector, worker)
    assert lines(said) == [
        (*data, first, repr(b"x\n")),
        (*data, stale, repr(b"y" * 32)),
    ]
    assert counted(worker, "log_foreign_entries", data) == 2


@pytest.mark.parametrize("data", REQUESTS, ids=str)
@pytest.mark.parametrize(
    "value",
    [None, b"", b"\xff garbage", encode_batch([REQUEST])[:-1], b"\x0e\x01\x00\x02later"],
    ids=["null", "empty", "garbage", "torn", "later version"],
)
async def test_a_record_that_is_no_request_is_passed_over(
    broker: MemoryBroker,
    connector: MemoryConnector,
    worker: MemoryWorker,
    data: TopicPartition,
    value: bytes | None,
):
    """C10: it is counted and its place said; the owner serves whoever comes next."""
    assert counted(worker, "request_records_undecodable", data) == 0
    with capture_logs() as said:
        offset = broker.append(data, b"k", value, None)
        await serves(connector, worker)
    assert counted(worker, "request_records_undecodable", data) == 1
    assert lines(said) == [(*data, offset, None if value is None else repr(value))]


async def test_no_request_poisons_the_log(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker
):
    """C10, B6: what the next owner could not read again within an entry is not appended."""
    requests_of_all = TopicPartition(TXN_REQUESTS, 0)
    broker.append(requests_of_all, b"k", too_deep(REQUEST), None)
    await serves(connector, worker)
    assert counted(worker, "request_records_undecodable", requests_of_all) == 1
    worker.revoke()
    async with MemoryWorker(connector, partitions=PARTITIONS) as successor:
        assert successor.coordinators[0].serving


def test_lines_are_bounded_and_counts_are_not():
    """A million foreign entries fill no disk; the last line says that more are only counted."""
    metrics = WorkerMetrics("test", CollectorRegistry())
    passed_over = PassedOver("log_entry_passed_over", metrics.foreign_entries)
    log = TopicPartition(TXN_LOG, 0)
    with capture_logs() as said:
        for offset in range(3 * LINES_MAX):
            passed_over.add(log, Offset(offset), b"x", "test")
        passed_over.add(log, Offset(0), b"x", "seen before")
    assert len(said) == LINES_MAX
    assert ["further" in it for it in said] == [False] * (LINES_MAX - 1) + [True]
    labels = {"cluster": "test", "topic": TXN_LOG, "partition": "0"}
    value = metrics.registry.get_sample_value("stilltide_log_foreign_entries_total", labels)
    assert value == 3 * LINES_MAX
