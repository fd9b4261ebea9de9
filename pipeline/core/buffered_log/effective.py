"""Which entries of a log are effective: the rule shared by owners, replays and tools.

*Source*: docs/protocols B2, B3, B6, B7.
*Invariants*: every reader that begins at the log start comes to the same verdict about an entry;
foreign entries and control records change no verdict (B6, B7); offsets that a trim may have deleted
are never skipped silently.
"""

from stilltide.schemas.headers import EntryStamp
from stilltide.schemas.values import Offset


class LogGapError(Exception):
    """A trim deleted entries before they were read: the reader must begin again (B3)."""


class EffectiveLog:
    """Takes every entry of a log in offset order, and decides which of them are effective.

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
        """A fence: from here on only entries of its owner are effective."""
        self._follow(offset)
        self._epoch, self._serial = offset, 0

    def entry_read(self, offset: Offset, stamp: EntryStamp) -> bool:
        """Whether the entry is effective: of the epoch in force, with a serial above all before."""
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
