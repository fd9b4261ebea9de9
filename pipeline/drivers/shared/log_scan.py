"""Reads ranges of logs once, from their starts to their ends.

*Source*: connectors.ports, `LogReader`.
*Invariants*: every readable record of a range is returned once, in offset order within its
partition; no record past a range's end is returned.

Refuses: to go on after a trim of records that were not read yet; the caller handles that.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

from stilltide.connectors.ports.readers import EndReached, LogReader, Record
from stilltide.schemas.values import OffsetRange, TopicPartition

Read = Callable[[], Awaitable[Sequence[Record | EndReached]]]


async def scan(
    reader: LogReader, ranges: Sequence[OffsetRange], read: Read | None = None
) -> AsyncGenerator[list[Record], None]:
    """The records of these ranges, in batches as they arrive.

    Args:
        reader: reader that gets a new assignment; if it reads committed records only, no end may be
            above the last stable offset.
        ranges: ranges to read, at most one for each partition.
        read: reads the next items of the reader; None: as `LogReader.read`.

    Raises:
        OffsetOutOfRangeError: records of a range were deleted before they were read.
        FatalError: a topic is gone.
        RetriableError: the broker is away.
    """
    left = {wanted.data: wanted.end for wanted in ranges if wanted.start < wanted.end}
    await reader.assign({wanted.data: wanted.start for wanted in ranges if wanted.data in left})
    read = read or reader.read
    while left:
        records: list[Record] = []
        ended: set[TopicPartition] = set()
        for item in await read():
            data = item.data
            end = left.get(data)
            if end is None:
                continue
            if isinstance(item, EndReached):
                after = item.end_offset
            else:
                after = item.offset + 1
                if after <= end:
                    records.append(item)
            if after >= end:
                ended.add(data)
        if ended:
            reader.pause(ended)
        for data in ended:
            del left[data]
        if records:
            yield records


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
