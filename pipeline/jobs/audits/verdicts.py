"""Verdicts, the kinds of findings that lead to them, and counts of a partition's records.

*Source*: docs/protocols C6, D1, D2, D3, D6.

*Invariants*:
- `written` is the sum of `visible`, `hidden`, `late`, `undecided` and `malformed`,
- invalid with a finding of any invalid kind, else unknown with a finding of any unknown kind.
  Unknown is never reported as valid, and neither is a check that has looked at nothing.
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
    EMPTY = "empty"
    """There was nothing to look at, so nothing is proved."""


class FindingKind(StrEnum):
    """A kind of error, or of a fact that cannot be proved."""

    MISSING = "missing"
    """A committed transaction has fewer records on the partition than its marker says (C6)."""
    SURPLUS = "surplus"
    """A committed transaction has more records on the partition than its marker says (C6)."""
    LATE = "late"
    """Records of a committed transaction at or past its end offset (D1)."""
    MIXED = "mixed"
    """A transaction that has both outcomes, on two partitions or on one."""
    MALFORMED = "malformed"
    """Records whose `txn` header is not exactly one value of 16 bytes (D)."""
    UNDECIDED = "undecided"
    """Records of a transaction without any outcome (D2)."""
    ORPHAN = "orphan"
    """Undecided records of a transaction that has ended on another audited partition (D6).

    Either the marker is on its way, or the transaction wrote here without registering; the next
    audit still finds the second case.
    """
    TRIMMED = "trimmed"
    """Records of a committed transaction are missing.

    The records may have been below the log start, or the cleaner of a compacted topic has removed
    them.
    """
    BEYOND_END = "beyond-end"
    """Records of a committed transaction are missing and may be past the audited end."""
    COMPACTED = "compacted"
    """A topic that compacts holds records of transactions: committed ones may be deleted (C18)."""
    UNCOUNTED = "uncounted"
    """Offsets of a partition below which record counts of committed transactions are gone (C6).

    Snapshots have absorbed the markers, a snapshot holds no counts, and the markers themselves are
    no longer kept. All committed transactions from those offsets on were counted.
    """
    ACCEPTED = "accepted"
    """As `UNCOUNTED`, of an audit that accepts that counts are gone."""
    DIFFERENT = "different"
    """Kafka's read_committed and the filter by aborted-index show different records (F)."""
    RECOUNTED = "recounted"
    """The two differ on a compacted topic, whose cleaner may have run between the two reads."""
    UNCOVERED = "uncovered"
    """Aborted records of the range are unknown: aborted-index lacks them or is broken (F4)."""
    UNEXPLAINED = "unexplained"
    """Offsets of a topic that is not compacted hold neither a record nor a marker."""
    UNREAD = "unread"
    """Spark read more or fewer records than the batches of the partition hold."""
    HANGING = "hanging"
    """A native transaction is open and unknown to every coordinator, so that none will end it."""
    OVERDUE = "overdue"
    """A native transaction is open for longer than its time-out."""
    UNASKED = "unasked"
    """The brokers did not answer which native transactions are open."""
    LEAKED = "leaked"
    """The table holds a record that no reader may see."""
    UNJUDGED = "unjudged"
    """The table holds a record outside the range, undecided, or perhaps removed by a cleaner."""
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
        FindingKind.COMPACTED: Verdict.UNKNOWN,
        FindingKind.UNCOUNTED: Verdict.UNKNOWN,
        FindingKind.ACCEPTED: Verdict.VALID,
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
"""The verdict to which each kind of finding leads."""


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """Counts of one partition's records in `[start_offset, end_offset)`.

    Attributes:
        topic: the partition's topic.
        partition: the partition's number.
        start_offset: first audited offset; by default the log start when the audit began.
        end_offset: end of the audited offsets, exclusive; by default the last stable offset when
            the audit began.
        written: number of records that native read_committed shows.
        visible: number of records that readers deliver, plain records included; a reader may still
            have to wait for an undecided record in front of them.
        hidden: number of records of aborted transactions.
        undecided: number of records of transactions without an outcome here; withheld.
        malformed: number of records with a malformed `txn` header; withheld.
        late: number of records of committed transactions at or past the end offset; withheld.
        plain: number of records without a `txn` header.
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
        """The counts as JSON types; the digest is a decimal string, as it may exceed 2^53."""
        return asdict(self) | {"digest": None if self.digest is None else str(self.digest)}


@dataclass(frozen=True, slots=True)
class Finding:
    """Evidence of one finding.

    Attributes:
        kind: kind of the finding.
        topic: topic of the partition; None when the finding concerns several partitions.
        partition: number of the partition; None when the finding concerns several partitions.
        offset: offset of the first record concerned, or of the transaction's begin; None if
            unknown.
        txn: the transaction; None for malformed headers.
        expected: number of records that should be there, for example as the marker states; None
            when the finding is not about counts.
        found: number of records that are there.
        detail: further facts as text.
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
        """The finding as JSON types."""
        return asdict(self) | {"kind": self.kind.value, "txn": str(self.txn) if self.txn else None}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of the verdicts: invalid, then unknown, then valid; empty if all are empty."""
    return max(verdicts, key=_ORDER.index, default=Verdict.EMPTY)


_ORDER = (Verdict.EMPTY, Verdict.VALID, Verdict.UNKNOWN, Verdict.INVALID)
