"""Which transactions of one coordinator can still acknowledge, and where acknowledgements pend.

*Source*: docs/protocols G, C7.
*Invariants*: a sequence that was settled, or is below the low watermark, has ended for ever. At
most `SETTLED_MAX` runs of settled sequences are held: beyond, the oldest gap counts as ended too.
Further acknowledgements of so old a transaction are refused; none that was accepted is lost.
"""

from bisect import bisect_left, insort

from stilltide.pipeline.core.pending_ack.ranges import RangeSet
from stilltide.schemas.pending_ack.acknowledgements import BaseCoordinator
from stilltide.schemas.values import SubscriptionId, TxnId

SETTLED_MAX = 100_000


class CoordinatorView:
    """One coordinator's transactions, as a pending-ack store knows them."""

    def __init__(self, coordinator: int) -> None:
        self.low_watermark = 0
        self._coordinator = coordinator
        self._settled = RangeSet(ranges_max=SETTLED_MAX + 1)
        self._sequences: list[int] = []  # transactions with pending acknowledgements, ascending
        self._where: dict[int, set[SubscriptionId]] = {}

    @property
    def pending_count(self) -> int:
        """Number of transactions that may have pending acknowledgements."""
        return len(self._sequences)

    def has_ended(self, sequence: int) -> bool:
        """Whether a transaction's further acknowledgements are refused."""
        return sequence < self.low_watermark or sequence in self._settled

    def acknowledged(self, sequence: int, subscription: SubscriptionId) -> None:
        """Notes that a transaction may have pending acknowledgements in this group partition."""
        where = self._where.get(sequence)
        if where is None:
            where = self._where[sequence] = set()
            insort(self._sequences, sequence)
        where.add(subscription)

    def settled(self, sequence: int, subscription: SubscriptionId) -> None:
        """A transaction has ended, and has nothing pending in this group partition any more."""
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
        """Raises the low watermark; returns where transactions below it were never settled.

        A registered group partition is settled before the low watermark passes the transaction, so
        the returned ones were never registered.
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
        """A copy of the state that does not follow from the group partitions' state (C8)."""
        settled = tuple((int(first), int(end)) for first, end in self._settled)
        return BaseCoordinator(self._coordinator, self.low_watermark, settled)

    @classmethod
    def from_base(cls, base: BaseCoordinator) -> "CoordinatorView":
        """The state that `base` copied; the caller adds pending ones by `acknowledged`."""
        self = cls(base.coordinator)
        self.low_watermark = base.low_watermark
        self._settled = RangeSet(base.settled, ranges_max=SETTLED_MAX + 1)
        return self

    def _forget(self, sequence: int) -> None:
        del self._where[sequence]
        del self._sequences[bisect_left(self._sequences, sequence)]
