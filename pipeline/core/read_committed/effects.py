"""What the read-committed machine asks of its driver, and what it tells about itself.

*Source*: docs/protocols D1, D2, D7. A list of effects is carried out in its order.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from stilltide.schemas.values import EndOffset, Offset, TxnId

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Deliver(Generic[P]):
    """Hand these payloads to the application, in this order.

    Attributes:
        payloads: visible records in offset order; empty when only hidden ones were passed.
        position: everything below it has been handed over or is withheld for good; it may be
            committed once the application has the payloads.
    """

    payloads: list[P]
    position: EndOffset


@dataclass(frozen=True, slots=True)
class PauseFetching:
    """Stop fetching the partition; what is under way already may still be fed (D7)."""


@dataclass(frozen=True, slots=True)
class ResumeFetching:
    """Fetch the partition again."""


class Reason(Enum):
    """Why no application will see a record although it did not abort, as far as is known."""

    LATE = "late: at or past the end of its committed transaction"
    MALFORMED = "its `txn` header is malformed"
    LOST = "lost to retention: nothing tells any more whether its transaction committed"


@dataclass(frozen=True, slots=True)
class Withheld:
    """Report a record that no application will see although it did not abort.

    Attributes:
        offset: where it lies.
        reason: why (D1, D4).
        txn: its transaction; None: the header is malformed.
    """

    offset: Offset
    reason: Reason
    txn: TxnId | None


Effect: TypeAlias = Deliver[P] | PauseFetching | ResumeFetching | Withheld
"""What the driver carries out."""


class Undecided(NamedTuple):
    """The record a partition stands at: no outcome of its transaction is known (D2)."""

    offset: Offset
    txn: TxnId


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of one partition since its machine began.

    Attributes:
        delivered: records handed over.
        hidden: records of aborted transactions.
        late: records at or past the end offset of their committed transaction.
        malformed: records withheld for their `txn` header.
        lost: records that left the log before they could be decided.
        waiting: records held at and behind the undecided one.
        outcomes: transactions whose outcome is held because no snapshot tells it.
        position: what `Deliver` said last.
        undecided: the record it stands at, None when it stands at none.
        skipped: records that the group has read on another cluster (I11).
    """

    delivered: int
    hidden: int
    late: int
    malformed: int
    lost: int
    waiting: int
    outcomes: int
    position: EndOffset
    undecided: Undecided | None
    skipped: int = 0
