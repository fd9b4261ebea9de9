"""The brokers' view of native transactions, as values without a wire format.

*Source*: KIP-664; docs/protocols F. A producer id belongs to one transactional id at a time. A
transaction coordinator knows the partitions of a transaction, and a partition's leader knows which
producers have an open transaction there. Only for a hanging transaction they differ.
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
        transactional_id: the transactional id.
        producer_id: present producer id of the transactional id.
        state: value of `TransactionState`, or a state that only later brokers have.
    """

    transactional_id: str
    producer_id: int
    state: str


class DescribedTransaction(NamedTuple):
    """The state of a transactional id at its coordinator.

    Attributes:
        transactional_id: the transactional id.
        coordinator: node id of the broker that is the coordinator.
        state: value of `TransactionState`, or a state that only later brokers have.
        producer_id: present producer id of the transactional id.
        producer_epoch: present epoch of that producer id.
        timeout_ms: time after which the coordinator aborts an open transaction.
        started_at_ms: start of the open transaction, milliseconds since 1970; None without one.
        partitions: partitions of the open transaction that have no marker yet; ascending.
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
        producer_id: producer id of the last batch in the partition.
        producer_epoch: producer epoch of the last batch in the partition.
        last_sequence: last sequence number in the partition; -1 after a marker.
        last_timestamp_ms: timestamp of the last batch, milliseconds since 1970; -1: unknown.
        coordinator_epoch: coordinator epoch of the last marker; -1: there was no marker.
        open_from: first offset of the open transaction in the partition; None without one.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    open_from: Offset | None
