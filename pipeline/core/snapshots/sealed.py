"""Aborted ids of a data partition: sealed parts, and the ids that no part holds yet.

*Source*: docs/protocols E2, E3, E5.
*Invariants*: a sealed part never changes; parts are dropped oldest first; a durable part that was
dropped gets a tombstone.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stilltide.pipeline.core.snapshots.aborted import UnsealedIds
from stilltide.schemas.snapshots.snapshots import (
    AbortedIds,
    Floors,
    checksum,
    encode_part,
    part_key,
)
from stilltide.schemas.values import TopicPartition

SnapshotRecord = tuple[bytes, bytes | None]
"""Key and value; the value None is a tombstone."""


class SealedPart(NamedTuple):
    """A part that never changes.

    Attributes:
        number: number of the part, ascending from 1.
        checksum: checksum of the part's key and value.
        highest: highest sequence of each coordinator in the part.
        value: encoded ids; None once they are durable.
    """

    number: int
    checksum: int
    highest: Floors
    value: bytes | None


class SealedParts:
    """The parts of one data partition.

    Args:
        data: the data partition.
        part_bytes_max: most bytes of the ids of a sealed part.
    """

    def __init__(self, data: TopicPartition, part_bytes_max: int) -> None:
        self._data = data
        self._part_bytes_max = part_bytes_max
        self._unsealed = UnsealedIds({})
        self._sealed: deque[SealedPart] = deque()
        self._next_part = 1
        self._dropped: list[int] = []  # durable parts that need a tombstone

    def restore(
        self,
        first_part: int,
        checksums: Sequence[int],
        parts: Sequence[AbortedIds],
        unsealed: AbortedIds,
    ) -> None:
        """Takes durable parts in order, and the ids that are in no part."""
        for number, (crc, part) in enumerate(zip(checksums, parts, strict=True), first_part):
            self._sealed.append(SealedPart(number, crc, _highest(part), None))
        self._unsealed = UnsealedIds(unsealed)
        self._next_part = first_part + len(parts)

    @property
    def first_part(self) -> int:
        """Number of the oldest part."""
        return self._next_part - len(self._sealed)

    @property
    def checksums(self) -> tuple[int, ...]:
        """The checksums of the parts, in order."""
        return tuple(part.checksum for part in self._sealed)

    @property
    def unsealed(self) -> dict[int, list[int]]:
        """A copy of the ids that are in no part."""
        return {one: list(held) for one, held in self._unsealed.ids.items()}

    @property
    def durable_keys(self) -> list[bytes]:
        """Keys of the durable parts."""
        return [part_key(self._data, part.number) for part in self._sealed if part.value is None]

    def add(self, coordinator: int, sequence: int) -> None:
        """Adds a new aborted id; first seals the unsealed ids if there is no room for the id."""
        unsealed = self._unsealed
        cost = unsealed.cost(coordinator, sequence)
        if unsealed.ids and unsealed.bytes + cost > self._part_bytes_max:
            self._seal()
            cost = self._unsealed.cost(coordinator, sequence)
        self._unsealed.add(coordinator, sequence, cost)

    def _seal(self) -> None:
        """Makes a part of the unsealed ids (E2)."""
        ids, number = self._unsealed.ids, self._next_part
        value = encode_part(ids)
        crc = checksum(part_key(self._data, number), value)
        self._sealed.append(SealedPart(number, crc, _highest(ids), value))
        self._next_part += 1
        self._unsealed = UnsealedIds({})

    def trim(self, floors: Floors) -> bool:
        """E5: drops parts and ids below the floors; returns whether any were dropped."""
        left = False
        while self._sealed and _below(self._sealed[0].highest, floors):
            part = self._sealed.popleft()
            left = True
            if part.value is None:
                self._dropped.append(part.number)
        kept = self._unsealed.above(floors)
        if not left and kept is self._unsealed:
            return False
        self._unsealed = kept
        return True

    def written(self) -> tuple[list[SnapshotRecord], list[SnapshotRecord]]:
        """Records of parts not yet written, and tombstones of dropped parts; each is given once."""
        records: list[SnapshotRecord] = []
        for at, part in enumerate(self._sealed):
            if part.value is not None:
                records.append((part_key(self._data, part.number), part.value))
                self._sealed[at] = part._replace(value=None)
        dropped, self._dropped = self._dropped, []
        return records, [(part_key(self._data, number), None) for number in dropped]


def _highest(ids: AbortedIds) -> dict[int, int]:
    """The highest sequence of each coordinator."""
    return {coordinator: max(held) for coordinator, held in ids.items()}


def _below(highest: Mapping[int, int], floors: Floors) -> bool:
    return all(sequence < floors.get(one, 0) for one, sequence in highest.items())
