"""Writes one partition of aborted-index for as long as it is assigned to this worker.

*Source*: docs/protocols F3, F4, B4 (a new ownership begins after a random delay).

*Invariants*: an error here does not end the worker's other services: a data partition that cannot
be indexed rests, and so does a partition of the index that cannot be read. The coverage then stays
as it is, and the answer beyond it is *unknown* (F4). Both are tried again.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from stilltide.connectors.errors import (
    ConnectorError,
    FatalError,
    FencedError,
    OffsetOutOfRangeError,
    RecordRefusedError,
    RetriableError,
)
from stilltide.connectors.ports.admin import TopicDescription
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import BatchReader, NewRecord
from stilltide.pipeline.core.native.index_table import IndexTable
from stilltide.pipeline.core.native.indexer import IndexLimits, PartitionIndexer, WriteIndex
from stilltide.pipeline.core.replicas import AUTOMATIC, WantedReplicas
from stilltide.pipeline.drivers.native.evidence import read_index_table
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.service.own.owner import OwnerDeps
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.topic_findings import ensure_replicated
from stilltide.pipeline.errors import AbortedIndexError
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.metrics.worker import IndexMetrics, IndexStats
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.topics import ABORTED_INDEX, system_partition, system_topics
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

log = get_logger(__name__)


class AbortedIndexer:
    """Indexes data partitions that share one partition of aborted-index: `open`, then `advance`.

    After an error, `close` the indexer; a new indexer continues at the stored coverage.

    Args:
        connector: the cluster.
        batches: reads batches of the same cluster; the caller closes it.
        partition: number of the partition of aborted-index.
        limits: sizes and times of writes.
        failed: called with a data partition that cannot be indexed, and the error; the partition
            rests until the next `open`. None: such an error is raised.
        hindrances: what hinders the worker (C17).
    """

    def __init__(
        self,
        connector: Connector,
        batches: BatchReader,
        partition: int,
        limits: IndexLimits,
        *,
        failed: Callable[[TopicPartition, StilltideError], None] | None = None,
        hindrances: Hindrances | None = None,
    ) -> None:
        self._hindrances = hindrances or Hindrances()
        self._failed = failed
        self._index = TopicPartition(ABORTED_INDEX, partition)
        self._batches = batches
        self._clock = connector.clock
        self._limits = limits
        self._admin = connector.admin()
        self._connector = connector
        self._writer = connector.transactional_writer(
            connector.own_id(f"aborted-index-{partition}")
        )
        self._indexers: dict[TopicPartition, PartitionIndexer] = {}
        self._topic_ids: Mapping[str, bytes] = {}

    async def open(self, data: Sequence[TopicPartition], topic_ids: Mapping[str, bytes]) -> None:
        """Takes over the partition of the index and reads its records.

        Args:
            data: data partitions to index; each belongs to this partition of the index.
            topic_ids: Kafka's ids of their topics, by name.

        Raises:
            RetriableError: the broker is away.
            FatalError: a topic does not exist.
            AbortedIndexError, DecodeError: the stored index is incomplete.
        """
        table = await self._take_over()
        self._topic_ids = topic_ids
        starts = await self._admin.start_offsets(data)
        for partition in data:
            if partition not in starts:
                absent = FatalError(f"{partition} does not exist", hint="name topics that exist")
                self._give_up(partition, absent)
                continue
            topic_id = topic_ids[partition.topic]
            try:
                self._indexers[partition] = PartitionIndexer(
                    partition, topic_id, table.index(partition), starts[partition], self._limits
                )
            except AbortedIndexError as error:
                self._give_up(partition, error)

    async def advance(self) -> bool:
        """Fetches once from each partition with new records; whether any partition had some.

        Raises:
            FencedError: another indexer has taken over.
            RetriableError: the broker is away, or a topic was created again: begin again.
            FatalError: see the ports.
            AbortedIndexError: a log has lost its end.
        """
        starts, ends = await self._extents()
        moved = False
        for data, indexer in list(self._indexers.items()):
            if indexer.position == ends[data]:
                await self._write(data, self._at_rest(indexer, starts[data], ends[data]))
                continue
            # A log that ends below the position is asked, too, and not waited for: a late leader
            # answers "not available", a leader that has lost the end answers "out of range".
            moved = moved or indexer.position < ends[data]
            try:
                effects = await self._fetch(data, indexer)
            except (AbortedIndexError, FatalError) as error:
                self._give_up(data, error)
            else:
                await self._write(data, effects)
        return moved

    async def catch_up(self) -> None:
        """Indexes up to the last stable offsets as of the call, and writes everything.

        Raises:
            The errors of `advance`.
        """
        starts, ends = await self._extents()
        for data, indexer in self._indexers.items():
            if indexer.position > ends[data]:
                await self._write(data, await self._fetch(data, indexer))
            while indexer.position < ends[data]:
                await self._write(data, await self._fetch(data, indexer))
            await self._write(data, self._at_rest(indexer, starts[data], ends[data]))
            await self._write(data, indexer.flush())

    async def drop(self, data: Sequence[TopicPartition]) -> int:
        """Deletes the index of data partitions, complete or not; returns the number of records.

        Raises:
            RetriableError, FatalError: see the ports.
        """
        table = await self._take_over()
        keys = [key for one in data for key in table.keys(one)]
        await self._writer.write([NewRecord(self._index, key, None) for key in keys])
        return len(keys)

    def stats(self) -> IndexStats:
        """Figures of the partition of the index; takes some us for each data partition."""
        indexers = self._indexers
        return IndexStats(
            data_partitions=len(indexers),
            range_count=sum(one.range_count for one in indexers.values()),
            lag=max((one.lag for one in indexers.values()), default=0),
        )

    def positions(self) -> dict[TopicPartition, EndOffset]:
        """The end offset of what is indexed, written or not, by data partition."""
        return {data: EndOffset(one.position) for data, one in self._indexers.items()}

    async def close(self) -> None:
        """Releases the connections; results that were not written are indexed again later."""
        await self._writer.close()
        await self._admin.close()

    async def _take_over(self) -> IndexTable:
        """Fences the former indexer, then reads the stored index."""
        await self._writer.fence()
        return await read_index_table(
            self._connector, self._admin, self._index.partition, keep_ranges=False
        )

    async def _extents(
        self,
    ) -> tuple[dict[TopicPartition, Offset], dict[TopicPartition, EndOffset]]:
        """Log starts and last stable offsets of all data partitions."""
        data = list(self._indexers)
        starts = await self._admin.start_offsets(data)
        ends = await self._admin.end_offsets(data, committed=True)
        for partition in data:
            if partition not in starts or partition not in ends:
                self._give_up(
                    partition,
                    FatalError(f"{partition} is gone", hint="leave out topics that were deleted"),
                )
        return starts, ends

    def _give_up(self, data: TopicPartition, error: AbortedIndexError | FatalError) -> None:
        """Stops indexing the partition if there is `failed`; otherwise raises the error."""
        if self._failed is None:
            raise error
        self._indexers.pop(data, None)
        self._failed(data, error)

    def _at_rest(
        self, indexer: PartitionIndexer, log_start: Offset, last_stable_offset: EndOffset
    ) -> list[WriteIndex]:
        """Applies a new log start without a fetch: retention goes on without new records."""
        return indexer.fetched((), (), log_start, last_stable_offset, self._clock.monotonic_ms())

    async def _fetch(self, data: TopicPartition, indexer: PartitionIndexer) -> list[WriteIndex]:
        try:
            fetched = await self._batches.fetch(data, indexer.position)
        except OffsetOutOfRangeError:
            starts = await self._admin.start_offsets([data])
            ends = await self._admin.end_offsets([data], committed=True)
            if data not in starts or data not in ends:
                raise
            log.info("position_out_of_range", data=str(data), position=indexer.position)
            return indexer.out_of_range(starts[data], ends[data], self._clock.monotonic_ms())
        return indexer.fetched(
            fetched.batches,
            fetched.aborted,
            fetched.log_start,
            fetched.last_stable_offset,
            self._clock.monotonic_ms(),
        )

    async def _write(self, data: TopicPartition, effects: Sequence[WriteIndex]) -> None:
        for effect in effects:
            await self._check_topic(data.topic)
            records = [NewRecord(self._index, key, value) for key, value in effect.records]
            with self._hindrances.trying("index", str(self._index)):
                await self._writer.write(records)

    async def _check_topic(self, topic: str) -> None:
        """Checks the topic id: a fetch names the topic, which may have been created again (E8)."""
        described = (await self._admin.describe_topics([topic])).get(topic)
        if described is None or described.topic_id != self._topic_ids[topic]:
            raise RetriableError(f"topic {topic} was deleted or created again", hint="begin again")


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
    placed: dict[int, list[TopicPartition]] = {}
    for topic in topics:
        for number in range(topic.partition_count):
            data = TopicPartition(topic.name, number)
            placed.setdefault(system_partition(data, partition_count), []).append(data)
    return placed


class AbortedIndexing:
    """Indexes topics; partitions that a topic gains later are indexed from the next start on.

    A log that ends below an indexer's position is asked, not waited for (see `AbortedIndexer`).

    Args:
        connector: the cluster.
        batches: reads batches of the same cluster; `close` closes it.
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
        topics: Sequence[str],
        *,
        partition_count: int,
        patience_s: float,
        replicas: WantedReplicas = AUTOMATIC,
        limits: IndexLimits | None = None,
    ) -> None:
        self._connector = connector
        self._batches = batches
        self._topics = topics
        self._partition_count = partition_count
        self._replicas = replicas
        self._limits = limits or IndexLimits()
        self._admin = connector.admin()
        self._outages = OutageGuard(self._admin)
        self._at_start = OutageGuard(self._admin, timeout_s=patience_s, awaits_contact=True)
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
        described = await self._admin.describe_topics(self._topics)
        for name in self._topics:
            if name not in described:
                raise FatalError("the topic does not exist", hint="correct the name", topic=name)
        return described

    def _indexer(self, partition: int) -> AbortedIndexer:
        return AbortedIndexer(self._connector, self._batches, partition, self._limits)

    async def _shut(self) -> None:
        indexers, self._indexers = self._indexers, {}
        for indexer in indexers.values():
            await indexer.close()


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
        stats = self._indexer.stats() if self._indexer else IndexStats()
        return stats._replace(resting=len(self._resting))

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
        described = await self._deps.admin.describe_topics(self._topics)
        missing = {name for name in self._topics if name not in described}
        for name in sorted(missing - self._missing):
            log.warning("topic_to_index_missing", topic=name, partition=self.partition)
        self._missing = missing
        return described

    def _rest(self, data: TopicPartition, error: StilltideError) -> None:
        self._resting[data] = error
        log.error(
            "aborted_indexing_rests",
            data=str(data),
            why=str(error),
            hint=error.hint,
            again_in_s=REST_S,
        )
