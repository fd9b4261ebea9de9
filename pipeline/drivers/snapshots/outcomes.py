"""Gathers the known outcomes on topics for a batch job, in the one order of reads that is sound.

*Source*: docs/protocols B10, C6, D2, D4, E4, E8, E9.
*Invariants*:
- Snapshots are read before the data's bounds: records below an end's F have left the log by then.
- The markers' ends are read after the data's ends. A marker is written after the last record of its
  transaction, so every outcome that was known at the data's end is among these markers.
- The markers begin where the snapshots end, or earlier, so that no outcome is missing in between
  (E9). If a snapshot was written and markers were trimmed meanwhile, both are read again.

Refuses: topics that do not exist, a gap that remains when nothing newer is left to read, foreign
records in a system topic, snapshots of another topic, a log that lost its end.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.core.snapshots.recovery import Snapshot
from stilltide.pipeline.drivers.shared.feed import LastValues, TopicFeed
from stilltide.pipeline.drivers.shared.named_partitions import all_partitions, named_topics
from stilltide.pipeline.drivers.snapshots.logs import SnapshotLogs, check_policy
from stilltide.pipeline.errors import MarkersTrimmedError, SnapshotError, SnapshotPartError
from stilltide.schemas.coordinator import markers
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.topics import TXN_MARKERS, TXN_SNAPSHOTS, system_partition
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

ATTEMPTS_MAX = 10
"""An attempt needs a newer snapshot than the one before; a writer writes one in some seconds."""

Progress = Callable[[str], None]
"""Called with one line at the beginning of each slow step."""


@dataclass(frozen=True)
class TopicOutcomes:
    """The partitions of some topics, with the markers and snapshots that decide their records.

    Attributes:
        data: each partition, `[log start, last stable offset)`, ordered by topic and partition.
        topic_ids: Kafka's 16-byte id of each topic.
        markers: the latest marker of every (partition, transaction) whose marker no snapshot has
            absorbed, and of those whose absorbed marker was kept and wanted.
        marker_offsets: offset of each of the `markers`.
        absorbed_to: by partition, the end offset of the markers that a snapshot or K* replaces.
        snapshots: snapshots by partition; a partition without a snapshot is absent.
    """

    data: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, bytes]
    markers: tuple[Marker, ...]
    marker_offsets: tuple[Offset, ...]
    absorbed_to: Mapping[TopicPartition, EndOffset]
    snapshots: Mapping[TopicPartition, Snapshot]

    def undecided_tail(self, read: OffsetRange) -> OffsetRange:
        """The part of a partition from M on, in which a record may be undecided."""
        snapshot = self.snapshots.get(read.data)
        decided = snapshot.end.max_read_position if snapshot else 0
        return read._replace(start=Offset(max(read.start, decided)))


async def gather_evidence(
    connector: Connector,
    topics: Sequence[str],
    progress: Progress = lambda _: None,
    *,
    outcomes_required: bool = True,
    kept_markers_max: int = 0,
) -> TopicOutcomes:
    """The evidence for `topics`, as of now.

    Args:
        connector: the cluster.
        topics: at least one.
        progress: called at the beginning of each slow step.
        outcomes_required: whether txn-markers must exist; if not, a cluster without txn-markers,
            where no worker ever ran, has no outcomes.
        kept_markers_max: most markers that are read although a snapshot has absorbed them (E9), the
            latest ones of all partitions together, >= 0. Each takes about 500 bytes of memory.

    Raises:
        FatalError: a topic, or txn-markers, does not exist; txn-snapshots has another policy.
        SnapshotPartError: a part is missing; MarkersTrimmedError: markers are missing that no
            snapshot replaces.
        TopicRecreatedError: a snapshot is of a former topic of that name; SnapshotError: it covers
            more than the log holds.
        DecodeError: a record of a system topic is foreign, or of a later version.
        RetriableError: the broker is away.
    """
    async with closing(connector.admin()) as admin:
        described = await _describe(admin, topics)
        if outcomes_required and TXN_MARKERS not in described:
            raise FatalError(
                "the outcomes of transactions are not on this cluster",
                hint="a worker creates this topic: start one with `stilltide worker`",
                topic=TXN_MARKERS,
            )
        partitions = all_partitions(described[topic] for topic in sorted(set(topics)))
        async with closing(
            _Gathering(connector, admin, described, partitions, kept_markers_max)
        ) as gathering:
            return await gathering.run(progress)


class FollowedOutcomes:
    """The evidence for some topics, read on instead of from the beginning with each call.

    Args:
        connector: the cluster.
        topics: at least one.
    """

    def __init__(self, connector: Connector, topics: Sequence[str]) -> None:
        self._connector = connector
        self._topics = sorted(set(topics))
        self._admin = connector.admin()
        self._described: dict[str, TopicDescription] = {}
        self._gathering: _Gathering | None = None

    async def read_on(self) -> TopicOutcomes:
        """The evidence as of now; a cluster where no worker ever ran has no outcomes.

        Evidence of an earlier call is not to be used any more: sets of snapshots are taken over.

        Raises:
            As `gather_evidence`; call it again after a `RetriableError`.
        """
        described = await _describe(self._admin, self._topics)
        if self._gathering is None or described != self._described:  # new partitions, or topics
            await self._close_gathering()
            data = all_partitions(described[topic] for topic in self._topics)
            self._described = described
            self._gathering = _Gathering(self._connector, self._admin, described, data, 0)
        return await self._gathering.run(lambda _: None)

    async def close(self) -> None:
        """Releases the readers."""
        await self._close_gathering()
        await self._admin.close()

    async def _close_gathering(self) -> None:
        gathering, self._gathering = self._gathering, None
        if gathering is not None:
            await gathering.close()


class _KeptMarker(NamedTuple):
    """A marker, with partition and offset of its record."""

    log: int
    offset: Offset
    marker: Marker


class _Gathering:
    def __init__(
        self,
        connector: Connector,
        admin: LogAdmin,
        described: Mapping[str, TopicDescription],
        partitions: Sequence[TopicPartition],
        kept_markers_max: int,
    ) -> None:
        self._kept_markers_max = kept_markers_max
        self._admin = admin
        self._partitions = partitions
        self._topic_ids = {data.topic: described[data.topic].topic_id for data in partitions}
        self._serving: dict[TopicPartition, int] = {}  # empty if no worker ever ran
        if TXN_MARKERS in described:
            count = described[TXN_MARKERS].partition_count
            self._serving = {data: system_partition(data, count) for data in partitions}
        numbers = sorted(set(self._serving.values()))
        self._marker_logs = [TopicPartition(TXN_MARKERS, number) for number in numbers]
        self._feed = TopicFeed(connector, admin, "outcomes", self._marker_logs, self._decode)
        self._markers = LastValues(self._feed)
        there = TXN_SNAPSHOTS in described  # missing if the workers wrote no snapshots
        self._logs = SnapshotLogs(connector, admin, numbers if there else (), only=partitions)
        self._known: dict[TopicPartition, Snapshot] = {}

    async def close(self) -> None:
        await self._logs.close()
        await self._feed.close()

    async def run(self, progress: Progress) -> TopicOutcomes:
        gap: FatalError | SnapshotError | None = None
        for _ in range(ATTEMPTS_MAX):
            progress(f"reading snapshots from {TXN_SNAPSHOTS}")
            newer = await self._logs.read_on()
            if not newer and gap is not None and not isinstance(gap, OffsetOutOfRangeError):
                break
            try:
                return await self._attempt(progress)
            except (SnapshotPartError, MarkersTrimmedError, OffsetOutOfRangeError) as error:
                gap = error
        assert gap is not None
        raise gap

    async def _attempt(self, progress: Progress) -> TopicOutcomes:
        snapshots = self._snapshots()
        data = await _ranges(self._admin, self._partitions)
        for read in data:
            if (snapshot := snapshots.get(read.data)) is not None:
                _check_within(snapshot, read)
        marker_ranges = await _ranges(self._admin, self._marker_logs, committed=False)
        absorbed_to = self._absorbed_to()
        logs = {read.data.partition: read for read in marker_ranges}
        for place, number in self._serving.items():
            _check_reach(place, absorbed_to[place], logs[number])
        for read in marker_ranges:
            self._begin(read, absorbed_to)
        total = sum(read.end - self._feed.positions[read.data] for read in marker_ranges)
        count = f"{max(0, total)} outcomes from {len(marker_ranges)} partitions"
        progress(f"reading {count} of {TXN_MARKERS}")
        await self._markers.to_now()
        kept = self._markers.values.values()
        return TopicOutcomes(
            data,
            self._topic_ids,
            tuple(known.marker for known in kept),
            tuple(known.offset for known in kept),
            absorbed_to,
            snapshots,
        )

    def _snapshots(self) -> dict[TopicPartition, Snapshot]:
        snapshots: dict[TopicPartition, Snapshot] = {}
        for data, number in self._serving.items():
            table = self._logs.tables.get(number)
            last = self._known.pop(data, None)  # its set is taken over, and lost by an error
            snapshot = table and table.snapshot(data, self._topic_ids[data.topic], last)
            if snapshot is not None:
                snapshots[data] = self._known[data] = snapshot
        return snapshots

    def _absorbed_to(self) -> dict[TopicPartition, EndOffset]:
        tables = self._logs.tables
        return {
            data: tables[number].absorbed_to(data) if number in tables else EndOffset(0)
            for data, number in self._serving.items()
        }

    def _begin(self, log: OffsetRange, absorbed_to: Mapping[TopicPartition, EndOffset]) -> None:
        """Reads on from the first marker that is wanted, and forgets those below it (E9).

        Wanted are those that no snapshot has absorbed, and a number of those before them.
        """
        number = log.data.partition
        first = min(absorbed_to[data] for data, it in self._serving.items() if it == number)
        kept = self._kept_markers_max // len(self._marker_logs)
        start = Offset(max(log.start, first - kept))
        positions, values = self._feed.positions, self._markers.values
        positions[log.data] = max(start, positions.get(log.data, start))
        below = [key for key, it in values.items() if it.log == number and it.offset < start]
        for key in below:
            del values[key]

    def _decode(self, record: Record) -> tuple[bytes, _KeptMarker | None] | None:
        if markers.is_barrier(record.key) or markers.decode_key(record.key)[0] not in self._serving:
            return None
        marker = markers.decode(record.key, record.value)
        assert record.key is not None
        if not isinstance(marker, Marker):
            return record.key, None
        return record.key, _KeptMarker(record.partition, record.offset, marker)


async def _describe(admin: LogAdmin, topics: Sequence[str]) -> dict[str, TopicDescription]:
    described = await named_topics(admin, topics, also=(TXN_MARKERS, TXN_SNAPSHOTS))
    if TXN_MARKERS in described and TXN_SNAPSHOTS in described:
        await check_policy(admin, described[TXN_MARKERS].partition_count)
    return described


async def _ranges(
    admin: LogAdmin, places: Sequence[TopicPartition], *, committed: bool = True
) -> tuple[OffsetRange, ...]:
    starts = await admin.start_offsets(places)
    ends = await admin.end_offsets(places, committed=committed)
    for place in places:
        if place not in starts or place not in ends:
            raise FatalError(
                "the partition disappeared while its offsets were read",
                hint="try again once the topic is no longer being deleted or created",
                data=place,
            )
    return tuple(OffsetRange(place, starts[place], ends[place]) for place in places)


def _check_reach(data: TopicPartition, absorbed_to: EndOffset, log: OffsetRange) -> None:
    """E4: no marker is missing between what snapshots have absorbed and the log."""
    if log.start <= absorbed_to <= log.end:
        return
    raise MarkersTrimmedError(
        f"markers of {data} are missing that no snapshot has absorbed",
        detail=f"the log holds [{log.start}, {log.end}), absorbed are those below {absorbed_to}",
        hint="were records of txn-markers or txn-snapshots deleted by hand, or was one of the"
        " topics created again? the outcome of some transactions is lost",
        topic=TXN_MARKERS,
        partition=log.data.partition,
        offset=log.start,
    )


def _check_within(snapshot: Snapshot, read: OffsetRange) -> None:
    """The log holds every record that its snapshot covers, unless the log lost its end (D4)."""
    end = snapshot.end
    if end.max_read_position > read.end or end.floors_valid_from > read.start:
        raise SnapshotError(
            "the snapshot covers more than the log holds",
            detail=f"it decides all records below {end.max_read_position}, and expects none below"
            f" {end.floors_valid_from}; the log holds [{read.start}, {read.end})",
            hint="did the topic lose records in an unclean leader election? then old positions"
            " are invalid: create the topic again",
            data=read.data,
        )
