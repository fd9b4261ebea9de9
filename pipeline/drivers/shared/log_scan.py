"""Reads ranges of logs once, from their starts to their ends.

*Source*: connectors.ports, `LogReader`.
*Invariants*: every readable record of a range is returned once, in offset order within its
partition; no record past a range's end is returned.

Refuses: to go on after a trim of records that were not read yet; the caller handles that.
"""

from collections.abc import AsyncGenerator, Sequence

from stilltide.connectors.ports.readers import LogReader
from stilltide.connectors.ports.records import EndReached, Record
from stilltide.schemas.values import OffsetRange, TopicPartition


async def scan(
    reader: LogReader, ranges: Sequence[OffsetRange]
) -> AsyncGenerator[list[Record], None]:
    """The records of these ranges, in batches as they arrive.

    Args:
        reader: reader that gets a new assignment; if it reads committed records only, no end may be
            above the last stable offset.
        ranges: ranges to read, at most one for each partition.

    Raises:
        OffsetOutOfRangeError: records of a range were deleted before they were read.
        FatalError: a topic is gone.
        RetriableError: the broker is away.
    """
    left = {read.data: read.end for read in ranges if read.start < read.end}
    await reader.assign({read.data: read.start for read in ranges if read.data in left})
    while left:
        found: list[Record] = []
        ended: set[TopicPartition] = set()
        for item in await reader.read():
            data = item.data
            end = left.get(data)
            if end is None:
                continue
            if isinstance(item, EndReached):
                after = item.end_offset
            else:
                after = item.offset + 1
                if after <= end:
                    found.append(item)
            if after >= end:
                ended.add(data)
        if ended:
            reader.pause(ended)
        for data in ended:
            del left[data]
        if found:
            yield found
