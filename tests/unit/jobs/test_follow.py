"""Audits that go on, without Kafka and Spark: bounds of windows, totals, the stored state."""

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stilltide.connectors.errors import FatalError
from stilltide.pipeline.jobs.audits.carried import Carried, CarriedCount
from stilltide.pipeline.jobs.audits.follow.history import (
    SHOWN_MAX,
    HistoryRow,
    write_history,
)
from stilltide.pipeline.jobs.audits.follow.state import (
    PROGRESS,
    State,
    check_belongs,
    check_unchanged,
    load_state,
    locked,
    store_state,
)
from stilltide.pipeline.jobs.audits.follow.step import behind, bounded
from stilltide.pipeline.jobs.audits.follow.totals import CheckTotal, add_results, results_of
from stilltide.pipeline.jobs.audits.pages.page import render_page
from stilltide.pipeline.jobs.audits.report import Check, CheckResult, Finding, FindingKind, Findings
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition, TxnId
from tests.unit.jobs.test_report import report_of

DATA = TopicPartition("orders", 0)
END = 40


def ranges(*lengths: int) -> list[OffsetRange]:
    """A range of each length, on partitions of their own."""
    return [
        OffsetRange(TopicPartition("orders", number), Offset(7), EndOffset(7 + length))
        for number, length in enumerate(lengths)
    ]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.integers(6, 100))
def test_a_run_reads_a_bounded_number_of_offsets(lengths: list[int], records_max: int):
    """Every partition with offsets left moves, so no busy one keeps the others from being read."""
    left = ranges(*lengths)
    data, is_all = bounded(left, records_max)
    read = [one.end - one.start for one in data]
    assert sum(read) == min(sum(lengths), records_max) or sum(read) <= records_max
    assert all(0 < got <= length for got, length in zip(read, lengths, strict=True) if length)
    assert is_all == (read == lengths) == (sum(lengths) <= records_max)
    assert [one.start for one in behind(left, data)] == [one.end for one in data]


class Txn:
    """A committed transaction of the model: where its records are, and what was promised."""

    def __init__(self, txn: int, offsets: Sequence[int], promised: int, end: int) -> None:
        self.txn = TxnId(0, txn)
        self.offsets = sorted(offsets)
        self.start = min([end - 1, *self.offsets])
        self.marker = Marker(
            DATA, self.txn, True, EndOffset(self.start), EndOffset(end), promised, b""
        )


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Txn], list[int], set[int]]:
    """Transactions on the offsets of one partition, borders of windows, and empty offsets."""
    owners = draw(st.lists(st.integers(0, 6), min_size=END, max_size=END))
    txns: list[Txn] = []
    for number in range(1, 6):
        offsets = [offset for offset, owner in enumerate(owners) if owner == number]
        end = max(offsets, default=draw(st.integers(0, END - 1))) + 1
        txns.append(Txn(number, offsets, max(0, len(offsets) + draw(st.integers(-1, 1))), end))
    borders = sorted(draw(st.sets(st.integers(1, END - 1), max_size=6)))
    empty = {offset for offset, owner in enumerate(owners) if owner == 6}
    return txns, [0, *borders, END], empty


def audited(
    txns: list[Txn], empty: set[int], start: int, end: int, carried: Carried
) -> tuple[list[CheckResult], tuple[CarriedCount, ...]]:
    """The model of an audit of `[start, end)`: what is counted, and what is carried on."""
    read = OffsetRange(DATA, Offset(start), EndOffset(end))
    counts, gaps = Findings(10_000), Findings(10_000)
    later: list[CarriedCount] = []
    before = {one.txn: one.rows for one in carried.counts}
    looked = 0
    for one in txns:
        rows = sum(start <= offset < end for offset in one.offsets) + before.get(one.txn, 0)
        if carried.is_due(one.marker, read):
            looked += 1
            if rows != one.marker.record_count:
                missing = rows < one.marker.record_count
                kind = FindingKind.MISSING if missing else FindingKind.SURPLUS
                counted = one.marker.record_count, rows
                counts.add(Finding(kind, *DATA, one.start, one.txn, *counted))
        elif rows and (one.marker.end_offset or 0) > end:
            later.append(CarriedCount(DATA, one.txn, one.offsets[0], one.offsets[0], rows))
    offset = start
    while offset < end:
        last = offset
        while last < end and last in empty:
            last += 1
        if last > offset:
            detail = f"offsets {offset} to {last - 1}: {last - offset} hold nothing"
            gaps.add(
                Finding(FindingKind.UNEXPLAINED, *DATA, offset, None, last - offset, 0, detail)
            )
        offset = last + 1
    results = [
        CheckResult.of(Check.COUNTS, counts, looked, committed=looked),
        CheckResult.of(Check.GAPS, gaps, end - start),
    ]
    return results, tuple(later)


@given(histories())
def test_windows_add_up_to_one_audit(history: tuple[list[Txn], list[int], set[int]]):
    """C6: a transaction is counted once, in the window that holds its end; gaps are joined."""
    txns, borders, empty = history
    whole, _ = audited(txns, empty, 0, END, Carried())
    totals: dict[Check, CheckTotal] = {}
    carried = Carried(goes_on=True)
    for start, end in itertools.pairwise(borders):
        results, later = audited(txns, empty, start, end, carried)
        totals = dict(add_results(totals, results))
        stored = {check: CheckTotal.from_dict(it.to_dict()) for check, it in totals.items()}
        assert stored == totals
        carried = Carried({DATA: Offset(0)}, later, goes_on=True)
    for one, of in zip(results_of(totals, 10_000, accept_unchecked=False), whole, strict=True):
        assert (one.looked_at, one.figures, one.finding_counts, one.verdict) == (
            of.looked_at,
            of.figures,
            of.finding_counts,
            of.verdict,
        )
        assert set(one.findings) == set(of.findings)


@given(st.lists(st.integers(0, 3), max_size=12), st.data())
def test_records_of_one_fault_are_added(rows: list[int], data: st.DataObject):
    """Late and malformed records are one finding for each transaction, wherever the borders are."""
    offsets = list(range(len(rows)))
    borders = sorted(data.draw(st.sets(st.sampled_from([0, *offsets]), max_size=3)))

    def found(first: int, end: int) -> CheckResult:
        groups = Counter(rows[first:end])
        findings = Findings(100)
        for txn, count in groups.items():
            place = first + rows[first:end].index(txn)
            late = Finding(FindingKind.LATE, *DATA, place, TxnId(0, txn), None, count)
            findings.add(late)
        return CheckResult.of(Check.LATE, findings, end - first)

    totals: dict[Check, CheckTotal] = {}
    edges = [0, *borders, len(rows)]
    for first, end in itertools.pairwise(edges):
        totals = dict(add_results(totals, [found(first, end)]))
    (total,) = results_of(totals, 100, accept_unchecked=False)
    whole = found(0, len(rows))
    assert (set(total.findings), total.finding_counts) == (
        set(whole.findings),
        whole.finding_counts,
    )


def test_offsets_without_counts_are_named_once_and_may_be_accepted():
    """The lowest first record, and the highest end; accepted only where that is asked for."""
    totals: dict[Check, CheckTotal] = {}
    for first, end in ((3, 9), (12, 20)):
        findings = Findings(5)
        detail = f"offsets below {end}: counts no longer known"
        findings.add(Finding(FindingKind.UNCOUNTED, *DATA, first, None, None, None, detail))
        totals = dict(add_results(totals, [CheckResult.of(Check.COUNTS, findings, 1)]))
    (named,) = results_of(totals, 5, accept_unchecked=False)[0].findings
    assert (named.kind, named.offset, named.detail) == (
        FindingKind.UNCOUNTED,
        3,
        "offsets below 20: counts no longer known",
    )
    (accepted,) = results_of(totals, 5, accept_unchecked=True)[0].findings
    assert accepted.kind is FindingKind.ACCEPTED


STATE = State(
    run=3,
    topic_ids={"orders": b"\1" * 16},
    checks=["counts"],
    origins={DATA: Offset(1)},
    positions={DATA: Offset(9)},
    markers_until={DATA: EndOffset(5)},
    crossing=(CarriedCount(DATA, TxnId(1, 2), 3, 4, 2),),
    figures={DATA: {"written": 8}},
)


def test_the_state_survives_its_file(tmp_path: Path):
    """Whole, and without a trace of the staged file."""
    assert load_state(tmp_path) == State()
    store_state(tmp_path, STATE)
    assert load_state(tmp_path) == STATE
    assert [path.name for path in tmp_path.iterdir()] == [PROGRESS]


@pytest.mark.parametrize(
    ("ids", "checks", "words"),
    [
        ({"payments": b"\1" * 16}, ["counts"], "other topics"),
        ({"orders": b"\2" * 16}, ["counts"], "another topic of this name"),
        ({"orders": b"\1" * 16}, ["counts", "gaps"], "other checks"),
    ],
)
def test_a_state_of_something_else_is_refused(ids: dict[str, bytes], checks: list[str], words: str):
    """Other topics, a topic that was created again or is of another cluster, other checks."""
    check_belongs(STATE, list(STATE.topic_ids), STATE.checks)
    check_unchanged(STATE, STATE.topic_ids)
    check_belongs(State(), list(ids), checks)
    check_unchanged(State(), ids)

    def check() -> None:
        check_belongs(STATE, list(ids), checks)
        check_unchanged(STATE, ids)

    with pytest.raises(FatalError, match=words) as caught:
        check()
    assert caught.value.hint


def test_a_damaged_or_later_state_is_a_typed_error(tmp_path: Path):
    """Never taken for a new directory."""
    for text in ("", "[]", json.dumps({"version": 99})):
        (tmp_path / PROGRESS).write_text(text)
        with pytest.raises(FatalError, match="does not hold the progress"):
            load_state(tmp_path)


def test_a_directory_has_one_writer(tmp_path: Path):
    """The second one is told, and the lock ends with the block."""
    with locked(tmp_path), pytest.raises(FatalError, match="another process"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_the_history_has_each_run_once(tmp_path: Path):
    """A run that is repeated after a crash replaces its row; the page shows the last hundred."""
    rows: Sequence[HistoryRow] = ()
    for run in (1, 2, 2, *range(3, SHOWN_MAX + 5)):
        rows = write_history(tmp_path, HistoryRow(run, 1000 * run, 0.5, "valid", 0, run, 0))
    assert [one.run for one in rows] == list(range(5, SHOWN_MAX + 5))
    alone, page = render_page(report_of()), render_page(report_of(), rows)
    assert page.count("<tr>") == alone.count("<tr>") + SHOWN_MAX + 1
    assert f"<h2>The last {SHOWN_MAX} runs</h2>" in page
    assert " runs</h2>" not in alone
