"""A snapshot writer's state of one data partition, and the snapshots made of that state.

*Source*: docs/protocols E1, E2, E3, E5, E6, E8.
*Invariants*: M never goes back while the topic is the same, and never exceeds what a probe proved;
an aborted id is removed only below a floor; a marker counts as absorbed only by a snapshot that was
written, and a COMMIT only when its end offset is at or below M. The first commit that M does not
cover is never taken for a later one; it may be taken for an earlier one after commits were joined.

Refuses: a commit of a transaction whose abort is known.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from stilltide.pipeline.core.snapshots.aborted import (
    AbortedSet,
    SealedParts,
    SnapshotRecord,
    TrimPairs,
)
from stilltide.pipeline.errors import MarkerConflictError
from stilltide.schemas.coordinator.markers import Marker, OpenTransactions
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.snapshots.requests import SnapshotSummary
from stilltide.schemas.snapshots.snapshots import (
    AbortedIds,
    Floors,
    SnapshotEnd,
    encode_end,
    end_key,
)
from stilltide.schemas.values import SEQUENCE_MAX, EndOffset, Offset, TopicPartition

STEPS_MAX = 1000
"""Most commits kept for one data partition; beyond, neighbouring commits are joined."""


class PendingCommits:
    """Pairs of marker offset and end offset, both ascending.

    A commit is left out if a commit with a lower marker offset has the same or a higher end
    offset: M covers the other one no earlier, so the first uncovered marker stays the same.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[int, int]] = []

    def add(self, offset: int, end_offset: int) -> None:
        """A commit marker at `offset`, of a transaction without records at or past `end_offset`."""
        steps = self._steps
        if steps and steps[-1][0] > offset:
            self._steps = _staircase(sorted([*steps, (offset, end_offset)]))
        elif not steps or steps[-1][1] < end_offset:
            steps.append((offset, end_offset))
        if len(self._steps) > STEPS_MAX:
            self._join()

    def first_above(self, max_read_position: int) -> int | None:
        """E2: offset of the first marker whose commit ends above the position; None: none does."""
        return next((offset for offset, end in self._steps if end > max_read_position), None)

    def absorb(self, max_read_position: int) -> None:
        """Forgets the commits that a durable position covers."""
        self._steps = [step for step in self._steps if step[1] > max_read_position]

    def take_first(self) -> int | None:
        """Forgets all commits; returns the marker offset of the first one."""
        first = self._steps[0][0] if self._steps else None
        self._steps = []
        return first

    def _join(self) -> None:
        """Joins each two neighbours to one, with the lower marker and the higher end."""
        last = self._steps[-1:] if len(self._steps) % 2 else []
        joined = [(low[0], high[1]) for low, high in list(pairwise(self._steps))[::2]]
        self._steps = joined + last


def _staircase(steps: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of steps by offset, those whose end is higher than every end before."""
    kept: list[tuple[int, int]] = []
    for step in steps:
        if not kept or kept[-1][1] < step[1]:
            kept.append(step)
    return kept


class DataPosition(NamedTuple):
    """A data partition's offsets as a probe read them, all of the topic `topic_id` (E8).

    Attributes:
        topic_id: Kafka topic id, the same before and after the offsets were read.
        log_start: offset of the first record.
        last_stable_offset: end offset below which no native transaction is open.
        end_offset: high watermark.
    """

    topic_id: bytes
    log_start: EndOffset
    last_stable_offset: EndOffset
    end_offset: EndOffset


class TransactionBuffer:
    """Markers, aborted ids and M of one data partition.

    Args:
        data: the data partition.
        floors: floors of a data partition that has no snapshot (E8).
        part_bytes_max: most bytes of the ids of a sealed part.
    """

    def __init__(self, data: TopicPartition, *, floors: Floors, part_bytes_max: int) -> None:
        self.data = data
        self.changes = 0
        self.missing_since_ms: int | None = None
        self.max_read_position = EndOffset(0)
        self.aborted = AbortedSet(floors)
        self._parts = SealedParts(data, part_bytes_max)
        self._topic_id: bytes | None = None
        self._valid_from = EndOffset(0)
        self._pairs = TrimPairs()
        self._durable: SnapshotEnd | None = None
        self._durable_ids = 0  # ids in the durable snapshot's parts and end
        self._commits = PendingCommits()  # above the durable position
        self._foreign: Offset | None = None  # first COMMIT of another topic id, before the probe
        self._foreign_new: Offset | None = None  # first such COMMIT since the probe began
        self._probe_from = Offset(0)  # markers below it were read before the probe began
        self._aborts_from: Offset | None = None  # first ABORT that no snapshot holds

    @classmethod
    def restored(
        cls,
        data: TopicPartition,
        end: SnapshotEnd,
        parts: Sequence[AbortedIds],
        *,
        part_bytes_max: int,
    ) -> "TransactionBuffer":
        """The state that a durable snapshot holds; `parts` are its sealed parts in order."""
        made = cls(data, floors=end.floors, part_bytes_max=part_bytes_max)
        made.max_read_position, made._topic_id = end.max_read_position, end.topic_id
        made._valid_from, made._pairs = end.floors_valid_from, TrimPairs(end.pairs)
        made._parts.restore(end.first_part, end.part_checksums, parts, end.unsealed)
        for part in (*parts, end.unsealed):
            made.aborted.update(part)
        made._durable, made._durable_ids = end, len(made.aborted)
        return made

    @property
    def uncovered_from(self) -> Offset | None:
        """K: offset of the first marker that the last snapshot has not absorbed."""
        return _lowest(
            self._commits.first_above(self._durable_position),
            self._foreign,
            self._foreign_new,
            self._aborts_from,
        )

    @property
    def at_rest(self) -> bool:
        """Whether the last snapshot has absorbed every marker read, and the topic exists."""
        return self.missing_since_ms is None and self.uncovered_from is None

    @property
    def summary(self) -> SnapshotSummary | None:
        """A summary of the last snapshot; None without snapshot, or while the topic is missing."""
        end = self._durable
        if end is None or self.missing_since_ms is not None:
            return None
        return SnapshotSummary(end.topic_id, end.max_read_position, self._durable_ids)

    @property
    def is_blank(self) -> bool:
        """Whether no marker and no snapshot of the data partition has been read."""
        return self._durable is None and self._topic_id is None

    def missed(self, now_ms: int) -> int:
        """The probe found no such topic; returns since how many milliseconds probes find none."""
        if self.missing_since_ms is None:
            self.missing_since_ms = now_ms
        return now_ms - self.missing_since_ms

    @property
    def durable_keys(self) -> list[bytes]:
        """Keys of the durable snapshot in txn-snapshots: its end, then its parts."""
        if self._durable is None:
            return []
        return [end_key(self.data), *self._parts.durable_keys]

    def marker_read(self, offset: Offset, marker: Marker) -> bool:
        """Takes a marker; returns False if the marker changes nothing.

        Raises:
            MarkerConflictError: a commit of a transaction that is known to have aborted.
            DecodeError: a marker that no coordinator writes.
        """
        coordinator, sequence = marker.txn
        if sequence > SEQUENCE_MAX:
            raise DecodeError(f"sequence {sequence} is one that no coordinator gives")
        if marker.committed:
            news = self._committed(offset, marker)
        elif self.aborted.hides(coordinator, sequence):
            return False
        else:
            self._aborted(offset, coordinator, sequence)
            news = True
        if self._topic_id is None:
            self._topic_id = marker.topic_id
        self.changes += news
        return news

    def probe_begins(self, position: Offset) -> None:
        """A probe begins: every marker below `position` was read before the data partition is."""
        self._probe_from = position
        self._foreign = _lowest(self._foreign, self._foreign_new)
        self._foreign_new = None

    def snapshot(
        self,
        current: DataPosition,
        open_there: Iterable[OpenTransactions],
        low_watermarks: Floors,
        position: Offset,
    ) -> list[SnapshotRecord]:
        """Makes a snapshot after a complete probe; returns its records in order (E2, E3).

        There are no records if the last snapshot has the same content (E6). The snapshot counts as
        durable from now on, because a failed write ends the writer.

        Args:
            current: offsets that the probe read first.
            open_there: transactions that are open on this data partition, by the barriers.
            low_watermarks: low watermarks of a probe that was complete before this one began (E5).
            position: offset below which every marker has been read.
        """
        self._advance(current, open_there)
        self._trim(current, low_watermarks)
        covered_to = _lowest(
            self._commits.first_above(self.max_read_position), self._foreign_new, position
        )
        assert covered_to is not None
        end = self._end(covered_to)
        self.changes = 0
        if self._says_the_same(end) and self.uncovered_from in (None, covered_to):
            return []
        self._durable, self._durable_ids, self._aborts_from = end, len(self.aborted), None
        self._commits.absorb(end.max_read_position)
        return self._records(end)

    def first_end(self, position: Offset) -> list[SnapshotRecord]:
        """A first snapshot with M at 0, which keeps the floors; no records if there is one."""
        if self._durable is not None or self._topic_id is None:
            return []
        self._durable = SnapshotEnd(
            topic_id=self._topic_id,
            max_read_position=EndOffset(0),
            markers_covered_to=EndOffset(_lowest(self.uncovered_from, position) or 0),
            first_part=1,
            part_checksums=(),
            unsealed={},
            floors=dict(self.aborted.floors),
            floors_valid_from=EndOffset(0),
            pairs=(),
        )
        return [(end_key(self.data), encode_end(self._durable))]

    @property
    def _durable_position(self) -> int:
        """M of the durable snapshot; 0 if that belongs to a former topic of the name (E8)."""
        durable = self._durable
        if durable is None or durable.topic_id != self._topic_id:
            return 0
        return durable.max_read_position

    def _committed(self, offset: Offset, marker: Marker) -> bool:
        coordinator, sequence = marker.txn
        if self.aborted.holds(coordinator, sequence):
            raise MarkerConflictError(
                f"transaction {marker.txn} committed on {marker.data}, where it has aborted",
                hint="something else writes to the marker topic, or two coordinators share an id",
            )
        if marker.end_offset is None:
            raise DecodeError("a commit marker without end offset")
        if self._topic_id not in (None, marker.topic_id):
            self._foreign_new = _lowest(self._foreign_new, offset)
            return True
        if marker.end_offset <= self._durable_position:
            return False
        self._commits.add(offset, marker.end_offset)
        return True

    def _aborted(self, offset: Offset, coordinator: int, sequence: int) -> None:
        self._parts.add(coordinator, sequence)
        self.aborted.add(coordinator, sequence)
        if self._aborts_from is None:
            self._aborts_from = offset

    def _advance(self, position: DataPosition, open_there: Iterable[OpenTransactions]) -> None:
        """E1 (3): raises M as far as the probe proves."""
        if position.topic_id != self._topic_id:
            self._recreated(position.topic_id)
        if self._foreign is not None:
            # Records of these commits, if in this topic, were below the end offset read (E8).
            self._commits.add(self._foreign, position.end_offset)
            self._foreign = None
        proved = int(position.last_stable_offset)
        for transactions in open_there:
            same = transactions.topic_id == self._topic_id
            proved = min(proved, transactions.start_offset if same else 0)
        self.max_read_position = EndOffset(max(self.max_read_position, proved))

    def _recreated(self, topic_id: bytes) -> None:
        """E8: drops the offsets of the former topic; ids and floors stay."""
        self._topic_id = topic_id
        self.max_read_position = self._valid_from = EndOffset(0)
        self._pairs = TrimPairs()
        self._foreign = _lowest(self._foreign, self._commits.take_first())
        if self._foreign is not None:
            # Some of these commits may have been read after the probe began: the next probe
            # absorbs them.
            self._foreign_new = _lowest(self._foreign_new, self._probe_from)

    def _trim(self, position: DataPosition, low_watermarks: Floors) -> None:
        """E5: raises floors, and drops the ids below them."""
        self._pairs.add(position.end_offset, low_watermarks)
        for pair in self._pairs.matured(position.log_start):
            self.aborted.raise_floors(pair.floors)
            self._valid_from = max(self._valid_from, pair.end_offset)
        if self._parts.trim(self.aborted.floors):
            self.aborted.prune()

    def _end(self, covered_to: Offset) -> SnapshotEnd:
        assert self._topic_id is not None
        return SnapshotEnd(
            topic_id=self._topic_id,
            max_read_position=self.max_read_position,
            markers_covered_to=EndOffset(covered_to),
            first_part=self._parts.first_part,
            part_checksums=self._parts.checksums,
            unsealed=self._parts.unsealed,
            floors=dict(self.aborted.floors),
            floors_valid_from=self._valid_from,
            pairs=self._pairs.as_tuple(),
        )

    def _says_the_same(self, end: SnapshotEnd) -> bool:
        """E6: whether the last snapshot says the same; pairs count while ids are held (E5)."""
        durable = self._durable
        if durable is None:
            return False
        pairs = end.pairs if len(self.aborted) else durable.pairs
        return durable == end._replace(markers_covered_to=durable.markers_covered_to, pairs=pairs)

    def _records(self, end: SnapshotEnd) -> list[SnapshotRecord]:
        """E3: sealed parts, then the end, then tombstones of dropped parts."""
        records, tombstones = self._parts.written()
        return [*records, (end_key(self.data), encode_end(end)), *tombstones]


def _lowest(*offsets: int | None) -> Offset | None:
    known = [one for one in offsets if one is not None]
    return Offset(min(known)) if known else None
