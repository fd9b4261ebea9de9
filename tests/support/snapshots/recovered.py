"""Reading a partition of txn-snapshots whole (E4)."""

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
        partition: of txn-snapshots.
        records: committed ones in topic order, up to a last stable offset.
        only: data partitions of interest; None: all.

    Raises:
        DecodeError: a record is not one of this topic, or of a later version; names its place.
    """
    table = SnapshotTable(partition, only=only)
    for offset, key, value in records:
        table.record_read(offset, key, value)
    return table
