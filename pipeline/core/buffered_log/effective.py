"""Which entries of a log count, as every reader of it decides: owner, replay and tools.

*Source*: protocols.md B2, B3.
*Invariants*: the same entries in the same order give the same verdicts, wherever in the log a
reader that began at the log start stands; a gap in the offsets is never read over.
"""

from schemas.headers import EntryStamp
from schemas.values import Offset


class LogGapError(Exception):
    """Offsets are not consecutive: a trim overtook the reader, which must begin again (B3)."""


class EffectiveLog:
    """Feed it every entry in offset order; it says which are effective.

    Args:
        log_start: the log start offset the reader began at. Above 0 the log was trimmed, and its
            first entry names the fence in force.
    """

    def __init__(self, log_start: Offset) -> None:
        self._next = int(log_start)
        self._trimmed = log_start > 0
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
        """Whether the entry is effective: written in the epoch in force, serial still unseen."""
        first_of_trimmed = self._epoch is None and self._trimmed
        self._follow(offset)
        if first_of_trimmed:
            self._epoch, self._serial = stamp
            return True
        if stamp.epoch != self._epoch or stamp.serial <= self._serial:
            return False
        self._serial = stamp.serial
        return True

    def _follow(self, offset: Offset) -> None:
        if offset != self._next:
            raise LogGapError(f"expected offset {self._next}, read {offset}")
        self._next += 1
