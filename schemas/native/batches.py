"""Record batches of a Kafka log, as far as transactions go: headers, markers, aborted lists.

*Source*: docs/protocols F; Kafka's message format v2, KIP-98. Nothing of a record is here: a batch
belongs to one producer and is committed or aborted as a whole.
"""

from enum import Enum
from typing import NamedTuple

from stilltide.schemas.values import Offset

NO_PRODUCER_ID = -1
"""Of a batch whose producer is neither idempotent nor transactional."""


class Control(Enum):
    """What the first record of a control batch says.

    Attributes:
        ABORT: the transaction that its producer has open here was aborted.
        COMMIT: it was committed.
        OTHER: nothing about a transaction, or the cleaner has left the batch without its record.
    """

    ABORT = "abort"
    COMMIT = "commit"
    OTHER = "other"


class Batch(NamedTuple):
    """The header of one record batch.

    Attributes:
        base_offset: of its first record when it was written; compaction leaves it.
        last_offset: of its last record when it was written, inclusive; compaction leaves it.
        producer_id: `NO_PRODUCER_ID` for none. A transaction's batches and its marker share it;
            whether they share the epoch is up to the broker (KIP-890), so it is not here.
        is_transactional: whether it belongs to a transaction; so do markers.
        control: of a control batch, which has no record for applications; None: a data batch.
        record_count: records left by compaction, 0 for an empty batch.
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
        producer_id: whose transaction.
        first_offset: of its first batch on the partition; may lie below what was fetched.
    """

    producer_id: int
    first_offset: Offset
