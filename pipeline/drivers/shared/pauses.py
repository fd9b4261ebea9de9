"""Keeps the set of partitions that a reader has paused.

*Invariants*: the reader is called only for partitions whose state changes.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Protocol

from stilltide.schemas.values import TopicPartition


class Pausing(Protocol):
    """A reader whose partitions can be paused."""

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops fetching these partitions."""
        ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches these partitions again."""
        ...


class Pauses:
    """The paused partitions of one reader; at first none is paused."""

    def __init__(self, reader: Pausing) -> None:
        self._reader = reader
        self._paused: set[TopicPartition] = set()

    def apply(self, wanted: AbstractSet[TopicPartition]) -> None:
        """Pauses exactly these partitions."""
        if wanted == self._paused:
            return
        if pause := wanted - self._paused:
            self._reader.pause(pause)
        if resume := self._paused - wanted:
            self._reader.resume(resume)
        self._paused = set(wanted)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets partitions that the reader does not read any more."""
        self._paused.difference_update(partitions)

    def forget_all(self) -> None:
        """Forgets all partitions, after a new assignment of the reader, which has no pause."""
        self._paused.clear()
