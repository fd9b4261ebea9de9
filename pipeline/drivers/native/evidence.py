"""Gathers the aborted ranges of topics from aborted-index, for batch jobs.

*Source*: docs/protocols F2, F3, F4, E8.
*Invariants*:
- The last stable offsets are read before the index, so that an indexer that follows has mostly
  covered them. Log starts are read last, since an index drops ranges that retention has deleted.
- A part without coverage is a problem of its partition (F4), never an empty list of ranges.

Refuses: topics that do not exist, foreign records in aborted-index.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError, RetriableError
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.readers import BatchReader, Record
from stilltide.pipeline.core.native.batch_filter import AbortedRanges, BatchFilter, RangeBuilder
from stilltide.pipeline.core.native.index_table import IndexTable, StoredIndex
from stilltide.pipeline.core.native.offset_ledger import OffsetLedger
from stilltide.pipeline.drivers.shared.feed import TopicFeed
from stilltide.pipeline.drivers.shared.named_partitions import (
    all_partitions,
    missing_topic,
    named_topics,
)
from stilltide.pipeline.errors import AbortedIndexError
from stilltide.schemas.native.aborted_index import Coverage
from stilltide.schemas.topics import ABORTED_INDEX, system_partition
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

ATTEMPTS_MAX = 10
"""Reads of the index before a problem is reported: compaction may remove records during a read."""


@dataclass(frozen=True)
class NativeEvidence:
    """Bounds of partitions, and the aborted ranges in them.

    Attributes:
        data: `[log start, last stable offset)` of each partition, or the requested part of it;
            ordered by topic and partition.
        topic_ids: Kafka's 16-byte id of each topic.
        aborted: aborted ranges up to `covered_to`, of each partition with coverage from the start
            of its range on.
        covered_to: end offset of the coverage of the same partitions.
        problems: cause of the missing coverage, of each partition that is not wholly covered.
    """

    data: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, bytes]
    aborted: Mapping[TopicPartition, AbortedRanges]
    covered_to: Mapping[TopicPartition, EndOffset]
    problems: Mapping[TopicPartition, AbortedIndexError]

    def covered(self) -> list[OffsetRange]:
        """The covered parts of `data`, without empty ones."""
        parts = [
            read._replace(end=min(read.end, self.covered_to.get(read.data, EndOffset(0))))
            for read in self.data
        ]
        return [part for part in parts if part.start < part.end]

    def check(self) -> None:
        """Checks that every range is covered.

        Raises:
            AbortedIndexError: the problem of the first partition that is not covered.
        """
        for problem in self.problems.values():
            raise problem


async def gather_native(
    connector: Connector,
    topics: Sequence[str],
    within: Sequence[OffsetRange] | None = None,
) -> NativeEvidence:
    """The bounds of `topics` as of now, and the aborted ranges in them.

    Args:
        connector: the cluster.
        topics: names of topics, at least one.
        within: ranges of partitions of `topics` to use instead of whole logs; None: whole logs.

    Raises:
        FatalError: a topic or partition does not exist, a range ends above its last stable offset.
        DecodeError: a record of aborted-index is foreign, or of a later version.
        RetriableError: the broker is away, or a topic was created again meanwhile.
    """
    async with closing(connector.admin()) as admin:
        described = await named_topics(admin, topics)
        data = (
            all_partitions(described.values()) if within is None else [one.data for one in within]
        )
        ends = await admin.end_offsets(data, committed=True)
        async with closing(await _Index.opened(connector, admin, data)) as index:
            return await _gather(admin, described, index, (data, ends), within)


class FollowedIndex:
    """The aborted ranges of some topics, read on instead of from the beginning with each call.

    Args:
        connector: the cluster.
        topics: at least one.
    """

    def __init__(self, connector: Connector, topics: Sequence[str]) -> None:
        self._connector = connector
        self._topics = sorted(set(topics))
        self._admin = connector.admin()
        self._described: dict[str, TopicDescription] = {}
        self._index: _Index | None = None

    async def read_on(self) -> NativeEvidence:
        """The bounds and aborted ranges as of now; raises as `gather_native`."""
        described = await named_topics(self._admin, self._topics)
        data = all_partitions(described.values())
        if self._index is None or described != self._described:  # new partitions, or topics
            await self._close_index()
            self._described = described
            self._index = await _Index.opened(self._connector, self._admin, data)
        ends = await self._admin.end_offsets(data, committed=True)
        return await _gather(self._admin, described, self._index, (data, ends), None)

    async def close(self) -> None:
        """Releases the readers."""
        await self._close_index()
        await self._admin.close()

    async def _close_index(self) -> None:
        index, self._index = self._index, None
        if index is not None:
            await index.close()


async def _gather(
    admin: LogAdmin,
    described: Mapping[str, TopicDescription],
    index: "_Index",
    bounds: tuple[Sequence[TopicPartition], Mapping[TopicPartition, EndOffset]],
    within: Sequence[OffsetRange] | None,
) -> NativeEvidence:
    """Reads the index until all is covered, or until a read of the index finds no new record."""
    data, ends = bounds
    attempts = 0
    while True:
        attempts += 1
        news = await index.read_on()
        starts = await admin.start_offsets(data)
        if await named_topics(admin, list(described)) != described:
            raise RetriableError("a topic changed while its offsets were read", hint="try again")
        reads = _reads(data, starts, ends) if within is None else _stable(within, starts, ends)
        judged = _judged(reads, described, index)
        if not judged.problems or not news or attempts == ATTEMPTS_MAX:
            return judged


def _reads(
    data: Sequence[TopicPartition],
    starts: Mapping[TopicPartition, Offset],
    ends: Mapping[TopicPartition, EndOffset],
) -> list[OffsetRange]:
    _check_there(data, starts, ends)
    return [OffsetRange(one, starts[one], EndOffset(max(starts[one], ends[one]))) for one in data]


def _stable(
    within: Sequence[OffsetRange],
    starts: Mapping[TopicPartition, Offset],
    ends: Mapping[TopicPartition, EndOffset],
) -> list[OffsetRange]:
    _check_there([read.data for read in within], starts, ends)
    for read in within:
        if read.end > ends[read.data]:
            raise FatalError(
                f"the range ends at {read.end}, above the last stable offset {ends[read.data]}",
                hint="a transaction is open there, or nothing was written yet; end it lower",
                data=read.data,
                offset=read.end,
            )
        if read.start < starts[read.data]:
            raise OffsetOutOfRangeError(
                f"the range begins at {read.start}, below the log start {starts[read.data]}",
                hint="retention has deleted these records; begin it at the log start",
                data=read.data,
                offset=read.start,
            )
    return list(within)


def _judged(
    reads: Sequence[OffsetRange], described: Mapping[str, TopicDescription], indexes: "_Index"
) -> NativeEvidence:
    aborted: dict[TopicPartition, AbortedRanges] = {}
    covered_to: dict[TopicPartition, EndOffset] = {}
    problems: dict[TopicPartition, AbortedIndexError] = {}
    for read in sorted(reads):
        try:
            index = indexes.of(read.data, described[read.data.topic].topic_id)
        except AbortedIndexError as problem:
            problems[read.data] = problem
            continue
        if index is not None and index.covers(read.start, EndOffset(read.start)):
            aborted[read.data] = index.ranges
            covered_to[read.data] = index.coverage.covered_to
        if read.start < read.end and (index is None or not index.covers(read.start, read.end)):
            problems[read.data] = _uncovered(read, index)
    topic_ids = {topic.name: topic.topic_id for topic in described.values()}
    return NativeEvidence(tuple(sorted(reads)), topic_ids, aborted, covered_to, problems)


def _uncovered(read: OffsetRange, index: StoredIndex | None) -> AbortedIndexError:
    topic, partition = read.data
    hint = f"bring it up to date: `stilltide index once {topic}`"
    if index is None:
        primary, detail = "aborted transactions are not indexed", ""
    else:
        known = index.coverage
        primary = "the index of aborted transactions does not cover the range to be read"
        detail = f"it covers [{known.covered_from}, {known.covered_to})"
        detail += f", the range is [{read.start}, {read.end})"
    return AbortedIndexError(primary, detail=detail, hint=hint, topic=topic, partition=partition)


class _Index:
    """The partitions of aborted-index that serve some data partitions; `read_on` reads further."""

    def __init__(
        self, connector: Connector, admin: LogAdmin, places: Mapping[TopicPartition, int]
    ) -> None:
        self._places = places
        self._tables: dict[int, IndexTable] = {}
        logs = [TopicPartition(ABORTED_INDEX, number) for number in sorted(set(places.values()))]
        self._feed = TopicFeed(connector, admin, "aborted-index", logs, self._take)

    @classmethod
    async def opened(
        cls, connector: Connector, admin: LogAdmin, data: Sequence[TopicPartition]
    ) -> "_Index":
        """Opens the index; a cluster without the topic aborted-index has an empty one."""
        there = (await admin.describe_topics([ABORTED_INDEX])).get(ABORTED_INDEX)
        size = there.partition_count if there is not None else 0
        places = {one: system_partition(one, size) for one in data} if size else {}
        return cls(connector, admin, places)

    async def read_on(self) -> bool:
        """Reads up to the last stable offsets as of now; whether there was anything new."""
        try:
            return await self._feed.read_on()
        except OffsetOutOfRangeError:
            self._tables.clear()
            raise

    def _take(self, record: Record) -> None:
        table = self._tables.setdefault(record.partition, IndexTable(keep_ranges=True))
        table.record_read(record.key, record.value)

    def of(self, data: TopicPartition, topic_id: bytes) -> StoredIndex | None:
        """The index of a data partition; None: there is no index of this topic id (E8).

        Raises:
            AbortedIndexError: the index is incomplete.
        """
        number = self._places.get(data)
        table = None if number is None else self._tables.get(number)
        index = None if table is None else table.index(data)
        return index if index is not None and index.coverage.topic_id == topic_id else None

    async def close(self) -> None:
        await self._feed.close()


def _check_there(
    places: Sequence[TopicPartition],
    starts: Mapping[TopicPartition, Offset],
    ends: Mapping[TopicPartition, EndOffset],
) -> None:
    for place in places:
        if place not in starts or place not in ends:
            raise FatalError(
                "the partition does not exist",
                hint="check the number, and that the topic is not being deleted or created",
                data=place,
            )


class FoundRanges(NamedTuple):
    """The ranges of aborted records in `[covered_from, covered_to)`."""

    ranges: AbortedRanges
    covered_from: Offset
    covered_to: EndOffset


class IndexedPartition(NamedTuple):
    """The index of a data partition, compared with the partition's log.

    Attributes:
        data: the data partition.
        coverage: coverage of the index.
        last_stable_offset: last stable offset of the log; None: the partition does not exist.
        problem: why the index cannot be used; empty: it can be used.
    """

    data: TopicPartition
    coverage: Coverage
    last_stable_offset: EndOffset | None
    problem: str


async def read_index_table(
    connector: Connector, admin: LogAdmin, partition: int, *, keep_ranges: bool
) -> IndexTable:
    """The records of a partition of aborted-index, up to the end as of the call.

    Raises:
        FatalError: the topic or partition does not exist.
        DecodeError: a record is foreign; names its place.
        RetriableError: the broker is away.
    """
    table = IndexTable(keep_ranges=keep_ranges)

    def take(record: Record) -> None:
        table.record_read(record.key, record.value)

    index = TopicPartition(ABORTED_INDEX, partition)
    await TopicFeed(connector, admin, str(index), [index], take).once(open_too=True)
    return table


async def indexed_ranges(
    connector: Connector, admin: LogAdmin, data: TopicPartition
) -> FoundRanges | None:
    """The indexed ranges of a partition; None: there is no index, or it is of another topic id.

    Raises:
        AbortedIndexError: the index is incomplete.
        FatalError, DecodeError, RetriableError: see `read_index_table`.
    """
    described = await admin.describe_topics([ABORTED_INDEX, data.topic])
    if ABORTED_INDEX not in described:
        raise missing_topic(ABORTED_INDEX)
    partition = system_partition(data, described[ABORTED_INDEX].partition_count)
    table = await read_index_table(connector, admin, partition, keep_ranges=True)
    stored = table.index(data)
    if stored is None or stored.coverage.topic_id != described[data.topic].topic_id:
        return None
    return FoundRanges(stored.ranges, stored.coverage.covered_from, stored.coverage.covered_to)


async def ranges_in_log(batches: BatchReader, admin: LogAdmin, data: TopicPartition) -> FoundRanges:
    """The aborted ranges of a partition, from its log, up to the last stable offset as of now.

    Raises:
        FatalError: the partition does not exist.
        OffsetOutOfRangeError: the log was trimmed faster than it was read.
        RetriableError: the broker is away.
    """
    starts = await admin.start_offsets([data])
    ends = await admin.end_offsets([data], committed=True)
    if data not in starts or data not in ends:
        raise FatalError(f"{data} does not exist", hint="correct the name or the number")
    ranges, builder = AbortedRanges(), RangeBuilder()
    position, end = starts[data], ends[data]
    while position < end:
        fetched = await batches.fetch(data, position)
        filter_ = BatchFilter(position, fetched.aborted)
        for batch in fetched.batches:
            ended = builder.batch_read(batch, filter_.batch_read(batch), position)
            if ended is not None:
                ranges.append(ended)
        position = filter_.position
    if builder.open is not None:
        ranges.append(builder.open)
    return FoundRanges(ranges, starts[data], EndOffset(position))


async def indexed_partitions(connector: Connector, admin: LogAdmin) -> list[IndexedPartition]:
    """Every data partition in aborted-index, ordered by topic and number.

    Raises:
        FatalError, DecodeError, RetriableError: see `read_index_table`.
    """
    described = (await admin.describe_topics([ABORTED_INDEX])).get(ABORTED_INDEX)
    if described is None:
        raise missing_topic(ABORTED_INDEX)
    coverages: dict[TopicPartition, tuple[Coverage, str]] = {}
    for partition in range(described.partition_count):
        table = await read_index_table(connector, admin, partition, keep_ranges=False)
        coverages |= {data: table.claimed(data) for data in table}
    topics = await admin.describe_topics(sorted({data.topic for data in coverages}))
    ends = await admin.end_offsets(list(coverages), committed=True)
    return [
        IndexedPartition(
            data,
            coverage,
            ends.get(data),
            broken or _mismatch(coverage, topics.get(data.topic), ends.get(data)),
        )
        for data, (coverage, broken) in sorted(coverages.items())
    ]


def _mismatch(
    coverage: Coverage, topic: TopicDescription | None, last_stable_offset: EndOffset | None
) -> str:
    """Why a complete index does not belong to this partition; empty: it does."""
    if topic is None or last_stable_offset is None:
        return "the partition does not exist"
    if topic.topic_id != coverage.topic_id:
        return "of a former topic of this name"
    if last_stable_offset < coverage.covered_to:
        return "the log ends below what was indexed"
    return ""


Advanced = Callable[[int], None]
"""Called with the number of offsets that have been passed since the last call."""


async def walk(
    batches: BatchReader, ranges: Sequence[OffsetRange], advanced: Advanced = lambda _: None
) -> list[OffsetLedger]:
    """The ledger of each range; no range may end above the last stable offset.

    Raises:
        FatalError: records were deleted during the walk, or the log has lost its end.
        RetriableError: the broker is away.
    """
    return [await _walk(batches, read, advanced) for read in ranges]


async def _walk(batches: BatchReader, read: OffsetRange, advanced: Advanced) -> OffsetLedger:
    ledger, position = OffsetLedger(read), read.start
    while position < read.end:
        try:
            fetched = await batches.fetch(read.data, position)
        except OffsetOutOfRangeError as error:
            raise deleted_meanwhile(read, position) from error
        if fetched.log_start > read.start or fetched.last_stable_offset < read.end:
            raise deleted_meanwhile(read, position)
        if not fetched.batches:
            break
        kept = BatchFilter(position, fetched.aborted)
        for batch in fetched.batches:
            ledger.batch_read(batch, kept.batch_read(batch))
        advanced(min(kept.position, read.end) - position)
        position = Offset(kept.position)
    ledger.finish()
    return ledger


def deleted_meanwhile(read: OffsetRange, position: Offset) -> FatalError:
    """The error for a log that no longer holds all of `read`; the walk had come to `position`."""
    return FatalError(
        "records were deleted while they were read",
        detail=f"the log no longer holds [{read.start}, {read.end})",
        hint="retention overtook the read: start it again, or raise the topic's retention",
        data=read.data,
        offset=position,
    )
