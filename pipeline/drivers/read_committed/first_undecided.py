"""Finds the first undecided record of ranges by reading their headers, for callers without Spark.

*Source*: docs/protocols D2, D4, K1.
"""

from collections.abc import Sequence

from stilltide.connectors.ports.readers import LogReader
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.pipeline.drivers.shared.txn_headers import txns_of
from stilltide.pipeline.drivers.snapshots.outcomes import TopicOutcomes
from stilltide.schemas.values import Offset, OffsetRange, TopicPartition, TxnId


async def find_first_undecided(
    reader: LogReader, reads: Sequence[OffsetRange], outcomes: TopicOutcomes
) -> dict[TopicPartition, tuple[Offset, TxnId]]:
    """The first undecided record of each range that has one, and its transaction.

    Reads some hundred thousand records in a second.

    Args:
        reader: of committed records of native transactions; gets a new assignment.
        reads: ranges at or below the last stable offsets.
        outcomes: the evidence.

    Raises:
        OffsetOutOfRangeError: records of a range were deleted meanwhile.
        RetriableError: the broker is away.
    """
    marked = {(marker.data, marker.txn.to_bytes()) for marker in outcomes.markers}
    found: dict[TopicPartition, tuple[Offset, TxnId]] = {}
    async for records in scan(reader, reads):
        for record, txn in zip(records, txns_of(records), strict=True):
            data = record.data
            if not txn or data in found or (data, txn) in marked:
                continue  # not txn: plain, or malformed, which no outcome decides
            snapshot, named = outcomes.snapshots.get(data), TxnId.from_bytes(txn)
            if snapshot is None or snapshot.visible(record.offset, *named) is None:
                found[data] = record.offset, named
    return found
