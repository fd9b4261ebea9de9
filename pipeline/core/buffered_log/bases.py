"""Bases of a log: when one is written, how far the log is trimmed, and what a replay begins from.

*Source*: docs/protocols C8, B3.
*Invariants*: the log is trimmed only to an effective entry at or below the as-of offset of a base
whose pieces are all effective, so never to the end. Of a base only pieces of one owner count: its
as-of offset lies above its owner's fence, thus above every piece of an owner before.

It refuses a trimmed log without a base: what such a log means cannot be known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from stilltide.pipeline.core.buffered_log.liveness import Liveness, LogPoint
from stilltide.pipeline.errors import LogTrimmedError
from stilltide.schemas.log_frames import Base
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

IDLE_MS = 1000
"""So long after the last change a log in which nothing is open gets a base."""

TRIM_RETRY_MS = 5000

HELD_RECORDS_MAX = 1_000_000
"""Between a log start and its base lies what was on its way when the base was made."""

R = TypeVar("R")


@dataclass(frozen=True)
class BaseLimits:
    """When a base is worth its bytes.

    Attributes:
        interval_ms: between two bases of one owner at least.
        dead_floor: so many records are dead, and
        dead_factor: so many times what the base would hold.
    """

    interval_ms: int = 2000
    dead_floor: int = 500
    dead_factor: int = 4


@dataclass(frozen=True, slots=True)
class Trim:
    """Effect: delete the records before `offset`; the base that stands for them is effective.

    Report `trimmed` or `trim_failed`.
    """

    offset: Offset


class Entry(NamedTuple, Generic[R]):
    """An effective entry: where it lies, and its records."""

    offset: Offset
    records: Sequence[R]


class Recovered(NamedTuple, Generic[R]):
    """What a replay makes of an entry: a state to begin from, if any, then entries to apply."""

    state: bytes | None
    entries: Sequence[Entry[R]]


class BaseKeeper:
    """An owner's bases; tell it of each effective entry, before and after `served`.

    Args:
        log_start: where the replay began.
        limits: when a base is due.

    Attributes:
        written_as_of: of the last base that this owner wrote.
    """

    def __init__(self, log_start: Offset, limits: BaseLimits) -> None:
        self.liveness = Liveness()
        self.log_start = log_start
        self.written_as_of: EndOffset | None = None
        self._limits = limits
        self._epoch: Offset | None = None
        self._next_ms = 0
        self._weigh_ms = 0  # when the dead are weighed against the live again
        self._changed_ms: int | None = None  # the last change that no base holds
        self._making: EndOffset | None = None  # as-of offset of the base on its way
        self._pieces_read = 0
        self._point: LogPoint | None = None  # how far that base lets the log be trimmed
        self._trim: LogPoint | None = None  # a trim that has not been reported done
        self._trim_ms: int | None = None  # when it is tried again

    def served(self, epoch: Offset, now_ms: int) -> None:
        """This owner's fence was read; whatever the log holds before it may give way to a base."""
        self._epoch = epoch
        self._next_ms = now_ms
        self._changed_ms = now_ms if epoch > self.log_start else None

    def next_due_ms(self, *, idle: bool) -> int | None:
        """When `trims_due` and `due` are to be asked; `idle`: nothing is open."""
        times = [] if self._trim_ms is None else [self._trim_ms]
        if self._making is None:
            if self.liveness.dead_count >= self._limits.dead_floor:
                times.append(max(self._next_ms, self._weigh_ms))
            if idle and self._changed_ms is not None:
                times.append(max(self._next_ms, self._changed_ms + IDLE_MS))
        return min(times, default=None)

    def entry_read(self, offset: Offset, record_count: int) -> None:
        """An effective entry; its records follow, with `changed` where they change the state."""
        self.liveness.entry_read(offset, record_count)
        if offset == self._making:
            self._point = self.liveness.last_entry

    def changed(self, now_ms: int) -> None:
        """A record that was no no-op and no base."""
        self._changed_ms = now_ms

    def due(self, now_ms: int, *, idle: bool, held: Callable[[], int]) -> EndOffset | None:
        """The as-of offset of a base that is to be written now, of the state as it is now.

        Args:
            now_ms: the owner's clock.
            idle: nothing is open.
            held: how many items a base would hold.
        """
        if self._epoch is None or self._making is not None or now_ms < self._next_ms:
            return None
        dead, limits = self.liveness.dead_count, self._limits
        if dead >= limits.dead_floor and now_ms >= self._weigh_ms:
            if dead >= limits.dead_factor * held():
                return self._make(now_ms)
            self._weigh_ms = now_ms + limits.interval_ms  # then, not at every tick
        if idle and self._changed_ms is not None and now_ms >= self._changed_ms + IDLE_MS:
            return self._make(now_ms)
        return None

    def piece_read(self, piece: Base) -> list[Trim]:
        """A piece in an effective entry: with the last one the base is, and the log may go."""
        if piece.as_of != self._making or piece.piece_index != self._pieces_read:
            return []
        self._pieces_read += 1
        if self._pieces_read < piece.piece_count:
            return []
        point, self._making = self._point, None
        self.written_as_of = piece.as_of
        if point is None or point.offset <= self.log_start:
            return []
        self._trim, self._trim_ms = point, None
        return [Trim(point.offset)]

    def lost(self, as_of: EndOffset, now_ms: int) -> None:
        """A piece will never be effective; another base is made in its place."""
        if as_of == self._making:
            self._making = None
            self._changed_ms = now_ms

    def trimmed(self, offset: Offset) -> None:
        """The log begins at `offset` now."""
        if self._trim is not None and self._trim.offset == offset:
            self.liveness.trimmed(self._trim)
            self.log_start = offset
            self._trim = self._trim_ms = None

    def trim_failed(self, offset: Offset, now_ms: int) -> None:
        """The log may still begin where it did; tried again later, or with the next base."""
        if self._trim is not None and self._trim.offset == offset:
            self._trim_ms = now_ms + TRIM_RETRY_MS

    def trims_due(self, now_ms: int) -> list[Trim]:
        """A failed trim whose time has come again."""
        if self._trim is None or self._trim_ms is None or now_ms < self._trim_ms:
            return []
        self._trim_ms = None
        return [Trim(self._trim.offset)]

    def _make(self, now_ms: int) -> EndOffset:
        assert self._epoch is not None
        last = self.liveness.last_entry
        below = self._epoch if last is None else max(self._epoch, last.offset)
        self._making, self._pieces_read, self._point = EndOffset(below + 1), 0, last
        self._next_ms, self._changed_ms = now_ms + self._limits.interval_ms, None
        return self._making


class BaseAssembly:
    """Joins the pieces of one base after the other; a torn one is dropped."""

    def __init__(self) -> None:
        self._as_of: EndOffset | None = None
        self._parts: list[bytes] = []

    def piece_read(self, piece: Base) -> bytes | None:
        """The state's bytes, once the last piece of a base has been read."""
        if piece.piece_index == 0:
            self._as_of, self._parts = piece.as_of, []
        elif (piece.as_of, piece.piece_index) != (self._as_of, len(self._parts)):
            self._as_of, self._parts = None, []
            return None
        self._parts.append(piece.state)
        if len(self._parts) < piece.piece_count:
            return None
        parts, self._parts, self._as_of = self._parts, [], None
        return b"".join(parts)


class Recovery(Generic[R]):
    """What a replay begins from: the log's beginning, or the first base of a trimmed log.

    Args:
        partition: the log, for errors.
        log_start: 0, or the log was trimmed.
        base_of: the piece of a base that a record is; None for any other record.

    Attributes:
        complete: what it was asked for is found; later bases are as good as no-ops.
        base_as_of: of the base that the replay began from; None of the log's beginning.
    """

    def __init__(
        self, partition: TopicPartition, log_start: Offset, base_of: Callable[[R], Base | None]
    ) -> None:
        self.complete = log_start == 0
        self.base_as_of: EndOffset | None = None
        self._partition = partition
        self._log_start = log_start
        self._base_of = base_of
        self._assembly = BaseAssembly()
        self._held: list[Entry[R]] = []
        self._held_count = 0

    def entry_read(self, entry: Entry[R]) -> Recovered[R]:
        """Takes an effective entry; once `complete`, later bases are as good as no-ops.

        Raises:
            LogTrimmedError: no base within more records than any owner leaves before it.
        """
        if self.complete:
            return Recovered(None, (entry,))
        self._held.append(entry)
        self._held_count += len(entry.records)
        for record in entry.records:
            piece = self._base_of(record)
            state = None if piece is None else self._assembly.piece_read(piece)
            # Between an older base's offset and the log start, entries are gone.
            if piece is not None and state is not None and piece.as_of >= self._log_start:
                self.complete, self.base_as_of = True, piece.as_of
                held, self._held = self._held, []
                return Recovered(state, [one for one in held if one.offset >= piece.as_of])
        if self._held_count > HELD_RECORDS_MAX:
            raise self._no_base(f"none is among its first {self._held_count} records")
        return Recovered(None, ())

    def check_complete(self) -> None:
        """Raises `LogTrimmedError` when the log was read, and no base found."""
        if not self.complete:
            raise self._no_base("none lies before this owner's fence")

    def _no_base(self, detail: str) -> LogTrimmedError:
        return LogTrimmedError(
            "the log was trimmed, and holds no base to recover from",
            detail=f"it begins at offset {self._log_start}; {detail}",
            hint="something else has deleted its records; no owner can serve it any more",
            topic=self._partition.topic,
            partition=self._partition.partition,
            offset=self._log_start,
        )
