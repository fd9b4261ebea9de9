"""Reports without Kafka and Spark: verdicts, the files they are written to, the page."""

import json
from dataclasses import replace
from html.parser import HTMLParser
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
from stilltide.pipeline.jobs.audits.page import render_page
from stilltide.pipeline.jobs.audits.plots import LINES_MAX, ROWS_MAX
from stilltide.pipeline.jobs.audits.report import (
    KINDS,
    LOOKED_AT,
    SCHEMA_VERSION,
    AuditReport,
    BatchFigures,
    Check,
    CheckResult,
    Findings,
    OpenNative,
    PartitionFigures,
    UndecidedRecord,
)
from stilltide.pipeline.jobs.audits.verdicts import (
    VERDICTS,
    Finding,
    FindingKind,
    PartitionAudit,
    Verdict,
)
from stilltide.schemas.printable import printable, shortened
from stilltide.schemas.values import TxnId
from tests.support.hostile import HOSTILE, is_harmless

DIGEST = 2**70 + 1
"""More digits than a double holds."""


def finding(kind: FindingKind, topic: str = "orders") -> Finding:
    """One of a kind."""
    return Finding(kind, topic, 0, 4, TxnId(1, 2), 3, 2, "<b>why</b>")


def figures(number: int) -> PartitionFigures:
    """A partition with some of everything."""
    records = PartitionAudit("orders", number, 0, 100, 60, 50, 10, 0, 0, 0, 40, DIGEST)
    windows = [Window(0, 50, 50, 0, 0), Window(50, 100, 10, 30, 10)]
    return PartitionFigures(records, 100, 130, BatchFigures(30, 10, 4, 6, 0, windows))


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
    """None, never 0: nothing was counted. The page is drawn all the same."""
    unwalked = PartitionFigures(figures(0).records, 100, 130, batches=None)
    report = replace(report_of(), partitions=(unwalked,))
    (partition,) = report.to_dict()["partitions"]
    names = ("aborted", "markers", "commits", "aborts", "unexplained")
    assert {partition[name] for name in names} == {None}
    assert (partition["visible"], partition["high_watermark"]) == (50, 130)
    assert render_page(report).count("<svg") == 5


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


class Tags(HTMLParser):
    """What a page is made of."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Counts it, and what it would load."""
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not (value or "").startswith("#"):
                self.loaded.append(f"{tag} {value}")


@pytest.mark.parametrize(("partitions", "open_count"), [(0, 0), (1, 1), (ROWS_MAX + 5, 50)])
def test_the_page_loads_nothing_and_escapes_what_it_shows(partitions: int, open_count: int):
    """Five plots, however much there is to draw; no script, no image, no tag out of a detail."""
    report = report_of(FindingKind.LEAKED, partitions=partitions, open_count=open_count)
    page = render_page(report)
    found = Tags(page)
    assert found.tags.count("svg") == 5
    assert found.loaded == []
    assert not {"script", "img", "link", "b"} & set(found.tags)
    assert "&lt;b&gt;why" in page
    assert len(page) < 1_000_000
    assert ("The plots show the first" in page) == (partitions > ROWS_MAX)


def test_a_page_is_the_same_each_time():
    """Same report, same bytes."""
    assert render_page(report_of(FindingKind.LATE)) == render_page(report_of(FindingKind.LATE))


class Seen(HTMLParser):
    """The text of a page, and the names of its elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes an element; an attribute that runs a script is a fault."""
        self.tags.add(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        """Notes text."""
        self.text += data


def test_hostile_names_are_text_on_the_page(tmp_path: Path):
    """As topics and transactional ids: neither HTML nor formulas nor control characters."""
    names = tuple(HOSTILE.values())
    report = report_of(FindingKind.ORPHAN, partitions=len(names), open_count=0)
    found = [replace(finding(FindingKind.ORPHAN), topic=name, detail=name) for name in names]
    report = replace(
        report,
        topics=names,
        checks=tuple(replace(one, findings=tuple(found)) for one in report.checks),
        partitions=tuple(
            replace(one, records=replace(one.records, topic=name))
            for name, one in zip(names, report.partitions, strict=True)
        ),
        open_transactions=tuple(OpenNative(name, 0, 4, 7, 1000, name) for name in names),
        undecided=tuple(UndecidedRecord(name, 0, name, 7, 1000) for name in names),
    )
    write_report(report, tmp_path)
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert is_harmless(page)
    seen = Seen(page)
    assert not seen.tags & {"script", "img"}
    labels = seen.text.replace("\xa0", " ")
    for number, name in enumerate(names):
        assert printable(name) in seen.text
        assert f"{shortened(name)}/0@7  {shortened(name)}" in labels
        # In the plots of ranges and of lag; the first ten also in the one of abort rates.
        assert labels.count(f"{shortened(name)}/{number}") >= (3 if number < LINES_MAX else 2)
    assert json.loads((tmp_path / SUMMARY).read_text())["topics"] == list(names)
