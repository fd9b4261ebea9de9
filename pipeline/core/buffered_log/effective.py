"""Which entries of a log count, as every reader of it decides: owner, replay and tools.

*Source*: docs/protocols B2, B3, B6, B7.
*Invariants*: the same entries in the same order give the same verdicts, wherever in the log a
reader that began at the log start stands; foreign entries and control records change none of them
(B6, B7); offsets that a trim may have taken are never read over.
"""

from stilltide.schemas.headers import EntryStamp
from stilltide.schemas.values import Offset


class LogGapError(Exception):
    """A trim took entries before they were read: the reader must begin again (B3)."""


class EffectiveLog:
    """Feed it every entry in offset order; it says which are effective.

    Args:
        log_start: the log start offset the reader began at. Above 0 the log was trimmed, and its
            first entry names the fence in force.
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
        """Whether the entry is effective: written in the epoch in force, serial still unseen."""
        self._follow(offset)
        if offset == self._trimmed_to:
            self._epoch, self._serial = stamp
            return True
        if stamp.epoch != self._epoch or stamp.serial <= self._serial:
            return False
        self._serial = stamp.serial
        return True

    def foreign_read(self, offset: Offset) -> None:
        """An entry that has no stamp and is no fence: nobody's, passed over (B6)."""
        self._follow(offset)

    def gap_read(self, offset: Offset, log_start: Offset) -> None:
        """The entry after the last one lies at `offset`, further than one on (B7).

        Args:
            offset: of the entry that is read next; what lies before it are control records.
            log_start: the log start offset, asked after the gap was seen.

        Raises:
            LogGapError: the log begins above the first missing offset, so a trim took entries.
        """
        if log_start > self._next:
            missing = f"expected offset {self._next}, read {offset}"
            raise LogGapError(f"{missing}; the log begins at {log_start}")
        self._next = max(self._next, int(offset))

    def _follow(self, offset: Offset) -> None:
        if offset != self._next:
            raise LogGapError(f"expected offset {self._next}, read {offset}")
        self._next += 1
