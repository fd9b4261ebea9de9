"""Model of the broker's index of aborted transactions of a partition (F1).

*Source*: Kafka's `TransactionIndex`.

*Invariants*:
- F1 Entries are in the order of their markers, so last offsets ascend; last stable offsets never
  go back, because the transactions that are open when a marker is written outlive it.
- F1 A search gives every entry that has a record in the range, in that order; it may give more.

Kafka searches from the beginning of a segment; this model finds both ends by bisection, which the
order allows. An entry takes 32 bytes: four columns of 64-bit integers.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from stilltide.schemas.values import EndOffset, Offset
from tests.support.native.open_transactions import AbortedEntry


class SearchResult(NamedTuple):
    """The result of a search.

    Attributes:
        entries: entries found, in the order of their markers.
        is_complete: whether no later entry can have a record in the range.
    """

    entries: list[AbortedEntry]
    is_complete: bool


class TransactionIndex:
    """Entries of one partition."""

    def __init__(self) -> None:
        self._producer_ids = array("q")
        self._first_offsets = array("q")
        self._last_offsets = array("q")
        self._last_stable_offsets = array("q")

    def __len__(self) -> int:
        return len(self._last_offsets)

    def __iter__(self) -> Iterator[AbortedEntry]:
        """All entries, in the order of their markers."""
        return map(self._entry, range(len(self)))

    def append(self, entry: AbortedEntry) -> None:
        """Appends an entry."""
        if self._last_offsets:
            assert entry.last_offset > self._last_offsets[-1], "entries come as their markers do"
            assert entry.last_stable_offset >= self._last_stable_offsets[-1], "it never goes back"
        self._producer_ids.append(entry.producer_id)
        self._first_offsets.append(entry.first_offset)
        self._last_offsets.append(entry.last_offset)
        self._last_stable_offsets.append(entry.last_stable_offset)

    def search(self, first: Offset, until: EndOffset) -> SearchResult:
        """F1: entries with a record in `[first, until)`; O(log n) plus the length of the result.

        The result holds the entries whose markers were written from `first` on, until the last
        stable offset passed `until`.
        """
        begin = bisect_left(self._last_offsets, first)
        # The first entry whose last stable offset has reached the end is the last to be looked at.
        last = bisect_left(self._last_stable_offsets, until)
        first_offsets = self._first_offsets
        entries = [
            self._entry(index)
            for index in range(begin, min(last + 1, len(self)))
            if first_offsets[index] < until
        ]
        return SearchResult(entries, last < len(self))

    def _entry(self, index: int) -> AbortedEntry:
        return AbortedEntry(
            self._producer_ids[index],
            Offset(self._first_offsets[index]),
            Offset(self._last_offsets[index]),
            EndOffset(self._last_stable_offsets[index]),
        )
