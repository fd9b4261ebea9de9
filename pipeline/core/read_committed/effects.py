"""Effects and figures of the read-committed filter.

*Source*: docs/protocols D1, D2, D7. The driver carries out a list of effects in its order.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from stilltide.schemas.values import EndOffset, Offset, TxnId

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Deliver(Generic[P]):
    """Effect: hand these payloads to the application, in this order.

    Attributes:
        payloads: payloads of visible records in offset order; empty if all records were hidden.
        position: end offset of the records that are delivered or withheld for good; may be
            committed once the application has the payloads.
    """

    payloads: list[P]
    position: EndOffset


@dataclass(frozen=True, slots=True)
class PauseFetching:
    """Effect: stop fetching the partition; records already fetched may still be fed (D7)."""


@dataclass(frozen=True, slots=True)
class ResumeFetching:
    """Effect: fetch the partition again."""


class Reason(Enum):
    """Why a record is withheld although its transaction is not known to have aborted."""

    LATE = "late: at or past the end of its committed transaction"
    MALFORMED = "its `txn` header is malformed"
    LOST = "lost to retention: whether its transaction committed is not known any more"


@dataclass(frozen=True, slots=True)
class Withheld:
    """Effect: report a record that is withheld although its transaction did not abort.

    Attributes:
        offset: offset of the record.
        reason: why the record is withheld (D1, D4).
        txn: transaction of the record; None: the header is malformed.
    """

    offset: Offset
    reason: Reason
    txn: TxnId | None


Effect: TypeAlias = Deliver[P] | PauseFetching | ResumeFetching | Withheld
"""What the driver carries out."""


class Undecided(NamedTuple):
    """The first undecided record of a partition: its transaction has no known outcome (D2)."""

    offset: Offset
    txn: TxnId


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of one partition since its filter began.

    Attributes:
        delivered: records handed over to the application.
        hidden: records of aborted transactions.
        late: records at or past the end offset of their committed transaction.
        malformed: records withheld because of their `txn` header.
        lost: records whose transaction's outcome cannot be known any more (D4).
        waiting: records held from the first undecided one on.
        outcomes: transactions whose outcome is held because the snapshot does not contain it.
        position: position of the last `Deliver`.
        undecided: first undecided record; None when there is none.
        skipped: records that the group has read on another cluster (I11).
        redelivered: records that were made ready to be delivered again (G2).
        dead_lettered: records that were moved to the dead-letter topic (G2).
        foreign_commits: commits of the group with another program's metadata, which was passed over
            (G).
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
    redelivered: int = 0
    dead_lettered: int = 0
    foreign_commits: int = 0
