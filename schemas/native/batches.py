"""Record batches of a Kafka log, as far as native transactions concern them.

*Source*: docs/protocols F; Kafka's message format v2, KIP-98. No single records are needed: a batch
belongs to one producer and is committed or aborted as a whole.
"""

from enum import Enum
from typing import NamedTuple

from stilltide.schemas.values import Offset

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
