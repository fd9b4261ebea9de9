"""Reads a whole partition of txn-snapshots (E4)."""

from collections.abc import Collection, Iterable

from stilltide.pipeline.core.snapshots.recovery import SnapshotTable
from stilltide.schemas.values import Offset, TopicPartition

SnapshotLogRecord = tuple[Offset, bytes | None, bytes | None]
"""Offset, key and value."""


def recover(
    partition: int,
    records: Iterable[SnapshotLogRecord],
    *,
    only: Collection[TopicPartition] | None = None,
) -> SnapshotTable:
    """The latest records of a partition of txn-snapshots.

    Args:
        partition: number of the partition of txn-snapshots.
        records: committed records in offset order, up to a last stable offset.
        only: data partitions of interest; None: all.

    Raises:
        DecodeError: a record is not one of this topic, or is of a later version; the error names
            partition and offset.
    """
    table = SnapshotTable(partition, only=only)
    for offset, key, value in records:
        table.record_read(offset, key, value)
    return table
