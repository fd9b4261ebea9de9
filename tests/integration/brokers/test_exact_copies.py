"""H11 on three brokers: the writer of exact copies while leaders move, stop, die and freeze."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from stilltide.connectors.errors import FencedError, RetriableError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.kafka.raw.exact_copying import ExactCopyWriter
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.copying import Copies, Span
from stilltide.connectors.ports.readers import NewRecord, Record
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.brokers.faults import Brokers
from tests.support.brokers.site import REPLICAS
from tests.support.looks import lasting

DATA, NOTES = TopicPartition("copies", 0), TopicPartition("notes", 0)
PER_TRANSACTION = 1000
VALUE_BYTES = 2000
"""So that a transaction has twenty batches."""

MORE = 3
"""Transactions after each fault."""

WAIT_S = 300.0
REQUEST_S = 2.0
FREEZE_S = 3.0
"""Longer than a request waits: the same batch is sent again, and the broker has it already."""
FREEZES = 3

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class Copier:
    """Copies numbers as a link does: each transaction notes how far it has come.

    Attributes:
        spans: by the first number of each transaction that has committed, the offsets of its
            copies; without those whose commit had no answer.
        again: how often another writer had to begin.
    """

    def __init__(self, connector: KafkaConnector) -> None:
        self.spans: dict[int, tuple[int, int]] = {}
        self.again = 0
        self._connector = connector
        self._own = connector.own_id("exact")
        self._moved = asyncio.Condition()
        self._span = Span()  # of the transaction under way

    async def run(self) -> None:
        """Copies until cancelled."""
        while True:
            self._connector._transactional_ids.exact.add(self._own)
            writer = self._connector.copy_writer(self._own)
            assert isinstance(writer, ExactCopyWriter)
            try:
                await writer.fence()
                number = int(values[-1]) if (values := await self._read(NOTES)) else 0
                while True:
                    number = await self._transaction(writer, number)
            except (RetriableError, FencedError):  # fenced: its transaction has timed out
                self.again += 1
            finally:
                await writer.close()

    async def _transaction(self, writer: ExactCopyWriter, number: int) -> int:
        values = [b"%d" % it + bytes(VALUE_BYTES) for it in range(number, number + PER_TRANSACTION)]
        span = self._span = Span()
        await writer.begin()
        count = len(values)
        copies = Copies([b"k"] * count, values, [0] * count, [[]] * count)
        await writer.copy(DATA, copies, span)
        await writer.flush()
        end = number + PER_TRANSACTION
        await writer.commit([NewRecord(NOTES, b"k", b"%d" % end)])
        assert span.first is not None
        assert span.end is not None
        async with self._moved:
            self.spans[number] = span.first, span.end
            self._moved.notify_all()
        return end

    async def more(self) -> None:
        """Returns after some more transactions."""
        wanted = len(self.spans) + MORE
        async with asyncio.timeout(WAIT_S), self._moved:
            await self._moved.wait_for(lambda: len(self.spans) >= wanted)

    async def amid(self) -> None:
        """Returns when the first batch of another transaction is written, and others follow."""
        async with asyncio.timeout(WAIT_S):
            before = self._span
            while self._span is before or self._span.first is None:  # noqa: ASYNC110 - a span tells nobody
                await asyncio.sleep(0)

    async def _read(self, data: TopicPartition) -> list[bytes]:
        return [it.value or b"" for it in await committed(self._connector, data)]


async def committed(connector: KafkaConnector, data: TopicPartition) -> list[Record]:
    """All committed records of a partition, once no transaction holds them back."""
    admin, reader, found = connector.admin(), connector.reader("test"), list[Record]()
    try:
        end = (await admin.end_offsets([data]))[data]
        await reader.assign({data: Offset(0)})
        at = 0
        while at < end:
            for item in await reader.read():
                if isinstance(item, Record):
                    found.append(item)
                    at = item.offset + 1
                else:
                    at = max(at, item.end_offset)
    finally:
        await asyncio.gather(reader.close(), admin.close())
    return found


@asynccontextmanager
async def copying(connector: KafkaConnector) -> AsyncIterator[Copier]:
    """A copier that runs; its error is raised."""
    copier = Copier(connector)
    running = asyncio.create_task(copier.run())
    try:
        yield copier
        assert not running.done(), running.exception()
    finally:
        running.cancel()
        await asyncio.wait([running])


def leader_of(cluster: LocalCluster, data: TopicPartition) -> int:
    """The broker that leads a partition now."""
    found = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=30)
    return found.topics[data.topic].partitions[data.partition].leader


async def leaders_move(cluster: LocalCluster, copier: Copier) -> None:
    """Each partition gets another leader, while batches are on their way."""
    await Brokers(cluster).turn_leaders()
    await copier.more()


async def leader_stops(cluster: LocalCluster, copier: Copier) -> None:
    """SIGTERM: the leader hands over, and comes back."""
    brokers = Brokers(cluster)
    await brokers.stop(await asyncio.to_thread(leader_of, cluster, DATA))
    await copier.more()
    await brokers.start()
    await copier.more()


async def leader_is_killed(cluster: LocalCluster, copier: Copier) -> None:
    """SIGKILL: nobody answers the batch that is under way."""
    brokers = Brokers(cluster)
    leader = await asyncio.to_thread(leader_of, cluster, DATA)
    await copier.amid()
    await brokers.kill(leader)
    await copier.more()
    await brokers.start()
    await copier.more()


async def leader_freezes(cluster: LocalCluster, copier: Copier) -> None:
    """The leader stands still, and answers later: repeated batches meet those that it had."""
    for _ in range(FREEZES):
        leader = cluster.broker(await asyncio.to_thread(leader_of, cluster, DATA))
        await copier.amid()
        leader.pause()
        try:
            await lasting(FREEZE_S)
        finally:
            leader.resume()
        await copier.more()


async def test_nothing_is_lost_doubled_or_misplaced(tmp_path: Path):
    """H2, H11: in order, once, and each transaction's span is where its copies are."""
    with LocalCluster("a", tmp_path, brokers=3, fast_start=True) as cluster:
        connector = KafkaConnector(KafkaConfig(cluster.bootstrap))
        hasty = KafkaConnector(KafkaConfig(cluster.bootstrap, request_timeout_s=REQUEST_S))
        admin = connector.admin()
        kept = {"retention.ms": "-1"}
        await admin.ensure_topics([TopicSpec(it.topic, 1, kept, REPLICAS) for it in (DATA, NOTES)])
        await admin.close()
        async with copying(hasty) as copier:
            await copier.more()
            for strike in (leaders_move, leader_stops, leader_is_killed, leader_freezes):
                await strike(cluster, copier)
        copies = await committed(connector, DATA)
    numbers = [int((it.value or b"").rstrip(b"\0")) for it in copies]
    assert numbers == [*range(len(copies))]
    assert len(copies) >= len(copier.spans) * PER_TRANSACTION
    for number, (first, end) in copier.spans.items():
        assert copies[number].offset == first
        assert copies[number + PER_TRANSACTION - 1].offset == end - 1
