"""Which records of a log's entries are still needed: PIP-160's batch index.

*Source*: PIP-160; docs/protocols C8; facts, pulsar.md 2.4.
*Invariants*: a record is live while one of the keys it belongs to is; what is dead stays dead.
About two dict operations for each key of a record when it is read, and two when the key ends;
memory grows with the live records, never with the log's history.

It decides nothing about deletion: a base does (C8). It says when one is worth writing, and shows.
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
    """Tell it of every effective entry, its live records, and each key that ends.

    Keys are the log user's: sequences of transactions. Only effective entries count, so fences and
    a zombie's entries appear nowhere.
    """

    def __init__(self) -> None:
        self.last_entry: LogPoint | None = None
        self._records_read = 0
        self._records_trimmed = 0
        # A place is offset * RECORDS_MAX + index. Both dicts are in the order of the log.
        self._places: dict[int, list[int]] = {}  # by key
        self._keys: dict[int, int] = {}  # how many live keys a place has

    @property
    def live_count(self) -> int:
        """Records of the log that are still needed."""
        return len(self._keys)

    @property
    def dead_count(self) -> int:
        """Records of the log that are not, as far as they have not been trimmed."""
        return self._records_read - self._records_trimmed - len(self._keys)

    @property
    def first_live_offset(self) -> Offset | None:
        """The first entry with a live record; None without any."""
        place = next(iter(self._keys), None)
        return None if place is None else Offset(place // RECORDS_MAX)

    def entry_read(self, offset: Offset, record_count: int) -> None:
        """An effective entry; its records are dead but for what `record_live` says next."""
        self.last_entry = LogPoint(offset, self._records_read)
        self._records_read += record_count

    def record_live(self, index: int, keys: Iterable[int]) -> None:
        """Record `index` of the entry just read is needed until each of `keys` has ended."""
        assert self.last_entry is not None
        place = self.last_entry.offset * RECORDS_MAX + index
        count = 0
        for key in keys:
            self._places.setdefault(key, []).append(place)
            count += 1
        if count:
            self._keys[place] = count

    def ended(self, key: int) -> None:
        """Nothing of a key is needed any more."""
        for place in self._places.pop(key, ()):
            left = self._keys[place] - 1
            if left:
                self._keys[place] = left
            else:
                del self._keys[place]

    def trimmed(self, point: LogPoint) -> None:
        """The log begins at `point` now; costs a look at each live record."""
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
