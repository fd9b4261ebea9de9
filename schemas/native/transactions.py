"""Kafka's own transactions as values without a wire format: record batches, and the brokers' view.

*Source*: docs/protocols F; Kafka's message format v2, KIP-98, KIP-664. A producer id belongs to one
transactional id at a time. A transaction coordinator knows the partitions of a transaction, and a
partition's leader knows which producers have an open transaction there. Only for a hanging
transaction they differ. No single records are needed: a batch belongs to one producer and is
committed or aborted as a whole.
"""

from enum import Enum, StrEnum
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


NO_PRODUCER_ID = -1
"""The producer id of a batch whose producer is neither idempotent nor transactional."""


class Control(Enum):
    """The type of a control batch.

    Attributes:
        ABORT: the open transaction of the batch's producer in this partition was aborted.
        COMMIT: the open transaction of the batch's producer in this partition was committed.
        OTHER: another type, or the log cleaner has removed the batch's record.
    """

    ABORT = "abort"
    COMMIT = "commit"
    OTHER = "other"


class Batch(NamedTuple):
    """The header of one record batch.

    Attributes:
        base_offset: offset of the first record when written; compaction does not change it.
        last_offset: offset of the last record when written; compaction does not change it.
        producer_id: producer id, or `NO_PRODUCER_ID`. A transaction's batches and its marker have
            one producer id, but not always one epoch (KIP-890), so the epoch is left out.
        is_transactional: whether the batch belongs to a transaction, as markers do.
        control: type of a control batch, which has no record for applications; None: a data batch.
        record_count: number of records that compaction left; 0 for an empty batch.
    """

    base_offset: Offset
    last_offset: Offset
    producer_id: int
    is_transactional: bool
    control: Control | None
    record_count: int


class AbortedTransaction(NamedTuple):
    """An entry of the list that comes with a fetch at read_committed (KIP-98).

    Attributes:
        producer_id: producer id of the transaction.
        first_offset: offset of the transaction's first batch in the partition; may be below the
            fetched batches.
    """

    producer_id: int
    first_offset: Offset
