"""One owner of one log: takes the log by a fence, and reads its own entries back.

*Source*: docs/protocols A1, A5, B1, B2, B3, B4, B5, B6, B7.
*Invariants*: B3 an entry is reported as written only when read back effective; B5 a write that
failed is reported only when a later entry of this owner, or a fence, is read back; B4 after a later
fence nothing is reported as written any more. Reports come in the order of writing (A1).
B6 an entry that is not effective is skipped, whatever its bytes; an effective entry that cannot be
decoded is an error. Every reader that begins at the log start comes to the same verdict about an
entry; foreign entries and control records change no verdict (B6, B7); offsets that a trim may have
deleted are never skipped silently.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

from stilltide.schemas.errors import DecodeError
from stilltide.schemas.headers import EntryStamp
from stilltide.schemas.values import Offset


class LogGapError(Exception):
    """A trim deleted entries before they were read: the reader must begin again (B3)."""


class EffectiveLog:
    """The verdict of every reader of a log: which of its entries are effective (B2).

    Takes all entries in offset order.

    Args:
        log_start: log start offset at which the reader began. Above 0 the log was trimmed, and
            the stamp of its first entry names the fence in force.
    """

    def __init__(self, log_start: Offset) -> None:
        self._next = int(log_start)
        self._trimmed_to = log_start if log_start > 0 else None
        self._epoch: int | None = None
        self._serial = 0

    @property
    def next_offset(self) -> Offset:
        """Offset of the entry expected next."""
        return Offset(self._next)

    def fence_read(self, offset: Offset) -> None:
        """A fence: from here on only entries of its owner are effective (B1)."""
        self._follow(offset)
        self._epoch, self._serial = offset, 0

    def entry_read(self, offset: Offset, stamp: EntryStamp) -> bool:
        """B2: whether the entry is of the epoch in force, with a serial above all before."""
        self._follow(offset)
        if offset == self._trimmed_to:
            self._epoch, self._serial = stamp
            return True
        if stamp.epoch != self._epoch or stamp.serial <= self._serial:
            return False
        self._serial = stamp.serial
        return True

    def foreign_read(self, offset: Offset) -> None:
        """An entry without a stamp that is no fence: no owner wrote it, so it is skipped (B6)."""
        self._follow(offset)

    def gap_read(self, offset: Offset, log_start: Offset) -> None:
        """Skips the offsets up to `offset` where no entry could be read (B7).

        Args:
            offset: offset of the next entry; control records are in between.
            log_start: log start offset, asked for after the gap was seen.

        Raises:
            LogGapError: the log starts above the first missing offset, so a trim deleted entries.
        """
        if log_start > self._next:
            missing = f"expected offset {self._next}, read {offset}"
            raise LogGapError(f"{missing}; the log begins at {log_start}")
        self._next = max(self._next, int(offset))

    def _follow(self, offset: Offset) -> None:
        if offset != self._next:
            raise LogGapError(f"expected offset {self._next}, read {offset}")
        self._next += 1


class OwnerState(Enum):
    """State of an owner: reading up to its fence, serving, or replaced."""

    REPLAYING = auto()
    SERVING = auto()
    FENCED = auto()


@dataclass(frozen=True, slots=True)
class Apply:
    """Effect: the entry just read is effective; apply its records.

    `serial`: number of the entry if this owner wrote it; None: another owner did.
    """

    serial: int | None


@dataclass(frozen=True, slots=True)
class EntryWritten:
    """Effect: entry `serial` is effective at `offset`; None: it will never be effective."""

    serial: int
    offset: Offset | None


@dataclass(frozen=True, slots=True)
class Serve:
    """Effect: everything before this owner's fence has been applied; it may serve (B1)."""

    epoch: Offset


@dataclass(frozen=True, slots=True)
class Fenced:
    """Effect: another owner's fence; fail everything in flight and stop (B4)."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class AppendNoop:
    """Effect: append a no-op; reading it back decides whether a failed write arrived (B5)."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """Effect: the entry just read is not effective and was skipped; count it (B6)."""


OwnerEffect = Apply | EntryWritten | Serve | Fenced | AppendNoop | Foreign


class LogOwner:
    """One ownership of a log, from the owner's fence to a later fence (B).

    Args:
        nonce: 16 random bytes in this owner's fence.
        log_start: log start offset at which the owner began to read.
    """

    def __init__(self, nonce: bytes, log_start: Offset) -> None:
        self.state = OwnerState.REPLAYING
        self.epoch: Offset | None = None
        self._nonce = nonce
        self._view = EffectiveLog(log_start)
        self._in_flight: deque[int] = deque()

    @property
    def in_flight(self) -> int:
        """How many entries were written and not yet reported."""
        return len(self._in_flight)

    @property
    def next_offset(self) -> Offset:
        """Offset of the entry expected next; a later one is a gap, see `gap_read`."""
        return self._view.next_offset

    def stamp(self, serial: int) -> EntryStamp:
        """The epoch and serial in the headers of entry `serial`; only a serving owner writes."""
        assert self.state is OwnerState.SERVING, "writes before its fence or after another's"
        assert self.epoch is not None
        return EntryStamp(self.epoch, serial)

    def entry_written(self, serial: int) -> None:
        """Entry `serial`, higher than all serials before, is on its way to the log."""
        assert not self._in_flight or serial > self._in_flight[-1], "serials must grow"
        self._in_flight.append(serial)

    def write_failed(self, serial: int) -> list[OwnerEffect]:
        """The producer gave up on an entry, which may still arrive in the log (A5, B5)."""
        if self.state is not OwnerState.SERVING or serial not in self._in_flight:
            return []
        # Reading a later entry back decides this one; if none is on its way, a no-op is written.
        return [AppendNoop()] if serial == self._in_flight[-1] else []

    def fence_read(self, offset: Offset, nonce: bytes) -> list[OwnerEffect]:
        """A fence was read: this owner's begins the service (B1), a later one ends it (B4)."""
        self._view.fence_read(offset)
        if self.state is OwnerState.REPLAYING:
            if nonce != self._nonce:
                return []
            self.state, self.epoch = OwnerState.SERVING, offset
            return [Serve(offset)]
        if self.state is OwnerState.FENCED:
            return []
        self.replaced()
        return [Fenced(offset)]

    def gap_read(self, offset: Offset, log_start: Offset) -> None:
        """Skips the offsets up to `offset`, which hold control records or were trimmed (B7).

        Raises:
            LogGapError: a trim deleted entries before they were read.
        """
        self._view.gap_read(offset, log_start)

    def foreign_read(self, offset: Offset) -> list[OwnerEffect]:
        """An entry was read that has no stamp and does not decode as a fence (B6)."""
        self._view.foreign_read(offset)
        return self._passed_over()

    def entry_read(
        self, offset: Offset, stamp: EntryStamp, damage: DecodeError | None = None
    ) -> list[OwnerEffect]:
        """A stamped entry was read: applied if effective (B2), reported if this owner's (B3).

        Args:
            offset: offset of the entry.
            stamp: epoch and serial of the entry.
            damage: why the entry's value cannot be decoded; ignored if it is not effective.

        Raises:
            DecodeError: the effective entry is damaged, or has this owner's epoch and a serial
                that this owner did not write.
        """
        effective = self._view.entry_read(offset, stamp)
        if not effective or self.state is OwnerState.FENCED:
            return self._passed_over()
        if damage is not None:
            raise damage
        if self.state is OwnerState.REPLAYING or stamp.epoch != self.epoch:
            return [Apply(None)]
        effects = self._report_below(stamp.serial)
        if not self._in_flight or self._in_flight.popleft() != stamp.serial:
            raise DecodeError(
                "an entry of this owner's epoch that it did not write",
                hint="something else writes to this topic",
            )
        return [*effects, Apply(stamp.serial), EntryWritten(stamp.serial, offset)]

    def replaced(self) -> None:
        """Ends the service like a fence, after a gap in the log or a revoked partition (B3)."""
        self.state = OwnerState.FENCED
        self._in_flight.clear()

    def _passed_over(self) -> list[OwnerEffect]:
        # The later owner counts what is behind its fence.
        return [] if self.state is OwnerState.FENCED else [Foreign()]

    def _report_below(self, serial: int) -> list[OwnerEffect]:
        """B5: entries in front of `serial` that were not read will never be effective."""
        lost: list[OwnerEffect] = []
        while self._in_flight and self._in_flight[0] < serial:
            lost.append(EntryWritten(self._in_flight.popleft(), None))
        return lost
