"""Indexes topics: runs one indexer for each partition of aborted-index that the topics need.

*Source*: docs/protocols F3; `schemas.placement`.
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
"""Seconds between two looks at partitions without new records."""


def placed_partitions(
    topics: Iterable[TopicDescription], partition_count: int
) -> dict[int, list[TopicPartition]]:
    """The partitions of topics, by the partition of aborted-index to which they belong.

    Args:
        topics: descriptions of the topics as of now.
        partition_count: number of partitions of aborted-index.
    """
    found: dict[int, list[TopicPartition]] = {}
    for topic in topics:
        for number in range(topic.partition_count):
            data = TopicPartition(topic.name, number)
            found.setdefault(system_partition(data, partition_count), []).append(data)
    return found


class AbortedIndexing:
    """Indexes topics; partitions that a topic gains later are indexed from the next start on.

    A log that ends below an indexer's position is asked, not waited for (see `AbortedIndexer`).

    Args:
        connector: the cluster.
        batches: reads batches of the same cluster; `close` closes it.
        clock: the clocks, for the delay of writes.
        topics: names of the topics.
        partition_count: number of partitions of aborted-index, if the topic must be created.
        replicas: replicas of aborted-index, if the topic must be created.
        patience_s: longest absence of the cluster before `run` has begun; later, `run` waits.
        limits: sizes and times of writes.
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
        self._outages = OutageGuard(self._admin)
        self._at_start = OutageGuard(self._admin, timeout_s=patience_s)
        self._indexers: dict[int, AbortedIndexer] = {}

    async def once(self) -> dict[TopicPartition, EndOffset]:
        """Indexes up to the last stable offsets as of now; returns the end offsets indexed.

        Raises:
            FatalError: a topic does not exist, or aborted-index has another policy.
            FencedError: another indexer has taken over.
            RetriableError: the cluster is away.
            AbortedIndexError: the stored index is incomplete, or a log has lost its end.
        """
        await self._open()
        positions: dict[TopicPartition, EndOffset] = {}
        for indexer in self._indexers.values():
            await indexer.catch_up()
            positions.update(indexer.positions())
        return positions

    async def run(self) -> None:
        """Follows the topics until cancelled; raises as `once`, but repeats calls in an outage.

        Raises:
            UnavailableError: the cluster was away for longer than `patience_s` before the first
                look at the topics.
        """
        await self._at_start.call(self._round)
        while True:
            if not await self._outages.call(self._round):
                await asyncio.sleep(IDLE_S)

    @property
    def serving(self) -> bool:
        """Whether every indexer has read its index, and none has failed since."""
        return bool(self._indexers) and all(it.positions() for it in self._indexers.values())

    def stats(self) -> dict[int, IndexStats]:
        """Figures by partition of aborted-index; takes some us for each data partition."""
        return {partition: one.stats() for partition, one in self._indexers.items()}

    async def drop(self) -> int:
        """Deletes the index of the topics; returns the number of records deleted."""
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
        """The partitions of the topics, by the partition of aborted-index to which they belong."""
        specs = system_topics(coordinators=1, partitions=self._partition_count)
        mine = [spec for spec in specs if spec.name == ABORTED_INDEX]
        await self._described()  # a mistyped name leaves no topic behind
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
