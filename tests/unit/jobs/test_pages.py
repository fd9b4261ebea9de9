"""The page of a report: what it says was proved, its texts for findings, its plots, its safety."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from stilltide.pipeline.core.native.offset_ledger import WINDOWS_MAX, Window
from stilltide.pipeline.jobs.audits.files import PAGE, write_report
from stilltide.pipeline.jobs.audits.last import SUMMARY
from stilltide.pipeline.jobs.audits.pages.advice import ADVICE, command
from stilltide.pipeline.jobs.audits.pages.charts import (
    ROWS_MAX,
    Step,
    Steps,
    nice,
    plots,
    short,
    steps,
)
from stilltide.pipeline.jobs.audits.pages.page import render_page
from stilltide.pipeline.jobs.audits.pages.proved import PROVES, proved
from stilltide.pipeline.jobs.audits.report import (
    AuditReport,
    Check,
    CheckResult,
    FindingKind,
    Findings,
    OpenNative,
    UndecidedRecord,
)
from stilltide.schemas.printable import printable, shortened
from stilltide.schemas.topics import is_topic_name
from tests.support.hostile import HOSTILE, is_harmless
from tests.unit.jobs.test_report import figures, finding, report_of

PLOTS = [
    "Aborted native records over offsets",
    "Aborted coordinated records over offsets",
    "Age of open native transactions",
    "Age of the coordinated transactions that partitions wait for",
    "Lag of the last stable offset",
]


def counted(report: AuditReport, **counts: int) -> AuditReport:
    """The report with other figures of the checks of coordinated transactions."""
    figured = {Check.COUNTS, Check.ATOMICITY}
    checks = [replace(it, figures=counts) if it.check in figured else it for it in report.checks]
    return replace(report, checks=tuple(checks))


def quiet() -> AuditReport:
    """A report of two partitions in which nothing aborted, is open, or lags."""
    parts = []
    for number in range(2):
        one = figures(number)
        assert one.batches is not None
        still = [Window(0, 100, 100, 0, 0)]
        batches = replace(one.batches, windows=still)
        parts.append(replace(one, batches=batches, windows=still, high_watermark=100))
    return replace(report_of(open_count=0), partitions=tuple(parts))


class Seen(HTMLParser):
    """The text of a page, its elements, and what it would load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes an element; an attribute that runs a script is a fault."""
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name in ("src", "href", "xlink:href") and not (value or "").startswith("#"):
                self.loaded.append(f"{tag} {value}")

    def handle_data(self, data: str) -> None:
        """Notes text."""
        self.text += data


def test_what_was_proved_is_one_sentence_with_its_counts():
    """How many records and transactions, what each valid check proved, and nothing else."""
    sentence = proved(counted(report_of(), committed=2571, aborted=12, unchecked=0))
    assert sentence.startswith(
        "Of 120 records on 2 partitions, 2,571 committed coordinated transactions and 12 "
        "aborted, this audit proved that aborted-index hides exactly the records that Kafka hides, "
    )
    for text in PROVES.values():
        assert text in sentence
    assert "did not prove" not in sentence


def test_what_was_not_proved_is_said():
    """C6: transactions without counts, checks with findings, and checks that did not run."""
    report = counted(report_of(FindingKind.UNDECIDED), committed=10, aborted=0, unchecked=4)
    without = [one for one in report.checks if one.check is not Check.LEAKS]
    sentence = proved(replace(report, checks=tuple(without)))
    assert "6 committed transactions have every record promised" in sentence
    assert sentence.endswith(
        "; it did not prove orphans (unknown), leaks (did not run) and the record counts of 4 "
        "committed transactions, whose markers snapshots have replaced."
    )
    assert PROVES[Check.ORPHANS] not in sentence
    assert "proved nothing" in proved(replace(report, checks=()))


def test_every_check_says_what_it_proves():
    """A new check cannot be forgotten."""
    assert set(PROVES) == set(Check)


@pytest.mark.parametrize("kind", FindingKind)
def test_every_kind_of_finding_has_meaning_action_and_command_on_the_page(kind: FindingKind):
    """A new kind cannot be forgotten; each text is of its own."""
    advice = ADVICE[kind]
    others = [ADVICE[it] for it in FindingKind if it is not kind]
    assert advice.meaning not in [it.meaning for it in others]
    assert all(text.endswith(".") for text in (advice.meaning, advice.action))
    text = Seen(render_page(report_of(kind))).text
    for each in (advice.meaning, advice.action, f"{kind.value}: 1 finding"):
        assert each in text
    assert command(kind, finding(kind)) in text


def test_a_command_names_what_was_found():
    """Placeholders become the first finding's names; a shell's characters are never filled in."""
    found = finding(FindingKind.HANGING)
    assert command(FindingKind.HANGING, found) == "stilltide native abort orders 0 4"
    assert command(FindingKind.UNDECIDED, found) == "stilltide txn abort 1:2 --yes"
    hostile_names = [name for name in HOSTILE.values() if not is_topic_name(name)]
    assert len(hostile_names) > 5
    for name in ("a b", "$(reboot)", "-x", "a;b", *hostile_names):
        hostile = replace(found, topic=name)
        assert command(FindingKind.HANGING, hostile) == "stilltide native abort TOPIC 0 4"
    assert command(FindingKind.HANGING, None) == "stilltide native abort TOPIC PARTITION OFFSET"


def test_findings_that_are_not_listed_are_counted_on_the_page():
    """Also a kind of which none is listed."""
    found = Findings(1)
    for _ in range(3):
        found.add(finding(FindingKind.LATE))
    check = CheckResult.of(Check.LATE, found, 3)
    page = render_page(replace(report_of(), checks=(check,)))
    assert "late: 3 findings, of which 1 are listed" in page
    check = replace(check, findings=())
    page = render_page(replace(report_of(), checks=(check,)))
    assert "late: 3 findings, of which 0 are listed" in page
    assert ADVICE[FindingKind.LATE].meaning in page


def test_plots_show_native_and_coordinated_transactions():
    """Each row says the share of its partition; coordinated ones are drawn as native ones are."""
    drawn = plots(report_of(open_count=2)).shown
    assert [plot.title for plot in drawn] == PLOTS
    native, coordinated, *_ = (plot.chart.rows for plot in drawn)
    assert [row.figure for row in native] == ["33 % aborted"] * 2
    assert [row.figure for row in coordinated] == ["17 % aborted"] * 2
    assert all(row.path for row in (*native, *coordinated))
    assert render_page(report_of(open_count=2)).count("<path") == 4


def test_a_plot_without_data_is_left_out_and_said():
    """Nothing aborted, open or late: no drawing, and a sentence where one would look for it."""
    found = plots(quiet())
    assert found.shown == ()
    assert found.absent == (
        "No record of an aborted native transaction is in the range.",
        "No record of an aborted coordinated transaction is in the range.",
        "No native transaction was open when the audit began.",
    )
    page = render_page(quiet())
    assert "<svg" not in page
    assert all(sentence in page for sentence in found.absent)


def test_figures_that_were_not_read_are_not_drawn_as_zero():
    """Without headers of batches, aborted native records are unknown, not absent."""
    parts = tuple(replace(one, batches=None) for one in quiet().partitions)
    assert plots(replace(quiet(), partitions=parts)).absent[0].startswith("Aborted native records")
    unasked = [one for one in quiet().checks if one.check is not Check.HANGING]
    assert not any("was open" in it for it in plots(replace(quiet(), checks=tuple(unasked))).absent)


def test_shares_are_drawn_where_they_are():
    """Stretches without aborted records are gaps; the highest share has the full height."""
    row = Steps("p", "f", 0, 100, [Step(0, 10, 0.1), Step(10, 20, 0.2), Step(50, 60, 0.05)])
    (drawn,) = steps([row], "native", "offset", 0.2).rows
    assert drawn.path == "M0 100V50H100V0H200V100ZM500 100V75H600V100Z"
    other = Steps("q", "f", 100, 200, [Step(100, 200, 0.2)])
    assert steps([row, other], "native", "offset", 0.2).rows[1].path == "M500 100V0H1000V100Z"


@pytest.mark.parametrize(
    ("value", "end"), [(0, 1), (0.003, 0.004), (1, 1), (3, 4), (90, 100), (4.2e9, 8e9)]
)
def test_an_axis_ends_at_a_round_number(value: float, end: float):
    """So that its quarters are round, too."""
    assert nice(value) == pytest.approx(end)


def test_numbers_of_an_axis_are_short():
    """Five of them fit on a narrow screen."""
    numbers = (0, 950, 1500, 20e6, 4.2e9, 0.25)
    assert [short(it) for it in numbers] == ["0", "950", "1.5 k", "20 M", "4.2 G", "0.25"]


@pytest.mark.parametrize(("partitions", "open_count"), [(0, 0), (1, 1), (ROWS_MAX + 5, 50)])
def test_the_page_loads_nothing_and_escapes_what_it_shows(partitions: int, open_count: int):
    """However much there is to draw; no script, no image, no tag out of a detail."""
    report = report_of(FindingKind.LEAKED, partitions=partitions, open_count=open_count)
    page = render_page(report)
    found = Seen(page)
    assert found.loaded == ["link data:,"]
    assert not {"script", "img", "b", "iframe", "object"} & set(found.tags)
    assert found.tags.count("svg") == 3 * min(partitions, ROWS_MAX) + 2 * min(open_count, ROWS_MAX)
    assert "&lt;b&gt;why" in page
    assert ("Plots show the first" in page) == (partitions > ROWS_MAX)


def test_the_size_of_a_page_is_bounded():
    """With as many partitions, windows and transactions as plots hold, each window another one."""
    windows = [Window(it, it + 1, 10**9, 1 + it % 7, 0) for it in range(WINDOWS_MAX + 1)]
    report = report_of(*FindingKind, partitions=ROWS_MAX, open_count=50)
    full = [replace(it, windows=windows) for it in report.partitions]
    assert len(render_page(replace(report, partitions=tuple(full)))) < 500_000


def test_a_page_is_the_same_each_time():
    """Same report, same bytes."""
    assert render_page(report_of(FindingKind.LATE)) == render_page(report_of(FindingKind.LATE))


def test_hostile_names_are_text_on_the_page(tmp_path: Path):
    """As topics and transactional ids: neither HTML nor control characters."""
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
    assert not set(seen.tags) & {"script", "img"}
    for number, name in enumerate(names[:ROWS_MAX]):
        assert printable(name) in seen.text
        assert f"{shortened(name)}/0@7  {shortened(name)}" in seen.text
        # In both plots of shares and the one of lag.
        assert seen.text.count(f"{shortened(name)}/{number}") >= 3
    assert json.loads((tmp_path / SUMMARY).read_text())["topics"] == list(names)
