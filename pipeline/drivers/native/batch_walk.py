"""Reads ranges of partitions batch by batch, and counts each offset in the ranges' ledgers.

*Source*: docs/protocols F2.

*Invariants*: a range is read to its end or the walk fails; one fetch at a time is held in memory.

Refuses: a log that does not hold the whole range any more.
"""

from collections.abc import Callable, Sequence

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError
from stilltide.connectors.ports.readers import BatchReader
from stilltide.pipeline.core.native.batch_filter import BatchFilter
from stilltide.pipeline.core.native.offset_ledger import OffsetLedger
from stilltide.schemas.values import Offset, OffsetRange

Advanced = Callable[[int], None]
"""Called with the number of offsets that have been passed since the last call."""


async def walk(
    batches: BatchReader, ranges: Sequence[OffsetRange], advanced: Advanced = lambda _: None
) -> list[OffsetLedger]:
    """The ledger of each range; no range may end above the last stable offset.

    Raises:
        FatalError: records were deleted during the walk, or the log has lost its end.
        RetriableError: the broker is away.
    """
    return [await _walk(batches, read, advanced) for read in ranges]


async def _walk(batches: BatchReader, read: OffsetRange, advanced: Advanced) -> OffsetLedger:
    ledger, position = OffsetLedger(read), read.start
    while position < read.end:
        try:
            found = await batches.fetch(read.data, position)
        except OffsetOutOfRangeError as error:
            raise deleted_meanwhile(read, position) from error
        if found.log_start > read.start or found.last_stable_offset < read.end:
            raise deleted_meanwhile(read, position)
        if not found.batches:
            break
        kept = BatchFilter(position, found.aborted)
        for batch in found.batches:
            ledger.batch_read(batch, kept.batch_read(batch))
        advanced(min(kept.position, read.end) - position)
        position = Offset(kept.position)
    ledger.finish()
    return ledger


def deleted_meanwhile(read: OffsetRange, position: Offset) -> FatalError:
    """The error for a log that no longer holds all of `read`; the walk had come to `position`."""
    return FatalError(
        "records were deleted while they were read",
        detail=f"the log no longer holds [{read.start}, {read.end})",
        hint="retention overtook the read: start it again, or raise the topic's retention",
        topic=read.data.topic,
        partition=read.data.partition,
        offset=position,
    )
