"""The snapshot writer of one marker partition: reads markers, probes coordinators, writes, trims.

*Source*: docs/protocols C14, E1, E2, E3, E5, E7, E8, E9. What raises M (E1) is in `buffer`.
*Invariants*: one probe at a time, and at most one write; a request is served by a probe that began
after the request; a snapshot follows from a complete probe and from the markers up to the
partition's end, which is read after the probe; markers are trimmed only after the write that
absorbs them, and only when they are older than the retention; the log is asked for the first
younger marker at most once in `LOOK_MS`.

Refuses: markers that were deleted before a snapshot absorbed them; a part that is missing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stilltide.pipeline.core.snapshots.aborted import SnapshotRecord, raised
from stilltide.pipeline.core.snapshots.buffer import DataPosition, TransactionBuffer
from stilltide.pipeline.core.snapshots.effects import (
    AskBarriers,
    FindYounger,
    ReadMarkerEnd,
    ReadPositions,
    SnapshotsTaken,
    TrimMarkers,
    WriterEffect,
    WriteSnapshots,
)
from stilltide.pipeline.core.snapshots.recovery import SnapshotTable
from stilltide.pipeline.errors import MarkersTrimmedError
from stilltide.schemas.coordinator.markers import Barrier, Marker, OpenTransactions, Probe
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.retry import STEP
from stilltide.schemas.snapshots.snapshots import STAR_KEY, SnapshotStar, encode_star
from stilltide.schemas.topics import TXN_MARKERS
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


@dataclass(slots=True)
class Cycle:
    """How far a probe has come; its steps follow one another.

    Attributes:
        probe: id of the probe.
        partitions: data partitions that get a snapshot.
        requests: data partition of each request that the probe serves, by request number.
        retry_ms: when the present step is repeated if no answer comes.
        positions: offsets of the data partitions, which are read first; None until then.
        waiting: coordinators whose barriers have not been read.
        barriers: barriers that were read.
        end_asked: whether the marker partition's end was asked for, after the last barrier.
        marker_end: end offset up to which markers are read; None until it is known.
        covered_to: K* after the write that is under way; None before the write.
    """

    probe: Probe
    partitions: tuple[TopicPartition, ...]
    requests: dict[int, TopicPartition]
    retry_ms: int
    positions: Mapping[TopicPartition, DataPosition] | None = None
    waiting: set[int] = field(default_factory=set[int])
    barriers: list[Barrier] = field(default_factory=list[Barrier])
    end_asked: bool = False
    marker_end: EndOffset | None = None
    covered_to: Offset | None = None

    @property
    def answered(self) -> bool:
        """Whether every coordinator's barrier was read."""
        return self.positions is not None and not self.waiting

    def barrier_read(self, barrier: Barrier) -> None:
        """Takes a barrier; a barrier of another probe is ignored."""
        if barrier.probe == self.probe and barrier.coordinator in self.waiting:
            self.waiting.remove(barrier.coordinator)
            self.barriers.append(barrier)

    def low_watermarks(self) -> dict[int, int]:
        """The low watermark of each coordinator, from the barriers."""
        return {barrier.coordinator: barrier.low_watermark for barrier in self.barriers}

    def open_on(self) -> dict[TopicPartition, list[OpenTransactions]]:
        """The transactions registered before the probe and not ended, by data partition."""
        opened: dict[TopicPartition, list[OpenTransactions]] = {}
        for barrier in self.barriers:
            for transactions in barrier.open:
                opened.setdefault(transactions.data, []).append(transactions)
        return opened


LOOK_MS = 60 * 1000
"""Between two questions for the first marker that is younger than the retention."""


class MarkerTrimming:
    """The trimming of one marker partition (E9).

    Args:
        log_start: log start offset of the marker partition.
        covered_to: K* of the last durable snapshot.
        retention_ms: how long markers stay, >= 0; 0 deletes them as soon as they are absorbed.
    """

    def __init__(self, log_start: Offset, covered_to: Offset, retention_ms: int) -> None:
        self._trimmed_to = log_start
        self._covered_to = covered_to
        self._retention_ms = retention_ms
        self._look_ms = 0

    def covered(self, covered_to: Offset) -> None:
        """Durable snapshots have absorbed every marker below `covered_to`."""
        self._covered_to = max(self._covered_to, covered_to)

    def due(self, now_ms: int) -> Sequence[FindYounger | TrimMarkers]:
        """What is to be asked or deleted now."""
        if self._covered_to <= self._trimmed_to:
            return []
        if self._retention_ms == 0:
            return self._trim(self._covered_to)
        if now_ms < self._look_ms:
            return []
        self._look_ms = now_ms + LOOK_MS
        return [FindYounger(self._retention_ms)]

    def younger_found(self, offset: Offset) -> Sequence[TrimMarkers]:
        """The answer to `FindYounger`."""
        return self._trim(min(self._covered_to, offset))

    def _trim(self, before: Offset) -> Sequence[TrimMarkers]:
        if before <= self._trimmed_to:
            return []
        self._trimmed_to = before
        return [TrimMarkers(before)]


SWEEP_MS = 5 * 60 * 1000
"""Between probes of every data partition: retention and deletion write no markers."""

FULL_INTERVAL_MS = 1000
"""Between probes for many changes, which would otherwise follow one another under load."""

DELETED_AFTER_MS = 60 * 1000
"""How long every probe must have missed a topic before the topic counts as deleted."""

PARTITIONS_MAX = 1000
"""Most data partitions of one probe; others wait for the next probe."""


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """When snapshots are taken (E7), how large a part becomes (E2), how long markers stay (E9)."""

    changes_max: int = 1000
    interval_ms: int = 5000
    part_bytes_max: int = 256 * 1024
    marker_retention_ms: int = 24 * 60 * 60 * 1000


class SnapshotWriter:
    """One writer; the broker fences it by the transactional id of its marker partition (E3).

    Args:
        partition: partition of txn-markers and txn-snapshots.
        recovered: snapshots that were read after the former writer was fenced.
        marker_log_start: log start offset of the marker partition, read after `recovered`.
        nonce: 16 random bytes of this writer.
        limits: when snapshots are taken, and how large a part becomes.
        now_ms: time of the clock of every `now_ms`.

    Attributes:
        coordinators: there are at least so many coordinators, by all that was read (C14).
        trimming: takes the results of `FindYounger`.

    Raises:
        MarkersTrimmedError: no snapshot has absorbed the markers below the log start.
        SnapshotPartError: a part is missing, or parts have no end.
    """

    def __init__(
        self,
        partition: int,
        recovered: SnapshotTable,
        marker_log_start: Offset,
        *,
        nonce: bytes,
        limits: SnapshotLimits,
        now_ms: int,
    ) -> None:
        recovered.check_ends()
        self.position = Offset(recovered.star.markers_covered_to)
        self.buffers = {
            data: TransactionBuffer.restored(
                data, end, recovered.parts(data), part_bytes_max=limits.part_bytes_max
            )
            for data, end in recovered.ends.items()
        }
        if marker_log_start > self.position:
            raise MarkersTrimmedError(
                "markers were deleted that no snapshot has absorbed",
                detail=f"the log starts at {marker_log_start}, absorbed are those below"
                f" {self.position}",
                hint="were records of txn-markers or txn-snapshots deleted by hand? the outcome of"
                " some transactions is lost",
                topic=TXN_MARKERS,
                partition=partition,
                offset=marker_log_start,
            )
        self._partition = partition
        self._probe = Probe(nonce, 0)
        self._limits = limits
        self._star_to = self.position  # K* as it was written last
        self.trimming = MarkerTrimming(marker_log_start, self.position, limits.marker_retention_ms)
        self._to_trim = True  # there may be markers above K*
        self._floors = dict(recovered.star.floors)
        self.coordinators = _named(recovered)
        self._low_watermarks: dict[int, int] = {}  # of the last complete probe (E5)
        self._due: dict[TopicPartition, int] = {}  # since when a snapshot is wanted, in order
        self._full: dict[TopicPartition, None] = {}  # wanted as soon as `_full_from_ms`
        self._full_from_ms = now_ms
        self._requests: dict[int, TopicPartition] = {}
        self._cycle: Cycle | None = None
        self._sweep_ms = now_ms + SWEEP_MS

    @property
    def deadline_ms(self) -> int:
        """When `tick` is due next."""
        if self._cycle is not None:
            return self._cycle.retry_ms
        first_ms = next(iter(self._due.values()), self._sweep_ms)
        deadline_ms = min(self._sweep_ms, first_ms + self._limits.interval_ms)
        return min(deadline_ms, self._full_from_ms) if self._full else deadline_ms

    def markers_read(
        self, records: Iterable[tuple[Offset, Marker | Barrier | None]], now_ms: int
    ) -> list[WriterEffect]:
        """Takes records of the marker partition from `position` on; None is a tombstone.

        Costs about 2 us for each record.

        Raises:
            MarkerConflictError: two outcomes of one transaction; names the later marker's place.
            DecodeError: a marker that no coordinator writes; names the marker's place.
        """
        highest = -1
        for offset, item in records:
            assert offset >= self.position, "markers come in offset order, each once"
            if isinstance(item, Marker):
                highest = max(highest, item.txn[0])
                self._marker_read(offset, item, now_ms)
            elif item is not None:
                highest = max(highest, item.coordinator)
                self._barrier_read(item, now_ms)
            self.position = Offset(offset + 1)
        cycle = self._cycle
        if highest >= self.coordinators:
            self.coordinators = highest + 1
            if cycle is not None and cycle.positions is not None and cycle.covered_to is None:
                # C14: the coordinator was not asked, and may have transactions open. Barriers of
                # this probe may be older than positions that are read again: another probe begins.
                self._cycle = None
                self._requests |= cycle.requests
                self._full.update(dict.fromkeys(cycle.partitions))
                self._full_from_ms = now_ms
        return self._go_on(now_ms)

    def end_reached(self, end_offset: EndOffset, now_ms: int) -> list[WriterEffect]:
        """Takes note that every marker below `end_offset` was read."""
        self.position = max(self.position, Offset(end_offset))
        return self._go_on(now_ms)

    def requested(self, request: int, data: TopicPartition, now_ms: int) -> list[WriterEffect]:
        """A request for a snapshot by a probe that begins after now (E7).

        Requests that come during a probe share the next one. The caller bounds their number.
        """
        self._buffer(data)
        self._requests[request] = data
        return self._go_on(now_ms)

    def positions_read(
        self,
        counter: int,
        positions: Mapping[TopicPartition, DataPosition],
        log_ends: Mapping[int, EndOffset],
        now_ms: int,
    ) -> list[WriterEffect]:
        """The result of `ReadPositions`; a coordinator with an empty log has nothing open.

        An answer that lacks a coordinator is not taken, and the positions are read again: the
        answer comes from a broker whose metadata lag behind (C14).
        """
        cycle = self._current(counter)
        if cycle is None or cycle.positions is not None or len(log_ends) < self.coordinators:
            return []
        self.coordinators = len(log_ends)
        cycle.positions = positions
        cycle.waiting = {coordinator for coordinator, end in log_ends.items() if end > 0}
        return self._step(cycle, now_ms) if cycle.waiting else self._go_on(now_ms)

    def marker_end_read(
        self, counter: int, end_offset: EndOffset, now_ms: int
    ) -> list[WriterEffect]:
        """The result of `ReadMarkerEnd`."""
        cycle = self._current(counter)
        if cycle is None or not cycle.end_asked or cycle.marker_end is not None:
            return []
        cycle.marker_end = end_offset
        return self._go_on(now_ms)

    def snapshots_written(self, counter: int, now_ms: int) -> list[WriterEffect]:
        """The transaction of `WriteSnapshots` is committed."""
        cycle = self._current(counter)
        if cycle is None or cycle.covered_to is None:
            return []
        self.trimming.covered(cycle.covered_to)
        return self._finish(cycle, now_ms)

    def tick(self, now_ms: int) -> list[WriterEffect]:
        """Begins a probe that is due; repeats a step that was not answered."""
        cycle = self._cycle
        if cycle is not None and now_ms >= cycle.retry_ms:
            return self._step(cycle, now_ms)
        return self._go_on(now_ms)

    # -- markers

    def _buffer(self, data: TopicPartition) -> TransactionBuffer:
        buffer = self.buffers.get(data)
        if buffer is None:
            part_bytes_max = self._limits.part_bytes_max
            buffer = TransactionBuffer(data, floors=self._floors, part_bytes_max=part_bytes_max)
            self.buffers[data] = buffer
        return buffer

    def _marker_read(self, offset: Offset, marker: Marker, now_ms: int) -> None:
        self._to_trim = True
        data = marker.data
        buffer = self.buffers.get(data) or self._buffer(data)
        try:
            news = buffer.marker_read(offset, marker)
        except StilltideError as error:
            error.at(TXN_MARKERS, self._partition, offset)
            raise
        if news:
            self._due.setdefault(data, now_ms)
            if buffer.changes >= self._limits.changes_max:
                self._full[data] = None

    def _barrier_read(self, barrier: Barrier, now_ms: int) -> None:
        for transactions in barrier.open:
            if transactions.data not in self.buffers:  # its first transaction registered there
                self._buffer(transactions.data)
                self._due.setdefault(transactions.data, now_ms)
        if self._cycle is not None:
            self._cycle.barrier_read(barrier)

    # -- the cycle: positions, barriers, the markers' end, reading on, writing

    def _current(self, counter: int) -> Cycle | None:
        cycle = self._cycle
        return cycle if cycle is not None and cycle.probe.counter == counter else None

    def _go_on(self, now_ms: int) -> list[WriterEffect]:
        """Takes the step that has become possible, if any."""
        cycle = self._cycle
        if cycle is None:
            return self._begin(now_ms)
        if not cycle.answered or cycle.covered_to is not None:
            return []
        if not cycle.end_asked:
            return self._step(cycle, now_ms)
        if cycle.marker_end is None or self.position < cycle.marker_end:
            return []
        return self._write(cycle, now_ms)

    def _begin(self, now_ms: int) -> list[WriterEffect]:
        """Begins a probe of the data partitions that are due (E7), and of all every `SWEEP_MS`."""
        if now_ms >= self._sweep_ms:
            self._sweep_ms = now_ms + SWEEP_MS
            self._full.update(dict.fromkeys(self.buffers))
        wanted = dict.fromkeys(self._requests.values())
        if now_ms >= self._full_from_ms:
            wanted |= self._full
        for data, since_ms in self._due.items():
            if since_ms + self._limits.interval_ms > now_ms:
                break
            wanted[data] = None
        if not wanted:
            return []
        partitions = dict.fromkeys(list(wanted)[:PARTITIONS_MAX])
        served = {number: data for number, data in self._requests.items() if data in partitions}
        self._full_from_ms = now_ms + FULL_INTERVAL_MS
        self._probe = self._probe._replace(counter=self._probe.counter + 1)
        cycle = self._cycle = Cycle(self._probe, tuple(partitions), served, now_ms)
        for request in served:
            del self._requests[request]
        for data in partitions:
            self._full.pop(data, None)
            self._due.pop(data, None)
            self._buffer(data).probe_begins(self.position)
        return self._step(cycle, now_ms)

    def _step(self, cycle: Cycle, now_ms: int) -> list[WriterEffect]:
        """E1: asks for what the probe waits for, and sets the time at which to ask again."""
        cycle.retry_ms = now_ms + STEP.wait_ms()
        if cycle.positions is None:
            return [ReadPositions(cycle.probe.counter, cycle.partitions)]
        if cycle.waiting:
            return [AskBarriers(cycle.probe, sorted(cycle.waiting))]
        if cycle.marker_end is None:
            cycle.end_asked = True
            return [ReadMarkerEnd(cycle.probe.counter)]
        return []  # markers are being read, or the write is on its way

    def _write(self, cycle: Cycle, now_ms: int) -> list[WriterEffect]:
        """Composes the snapshots of a complete probe (E2, E3)."""
        assert cycle.positions is not None
        open_on = cycle.open_on()
        records: list[SnapshotRecord] = []
        deleted: list[TransactionBuffer] = []
        for data in cycle.partitions:
            self._full.pop(data, None)  # the snapshot also has the markers read since the probe
            self._due.pop(data, None)
            position, buffer = cycle.positions.get(data), self.buffers[data]
            if position is None and buffer.is_blank:
                del self.buffers[data]  # a request named a data partition that does not exist
                continue
            if position is None:
                gone = buffer.missed(now_ms) >= DELETED_AFTER_MS
                if gone and buffer.aborted.lies_below(self._low_watermarks):
                    deleted.append(buffer)
                continue
            buffer.missing_since_ms = None
            records += buffer.snapshot(
                position, open_on.get(data, ()), self._low_watermarks, self.position
            )
        if deleted:
            records += self._forget(deleted)
        covered_to = self._covered_to()
        if not records and not (self._to_trim and covered_to > self._star_to):
            return self._finish(cycle, now_ms)
        self._to_trim = covered_to < self.position
        cycle.covered_to = self._star_to = covered_to
        star = SnapshotStar(EndOffset(covered_to), self._floors)
        records.append((STAR_KEY, encode_star(star)))
        return [WriteSnapshots(cycle.probe.counter, records)]

    def _forget(self, deleted: Iterable[TransactionBuffer]) -> list[SnapshotRecord]:
        """Forgets deleted topics, with everything known of them (E8).

        Their aborted ids must stay hidden in a new topic of the same name: all those transactions
        had ended before the probe that missed the topic, so a floor for new topics hides them.
        Known data partitions without a snapshot get one now; otherwise the next writer would take
        them for new, and apply that floor to them.
        """
        records: list[SnapshotRecord] = []
        for buffer in deleted:
            del self.buffers[buffer.data]
            records += [(key, None) for key in buffer.durable_keys]
        raised(self._floors, self._low_watermarks)
        for buffer in self.buffers.values():
            records += buffer.first_end(self.position)
        return records

    def _covered_to(self) -> Offset:
        """K* (E9): offset of the first marker that no snapshot will absorb with this write."""
        first = (buffer.uncovered_from for buffer in self.buffers.values())
        return Offset(
            min((offset for offset in first if offset is not None), default=self.position)
        )

    def _finish(self, cycle: Cycle, now_ms: int) -> list[WriterEffect]:
        """The probe is over; data partitions with markers not absorbed yet are due again."""
        self._cycle = None
        self._low_watermarks = cycle.low_watermarks()
        for data in cycle.partitions:
            buffer = self.buffers.get(data)
            if buffer is not None and not buffer.at_rest:
                self._due.setdefault(data, now_ms)
        effects: list[WriterEffect] = [*self.trimming.due(now_ms)]
        if cycle.requests:
            effects.append(SnapshotsTaken(tuple(cycle.requests)))
        return effects + self._begin(now_ms)


def _named(recovered: SnapshotTable) -> int:
    """There are at least so many coordinators, by the floors of the snapshots."""
    floors = [recovered.star.floors, *(end.floors for end in recovered.ends.values())]
    return max((coordinator + 1 for known in floors for coordinator in known), default=0)
