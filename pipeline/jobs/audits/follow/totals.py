"""Adds the results of windows up to what one audit over all of them would find; pure.

*Invariants*: findings of one fault on both sides of a border between windows are one finding:
records of one transaction or header are added, adjacent empty offsets are joined, and the offsets
below which counts are gone are named once for each partition. A transaction with two outcomes is
found in each window, and counts once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stilltide.pipeline.jobs.audits.report import Check, CheckResult, Finding, FindingKind, Findings
from stilltide.schemas.values import TxnId

KEPT_MAX = 10_000
"""Findings of a kind that the state keeps; further ones are only counted, once for each window."""

PASSING = frozenset({Check.HANGING})
"""Checks of the present moment: their result is that of the last run."""

_ADDED = {FindingKind.LATE, FindingKind.MALFORMED, FindingKind.UNREAD}
_NAMED = {FindingKind.UNCOUNTED}
_LAST = {(Check.ATOMICITY, "aborted"), (Check.EQUIVALENCE, "partitions")}
"""Figures that a window gives for everything, and not for itself."""

_Key = tuple[object, ...]


@dataclass(frozen=True)
class CheckTotal:
    """The result of a check over all windows so far.

    Attributes:
        looked_at: how much was looked at.
        figures: the check's counts.
        findings: the findings that are kept, by what makes them one finding.
        beyond: number of further findings of each kind.
    """

    looked_at: int = 0
    figures: Mapping[str, int] = field(default_factory=dict)
    findings: Mapping[_Key, Finding] = field(default_factory=dict)
    beyond: Mapping[FindingKind, int] = field(default_factory=dict)

    def added(self, result: CheckResult) -> "CheckTotal":
        """The total with the result of the next window."""
        figures = dict(self.figures)
        for name, count in result.figures.items():
            before = 0 if (result.check, name) in _LAST else figures.get(name, 0)
            figures[name] = before + count
        findings, beyond = dict(self.findings), dict(self.beyond)
        listed: dict[FindingKind, int] = {}
        for finding in result.findings:
            listed[finding.kind] = listed.get(finding.kind, 0) + 1
            _put(findings, finding, beyond)
        for kind, count in result.finding_counts.items():
            if more := count - listed.get(kind, 0):
                beyond[kind] = beyond.get(kind, 0) + more
        looked_at = self.looked_at + result.looked_at
        if result.check is Check.ATOMICITY:
            looked_at = sum(figures.values())
        return CheckTotal(looked_at, figures, findings, beyond)

    def result(self, check: Check, evidence_max: int, *, accept_unchecked: bool) -> CheckResult:
        """The total as the result of one audit."""
        findings = Findings(evidence_max)
        for finding in sorted(self.findings.values(), key=_order):
            accepted = accept_unchecked and finding.kind is FindingKind.UNCOUNTED
            findings.add(replace(finding, kind=FindingKind.ACCEPTED) if accepted else finding)
        findings.counts.update(self.beyond)
        return CheckResult.of(check, findings, self.looked_at, **self.figures)

    def to_dict(self) -> dict[str, Any]:
        """The total as JSON types."""
        return {
            "looked_at": self.looked_at,
            "figures": dict(self.figures),
            "findings": [finding.to_dict() for finding in self.findings.values()],
            "beyond": {kind.value: count for kind, count in self.beyond.items()},
        }

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> "CheckTotal":
        """The total that `to_dict` gave.

        Raises:
            KeyError, ValueError, TypeError: it is not one.
        """
        findings: dict[_Key, Finding] = {}
        for entry in body["findings"]:
            txn = None if entry["txn"] is None else TxnId(*map(int, entry["txn"].split(":")))
            finding = Finding(**{**entry, "kind": FindingKind(entry["kind"]), "txn": txn})
            findings[_key(finding)] = finding
        beyond = {FindingKind(kind): int(count) for kind, count in body["beyond"].items()}
        return cls(int(body["looked_at"]), dict(body["figures"]), findings, beyond)


Totals = Mapping[Check, CheckTotal]


def add_results(totals: Totals, results: Iterable[CheckResult]) -> Totals:
    """The totals with the results of the next window."""
    new = dict(totals)
    for result in results:
        new[result.check] = new.get(result.check, CheckTotal()).added(result)
    return new


def results_of(
    totals: Totals, evidence_max: int, *, accept_unchecked: bool
) -> Sequence[CheckResult]:
    """The results of all checks that ran."""
    return [
        total.result(check, evidence_max, accept_unchecked=accept_unchecked)
        for check, total in totals.items()
    ]


def _put(findings: dict[_Key, Finding], finding: Finding, beyond: dict[FindingKind, int]) -> None:
    key = _key(finding)
    if finding.kind is FindingKind.UNEXPLAINED:
        before = _adjacent(findings, finding)
        if before is not None:
            del findings[_key(before)]
            finding = _joined(before, finding)
            key = _key(finding)
    elif (known := findings.get(key)) is not None:
        finding = _merged(known, finding)
    elif sum(other.kind is finding.kind for other in findings.values()) >= KEPT_MAX:
        beyond[finding.kind] = beyond.get(finding.kind, 0) + 1
        return
    findings[key] = finding


def _key(finding: Finding) -> _Key:
    """What makes findings of two windows the same finding."""
    named = finding.kind in _NAMED | _ADDED or finding.txn is not None
    offset = None if named else finding.offset
    return finding.kind, finding.topic, finding.partition, finding.txn, offset


def _merged(known: Finding, finding: Finding) -> Finding:
    offset = known.offset if finding.offset is None else min(known.offset or 0, finding.offset)
    if finding.kind in _ADDED:
        expected = None if finding.expected is None else (known.expected or 0) + finding.expected
        actual = (known.found or 0) + (finding.found or 0)
        return replace(finding, offset=offset, expected=expected, found=actual)
    return replace(finding, offset=offset) if finding.kind in _NAMED else finding


def _adjacent(findings: Mapping[_Key, Finding], finding: Finding) -> Finding | None:
    for known in findings.values():
        if (known.kind, known.topic, known.partition) == (
            finding.kind,
            finding.topic,
            finding.partition,
        ):
            assert known.offset is not None, "a gap has a place"
            if known.offset + (known.expected or 0) == finding.offset:
                return known
    return None


def _joined(before: Finding, after: Finding) -> Finding:
    expected = (before.expected or 0) + (after.expected or 0)
    actual = (before.found or 0) + (after.found or 0)
    first = before.offset or 0
    detail = f"offsets {first} to {first + expected - 1}: {expected - actual} hold nothing"
    return replace(before, expected=expected, found=actual, detail=detail)


def _order(finding: Finding) -> tuple[object, ...]:
    return (
        finding.kind,
        finding.topic or "",
        finding.partition or 0,
        finding.offset or 0,
        finding.txn or (0, 0),
    )
