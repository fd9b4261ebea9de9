"""Says when a link's last error is written to its target, where operators read it.

*Source*: docs/protocols H9.

*Invariants*: one write is under way at a time; two writes begin at least `AGAIN_MS` apart, and
those of one cause `SAME_MS`, except for the write at the link's end. Without an error there is no
write and no deadline.
"""

from dataclasses import dataclass

from stilltide.schemas.replication.positions import LastError

AGAIN_MS = 10_000
"""Milliseconds between two writes: a link that fails again and again writes little."""

SAME_MS = 60_000
"""Milliseconds between two writes of the same cause, of which only the time is news."""


@dataclass(frozen=True, slots=True)
class WriteLastError:
    """Effect: write the record; report `written` or `not_written`. No write is under way."""

    error: LastError


class LastErrorReport:
    """H9: the last error of one link, and the last one that its record on the target holds.

    Attributes:
        newest: the last error that was met; None: none yet.
    """

    def __init__(self) -> None:
        self.newest: LastError | None = None
        self._told: LastError | None = None
        self._under_way = False
        self._began_ms: int | None = None

    @property
    def deadline_ms(self) -> int | None:
        """When the next write is due; None: nothing is to be written, or a write is under way."""
        if self._under_way or self.newest is None or self.newest == self._told:
            return None
        if self._began_ms is None:
            return 0  # at once
        is_known = self._told is not None and self._told.cause == self.newest.cause
        return self._began_ms + (SAME_MS if is_known else AGAIN_MS)

    def met(self, error: LastError, now_ms: int) -> list[WriteLastError]:
        """The link has met an error, after which it goes on or ends."""
        self.newest = error
        return self.tick(now_ms)

    def written(self, error: LastError, now_ms: int) -> list[WriteLastError]:
        """The record was written."""
        self._under_way, self._told = False, error
        return self.tick(now_ms)

    def not_written(self, now_ms: int) -> list[WriteLastError]:
        """The record was not written, as far as known; it is tried again."""
        self._under_way = False
        return self.tick(now_ms)

    def tick(self, now_ms: int) -> list[WriteLastError]:
        """Writes what is due."""
        due_ms = self.deadline_ms
        return [] if due_ms is None or now_ms < due_ms else self.ending(now_ms)

    def ending(self, now_ms: int) -> list[WriteLastError]:
        """The link ends: what is not written yet is due now, unless a write is under way."""
        if self.deadline_ms is None or self.newest is None:
            return []
        self._under_way, self._began_ms = True, now_ms
        return [WriteLastError(self.newest)]
