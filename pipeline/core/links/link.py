"""A link copies data partitions and signals from one cluster to another, exactly once.

*Source*: docs/protocols H1, H2, H4, H5, H6. One link serves the data partitions of one positions
partition.
*Invariants*:
- H1 Only local records are copied, in order. Whether a record with an `origin` header is a copy is
  looked up in the source's positions, never guessed.
- H2 Copies, buckets and signals are written in one native transaction; nothing is copied before the
  link has read its positions to the end.
- H4 Requests and responses are written in order once the link has passed their decided end; a
  position without copies is written at most once a second, unless a signal waits for it.
- I13 A beat is written with the first transaction that ends after the beat is due; without other
  work, the beat has a transaction of its own.
- H6 A transaction is committed only if both topics are still those with which it began.

When an effect fails, or its outcome is unknown, the link ends: another one begins with
`FenceTarget`.

Refuses: to go on after a transaction whose outcome is not known.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from operator import itemgetter
from typing import Any, Generic, TypeVar

from stilltide.pipeline.core.links.copying import (
    BucketChange,
    CopiedPartition,
    Keyless,
    SourceRecord,
    Topics,
)
from stilltide.pipeline.core.links.signal_queue import CopiedSignal, SignalQueue
from stilltide.pipeline.core.offset_index.index import OffsetIndex
from stilltide.schemas.replication.origins import Incarnation, Origin
from stilltide.schemas.replication.positions import Bucket, BucketKey
from stilltide.schemas.replication.signals import SignalKey, SignalValue
from stilltide.schemas.values import ClusterName, EndOffset, Offset, Range, TopicPartition

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class FenceTarget:
    """Effect: fence the former producer of the link's transactional id; report `fenced`."""


@dataclass(frozen=True, slots=True)
class ReadPositionsEnd:
    """Effect: read the positions partition's end, from now on; report `positions_end_read`."""


@dataclass(frozen=True, slots=True)
class ReadLinkPositions:
    """Effect: read the positions partition at read_committed, from its start on.

    Report each of the link's buckets by `bucket_read`, and each last stable offset up to which was
    read by `positions_read`, until `ServeLink` comes. That offset must pass `until`, because below
    it another link's open transaction may hold back this link's newest bucket (H2).
    """

    until: EndOffset


@dataclass(frozen=True, slots=True)
class ServeLink:
    """Effect: report data partitions, signals and records from now on; the positions are known."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Effect: read this data partition of the source from `position` on; report `records_read`."""

    data: TopicPartition
    position: EndOffset


@dataclass(frozen=True, slots=True)
class ReportLost:
    """Effect: report to the operator that these offsets left the source's log uncopied (H5)."""

    data: TopicPartition
    offsets: Range


@dataclass(frozen=True, slots=True)
class ReadIncarnations:
    """Effect: read which incarnations links have copied to this data partition of the source.

    Report `incarnations_read`. The source's positions partition is read past the end that it has
    after this effect, because a copy and the bucket that names its origin become visible together
    (H1). Until then no further records of the data partition are reported.
    """

    data: TopicPartition


@dataclass(frozen=True, slots=True)
class Begin:
    """Effect: begin a native transaction on the target."""

    transaction: int


@dataclass(frozen=True, slots=True)
class Copy(Generic[P]):
    """Effect: write copies of these records in the open transaction, to the same partition.

    `schemas.replication.origins.OriginStamp` makes the headers of the copies.

    Attributes:
        transaction: number of the open transaction.
        data: the data partition.
        chunk: index of the chunk, by which `finished` reports the offsets of the copies.
        records: records of the source, in the order to copy.
    """

    transaction: int
    data: TopicPartition
    chunk: int
    records: Sequence[SourceRecord[P]]


@dataclass(frozen=True, slots=True)
class Finish:
    """Effect: wait for every copy of the transaction, read both topics again; report `finished`.

    Attributes:
        transaction: number of the open transaction.
        partitions: number of chunks of each data partition in the transaction.
    """

    transaction: int
    partitions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Commit:
    """Effect: write these in the open transaction and commit it; report `committed` (H2, H4).

    Attributes:
        transaction: number of the open transaction.
        buckets: changed buckets by data partition; None is a tombstone.
        signals: signals in the order to write.
        beat: whether to write a beat, too (I13).
    """

    transaction: int
    buckets: Mapping[TopicPartition, Sequence[BucketChange]]
    signals: Sequence[CopiedSignal]
    beat: bool = False


@dataclass(frozen=True, slots=True)
class StartOver:
    """Effect: abort, and begin another link; a topic was deleted and created again (H6)."""

    data: TopicPartition


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Effect: report that these records have no key, and are not copied (H10)."""

    data: TopicPartition
    offsets: Sequence[Offset]


@dataclass(frozen=True, slots=True)
class AwaitPolicy:
    """Effect: report that the partition waits at a record without key (H10).

    Another link begins as soon as the target's topic does not compact any more.
    """

    data: TopicPartition
    offset: Offset


LinkEffect = (
    FenceTarget
    | ReadPositionsEnd
    | ReadLinkPositions
    | ServeLink
    | Fetch
    | ReportLost
    | ReadIncarnations
    | Begin
    | Copy[P]
    | Finish
    | Commit
    | StartOver
    | LeaveOut
    | AwaitPolicy
)
"""What the driver carries out."""


_ORIGIN: Callable[[SourceRecord[Any]], Origin | None] = itemgetter(1)


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """When a transaction ends, and how often a position that moved without copies is written.

    Attributes:
        linger_ms: longest time from the begin of a transaction to its end.
        quiet_ms: time without a record after which a transaction ends.
        records_max: number of copies at which a transaction ends.
        position_interval_ms: shortest time between two writes of a position without copies.
        beat_interval_ms: time between two beats (I13); None: the link writes none.
    """

    linger_ms: int = 50
    quiet_ms: int = 50
    records_max: int = 20_000
    position_interval_ms: int = 1000
    beat_interval_ms: int | None = None


class _Phase(Enum):
    STARTING = auto()
    IDLE = auto()
    OPEN = auto()  # a transaction takes records
    ENDING = auto()  # the transaction takes no more records, and waits for copies or the commit


@dataclass(slots=True)
class _WaitingRecords(Generic[P]):
    """Records that wait for an answer to `ReadIncarnations`."""

    records: Sequence[SourceRecord[P]]
    until: EndOffset
    answered: bool = False


@dataclass(slots=True)
class _Commit:
    """The buckets and signals that are being committed."""

    buckets: dict[TopicPartition, list[BucketChange]]
    signals: list[CopiedSignal]


@dataclass(slots=True)
class _Ends:
    """When the open transaction ends: at the latest, if no further record comes, by its copies."""

    latest_ms: int = 0
    quiet_ms: int = 0
    copy_count: int = 0


@dataclass(slots=True)
class _Due:
    """When positions without copies (H4) and the next beat (I13) are due."""

    beat_interval_ms: int | None
    beat_ms: int = 0
    position_ms: int = 0

    def is_beat_due(self, now_ms: int) -> bool:
        return self.beat_interval_ms is not None and now_ms >= self.beat_ms

    def beat_written(self, now_ms: int) -> None:
        self.beat_ms = now_ms + (self.beat_interval_ms or 0)


class Link(Generic[P]):
    """One link on one positions partition of the target.

    Args:
        source: cluster from which the link copies.
        target: cluster to which the link copies; not `source`.
        limits: when the link commits.
        keyless: judges records without key; None: the target takes all of them.
    """

    def __init__(
        self,
        source: ClusterName,
        target: ClusterName,
        limits: LinkLimits,
        keyless: Keyless[P] | None = None,
    ) -> None:
        assert source != target
        self.source = source
        self.target = target
        self.partitions: dict[TopicPartition, CopiedPartition[P]] = {}
        self._limits = limits
        self._keyless: Keyless[P] = keyless or Keyless()
        self._phase = _Phase.STARTING
        self._positions_end: EndOffset | None = None
        self._signals = SignalQueue(source, target)
        self._caught_up = False  # with the source's signals
        self._known: dict[TopicPartition, Container[Incarnation]] = {}
        self._held: dict[TopicPartition, _WaitingRecords[P]] = {}
        self._transaction = 0
        self._chunk_counts: dict[TopicPartition, int] = {}
        self._commit: _Commit | None = None
        self._ends = _Ends()
        self._due = _Due(limits.beat_interval_ms)

    @property
    def accepts_records(self) -> bool:
        """Whether `records_read` may be called; the driver keeps what it has fetched until then."""
        return self._phase in (_Phase.IDLE, _Phase.OPEN)

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` is due next."""
        if self._phase is _Phase.OPEN:
            return min(self._ends.latest_ms, self._ends.quiet_ms)
        due_ms = [self._due.position_ms] if self._chunk_counts else []
        if self._due.beat_interval_ms is not None:
            due_ms.append(self._due.beat_ms)
        return min(due_ms, default=None) if self._phase is _Phase.IDLE else None

    @property
    def is_idle(self) -> bool:
        """Whether all that was taken is committed."""
        return self._phase is _Phase.IDLE and not self._chunk_counts

    # -- the start

    def begin(self) -> list[LinkEffect[P]]:
        """Begins the start of the link (H2)."""
        return [FenceTarget()]

    def fenced(self) -> list[LinkEffect[P]]:
        """No transaction of a former link is open any more."""
        return [ReadPositionsEnd()]

    def positions_end_read(self, end_offset: EndOffset) -> list[LinkEffect[P]]:
        """The result of `ReadPositionsEnd`."""
        self._positions_end = end_offset
        return [ReadLinkPositions(end_offset)]

    def bucket_read(self, key: BucketKey, bucket: Bucket | None) -> None:
        """A bucket on the target; buckets of other links are ignored."""
        assert self._phase is _Phase.STARTING
        if (key.source, key.target) == (self.source, self.target):
            self._partition(key.data).index.bucket_read(key.number, bucket)

    def target_signal_read(self, key: SignalKey, value: SignalValue) -> None:
        """A signal that the target has, in log order; it is not copied again."""
        assert self._phase is _Phase.STARTING
        self._signals.found_on_target(key, value)

    def positions_read(self, stable_offset: EndOffset) -> list[LinkEffect[P]]:
        """Every bucket below this last stable offset was reported."""
        if self._phase is not _Phase.STARTING or self._positions_end is None:
            return []
        if stable_offset < self._positions_end:
            return []
        self._phase = _Phase.IDLE
        return [ServeLink()]

    def _partition(self, data: TopicPartition) -> CopiedPartition[P]:
        partition = self.partitions.get(data)
        if partition is None:
            partition = self.partitions[data] = CopiedPartition(OffsetIndex(self.source))
        return partition

    # -- data

    def topics_read(self, data: TopicPartition, topics: Topics, now_ms: int) -> list[LinkEffect[P]]:
        """A data partition as it is now on both sides.

        The driver reports the partition again when the position has left the source's log, and
        when its periodic check finds another topic (H6), since a link with nothing to commit does
        not learn of that otherwise. Not called while a transaction holds records of the partition,
        or ends.
        """
        assert self.accepts_records
        partition = self._partition(data)
        self._held.pop(data, None)
        lost = partition.topics_read(topics)
        effects: list[LinkEffect[P]] = [ReportLost(data, lost)] if lost else []
        if partition.moved:
            self._chunk_counts.setdefault(data, 0)
        return [*effects, Fetch(data, partition.position), *self.tick(now_ms)]

    def records_read(
        self,
        data: TopicPartition,
        records: Sequence[SourceRecord[P]],
        until: EndOffset,
        now_ms: int,
    ) -> list[LinkEffect[P]]:
        """Takes all decided, committed records from the position to below `until`.

        Costs less than 0.05 us for a record without `origin`.
        """
        assert self.accepts_records
        assert data not in self._held
        if data in self._keyless.waiting:
            return self.tick(now_ms)
        known = self._known.get(data, ())
        origins = filter(None, map(_ORIGIN, records))
        if any(origin.incarnation not in known for origin in origins):
            self._held[data] = _WaitingRecords(records, until)
            return [ReadIncarnations(data)]
        return self._take(data, records, until, now_ms)

    def incarnations_read(
        self, data: TopicPartition, known: Container[Incarnation], now_ms: int
    ) -> list[LinkEffect[P]]:
        """The result of `ReadIncarnations`; a record of any other origin is a local record.

        While a transaction ends, the held records wait for the next transaction.
        """
        waiting = self._held.get(data)
        if waiting is None:
            return []
        self._known[data] = known
        waiting.answered = True
        return self._take_held(now_ms) if self.accepts_records else []

    def _take_held(self, now_ms: int) -> list[LinkEffect[P]]:
        effects: list[LinkEffect[P]] = []
        for data in [data for data, held in self._held.items() if held.answered]:
            waiting = self._held.pop(data)
            effects += self._take(data, waiting.records, waiting.until, now_ms)
            if not self.accepts_records:
                break
        return effects

    def _take(
        self,
        data: TopicPartition,
        records: Sequence[SourceRecord[P]],
        until: EndOffset,
        now_ms: int,
    ) -> list[LinkEffect[P]]:
        known = self._known.get(data, ())
        local = [one for one in records if one[1] is None or one[1].incarnation not in known]
        sifted = self._keyless.sift(data, local, until)
        partition = self.partitions[data]
        taken = partition.take(sifted.records, sifted.until)
        effects: list[LinkEffect[P]] = []
        if sifted.left_out:
            effects.append(LeaveOut(data, sifted.left_out))
        if sifted.waits_at is not None:
            effects.append(AwaitPolicy(data, sifted.waits_at))
        if taken and self._phase is _Phase.IDLE:
            effects.append(self._begin(now_ms))
        if taken:
            self._ends.quiet_ms = now_ms + self._limits.quiet_ms
        for chunk, copied in taken:
            self._ends.copy_count += len(copied)
            effects.append(Copy(self._transaction, data, chunk, copied))
        if partition.moved:
            self._chunk_counts[data] = partition.chunk_count
        return effects + self.tick(now_ms)

    # -- signals

    def signals_read(
        self, signals: Sequence[tuple[SignalKey, SignalValue | None]], now_ms: int
    ) -> list[LinkEffect[P]]:
        """Takes signals of the source in log order, from the start of their partition on."""
        for key, value in signals:
            if value is not None:
                self._signals.read(key, value)
        return self.tick(now_ms)

    def signals_caught_up(self, now_ms: int) -> list[LinkEffect[P]]:
        """The source's signals were read to the end at the start: none waiting is outdated."""
        self._caught_up = True
        return self.tick(now_ms)

    def _takeable(self) -> list[CopiedSignal]:
        """Signals that may be written with the positions as they are now (H4)."""
        if not self._caught_up:
            return []
        taken = self._signals.updates()
        for data in list(self._signals.waiting()):
            partition = self.partitions.get(data)
            if partition is not None and partition.topics is not None:
                taken += self._signals.passed(data, partition.topics.source, partition.position)
        return taken

    # -- transactions

    def _begin(self, now_ms: int) -> Begin:
        self._phase = _Phase.OPEN
        self._transaction += 1
        self._ends.copy_count = 0
        self._ends.latest_ms = now_ms + self._limits.linger_ms
        return Begin(self._transaction)

    def tick(self, now_ms: int) -> list[LinkEffect[P]]:
        """Ends the transaction, or writes positions, signals or a beat, when that is due."""
        if self._phase is _Phase.OPEN:
            full = self._ends.copy_count >= self._limits.records_max
            due_ms = min(self._ends.latest_ms, self._ends.quiet_ms)
            return self._finish() if full or now_ms >= due_ms else []
        if self._phase is not _Phase.IDLE:
            return []
        position_due = bool(self._chunk_counts) and now_ms >= self._due.position_ms
        if position_due or self._due.is_beat_due(now_ms) or self._takeable():
            return [self._begin(now_ms), *self._finish()]
        return []

    def _finish(self) -> list[LinkEffect[P]]:
        self._phase = _Phase.ENDING
        return [Finish(self._transaction, dict(self._chunk_counts))]

    def finished(
        self,
        transaction: int,
        copies: Mapping[TopicPartition, Sequence[Range | None]],
        topics: Mapping[TopicPartition, Topics],
        now_ms: int,
    ) -> list[LinkEffect[P]]:
        """The result of `Finish`.

        Args:
            transaction: number of the transaction.
            copies: for each chunk, the range of target offsets that contains its copies; None for
                a chunk without copies.
            topics: both sides, read after the last copy was acknowledged; a partition whose topic
                is gone is left out.
            now_ms: time of the clock of every `now_ms`.
        """
        if transaction != self._transaction or self._phase is not _Phase.ENDING or self._commit:
            return []
        commit = _Commit({}, [])
        for data in self._chunk_counts:
            partition, now = self.partitions[data], topics.get(data)
            before = partition.topics
            assert before is not None
            if now is None or now[:2] != before[:2]:
                return [StartOver(data)]
            commit.buckets[data] = partition.changes(copies.get(data, ()), now.target_log_start)
        commit.signals = self._takeable()
        self._commit = commit
        self._due.position_ms = now_ms + self._limits.position_interval_ms
        beat = self._due.is_beat_due(now_ms)
        if beat:
            self._due.beat_written(now_ms)
        return [Commit(transaction, commit.buckets, commit.signals, beat)]

    def committed(self, transaction: int, now_ms: int) -> list[LinkEffect[P]]:
        """The transaction is committed; the next one may begin."""
        commit = self._commit
        if transaction != self._transaction or commit is None:
            return []
        for data, changes in commit.buckets.items():
            self.partitions[data].committed(changes)
        self._signals.written(commit.signals)
        self._chunk_counts.clear()
        self._commit = None
        self._phase = _Phase.IDLE
        return self._take_held(now_ms) or self.tick(now_ms)
