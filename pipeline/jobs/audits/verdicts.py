"""Verdicts, the kinds of findings that lead to them, and the records of a partition in numbers.

*Source*: protocols.md C6, D1-D3, D6; facts: spark.md 6 (valid, invalid, unknown, with evidence).

*Invariants*:
- `written` is the sum of `visible`, `hidden`, `late`, `undecided` and `malformed`,
- the verdict follows from the kinds found alone: any invalid kind makes it invalid, else any
  unknown kind makes it unknown. Unknown is never reported as valid.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from stilltide.schemas.values import EndOffset, Offset, TxnId


class Verdict(StrEnum):
    """Whether the topics hold exactly what was committed, as far as outcomes still tell (C6)."""

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"


class FindingKind(StrEnum):
    """What can be wrong, or beyond proof."""

    MISSING = "missing"
    """A committed transaction has fewer records on the partition than its marker says (C6)."""
    SURPLUS = "surplus"
    """A committed transaction has more records on the partition than its marker says (C6)."""
    LATE = "late"
    """Records of a committed transaction at or past its end offset (D1)."""
    MIXED = "mixed"
    """A transaction that committed on one partition and aborted on another, or the same."""
    MALFORMED = "malformed"
    """Records whose `txn` header is not exactly one value of 16 bytes (D)."""
    UNDECIDED = "undecided"
    """Records of a transaction without any outcome (D2)."""
    ORPHAN = "orphan"
    """Undecided records of a transaction that has ended on another audited partition (D6).

    Either the marker is on its way, or the transaction wrote here without registering; only the
    second is still found by the next audit.
    """
    TRIMMED = "trimmed"
    """Records of a committed transaction are missing.

    They may have lain below the log start, or the cleaner of a compacted topic has taken them.
    """
    BEYOND_END = "beyond-end"
    """Records of a committed transaction are missing and may lie past the audited end."""
    UNPROMISED = "unpromised"
    """Of no committed transaction in the range is the number of records still promised (C6).

    Snapshots have absorbed the markers: a number that nobody knows cannot be checked.
    """
    DIFFERENT = "different"
    """Kafka's read_committed and the filter by aborted-index show different records (F)."""
    RECOUNTED = "recounted"
    """They differ on a compacted topic, whose cleaner may have run between the two reads."""
    UNCOVERED = "uncovered"
    """What aborted in the range is not known: aborted-index is missing, behind or broken (F4)."""
    UNEXPLAINED = "unexplained"
    """Offsets of a topic that is not compacted hold neither a record nor a marker."""
    UNREAD = "unread"
    """Spark read another number of records than the batches of the partition hold."""
    HANGING = "hanging"
    """A native transaction is open, and no coordinator knows of it: nothing will ever end it."""
    OVERDUE = "overdue"
    """A native transaction is open for longer than its time-out."""
    UNASKED = "unasked"
    """Whether open native transactions hang could not be asked."""
    LEAKED = "leaked"
    """The table holds a record that no reader may see."""
    UNJUDGED = "unjudged"
    """The table holds a record that cannot be judged: out of the range, undecided, compacted."""
    UNREADABLE = "unreadable"
    """The table cannot be read, or lacks the columns that name records."""


VERDICTS: Mapping[FindingKind, Verdict] = MappingProxyType(
    {
        FindingKind.MISSING: Verdict.INVALID,
        FindingKind.SURPLUS: Verdict.INVALID,
        FindingKind.LATE: Verdict.INVALID,
        FindingKind.MIXED: Verdict.INVALID,
        FindingKind.MALFORMED: Verdict.INVALID,
        FindingKind.UNDECIDED: Verdict.UNKNOWN,
        FindingKind.ORPHAN: Verdict.UNKNOWN,
        FindingKind.TRIMMED: Verdict.UNKNOWN,
        FindingKind.BEYOND_END: Verdict.UNKNOWN,
        FindingKind.UNPROMISED: Verdict.UNKNOWN,
        FindingKind.DIFFERENT: Verdict.INVALID,
        FindingKind.RECOUNTED: Verdict.UNKNOWN,
        FindingKind.UNCOVERED: Verdict.UNKNOWN,
        FindingKind.UNEXPLAINED: Verdict.INVALID,
        FindingKind.UNREAD: Verdict.INVALID,
        FindingKind.HANGING: Verdict.INVALID,
        FindingKind.OVERDUE: Verdict.UNKNOWN,
        FindingKind.UNASKED: Verdict.UNKNOWN,
        FindingKind.LEAKED: Verdict.INVALID,
        FindingKind.UNJUDGED: Verdict.UNKNOWN,
        FindingKind.UNREADABLE: Verdict.UNKNOWN,
    }
)
"""What each kind makes of the audit."""


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """One partition's records in `[start_offset, end_offset)`; offsets of control records count.

    Attributes:
        topic: the partition's topic.
        partition: its number.
        start_offset: log start when the audit began.
        end_offset: last stable offset when the audit began, exclusive.
        written: every record that native read_committed shows.
        visible: delivered by a reader once nothing before it is undecided; plain ones included.
        hidden: of aborted transactions.
        undecided: of transactions without an outcome here; withheld.
        malformed: with a malformed `txn` header; withheld.
        late: committed, at or past the end offset; withheld.
        plain: without a `txn` header.
        digest: `schemas.digest.content_digest` of the visible records; None when not asked for.
    """

    topic: str
    partition: int
    start_offset: Offset
    end_offset: EndOffset
    written: int
    visible: int
    hidden: int
    undecided: int
    malformed: int
    late: int
    plain: int
    digest: int | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON types; the digest is a decimal string: it exceeds a double's integers."""
        return asdict(self) | {"digest": None if self.digest is None else str(self.digest)}


@dataclass(frozen=True, slots=True)
class Finding:
    """Evidence of one finding.

    Attributes:
        kind: what it is.
        topic: where; None when it concerns several partitions.
        partition: where, with `topic`; None when the finding concerns several partitions.
        offset: first record concerned, or where the transaction began; None if unknown.
        txn: the transaction; None for malformed headers.
        expected: records that the marker promises, or that should be there; None when it is not
            about counts.
        found: records found.
        detail: what else there is to say, in words.
    """

    kind: FindingKind
    topic: str | None
    partition: int | None
    offset: int | None
    txn: TxnId | None
    expected: int | None
    found: int | None
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self) | {"kind": self.kind.value, "txn": str(self.txn) if self.txn else None}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Invalid before unknown before valid."""
    found = set(verdicts)
    if Verdict.INVALID in found:
        return Verdict.INVALID
    return Verdict.UNKNOWN if found else Verdict.VALID
