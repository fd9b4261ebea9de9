"""Reads ranges of logs once, from their starts to their ends.

*Source*: connectors.ports, `LogReader`.
*Invariants*: every readable record of a range is returned once, in offset order within its
partition; no record past a range's end is returned.

Refuses: to go on after a trim of records that were not read yet; the caller handles that.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence

from stilltide.connectors.ports.readers import LogReader
from stilltide.connectors.ports.records import EndReached, Record
from stilltide.schemas.values import OffsetRange, TopicPartition

SLICE_RECORDS = 500
"""Records of a compacted topic that are handed out in one turn of the event loop."""


class LastRecords:
    """The last record of each key of compacted topics, in the order in which they were read (E10).

    A reader that replays such a topic decodes these alone: compaction has left a part of the others
    there, or all of them, and none counts.
    """

    def __init__(self) -> None:
        self._records: dict[tuple[TopicPartition, bytes | None], Record] = {}

    def add(self, record: Record) -> None:
        """Takes a record in place of the earlier one of its key."""
        key = record.data, record.key
        self._records.pop(key, None)  # so that the order is that of the last ones
        self._records[key] = record

    def slices(self) -> Iterator[list[Record]]:
        """The records, at most `SLICE_RECORDS` at a time; forgets them."""
        records, self._records = list(self._records.values()), {}
        for begin in range(0, len(records), SLICE_RECORDS):
            yield records[begin : begin + SLICE_RECORDS]


async def scan_last(
    reader: LogReader, ranges: Sequence[OffsetRange]
) -> AsyncGenerator[list[Record], None]:
    """The last record of each key in these ranges of compacted topics; as `scan` otherwise.

    The records come once all ranges are read. Other tasks of the loop run in between.
    """
    last = LastRecords()
    async for records in scan(reader, ranges):
        for record in records:
            last.add(record)
        await asyncio.sleep(0)
    for records in last.slices():
        yield records
        await asyncio.sleep(0)


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
