"""Which open native transactions nobody will end: pure judgement of what brokers said.

*Source*: KIP-664 and Kafka's `kafka-transactions.sh find-hanging`, which judges likewise but does
not look a second time.

*Invariants*: a transaction counts as hanging only if it was open in its partition before and after
its coordinator was asked, at the same offset. A coordinator takes a partition in before its first
record is written, and out after the marker is, so one that does not have the partition in between
will never write a marker there.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stilltide.schemas.native.transactions import (
    ActiveProducer,
    DescribedTransaction,
    ListedTransaction,
)
from stilltide.schemas.values import Offset, TopicPartition

Producers = Mapping[TopicPartition, Sequence[ActiveProducer]]


class OpenNativeTransaction(NamedTuple):
    """A native transaction that is open in one partition, and so holds its readers back.

    Attributes:
        data: the partition.
        open_from: its first offset there.
        producer: what the partition's leader knows.
        transactional_id: of its producer id, None when no coordinator knows that.
        transaction: what its coordinator knows, None likewise.
        hanging: no coordinator will end it.
    """

    data: TopicPartition
    open_from: Offset
    producer: ActiveProducer
    transactional_id: str | None
    transaction: DescribedTransaction | None
    hanging: bool


def open_producer_ids(producers: Producers) -> set[int]:
    """Of the producers with an open transaction."""
    return {
        one.producer_id for them in producers.values() for one in them if one.open_from is not None
    }


def judge_open(
    before: Producers,
    listed: Iterable[ListedTransaction],
    described: Mapping[str, DescribedTransaction | None],
    after: Producers,
) -> list[OpenNativeTransaction]:
    """The transactions open both times, by partition and first offset.

    Args:
        before: what leaders said first.
        listed: what all coordinators said then of the producer ids that had one open.
        described: what the coordinators said of those transactional ids, after that.
        after: what leaders said last; at least of the partitions with an open transaction.
    """
    id_of = {one.producer_id: one.transactional_id for one in listed}
    found: list[OpenNativeTransaction] = []
    for data, producers in before.items():
        still = {(one.producer_id, one.open_from): one for one in after.get(data, ())}
        for was in producers:
            producer = still.get((was.producer_id, was.open_from))
            if was.open_from is None or producer is None:
                continue
            transactional_id = id_of.get(was.producer_id)
            transaction = described.get(transactional_id) if transactional_id else None
            hanging = not _will_end(transaction, was.producer_id, data)
            found.append(
                OpenNativeTransaction(
                    data, was.open_from, producer, transactional_id, transaction, hanging
                )
            )
    return sorted(found, key=lambda one: (one.data, one.open_from))


def _will_end(
    transaction: DescribedTransaction | None, producer_id: int, data: TopicPartition
) -> bool:
    """Whether the coordinator owes the partition a marker of this producer id."""
    return (
        transaction is not None
        and transaction.producer_id == producer_id
        and data in transaction.partitions
    )
