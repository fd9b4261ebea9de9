"""Decides up to which offset the markers of a marker partition are deleted.

*Source*: docs/protocols E3, E9.
*Invariants*: a marker is deleted only after the write that absorbed it, and only when it is older
than the retention; the log is asked for the first younger marker at most once in `LOOK_MS`.
"""

from collections.abc import Sequence

from stilltide.pipeline.core.snapshots.effects import FindYounger, TrimMarkers
from stilltide.schemas.values import Offset

LOOK_MS = 60 * 1000
"""Between two questions for the first marker that is younger than the retention."""


class MarkerTrimming:
    """The trimming of one marker partition.

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
