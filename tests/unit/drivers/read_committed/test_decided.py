"""The one host of the read-committed machine: records, markers and snapshots in, decisions out."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.core.read_committed.machine import Deliver, Withheld
from stilltide.pipeline.drivers.read_committed.decided import DecidedPartitions
from stilltide.pipeline.drivers.read_committed.outcome_tails import OutcomeLogs
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.schemas.coordinator import markers
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.headers import TXN
from stilltide.schemas.topics import TXN_MARKERS, TopicSpec, system_topics
from stilltide.schemas.values import EndOffset, TopicPartition, TxnId

DATA = TopicPartition("orders", 0)
ID = TxnId(0, 7)
HEADERS = [(TXN, ID.to_bytes())]


class Heard:
    """Everything that a host says."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.undecided_changes = 0
        self.evidence = asyncio.Event()

    def delivered(self, _data: TopicPartition, found: Deliver[str]) -> None:
        """Visible records."""
        self.taken += found.payloads

    def withheld(self, _data: TopicPartition, _withheld: Withheld) -> None:
        """A record that no one will see."""

    def undecided_changed(self) -> None:
        """A partition is blocked, or not any more."""
        self.undecided_changes += 1

    def evidence_read(self) -> None:
        """A batch of markers or snapshots was read."""
        self.evidence.set()


class Host:
    """A host whose evidence is read, over a memory broker."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self.heard = Heard()
        connector = MemoryConnector(broker)
        self.admin = connector.admin()
        outages = OutageGuard(self.admin, timeout_s=20)
        self.decided = DecidedPartitions[str](
            OutcomeLogs(connector, self.admin, outages, "test", 1, 1),
            self.heard,
            waiting_max=4,
        )

    def mark(self, *, committed: bool, end: int) -> None:
        """Writes the outcome of the transaction."""
        topic_id = self.broker.topics[DATA.topic].description.topic_id
        marker = Marker(DATA, ID, committed, EndOffset(0), EndOffset(end), end, topic_id)
        key, value = markers.encode_key(DATA, ID), markers.encode_value(marker)
        self.broker.append(TopicPartition(TXN_MARKERS, 0), key, value, None)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns when it holds after a batch of evidence."""
        async with asyncio.timeout(20):
            while not holds():
                self.heard.evidence.clear()
                await self.heard.evidence.wait()


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    """With one partition, from its start."""
    broker = MemoryBroker()
    for spec in [*system_topics(coordinators=1, partitions=1), TopicSpec(DATA.topic, 1)]:
        broker.create_topic(spec)
    made = Host(broker)
    made.decided.add({DATA: 0})
    running = asyncio.create_task(made.decided.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await made.admin.close()


async def test_a_marker_decides_what_waits(host: Host):
    """D1, D2: records wait for the marker of their transaction, and are delivered in order."""
    host.decided.records_read(DATA, [0, 1, 2], [None, HEADERS, None], ["a", "b", "c"])
    assert host.heard.taken == ["a"]
    assert host.decided.blocked()[DATA][:3] == (DATA, 1, ID)
    host.mark(committed=True, end=2)
    await host.until(lambda: host.heard.taken == ["a", "b", "c"])
    assert not host.decided.blocked()
    assert host.heard.undecided_changes == 2


async def test_a_removed_partition_is_ignored(host: Host):
    """After `remove`, records and markers of the partition change nothing."""
    host.decided.records_read(DATA, [0], [HEADERS], ["a"])
    host.decided.remove([DATA])
    host.mark(committed=True, end=1)
    await host.until(lambda: host.decided.was_read(DATA, EndOffset(1), EndOffset(0)))
    host.decided.records_read(DATA, [1], [None], ["b"])
    host.decided.end_reached(DATA, EndOffset(9))
    assert not host.heard.taken
    assert not host.decided.partitions
    assert not host.decided.blocked()
