"""Which records of a log's entries are still needed: PIP-160's batch index.

*Source*: PIP-160; docs/protocols C8.
*Invariants*: a record is live as long as one of its keys is; a dead record stays dead. Costs about
two dict operations for each key of a record when the record is read, and two when the key ends;
memory grows with the live records, never with the log's history.

The figures decide when a base is worth writing, and are shown to operators. Only a base allows
records to be deleted (C8).
"""

from collections.abc import Iterable
from typing import NamedTuple

from stilltide.schemas.framing import RECORDS_MAX
from stilltide.schemas.values import Offset


class LogPoint(NamedTuple):
    """An effective entry, and how many records were read before it."""

    offset: Offset
    records_before: int


class Liveness:
    """Counts live and dead records, from every effective entry and each key that ends.

    A key is a transaction's sequence. Only effective entries are reported, so fences and the
    entries of fenced owners are not counted.
    """

    def __init__(self) -> None:
        self.last_entry: LogPoint | None = None
        self._records_read = 0
        self._records_trimmed = 0
        # A place is offset * RECORDS_MAX + index. Both dicts are in the order of the log.
        self._places: dict[int, list[int]] = {}  # by key
        self._keys: dict[int, int] = {}  # number of live keys by place

    @property
    def live_count(self) -> int:
        """How many records of the log are still needed."""
        return len(self._keys)

    @property
    def dead_count(self) -> int:
        """How many records of the log are not needed any more and not yet trimmed."""
        return self._records_read - self._records_trimmed - len(self._keys)

    @property
    def first_live_offset(self) -> Offset | None:
        """Offset of the first entry with a live record; None: no record is live."""
        place = next(iter(self._keys), None)
        return None if place is None else Offset(place // RECORDS_MAX)

    def entry_read(self, offset: Offset, record_count: int) -> None:
        """An effective entry; its records are dead unless `record_live` follows for them."""
        self.last_entry = LogPoint(offset, self._records_read)
        self._records_read += record_count

    def record_live(self, index: int, keys: Iterable[int]) -> None:
        """Record `index` of the entry just read is needed until all of `keys` have ended."""
        assert self.last_entry is not None
        place = self.last_entry.offset * RECORDS_MAX + index
        count = 0
        for key in keys:
            self._places.setdefault(key, []).append(place)
            count += 1
        if count:
            self._keys[place] = count

    def ended(self, key: int) -> None:
        """A key has ended: no record is needed for the key any more."""
        for place in self._places.pop(key, ()):
            left = self._keys[place] - 1
            if left:
                self._keys[place] = left
            else:
                del self._keys[place]

    def trimmed(self, point: LogPoint) -> None:
        """The log begins at `point` now; costs a walk over the live records."""
        first_place = point.offset * RECORDS_MAX
        self._records_trimmed = max(self._records_trimmed, point.records_before)
        self._keys = {place: count for place, count in self._keys.items() if place >= first_place}
        kept = {
            key: [place for place in places if place >= first_place]
            for key, places in self._places.items()
        }
        self._places = {key: places for key, places in kept.items() if places}

    def live_entries(self) -> dict[Offset, int]:
        """By offset: a bit for each index of the entry's batch, set where the record is live."""
        entries: dict[Offset, int] = {}
        for place in self._keys:
            offset, index = Offset(place // RECORDS_MAX), place % RECORDS_MAX
            entries[offset] = entries.get(offset, 0) | 1 << index
        return entries
