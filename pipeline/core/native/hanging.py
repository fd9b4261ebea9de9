"""Which open native transactions hang, that is, no transaction coordinator will end them.

*Source*: KIP-664 and Kafka's `kafka-transactions.sh find-hanging`, which uses the same rule but
does not ask the leaders a second time.

*Invariants*: a transaction counts as hanging only if it was open in its partition before and after
its coordinator was asked, at the same offset. A coordinator adds a partition before its first
record is written, and removes it after the marker is written, so a coordinator that did not know
the partition in between will never write a marker there.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stilltide.schemas.native.transactions import (
    ActiveProducer,
    DescribedTransaction,
    ListedTransaction,
)
from stilltide.schemas.topics import PREFIX
from stilltide.schemas.values import Offset, TopicPartition

Producers = Mapping[TopicPartition, Sequence[ActiveProducer]]


class OpenNativeTransaction(NamedTuple):
    """A native transaction that is open in one partition, and holds the partition's readers back.

    Attributes:
        data: the partition.
        open_from: first offset of the transaction in the partition.
        producer: state of the producer at the partition's leader.
        transactional_id: transactional id of the producer; None: no coordinator knows it.
        transaction: state of the transaction at its coordinator; None: no coordinator knows it.
        hanging: whether no coordinator will end the transaction.
    """

    data: TopicPartition
    open_from: Offset
    producer: ActiveProducer
    transactional_id: str | None
    transaction: DescribedTransaction | None
    hanging: bool

    @property
    def is_own(self) -> bool:
        """Whether it is of a link, publish or index of Stilltide."""
        return is_own(self.transactional_id or "")

    @property
    def written_ms(self) -> int | None:
        """When it was last written to, or opened if that is later; None: unknown.

        Copies of a link bear the time of their source, so that a last write may look older than the
        transaction.
        """
        written_ms = self.producer.last_timestamp_ms
        if written_ms < 0:
            return None
        started_ms = self.transaction.started_at_ms if self.transaction else None
        return max(written_ms, started_ms or 0)


def is_own(transactional_id: str) -> bool:
    """Whether a transactional id is one of Stilltide's links, publishes and indexes (C15).

    Nobody needs to end such a transaction: the next run of its process does, or Kafka's time-out.
    """
    return transactional_id.startswith(PREFIX)


def open_producer_ids(producers: Producers) -> set[int]:
    """The producer ids that have an open transaction."""
    return {
        producer.producer_id
        for them in producers.values()
        for producer in them
        if producer.open_from is not None
    }


def judge_open(
    before: Producers,
    listed: Iterable[ListedTransaction],
    described: Mapping[str, DescribedTransaction | None],
    after: Producers,
) -> list[OpenNativeTransaction]:
    """The transactions that were open both times, by partition and first offset (F Hanging).

    Args:
        before: producers by the leaders' first answers.
        listed: transactions of the open producer ids, by all coordinators, asked after `before`.
        described: transactions by their transactional ids, asked after `listed`.
        after: producers by the leaders' last answers, asked after `described`; at least of the
            partitions with an open transaction.
    """
    id_of = {entry.producer_id: entry.transactional_id for entry in listed}
    open_transactions: list[OpenNativeTransaction] = []
    for data, producers in before.items():
        still = {(entry.producer_id, entry.open_from): entry for entry in after.get(data, ())}
        for was in producers:
            producer = still.get((was.producer_id, was.open_from))
            if was.open_from is None or producer is None:
                continue
            transactional_id = id_of.get(was.producer_id)
            transaction = described.get(transactional_id) if transactional_id else None
            hanging = not _will_end(transaction, was.producer_id, data)
            open_transactions.append(
                OpenNativeTransaction(
                    data, was.open_from, producer, transactional_id, transaction, hanging
                )
            )
    return sorted(open_transactions, key=lambda entry: (entry.data, entry.open_from))


def _will_end(
    transaction: DescribedTransaction | None, producer_id: int, data: TopicPartition
) -> bool:
    """Whether the coordinator will write a marker of this producer id to the partition."""
    return (
        transaction is not None
        and transaction.producer_id == producer_id
        and data in transaction.partitions
    )
