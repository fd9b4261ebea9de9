"""The report of an audit: a verdict, findings and evidence of each check, figures for the plots.

*Source*: docs/protocols C6, D1, D2, D3, D6, F4.

*Invariants*: a check that could not run is unknown, never valid; a check without findings that has
looked at nothing is empty, never valid. All findings are counted, and a bounded number of each kind
is listed. `written` is the sum of `visible`, `hidden`, `late`, `undecided` and `malformed`. A check
is invalid with a finding of an invalid kind, else unknown with a finding of an unknown kind.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from stilltide.pipeline.core.native.offset_ledger import Window
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


SCHEMA_VERSION = 2
"""Version of findings.parquet and summary.json; raised when a column changes its meaning."""


class Check(StrEnum):
    """The checks of an audit."""

    EQUIVALENCE = "equivalence"
    """Reading by aborted-index shows the same records as Kafka's read_committed (F)."""
    GAPS = "gaps"
    """Every offset holds a record or a marker."""
    HANGING = "hanging"
    """Every open native transaction will be ended by a coordinator."""
    HEADERS = "headers"
    """Every `txn` header names exactly one transaction."""
    ORPHANS = "orphans"
    """Every record of a coordinated transaction has an outcome (D2, D6)."""
    LATE = "late"
    """No committed transaction wrote past its end (D1)."""
    COUNTS = "counts"
    """Committed transactions have as many records as they promised (C6)."""
    ATOMICITY = "atomicity"
    """No transaction committed on one partition and aborted on another."""
    LEAKS = "leaks"
    """A downstream table holds only records that readers may see."""


KINDS: Mapping[Check, frozenset[FindingKind]] = MappingProxyType(
    {
        Check.EQUIVALENCE: frozenset(
            {FindingKind.DIFFERENT, FindingKind.RECOUNTED, FindingKind.UNCOVERED}
        ),
        Check.GAPS: frozenset({FindingKind.UNEXPLAINED, FindingKind.UNREAD}),
        Check.HANGING: frozenset({FindingKind.HANGING, FindingKind.OVERDUE, FindingKind.UNASKED}),
        Check.HEADERS: frozenset({FindingKind.MALFORMED}),
        Check.ORPHANS: frozenset({FindingKind.ORPHAN, FindingKind.UNDECIDED}),
        Check.LATE: frozenset({FindingKind.LATE}),
        Check.COUNTS: frozenset(
            {
                FindingKind.MISSING,
                FindingKind.SURPLUS,
                FindingKind.TRIMMED,
                FindingKind.BEYOND_END,
                FindingKind.COMPACTED,
                FindingKind.UNCOUNTED,
                FindingKind.ACCEPTED,
            }
        ),
        Check.ATOMICITY: frozenset({FindingKind.MIXED}),
        Check.LEAKS: frozenset({FindingKind.LEAKED, FindingKind.UNJUDGED, FindingKind.UNREADABLE}),
    }
)
"""The kinds of findings that belong to each check."""

LOOKED_AT: Mapping[Check, str] = MappingProxyType(
    {
        Check.EQUIVALENCE: "offsets of partitions that aborted-index covers",
        Check.GAPS: "offsets of topics that are not compacted",
        Check.HANGING: "partitions that hold anything",
        Check.HEADERS: "records",
        Check.ORPHANS: "records of coordinated transactions",
        Check.LATE: "records of committed transactions whose end is known",
        Check.COUNTS: "committed transactions whose record count is known",
        Check.ATOMICITY: "ended transactions",
        Check.LEAKS: "rows of tables",
    }
)
"""What each check looks at; a check that has looked at none is empty."""


class Findings:
    """Gathers findings: counts all, and keeps the first `evidence_max` of each kind."""

    def __init__(self, evidence_max: int) -> None:
        self.evidence_max = evidence_max
        self.counts: Counter[FindingKind] = Counter()
        self.evidence: list[Finding] = []
        self._kept: Counter[FindingKind] = Counter()

    def add(self, finding: Finding, count: int = 1) -> None:
        """Adds one finding as evidence of `count` findings."""
        self.counts[finding.kind] += count
        if self._kept[finding.kind] < self.evidence_max:
            self._kept[finding.kind] += 1
            self.evidence.append(finding)

    def add_all(self, counts: Mapping[FindingKind, int], evidence: Iterable[Finding]) -> None:
        """Adds findings that the caller has counted, and evidence that the caller has bounded."""
        self.counts.update(counts)
        self.evidence.extend(evidence)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check.

    Attributes:
        check: the check.
        looked_at: how many things of `LOOKED_AT` the check has looked at, >= 0.
        figures: the check's counts, by name.
        finding_counts: number of findings of each kind; kinds without findings are absent.
        findings: listed findings, a bounded number of each kind.
    """

    check: Check
    looked_at: int
    figures: Mapping[str, int]
    finding_counts: Mapping[FindingKind, int]
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the findings; without findings valid, or empty."""
        clean = Verdict.VALID if self.looked_at else Verdict.EMPTY
        faults = [it for it in map(VERDICTS.get, self.finding_counts) if it is not Verdict.VALID]
        return worst([clean, *filter(None, faults)])

    @classmethod
    def of(cls, check: Check, findings: Findings, looked_at: int, **figures: int) -> "CheckResult":
        """The result of `check`, from those findings whose kinds belong to the check."""
        kinds = KINDS[check]
        return cls(
            check,
            looked_at,
            figures,
            {kind: count for kind, count in findings.counts.items() if kind in kinds},
            tuple(one for one in findings.evidence if one.kind in kinds),
        )


@dataclass(frozen=True, slots=True)
class OpenNative:
    """A native transaction that was open when the run began.

    Attributes:
        topic: the partition's topic.
        partition: the partition's number.
        producer_id: id of the producer that opened the transaction.
        first_offset: offset of the transaction's first record on the partition.
        age_ms: time since the transaction began, or since the producer's last write if the begin
            is not known; >= 0.
        transactional_id: the producer's transactional id; None when no coordinator knows the
            transaction.
    """

    topic: str
    partition: int
    producer_id: int
    first_offset: int
    age_ms: int
    transactional_id: str | None


@dataclass(frozen=True, slots=True)
class UndecidedRecord:
    """The first record of a partition whose coordinated transaction is undecided.

    Attributes:
        topic: the partition's topic.
        partition: the partition's number.
        txn: the transaction, as `coordinator:sequence`.
        offset: the record's offset, at which readers wait.
        age_ms: time since the record was written; >= 0.
    """

    topic: str
    partition: int
    txn: str
    offset: int
    age_ms: int


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """Counts of one partition, from its batch headers.

    Attributes:
        aborted: number of records of aborted native transactions.
        markers: number of offsets of native control batches.
        commits: number of COMMIT markers.
        aborts: number of ABORT markers.
        unexplained: number of offsets without record or marker.
        windows: counts of consecutive ranges of offsets, for plots.
    """

    aborted: int
    markers: int
    commits: int
    aborts: int
    unexplained: int
    windows: Sequence[Window] = field(repr=False)


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """The figures of one partition.

    Attributes:
        records: counts of records by their visibility under coordinated transactions.
        last_stable_offset: the last stable offset when the run began.
        high_watermark: the high watermark when the run began; offsets between the last stable
            offset and the high watermark wait for an open transaction.
        batches: counts from batch headers; None when no check read the headers.
        windows: records that coordinated transactions let readers see, and records of aborted ones,
            along the offsets; empty for a partition that is not plotted.
    """

    records: PartitionAudit
    last_stable_offset: int
    high_watermark: int
    batches: BatchFigures | None
    windows: Sequence[Window] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The whole report of a run.

    Attributes:
        topics: names of the audited topics.
        began_ms: begin of the run, milliseconds since 1970.
        elapsed_s: duration of the run, the start of Spark included.
        checks: results of the checks that ran, in the order of `Check`.
        partitions: figures of the partitions, ordered by topic and partition.
        open_transactions: open native transactions, oldest first.
        undecided: the first undecided record of each partition, oldest first.
    """

    topics: tuple[str, ...]
    began_ms: int
    elapsed_s: float
    checks: tuple[CheckResult, ...]
    partitions: tuple[PartitionFigures, ...]
    open_transactions: tuple[OpenNative, ...]
    undecided: tuple[UndecidedRecord, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the checks."""
        return worst(check.verdict for check in self.checks)

    @property
    def findings(self) -> list[Finding]:
        """The listed findings of all checks."""
        return [finding for check in self.checks for finding in check.findings]

    @property
    def finding_counts(self) -> dict[FindingKind, int]:
        """The number of findings of each kind; kinds without findings are absent."""
        return {kind: count for one in self.checks for kind, count in one.finding_counts.items()}

    def result(self, check: Check) -> CheckResult:
        """The result of a check that ran."""
        return next(one for one in self.checks if one.check is check)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON types, without windows."""
        return {
            "schema_version": SCHEMA_VERSION,
            "verdict": self.verdict.value,
            "topics": list(self.topics),
            "began_ms": self.began_ms,
            "elapsed_s": round(self.elapsed_s, 3),
            "checks": [
                {
                    "check": check.check.value,
                    "verdict": check.verdict.value,
                    "looked_at": check.looked_at,
                    "figures": dict(check.figures),
                    "finding_counts": {kind.value: n for kind, n in check.finding_counts.items()},
                    "findings": [finding.to_dict() for finding in check.findings],
                }
                for check in self.checks
            ],
            "partitions": [_partition(partition) for partition in self.partitions],
            "open_transactions": [asdict(transaction) for transaction in self.open_transactions],
            "undecided": [asdict(one) for one in self.undecided],
        }


def _partition(figures: PartitionFigures) -> dict[str, Any]:
    names = ("aborted", "markers", "commits", "aborts", "unexplained")
    return figures.records.to_dict() | {
        **{name: getattr(figures.batches, name, None) for name in names},
        "last_stable_offset": figures.last_stable_offset,
        "high_watermark": figures.high_watermark,
    }
