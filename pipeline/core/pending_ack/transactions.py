"""Which transactions of one coordinator can still acknowledge, and where they have.

*Source*: docs/protocols G, C7.
*Invariants*: whatever was settled, or lies below the low watermark, has ended for ever. At most
`SETTLED_MAX` runs of settled sequences are held: beyond, the oldest gap counts as ended too, so
that a transaction that old can acknowledge nothing further. That refuses; it never loses.
"""

from bisect import bisect_left, insort

from stilltide.pipeline.core.pending_ack.ranges import RangeSet
from stilltide.schemas.pending_ack.acknowledgements import BaseCoordinator
from stilltide.schemas.values import SubscriptionId, TxnId

SETTLED_MAX = 100_000


class CoordinatorView:
    """What pending-ack-log knows of one coordinator's transactions."""

    def __init__(self, coordinator: int) -> None:
        self.low_watermark = 0
        self._coordinator = coordinator
        self._settled = RangeSet(ranges_max=SETTLED_MAX + 1)
        self._sequences: list[int] = []  # of transactions with something pending, ascending
        self._where: dict[int, set[SubscriptionId]] = {}

    @property
    def pending_count(self) -> int:
        """Transactions in which something may be pending."""
        return len(self._sequences)

    def has_ended(self, sequence: int) -> bool:
        """Whether a transaction acknowledges nothing any more."""
        return sequence < self.low_watermark or sequence in self._settled

    def acknowledged(self, sequence: int, subscription: SubscriptionId) -> None:
        """Something may be pending in a transaction now."""
        where = self._where.get(sequence)
        if where is None:
            where = self._where[sequence] = set()
            insort(self._sequences, sequence)
        where.add(subscription)

    def settled(self, sequence: int, subscription: SubscriptionId) -> None:
        """A transaction has ended, and nothing of it is pending in this subscription."""
        if not self.has_ended(sequence):
            self._settled.add(sequence, sequence + 1)
            if self._settled.range_count > SETTLED_MAX:
                oldest, following, *_ = self._settled
                self._settled.add(oldest.first, following.end)
        where = self._where.get(sequence)
        if where is not None:
            where.discard(subscription)
            if not where:
                self._forget(sequence)

    def passed(self, low_watermark: int) -> list[tuple[TxnId, SubscriptionId]]:
        """Every sequence below has ended; returns what is pending there and was never settled.

        A subscription registered with the transaction was settled before, so these were not.
        """
        if low_watermark <= self.low_watermark:
            return []
        self.low_watermark = low_watermark
        self._settled.trim_below(low_watermark)
        dropped: list[tuple[TxnId, SubscriptionId]] = []
        while self._sequences and self._sequences[0] < low_watermark:
            sequence = self._sequences[0]
            txn = TxnId(self._coordinator, sequence)
            dropped += [(txn, subscription) for subscription in sorted(self._where[sequence])]
            self._forget(sequence)
        return dropped

    def base(self) -> BaseCoordinator:
        """A copy of what does not follow from the subscriptions (C8)."""
        settled = tuple((int(first), int(end)) for first, end in self._settled)
        return BaseCoordinator(self._coordinator, self.low_watermark, settled)

    @classmethod
    def from_base(cls, base: BaseCoordinator) -> "CoordinatorView":
        """What `base` copied; `acknowledged` follows for all that is pending."""
        self = cls(base.coordinator)
        self.low_watermark = base.low_watermark
        self._settled = RangeSet(base.settled, ranges_max=SETTLED_MAX + 1)
        return self

    def _forget(self, sequence: int) -> None:
        del self._where[sequence]
        del self._sequences[bisect_left(self._sequences, sequence)]
