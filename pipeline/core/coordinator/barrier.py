"""What a coordinator tells the snapshot writers: which transactions may still write, and where.

*Source*: docs/protocols E1 (the barrier that answers a probe, L7), E7 (announced data partitions).
*Invariants*: a transaction counts as open until its `Ended` record is effective, so also while its
markers are on their way. Every marker of an ended transaction precedes the barrier (C4).
"""

from collections.abc import Iterable, Sequence

from stilltide.pipeline.core.coordinator.state import CoordinatorState, OngoingTransaction
from stilltide.schemas.coordinator.markers import Barrier, OpenTransactions
from stilltide.schemas.coordinator.transactions import Registered, WriteBarrier
from stilltide.schemas.topics import system_partition
from stilltide.schemas.values import EndOffset, TopicPartition


def barrier_of(
    state: CoordinatorState, coordinator: int, asked: WriteBarrier, partition_count: int
) -> Barrier:
    """The barrier that answers a probe, from a state read after the probe arrived (B3).

    Takes about 0.3 us for each registration of a transaction that has not ended.

    Args:
        state: the coordinator's state.
        coordinator: number of the coordinator.
        asked: the request; `marker_partition` is below `partition_count`.
        partition_count: number of partitions of txn-markers.
    """
    return Barrier(
        coordinator,
        asked.probe,
        state.low_watermark,
        tuple(
            opened
            for opened in _open(state.transactions.values())
            if system_partition(opened.data, partition_count) == asked.marker_partition
        ),
    )


def _open(transactions: Iterable[OngoingTransaction]) -> Iterable[OpenTransactions]:
    """One item for each (partition, topic id), however many transactions are open there."""
    lowest_of: dict[tuple[TopicPartition, bytes], list[int]] = {}
    for txn in transactions:
        for data, start_offset, topic_id in txn.partitions.values():
            lowest = lowest_of.get((data, topic_id))
            if lowest is None:
                lowest_of[data, topic_id] = [start_offset, txn.sequence, 1]
                continue
            lowest[2] += 1
            if start_offset < lowest[0]:
                lowest[:2] = start_offset, txn.sequence
    return (
        OpenTransactions(data, topic_id, EndOffset(start), sequence, count)
        for (data, topic_id), (start, sequence, count) in lowest_of.items()
    )


ANNOUNCED_MAX = 100_000
"""Data partitions remembered as announced; beyond, all are forgotten and announced again."""


class Announced:
    """Data partitions that this coordinator's owner has announced."""

    def __init__(self) -> None:
        self._announced: set[TopicPartition] = set()

    def new_among(self, registered: Sequence[Registered]) -> list[TopicPartition]:
        """The partitions not announced before; they count as announced from now on."""
        new = [r.data for r in registered if r.data not in self._announced]
        if new:
            if len(self._announced) > ANNOUNCED_MAX:
                self._announced.clear()
            self._announced.update(new)
        return new
