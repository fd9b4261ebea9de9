"""The report of an audit: a verdict and evidence for each check, figures for the plots.

*Source*: docs/protocols C6, D, F4.

*Invariants*: a check that could not run is unknown, never valid; a check without findings that has
looked at nothing is empty, never valid. All findings are counted, and a bounded number of each kind
is listed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from stilltide.pipeline.core.native.offset_ledger import Window
from stilltide.pipeline.jobs.audits.verdicts import (
    VERDICTS,
    Finding,
    FindingKind,
    PartitionAudit,
    Verdict,
    worst,
)

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
