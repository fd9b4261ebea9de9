"""Writes one partition of aborted-index for as long as it is assigned to this worker.

*Source*: docs/protocols F3, F4, B4 (a new ownership begins after a random delay).

*Invariants*: an error here does not end the worker's other services: a data partition that cannot
be indexed rests, and so does a partition of the index that cannot be read. The coverage then stays
as it is, and the answer beyond it is *unknown* (F4). Both are tried again.
"""

import asyncio
from collections.abc import Sequence

from stilltide.connectors.errors import (
    FencedError,
    RecordRefusedError,
    RetriableError,
)
from stilltide.connectors.ports.admin import TopicDescription
from stilltide.connectors.ports.readers import BatchReader
from stilltide.pipeline.core.native.indexer import IndexLimits
from stilltide.pipeline.drivers.native.indexing import IDLE_S, AbortedIndexer, placed_partitions
from stilltide.pipeline.drivers.service.owner import OwnerDeps
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.metrics.native import IndexMetrics, IndexStats
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.values import TopicPartition

log = get_logger(__name__)

LOOK_S = 5.0
"""Seconds between two looks at the topics, which find new partitions."""

REST_S = 30.0
"""Seconds until a partition that cannot be indexed is tried again."""


class IndexOwner:
    """The indexer of one partition of aborted-index.

    Args:
        partition: number of the partition of aborted-index.
        deps: dependencies shared with other owners.
        batches: reads batches of the cluster.
        topics: names of the topics to index; a topic may be created later.
        metrics: metrics of this indexer.
        limits: sizes and times of writes.
    """

    def __init__(
        self,
        partition: int,
        deps: OwnerDeps,
        *,
        batches: BatchReader,
        topics: Sequence[str],
        metrics: IndexMetrics,
        limits: IndexLimits | None = None,
    ) -> None:
        self.partition = partition
        self._deps = deps
        self._batches = batches
        self._topics = topics
        self._limits = limits or IndexLimits()
        self._metrics = metrics
        self._indexer: AbortedIndexer | None = None
        self._resting: dict[TopicPartition, StilltideError] = {}
        self._missing: set[str] = set()
        self._idle = False

    @property
    def serving(self) -> bool:
        """Whether it has taken over and read its partition, or has no data partition to index."""
        return self._indexer is not None or self._idle

    async def run(self) -> None:
        """Runs one ownership; returns when the topics have changed, or a rest has ended."""
        deps = self._deps
        topics = await self._look()
        data = placed_partitions(topics.values(), deps.partition_count).get(self.partition)
        self._resting = {}
        if not data:
            self._idle = True
            await asyncio.sleep(LOOK_S)
            return
        self._idle = False
        indexer = AbortedIndexer(
            deps.connector,
            self._batches,
            deps.clock,
            self.partition,
            self._limits,
            failed=self._rest,
            hindrances=deps.hindrances,
        )
        try:
            await indexer.open(data, {name: one.topic_id for name, one in topics.items()})
            self._indexer = indexer
            log.info("aborted_indexer_serving", partition=self.partition, data=len(data))
            await self._follow(indexer, topics)
        finally:
            self._indexer = None
            await indexer.close()

    def passes(self, error: StilltideError) -> bool:
        """Whether another indexer has taken over, or a question or write failed."""
        if isinstance(error, FencedError):
            self._metrics.fenced.inc()
        else:
            self._metrics.failed.inc()
        return isinstance(error, FencedError | RecordRefusedError | RetriableError)

    def stats(self) -> IndexStats:
        """The indexer's figures, only while it serves."""
        found = self._indexer.stats() if self._indexer else IndexStats()
        return found._replace(resting=len(self._resting))

    async def _follow(self, indexer: AbortedIndexer, topics: dict[str, TopicDescription]) -> None:
        now_s = asyncio.get_running_loop().time
        looked_s = began_s = now_s()
        while not (self._resting and now_s() - began_s > REST_S):
            if not await indexer.advance():
                await asyncio.sleep(IDLE_S)
            if now_s() - looked_s > LOOK_S:
                if await self._look() != topics:
                    return
                looked_s = now_s()

    async def _look(self) -> dict[str, TopicDescription]:
        """The topics that exist; a missing topic is logged once."""
        found = await self._deps.admin.describe_topics(self._topics)
        missing = {name for name in self._topics if name not in found}
        for name in sorted(missing - self._missing):
            log.warning("topic_to_index_missing", topic=name, partition=self.partition)
        self._missing = missing
        return found

    def _rest(self, data: TopicPartition, error: StilltideError) -> None:
        self._resting[data] = error
        log.error(
            "aborted_indexing_rests",
            data=str(data),
            why=str(error),
            hint=error.hint,
            again_in_s=REST_S,
        )
