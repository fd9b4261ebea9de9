"""Keeps aborted-index for some topics: one indexer for each partition of it that they need.

*Source*: protocols.md F3; system.md, Topics (placement).
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from stilltide.connectors.clock import Clock
from stilltide.connectors.errors import ConnectorError, FatalError
from stilltide.connectors.ports.admin import TopicDescription
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import BatchReader
from stilltide.pipeline.core.native.indexer import IndexLimits
from stilltide.pipeline.core.replicas import AUTOMATIC, WantedReplicas
from stilltide.pipeline.drivers.native.indexer import AbortedIndexer
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.topic_replicas import ensure_replicated
from stilltide.pipeline.metrics.native import IndexStats
from stilltide.schemas.placement import system_partition
from stilltide.schemas.topics import ABORTED_INDEX, system_topics
from stilltide.schemas.values import EndOffset, TopicPartition

IDLE_S = 0.5
"""Between two looks at partitions that have nothing new."""

_RETRY_S = 0.5


def placed_partitions(
    topics: Iterable[TopicDescription], partition_count: int
) -> dict[int, list[TopicPartition]]:
    """The partitions of topics, by the partition of aborted-index they belong to.

    Args:
        topics: as they are now.
        partition_count: of aborted-index.
    """
    found: dict[int, list[TopicPartition]] = {}
    for topic in topics:
        for number in range(topic.partition_count):
            data = TopicPartition(topic.name, number)
            found.setdefault(system_partition(data, partition_count), []).append(data)
    return found


class AbortedIndexing:
    """Indexes topics; partitions that are added to them later count from the next `open` on.

    Args:
        connector: the cluster.
        batches: of the same cluster; closed here.
        clock: for the delay of writes.
        topics: their names.
        partition_count: of aborted-index, when it must be created.
        replicas: likewise.
        patience_s: how long the cluster may be away, each time.
        limits: when to write.
    """

    def __init__(
        self,
        connector: Connector,
        batches: BatchReader,
        clock: Clock,
        topics: Sequence[str],
        *,
        partition_count: int,
        patience_s: float,
        replicas: WantedReplicas = AUTOMATIC,
        limits: IndexLimits | None = None,
    ) -> None:
        self._connector = connector
        self._batches = batches
        self._clock = clock
        self._topics = topics
        self._partition_count = partition_count
        self._replicas = replicas
        self._limits = limits or IndexLimits()
        self._admin = connector.admin()
        self._outages = OutageGuard(self._admin, timeout_s=patience_s, retry_delay_s=_RETRY_S)
        self._indexers: dict[int, AbortedIndexer] = {}

    async def once(self) -> dict[TopicPartition, EndOffset]:
        """Indexes up to the last stable offsets of now; returns them.

        Raises:
            FatalError: no such topic, or aborted-index is not as it must be.
            FencedError: another indexer has taken over.
            RetriableError: the cluster is away.
            AbortedIndexError: what is stored is not whole, or a log has lost its end.
        """
        await self._open()
        positions: dict[TopicPartition, EndOffset] = {}
        for indexer in self._indexers.values():
            await indexer.catch_up()
            positions.update(indexer.positions())
        return positions

    async def run(self) -> None:
        """Follows the topics until cancelled; raises as `once`, but rides out outages.

        Raises:
            UnavailableError: the cluster was away for longer than `patience_s`.
        """
        while True:
            if not await self._outages.call(self._round):
                await asyncio.sleep(IDLE_S)

    @property
    def serving(self) -> bool:
        """Whether every indexer has read what is there, and none has lost the cluster."""
        return bool(self._indexers) and all(it.positions() for it in self._indexers.values())

    def stats(self) -> dict[int, IndexStats]:
        """Figures by partition of aborted-index; some us for each data partition."""
        return {partition: one.stats() for partition, one in self._indexers.items()}

    async def drop(self) -> int:
        """Deletes what is stored about the topics; how many records that was."""
        count = 0
        for partition, data in (await self._placed()).items():
            indexer = self._indexers[partition] = self._indexer(partition)
            count += await indexer.drop(data)
        return count

    async def close(self) -> None:
        """Releases the connections."""
        await self._shut()
        await self._batches.close()
        await self._admin.close()

    async def _round(self) -> bool:
        try:
            if not self._indexers:
                await self._open()
            return any([await indexer.advance() for indexer in self._indexers.values()])
        except ConnectorError:
            await self._shut()
            raise

    async def _open(self) -> None:
        placed = await self._placed()
        topic_ids = {name: one.topic_id for name, one in (await self._described()).items()}
        for partition, data in placed.items():
            indexer = self._indexers[partition] = self._indexer(partition)
            await indexer.open(data, topic_ids)

    async def _placed(self) -> dict[int, list[TopicPartition]]:
        """The partitions of the topics, by the partition of aborted-index they belong to."""
        specs = system_topics(coordinators=1, partitions=self._partition_count)
        mine = [spec for spec in specs if spec.name == ABORTED_INDEX]
        await ensure_replicated(self._admin, mine, self._replicas)
        return placed_partitions((await self._described()).values(), self._partition_count)

    async def _described(self) -> Mapping[str, TopicDescription]:
        found = await self._admin.describe_topics(self._topics)
        for name in self._topics:
            if name not in found:
                raise FatalError("the topic does not exist", hint="correct the name", topic=name)
        return found

    def _indexer(self, partition: int) -> AbortedIndexer:
        return AbortedIndexer(self._connector, self._batches, self._clock, partition, self._limits)

    async def _shut(self) -> None:
        indexers, self._indexers = self._indexers, {}
        for indexer in indexers.values():
            await indexer.close()
