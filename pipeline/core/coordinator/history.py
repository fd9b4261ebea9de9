"""The latest ended transactions, from markers in any order.

*Source*: docs/protocols C4, E9. A transaction has one marker for each data partition; a coordinator
that takes over may write a marker again, with the same key.
*Invariants*: each transaction and each of its partitions is counted once; at most `count_max`
transactions are told.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import nlargest

from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.values import TopicPartition, TxnId

MARGIN_MS = 60 * 1000
"""Markers of one transaction are written together; those of a retry follow within a minute."""


@dataclass(slots=True)
class EndedTransaction:
    """A transaction that has ended.

    Attributes:
        txn: its id.
        ended_ms: when the broker stored its first marker, milliseconds since 1970.
        markers: its marker on each data partition.
    """

    txn: TxnId
    ended_ms: int
    markers: dict[TopicPartition, Marker] = field(default_factory=dict[TopicPartition, Marker])

    @property
    def outcome(self) -> str:
        """`committed`, `aborted`, or `mixed` if its markers contradict each other."""
        outcomes = {marker.committed for marker in self.markers.values()}
        if len(outcomes) > 1:
            return "mixed"
        return "committed" if True in outcomes else "aborted"

    @property
    def record_count(self) -> int | None:
        """Number of records of all partitions; None unless committed: aborts name no counts."""
        if self.outcome != "committed":
            return None
        return sum(marker.record_count for marker in self.markers.values())


class MarkerHistory:
    """Gathers markers.

    Args:
        count_max: most transactions to tell, >= 1.
        outcome: only transactions with this outcome; None: with any.
    """

    def __init__(self, count_max: int, outcome: str | None = None) -> None:
        self.count_max = count_max
        self._outcome = outcome
        self._found: dict[TxnId, EndedTransaction] = {}

    def marker_read(self, marker: Marker, timestamp_ms: int) -> None:
        """Takes a marker that the broker stored at `timestamp_ms`."""
        ended = self._found.get(marker.txn)
        if ended is None:
            ended = self._found[marker.txn] = EndedTransaction(marker.txn, timestamp_ms)
        ended.ended_ms = min(ended.ended_ms, timestamp_ms)
        ended.markers[marker.data] = marker

    def latest(self) -> list[EndedTransaction]:
        """The latest transactions, newest first."""
        return nlargest(self.count_max, self._fitting(), key=lambda e: (e.ended_ms, e.txn))

    def needed_from_ms(self) -> int | None:
        """Markers before this time change nothing; None: there are not enough transactions yet.

        Forgets the transactions that are older.
        """
        latest = self.latest()
        if len(latest) < self.count_max:
            return None
        needed_ms = latest[-1].ended_ms - MARGIN_MS
        self._found = {txn: e for txn, e in self._found.items() if e.ended_ms >= needed_ms}
        return needed_ms

    def _fitting(self) -> Iterable[EndedTransaction]:
        return (ended for ended in self._found.values() if self._outcome in {None, ended.outcome})
