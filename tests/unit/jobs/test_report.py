"""Reports without Kafka and Spark: verdicts, and the files they are written to."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stilltide.pipeline.core.native.offset_ledger import Window
from stilltide.pipeline.jobs.audits.files import (
    FINDINGS,
    FINDINGS_SCHEMA,
    PAGE,
    SUMMARY,
    write_report,
)
from stilltide.pipeline.jobs.audits.report import (
    KINDS,
    LOOKED_AT,
    SCHEMA_VERSION,
    VERDICTS,
    AuditReport,
    BatchFigures,
    Check,
    CheckResult,
    Finding,
    FindingKind,
    Findings,
    OpenNative,
    PartitionAudit,
    PartitionFigures,
    UndecidedRecord,
    Verdict,
)
from stilltide.schemas.values import EndOffset, Offset, TxnId

DIGEST = 2**70 + 1
"""More digits than a double holds."""


def finding(kind: FindingKind, topic: str = "orders") -> Finding:
    """One of a kind."""
    return Finding(kind, topic, 0, 4, TxnId(1, 2), 3, 2, "<b>why</b>")


def figures(number: int) -> PartitionFigures:
    """A partition with some of everything."""
    records = PartitionAudit(
        "orders", number, Offset(0), EndOffset(100), 60, 50, 10, 0, 0, 0, 40, DIGEST
    )
    windows = [Window(0, 50, 50, 0, 0), Window(50, 100, 10, 30, 10)]
    hidden = [Window(0, 64, 40, 10, 0), Window(64, 100, 10, 0, 0)]
    return PartitionFigures(records, 100, 130, BatchFigures(30, 10, 4, 6, 0, windows), hidden)


def report_of(
    *kinds: FindingKind,
    partitions: int = 2,
    open_count: int = 1,
    evidence_max: int = 5,
    looked_at: int = 9,
) -> AuditReport:
    """A report with a finding of each kind."""
    found = Findings(evidence_max)
    for kind in kinds:
        found.add(finding(kind))
    return AuditReport(
        topics=("orders",),
        began_ms=1_700_000_000_000,
        elapsed_s=1.23456,
        checks=tuple(CheckResult.of(check, found, looked_at, records=7) for check in Check),
        partitions=tuple(figures(number) for number in range(partitions)),
        open_transactions=tuple(
            OpenNative("orders", 0, number, 7, 1000 * number, None) for number in range(open_count)
        ),
        undecided=tuple(
            UndecidedRecord("orders", number, "1:2", 7, 1000 * number)
            for number in range(open_count)
        ),
    )


def test_every_kind_has_one_check():
    """No finding is lost between the checks, and each says what it makes of the audit."""
    kinds = [kind for check in Check for kind in KINDS[check]]
    assert sorted(kinds) == sorted(FindingKind)
    assert set(VERDICTS) == set(FindingKind)


ROOT = Path(__file__).parents[3]
NUMBERS = ("seven", "eight", "nine", "ten", "eleven", "twelve")
COUNTED = re.compile(rf"\b({'|'.join(NUMBERS)}) checks\b", re.IGNORECASE)


def test_the_pages_count_and_name_the_checks_that_there_are():
    """The README, the tutorial and the page about audits; the latter has a row for each check."""
    pages = ("README.md", "docs/auditing.md", "docs/tutorials/audit.md")
    texts = [(ROOT / page).read_text() for page in pages]
    number = NUMBERS[len(Check) - 7]
    assert [[word.lower() for word in COUNTED.findall(text)] for text in texts] == [[number]] * 3
    rows = re.findall(r"^\| `([a-z]+)` \| .+ \| .+ \|$", texts[1], re.MULTILINE)
    assert rows == [check.value for check in Check]


@pytest.mark.parametrize("kind", FindingKind)
def test_a_finding_makes_its_check_and_the_report_what_it_is(kind: FindingKind):
    """The other checks stay valid."""
    report = report_of(kind)
    assert report.verdict is VERDICTS[kind]
    for one in report.checks:
        expected = VERDICTS[kind] if kind in KINDS[one.check] else Verdict.VALID
        assert one.verdict is expected


@pytest.mark.parametrize(
    ("kinds", "verdict"),
    [
        ([], Verdict.VALID),
        ([FindingKind.ACCEPTED], Verdict.VALID),
        ([FindingKind.UNCOUNTED, FindingKind.ACCEPTED], Verdict.UNKNOWN),
        ([FindingKind.UNCOVERED], Verdict.UNKNOWN),
        ([FindingKind.UNCOVERED, FindingKind.LEAKED], Verdict.INVALID),
        ([FindingKind.UNDECIDED], Verdict.UNKNOWN),
        ([FindingKind.UNDECIDED, FindingKind.MISSING], Verdict.INVALID),
        ([FindingKind.TRIMMED, FindingKind.BEYOND_END, FindingKind.ORPHAN], Verdict.UNKNOWN),
    ],
)
def test_invalid_outranks_unknown_and_unknown_valid(kinds: list[FindingKind], verdict: Verdict):
    """Never a clean bill with a check that could not look."""
    assert report_of(*kinds).verdict is verdict


def test_only_what_the_caller_accepts_is_valid():
    """A new kind cannot be forgotten: it would be reported as valid."""
    assert set(VERDICTS) == set(FindingKind)
    valid = {kind for kind, verdict in VERDICTS.items() if verdict is Verdict.VALID}
    assert valid == {FindingKind.ACCEPTED}


@pytest.mark.parametrize("kinds", [[], [FindingKind.ACCEPTED]])
def test_a_check_that_has_looked_at_nothing_is_empty(kinds: list[FindingKind]):
    """Never valid; and what it could not look at still makes it unknown or invalid."""
    empty = report_of(*kinds, looked_at=0)
    assert {one.verdict for one in empty.checks} == {Verdict.EMPTY}
    assert empty.verdict is Verdict.EMPTY
    assert report_of(FindingKind.UNASKED, looked_at=0).verdict is Verdict.UNKNOWN
    assert report_of(FindingKind.MISSING, looked_at=0).verdict is Verdict.INVALID


def test_an_audit_is_empty_only_if_every_check_is():
    """One check that has looked makes the report valid; each check says how much it looked at."""
    valid, empty = report_of(), report_of(looked_at=0)
    mixed = replace(empty, checks=(*empty.checks[:-1], valid.checks[-1]))
    assert mixed.verdict is Verdict.VALID
    assert [one["looked_at"] for one in mixed.to_dict()["checks"]] == [0] * 8 + [9]
    assert set(LOOKED_AT) == set(Check)


def test_the_dictionary_survives_json_without_losing_a_digit():
    """Digests exceed what JSON readers keep of a number, so they are strings."""
    found = json.loads(json.dumps(report_of(FindingKind.MISSING).to_dict()))
    assert found["verdict"] == "invalid"
    assert found["partitions"][0]["digest"] == str(DIGEST)
    (counts,) = [one for one in found["checks"] if one["check"] == "counts"]
    assert counts["figures"] == {"records": 7}
    assert counts["finding_counts"] == {"missing": 1}
    assert counts["findings"] == [
        {
            "kind": "missing",
            "topic": "orders",
            "partition": 0,
            "offset": 4,
            "txn": "1:2",
            "expected": 3,
            "found": 2,
            "detail": "<b>why</b>",
        }
    ]
    assert found["elapsed_s"] == 1.235


def test_a_report_without_walked_batches_has_no_figures_of_them():
    """None, never 0: nothing was counted."""
    unwalked = PartitionFigures(figures(0).records, 100, 130, batches=None)
    report = replace(report_of(), partitions=(unwalked,))
    (partition,) = report.to_dict()["partitions"]
    names = ("aborted", "markers", "commits", "aborts", "unexplained")
    assert {partition[name] for name in names} == {None}
    assert (partition["visible"], partition["high_watermark"]) == (50, 130)


def test_findings_of_all_checks_are_one_list_and_one_count():
    """In the order of the checks."""
    report = report_of(FindingKind.LATE, FindingKind.UNEXPLAINED)
    assert [one.kind for one in report.findings] == [FindingKind.UNEXPLAINED, FindingKind.LATE]
    assert report.finding_counts == {FindingKind.UNEXPLAINED: 1, FindingKind.LATE: 1}
    assert report.result(Check.LATE).finding_counts == {FindingKind.LATE: 1}


def test_findings_are_bounded_and_counted():
    """Of each kind apart."""
    found = Findings(2)
    for _ in range(5):
        found.add(finding(FindingKind.LEAKED))
    found.add(finding(FindingKind.LATE))
    assert found.counts == {FindingKind.LEAKED: 5, FindingKind.LATE: 1}
    assert len(found.evidence) == 3


@pytest.mark.parametrize("kinds", [[], [FindingKind.LEAKED, FindingKind.UNASKED]])
def test_files(kinds: list[FindingKind], tmp_path: Path):
    """Parquet of one versioned schema, JSON and a page; those of an earlier run are replaced."""
    report = report_of(*kinds)
    for _ in range(2):
        write_report(report, tmp_path / "new" / "report")
    folder = tmp_path / "new" / "report"
    assert {path.name for path in folder.iterdir()} == {FINDINGS, SUMMARY, PAGE}
    table = pq.read_table(folder / FINDINGS)
    assert table.schema.equals(FINDINGS_SCHEMA, check_metadata=True)
    assert table.schema.metadata[b"stilltide.schema_version"] == str(SCHEMA_VERSION).encode()
    assert table.num_rows == len(kinds)
    told = json.loads((folder / SUMMARY).read_text())
    assert told == report.to_dict()
    assert told["elapsed_s"] == 1.235
