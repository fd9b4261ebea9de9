"""Which partitions a reader does not fetch at the moment.

*Invariants*: the reader is asked only for what changes.
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
    """The paused partitions of one reader; none at first."""

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
        """Takes note that the reader does not read these partitions any more."""
        self._paused.difference_update(partitions)

    def forget_all(self) -> None:
        """Takes note that the reader has got another assignment, with nothing paused."""
        self._paused.clear()
