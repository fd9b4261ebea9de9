"""The report of an audit: a verdict and evidence for each check, figures for the plots.

*Source*: protocols.md C6, D, F4; facts: spark.md 6.

*Invariants*: a verdict follows from the kinds found alone; a check that could not look is unknown,
never valid. Findings are counted all, listed up to a number of each kind.
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

SCHEMA_VERSION = 1
"""Of findings.parquet and summary.json; goes up when a column changes its meaning."""


class Check(StrEnum):
    """What is looked at."""

    EQUIVALENCE = "equivalence"
    """Our filter of aborted native records against Kafka's, over the same offsets (F)."""
    GAPS = "gaps"
    """Every offset is a record or a marker."""
    HANGING = "hanging"
    """No native transaction is open that nothing will end."""
    HEADERS = "headers"
    """Every `txn` header is one transaction."""
    ORPHANS = "orphans"
    """Every record of a coordinated transaction has an outcome (D2, D6)."""
    LATE = "late"
    """No committed transaction wrote past its end (D1)."""
    COUNTS = "counts"
    """Committed transactions have as many records as they promised (C6)."""
    ATOMICITY = "atomicity"
    """No transaction committed here and aborted there."""
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
                FindingKind.UNPROMISED,
            }
        ),
        Check.ATOMICITY: frozenset({FindingKind.MIXED}),
        Check.LEAKS: frozenset({FindingKind.LEAKED, FindingKind.UNJUDGED, FindingKind.UNREADABLE}),
    }
)
"""What each check may find."""


class Findings:
    """Gathers findings: all are counted, the first `evidence_max` of each kind are kept."""

    def __init__(self, evidence_max: int) -> None:
        self.evidence_max = evidence_max
        self.counts: Counter[FindingKind] = Counter()
        self.evidence: list[Finding] = []
        self._kept: Counter[FindingKind] = Counter()

    def add(self, finding: Finding, count: int = 1) -> None:
        """One finding, which may stand for several."""
        self.counts[finding.kind] += count
        if self._kept[finding.kind] < self.evidence_max:
            self._kept[finding.kind] += 1
            self.evidence.append(finding)

    def add_all(self, counts: Mapping[FindingKind, int], evidence: Iterable[Finding]) -> None:
        """Findings that were counted and bounded elsewhere."""
        self.counts.update(counts)
        self.evidence.extend(evidence)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check's answer.

    Attributes:
        check: which one.
        figures: what it counted, by name.
        finding_counts: how many findings of each kind; kinds without any are absent.
        findings: evidence, a bounded number of each kind.
    """

    check: Check
    figures: Mapping[str, int]
    finding_counts: Mapping[FindingKind, int]
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst that the findings say; valid without any."""
        return worst(VERDICTS[kind] for kind in self.finding_counts)

    @classmethod
    def of(cls, check: Check, found: Findings, **figures: int) -> "CheckResult":
        """What a check makes of those among the findings that are its own."""
        kinds = KINDS[check]
        return cls(
            check,
            figures,
            {kind: count for kind, count in found.counts.items() if kind in kinds},
            tuple(one for one in found.evidence if one.kind in kinds),
        )


@dataclass(frozen=True, slots=True)
class OpenNative:
    """A native transaction that was open when the run began.

    Attributes:
        topic: the partition's topic.
        partition: its number.
        producer_id: of the producer that opened it.
        first_offset: of its first record there.
        age_ms: since it began, or last wrote where only that is known; >= 0.
        transactional_id: as its coordinator knows it; None when no coordinator does.
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
        partition: its number.
        txn: the transaction, as `coordinator:sequence`.
        offset: of the record; readers wait there.
        age_ms: since the record was written; >= 0.
    """

    topic: str
    partition: int
    txn: str
    offset: int
    age_ms: int


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """One partition as its batch headers count it.

    Attributes:
        aborted: records of aborted native transactions.
        markers: offsets of native control batches.
        commits: markers that say COMMIT.
        aborts: markers that say ABORT.
        unexplained: offsets without record or marker.
        windows: counts along the offsets.
    """

    aborted: int
    markers: int
    commits: int
    aborts: int
    unexplained: int
    windows: Sequence[Window] = field(repr=False)


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """One partition in offsets.

    Attributes:
        records: records by the visibility that coordinated transactions give them.
        last_stable_offset: when the run began.
        high_watermark: when the run began; offsets between the last stable offset and the high
            watermark wait for an open transaction.
        batches: None when no check walked the batches.
    """

    records: PartitionAudit
    last_stable_offset: int
    high_watermark: int
    batches: BatchFigures | None


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The whole answer.

    Attributes:
        topics: what was audited.
        began_ms: when, milliseconds since 1970.
        elapsed_s: how long it took, the start of Spark included.
        checks: those that ran, in the order of `Check`.
        partitions: ordered by topic and partition.
        open_transactions: native ones, oldest first.
        undecided: of coordinated ones the first of each partition, oldest first.
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
        verdicts = [one.verdict for one in self.checks]
        return worst(one for one in verdicts if one is not Verdict.VALID)

    @property
    def findings(self) -> list[Finding]:
        """The evidence of all checks."""
        return [finding for one in self.checks for finding in one.findings]

    @property
    def finding_counts(self) -> dict[FindingKind, int]:
        """How many findings of each kind there are; kinds without any are absent."""
        return {kind: count for one in self.checks for kind, count in one.finding_counts.items()}

    def result(self, check: Check) -> CheckResult:
        """The result of a check that ran."""
        return next(one for one in self.checks if one.check is check)

    def to_dict(self) -> dict[str, Any]:
        """As JSON types, without windows."""
        return {
            "schema_version": SCHEMA_VERSION,
            "verdict": self.verdict.value,
            "topics": list(self.topics),
            "began_ms": self.began_ms,
            "elapsed_s": round(self.elapsed_s, 3),
            "checks": [
                {
                    "check": one.check.value,
                    "verdict": one.verdict.value,
                    "figures": dict(one.figures),
                    "finding_counts": {kind.value: n for kind, n in one.finding_counts.items()},
                    "findings": [finding.to_dict() for finding in one.findings],
                }
                for one in self.checks
            ],
            "partitions": [_partition(one) for one in self.partitions],
            "open_transactions": [asdict(one) for one in self.open_transactions],
            "undecided": [asdict(one) for one in self.undecided],
        }


def _partition(one: PartitionFigures) -> dict[str, Any]:
    names = ("aborted", "markers", "commits", "aborts", "unexplained")
    return one.records.to_dict() | {
        **{name: getattr(one.batches, name, None) for name in names},
        "last_stable_offset": one.last_stable_offset,
        "high_watermark": one.high_watermark,
    }
