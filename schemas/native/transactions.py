"""What brokers say of Kafka's own transactions: values, no wire format of ours.

*Source*: KIP-664; docs/protocols F. A producer id belongs to one transactional id at a time; a
coordinator knows which partitions a transaction has, and a partition's leader which producers have
an open one there. They agree, but for a hanging transaction.
"""

from enum import StrEnum
from typing import NamedTuple

from stilltide.schemas.values import Offset, TopicPartition


class TransactionState(StrEnum):
    """A transactional id's state, as its coordinator names it."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


class ListedTransaction(NamedTuple):
    """A transactional id that a coordinator knows.

    Attributes:
        transactional_id: the name.
        producer_id: the one it has now.
        state: one of `TransactionState`, or what a later broker calls it.
    """

    transactional_id: str
    producer_id: int
    state: str


class DescribedTransaction(NamedTuple):
    """What a transactional id's coordinator knows of it.

    Attributes:
        transactional_id: the name.
        coordinator: node id of the broker.
        state: as of `ListedTransaction`.
        producer_id: the one it has now.
        producer_epoch: of that id.
        timeout_ms: after so long the coordinator aborts an open transaction.
        started_at_ms: milliseconds since 1970, None when no transaction is open.
        partitions: of the open transaction, those that have no marker yet; ascending.
    """

    transactional_id: str
    coordinator: int
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_at_ms: int | None
    partitions: tuple[TopicPartition, ...]


class ActiveProducer(NamedTuple):
    """A producer that a partition's leader remembers.

    Attributes:
        producer_id: of its last batch here.
        producer_epoch: likewise.
        last_sequence: likewise; -1 after a marker.
        last_timestamp_ms: of its last batch, milliseconds since 1970; -1 unknown.
        coordinator_epoch: of its last marker here; -1 when it never had one.
        open_from: where its open transaction begins, None when it has none.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    open_from: Offset | None
