"""What is known of one record: whether readers of committed data see the record.

*Source*: docs/protocols D1-D4.
"""

from enum import StrEnum


class RecordVerdict(StrEnum):
    """What readers of committed data do with a record.

    Attributes:
        VISIBLE: they see the record, once they come to its offset.
        ABORTED: they never see the record, since its transaction aborted.
        UNDECIDED: they wait, since the outcome of its transaction is not known.
        LATE: they never see the record: it is at or past the end of its committed transaction.
        MALFORMED: they never see the record: its `txn` header is malformed.
        LOST: they never see the record: how its transaction ended is not known any more.
    """

    VISIBLE = "visible"
    ABORTED = "aborted"
    UNDECIDED = "undecided"
    LATE = "late"
    MALFORMED = "malformed"
    LOST = "lost"
