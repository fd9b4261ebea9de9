"""Which offsets that were not read yet are acknowledged, or pending in a transaction.

*Source*: docs/protocols G.
"""

from collections.abc import Iterable, Sized

from stilltide.pipeline.core.pending_ack.cursor import SPAN_MAX, Cursor, always_fits
from stilltide.pipeline.core.pending_ack.ranges import RangeSet
from stilltide.schemas.pending_ack.acknowledgements import Acks
from stilltide.schemas.values import EndOffset


class Ahead:
    """Offsets at or above the position of one member.

    Args:
        cursor: cursor that the group has committed.

    Attributes:
        acknowledged: offsets acknowledged by the committed cursor or the store's answer.
        acknowledged_end: end offset of everything that was ever acknowledged.
        pending: offsets pending in transactions, by the store's last answer.
    """

    __slots__ = ("acknowledged", "acknowledged_end", "pending")

    def __init__(self, cursor: Cursor) -> None:
        self.acknowledged = RangeSet(cursor.acknowledged)
        self.acknowledged_end = max((it.end for it in cursor.acknowledged), default=EndOffset(0))
        self.pending = RangeSet()

    def note(self, acks: Acks, position: int) -> None:
        """Takes the store's answer about offsets at or above the position."""
        for first, end in acknowledged_in(acks):
            self.acknowledged.add(first, end)
            self.acknowledged_end = max(self.acknowledged_end, end)
        self.acknowledged.trim_below(position)
        self.pending = pending_in(acks)
        self.pending.trim_below(position)

    def fits(self, offset: int, lowest: int, open_offsets: Iterable[Sized]) -> bool:
        """Whether the cursor fits the commit's metadata, whichever offsets are acknowledged.

        Args:
            offset: highest offset that is taken.
            lowest: offset of the cursor, or below.
            open_offsets: collections of the offsets in between that are not acknowledged.
        """
        span = max(offset + 1, self.acknowledged_end) - lowest
        if span <= SPAN_MAX:  # the same result as below, without counting
            return True
        unacknowledged = sum(map(len, open_offsets))
        return always_fits(unacknowledged + self.acknowledged.range_count + 1, span)


def acknowledged_in(acks: Acks) -> RangeSet:
    """The acknowledged offsets of an answer."""
    return RangeSet([(0, acks.cursor), *acks.acknowledged])


def pending_in(acks: Acks) -> RangeSet:
    """The offsets of an answer that are pending in any transaction."""
    found = RangeSet()
    for _, ranges, cumulative_offset, _ in acks.pending:
        for first, end in ranges:
            found.add(first, end)
        if cumulative_offset is not None:
            found.add(0, cumulative_offset + 1)
    return found
