"""Bases of a log: when one is written, how far the log is trimmed, and where a replay begins.

*Source*: docs/protocols C8, B3; PIP-160: which records are live.
*Invariants*: the log is trimmed only to an effective entry at or below the as-of offset of a base
whose pieces are all effective, so never to its end. A base is made of pieces of one owner only: its
as-of offset is above the owner's fence, so above every piece of an earlier owner. A record is live
as long as one of its keys is; a dead record stays dead. Its liveness costs about two dict
operations for each key when the record is read, and two when the key ends; memory grows with the
live records, never with the log's history. Only a base allows records to be deleted.

Refuses a trimmed log without a base, because the state before the log start is then unknown.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from stilltide.pipeline.errors import LogTrimmedError
from stilltide.schemas.framing import RECORDS_MAX
from stilltide.schemas.log_frames import Base
from stilltide.schemas.retry import TRIM
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class LogPoint(NamedTuple):
    """An effective entry, and how many records were read before it."""

    offset: Offset
    records_before: int


class Liveness:
    """Counts live and dead records, from every effective entry and each key that ends.

    A key is a transaction's sequence. Only effective entries are reported, so fences and the
    entries of fenced owners are not counted.
    """

    def __init__(self) -> None:
        self.last_entry: LogPoint | None = None
        self._records_read = 0
        self._records_trimmed = 0
        # A place is offset * RECORDS_MAX + index. Both dicts are in the order of the log.
        self._places: dict[int, list[int]] = {}  # by key
        self._keys: dict[int, int] = {}  # number of live keys by place

    @property
    def live_count(self) -> int:
        """How many records of the log are still needed."""
        return len(self._keys)

    @property
    def dead_count(self) -> int:
        """How many records of the log are not needed any more and not yet trimmed."""
        return self._records_read - self._records_trimmed - len(self._keys)

    @property
    def first_live_offset(self) -> Offset | None:
        """Offset of the first entry with a live record; None: no record is live."""
        place = next(iter(self._keys), None)
        return None if place is None else Offset(place // RECORDS_MAX)

    def entry_read(self, offset: Offset, record_count: int) -> None:
        """An effective entry; its records are dead unless `record_live` follows for them."""
        self.last_entry = LogPoint(offset, self._records_read)
        self._records_read += record_count

    def record_live(self, index: int, keys: Iterable[int]) -> None:
        """Record `index` of the entry just read is needed until all of `keys` have ended."""
        assert self.last_entry is not None
        place = self.last_entry.offset * RECORDS_MAX + index
        count = 0
        for key in keys:
            self._places.setdefault(key, []).append(place)
            count += 1
        if count:
            self._keys[place] = count

    def ended(self, key: int) -> None:
        """A key has ended: no record is needed for the key any more."""
        for place in self._places.pop(key, ()):
            left = self._keys[place] - 1
            if left:
                self._keys[place] = left
            else:
                del self._keys[place]

    def trimmed(self, point: LogPoint) -> None:
        """The log begins at `point` now; costs a walk over the live records."""
        first_place = point.offset * RECORDS_MAX
        self._records_trimmed = max(self._records_trimmed, point.records_before)
        self._keys = {place: count for place, count in self._keys.items() if place >= first_place}
        kept = {
            key: [place for place in places if place >= first_place]
            for key, places in self._places.items()
        }
        self._places = {key: places for key, places in kept.items() if places}

    def live_entries(self) -> dict[Offset, int]:
        """By offset: a bit for each index of the entry's batch, set where the record is live."""
        entries: dict[Offset, int] = {}
        for place in self._keys:
            offset, index = Offset(place // RECORDS_MAX), place % RECORDS_MAX
            entries[offset] = entries.get(offset, 0) | 1 << index
        return entries


IDLE_MS = 1000
"""From the last change to the base of a log in which nothing is open."""

HELD_RECORDS_MAX = 1_000_000
"""Records held in search of a base; only those in flight when it was made can precede a base."""

R = TypeVar("R")


@dataclass(frozen=True)
class BaseLimits:
    """When a base is worth its bytes.

    Attributes:
        interval_ms: shortest time between two bases of one owner.
        dead_floor: fewest dead records that make a base worth writing.
        dead_factor: least ratio of dead records to the items that the base would hold.
    """

    interval_ms: int = 2000
    dead_floor: int = 500
    dead_factor: int = 4


@dataclass(frozen=True, slots=True)
class Trim:
    """Effect: delete the records before `offset`, whose content an effective base holds.

    Report `trimmed` or `trim_failed`.
    """

    offset: Offset


class Entry(NamedTuple, Generic[R]):
    """An effective entry: its offset and its records."""

    offset: Offset
    records: Sequence[R]


class Recovered(NamedTuple, Generic[R]):
    """What an entry adds to a replay: the base's state, if it is complete, and entries to apply."""

    state: bytes | None
    entries: Sequence[Entry[R]]


class BaseKeeper:
    """Decides when an owner writes a base and trims the log, from the effective entries (C8).

    Every effective entry is reported, those before `served` too.

    Args:
        log_start: offset at which the replay began.
        limits: when a base is due.

    Attributes:
        written_as_of: as-of offset of the last base that this owner wrote.
    """

    def __init__(self, log_start: Offset, limits: BaseLimits) -> None:
        self.liveness = Liveness()
        self.log_start = log_start
        self.written_as_of: EndOffset | None = None
        self._limits = limits
        self._epoch: Offset | None = None
        self._next_ms = 0
        self._weigh_ms = 0  # when dead records are compared with the base's items again
        self._changed_ms: int | None = None  # the last change that no base holds
        self._making: EndOffset | None = None  # as-of offset of the base being written
        self._pieces_read = 0
        self._point: LogPoint | None = None  # how far that base lets the log be trimmed
        self._trim: LogPoint | None = None  # a trim that has not been reported done
        self._trim_ms: int | None = None  # when that trim is tried again

    def served(self, epoch: Offset, now_ms: int) -> None:
        """This owner's fence was read; bases may be written from now on."""
        self._epoch = epoch
        self._next_ms = now_ms
        self._changed_ms = now_ms if epoch > self.log_start else None

    def next_due_ms(self, *, idle: bool) -> int | None:
        """When to call `trims_due` and `due`; `idle`: nothing is open."""
        times = [] if self._trim_ms is None else [self._trim_ms]
        if self._making is None:
            if self.liveness.dead_count >= self._limits.dead_floor:
                times.append(max(self._next_ms, self._weigh_ms))
            if idle and self._changed_ms is not None:
                times.append(max(self._next_ms, self._changed_ms + IDLE_MS))
        return min(times, default=None)

    def entry_read(self, offset: Offset, record_count: int) -> None:
        """An effective entry was read; `changed` follows if its records change the state."""
        self.liveness.entry_read(offset, record_count)
        if offset == self._making:
            self._point = self.liveness.last_entry

    def changed(self, now_ms: int) -> None:
        """A record other than a no-op or a piece of a base was applied."""
        self._changed_ms = now_ms

    def due(self, now_ms: int, *, idle: bool, live_count: Callable[[], int]) -> EndOffset | None:
        """The as-of offset of a base to write now, of the present state; None: no base is due.

        Args:
            now_ms: time of the owner's clock.
            idle: whether nothing is open.
            live_count: counts the items that a base would hold.
        """
        if self._epoch is None or self._making is not None or now_ms < self._next_ms:
            return None
        dead, limits = self.liveness.dead_count, self._limits
        if dead >= limits.dead_floor and now_ms >= self._weigh_ms:
            if dead >= limits.dead_factor * live_count():
                return self._make(now_ms)
            self._weigh_ms = now_ms + limits.interval_ms  # counting the items is not free
        if idle and self._changed_ms is not None and now_ms >= self._changed_ms + IDLE_MS:
            return self._make(now_ms)
        return None

    def piece_read(self, piece: Base) -> list[Trim]:
        """A piece in an effective entry; after the base's last piece the log may be trimmed."""
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
        """A piece of a base will never be effective; another base is written later."""
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
        """A trim may not have happened; it is tried again later, or with the next base."""
        if self._trim is not None and self._trim.offset == offset:
            self._trim_ms = now_ms + TRIM.wait_ms()

    def trims_due(self, now_ms: int) -> list[Trim]:
        """Returns a failed trim when it is due again."""
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
    """Joins the pieces of each base in turn; drops a base of which a piece is missing."""

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
    """Finds where a replay begins: at the log's beginning, or with a trimmed log's first base.

    Args:
        partition: the log's partition, for errors.
        log_start: log start offset; above 0 the log was trimmed.
        base_of: returns a record's body if that is a piece of a base, else None.

    Attributes:
        complete: whether the replay's beginning is found; later bases are ignored like no-ops.
        base_as_of: as-of offset of the base that the replay began with; None for a whole log.
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
        """Takes an effective entry; returns the entries that can be applied now (C8).

        Raises:
            LogTrimmedError: more records without a base than an owner ever leaves before one.
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
                entries, self._held = self._held, []
                return Recovered(state, [one for one in entries if one.offset >= piece.as_of])
        if self._held_count > HELD_RECORDS_MAX:
            raise self._no_base(f"none is among its first {self._held_count} records")
        return Recovered(None, ())

    def check_complete(self) -> None:
        """Raises `LogTrimmedError` if the log was read up to the fence without finding a base."""
        if not self.complete:
            raise self._no_base("none precedes this owner's fence")

    def _no_base(self, detail: str) -> LogTrimmedError:
        return LogTrimmedError(
            "the log was trimmed, and holds no base to recover from",
            detail=f"it begins at offset {self._log_start}; {detail}",
            hint="something else has deleted its records; no owner can serve it any more",
            data=self._partition,
            offset=self._log_start,
        )
