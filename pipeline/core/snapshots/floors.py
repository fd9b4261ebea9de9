"""When an aborted id is not needed any more: floors, and the pairs that become floors.

*Source*: docs/protocols E5.
*Invariants*: a pair's low watermarks were known before its end offset was read, so every record of
a sequence below them is below that end offset, or was written after its transaction had ended. The
end offset is the high watermark, because an open native transaction holds back the last stable
offset, and records may be above that.
"""

from collections.abc import Iterable

from stilltide.schemas.snapshots.snapshots import Floors, TrimPair
from stilltide.schemas.values import EndOffset

PAIRS_MAX = 32
"""Most pairs kept for one data partition; a dropped inner pair only delays the trimming."""


def raised(floors: dict[int, int], by: Floors) -> None:
    """Raises floors in place; none is ever lowered."""
    for coordinator, sequence in by.items():
        if sequence > floors.get(coordinator, 0):
            floors[coordinator] = sequence


class TrimPairs:
    """Pairs in the order of their end offsets."""

    def __init__(self, pairs: Iterable[TrimPair] = ()) -> None:
        self._pairs = list(pairs)

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def as_tuple(self) -> tuple[TrimPair, ...]:
        """The pairs as a snapshot's end holds them."""
        return tuple(self._pairs)

    def add(self, end_offset: EndOffset, low_watermarks: Floors) -> None:
        """Adds a pair; its low watermarks were known before its end offset was read."""
        if not low_watermarks:
            return
        if self._pairs and self._pairs[-1].end_offset >= end_offset:
            # Nothing was written since: the newer low watermarks hold for the older offset too.
            end_offset = self._pairs.pop().end_offset
        self._pairs.append(TrimPair(end_offset, low_watermarks))
        if len(self._pairs) > PAIRS_MAX:
            self._thin()

    def matured(self, log_start: EndOffset) -> list[TrimPair]:
        """Removes and returns the pairs whose end offset is at or below the log start."""
        count = sum(pair.end_offset <= log_start for pair in self._pairs)
        taken, self._pairs = self._pairs[:count], self._pairs[count:]
        return taken

    def _thin(self) -> None:
        """Drops the inner pair whose two neighbours are closest to each other."""
        offsets = [pair.end_offset for pair in self._pairs]
        inner = range(1, len(offsets) - 1)
        del self._pairs[min(inner, key=lambda at: offsets[at + 1] - offsets[at - 1])]
