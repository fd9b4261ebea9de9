"""The ledger of offsets: what each holds, from headers alone."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from stilltide.pipeline.core.native.batch_filter import BatchFilter
from stilltide.pipeline.core.native.offset_ledger import GAPS_MAX, WINDOWS_MAX, OffsetLedger
from stilltide.schemas.native.transactions import AbortedTransaction, Batch
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition
from tests.support.native.batch_notation import batches
from tests.support.native.log import NativeLog, grow

DATA = TopicPartition("orders", 0)


def ledger_of(log: list[Batch], start: int, end: int, aborted: list[tuple[int, int]]):
    """The finished ledger of `[start, end)`."""
    ledger = OffsetLedger(OffsetRange(DATA, Offset(start), EndOffset(end)))
    kept = BatchFilter(Offset(start), [AbortedTransaction(*one) for one in aborted])
    for batch in log:
        ledger.batch_read(batch, kept.batch_read(batch))
    ledger.finish()
    return ledger


def test_each_offset_is_counted_once():
    """Visible, aborted, plain and markers; nothing is left."""
    ledger = ledger_of(batches("a.2 b.3 a! -1 b+"), 0, 8, [(ord("a"), 0)])
    counts = ledger.visible, ledger.aborted, ledger.markers, ledger.unexplained
    assert counts == (4, 2, 2, 0)
    assert (ledger.commits, ledger.aborts, ledger.gap_count) == (1, 1, 0)


@pytest.mark.parametrize(
    ("log", "end", "gap"),
    [
        ("-2 _3 -1", 6, (2, 5, 3)),
        ("_2 -1", 3, (0, 2, 2)),
        ("-1 _4", 5, (1, 5, 4)),
        ("a.0 a+", 2, (0, 1, 1)),
        ("", 4, (0, 4, 4)),
    ],
)
def test_offsets_without_anything_are_gaps(log: str, end: int, gap: tuple[int, int, int]):
    """Between batches, before the first, behind the last, and in one that the cleaner emptied."""
    ledger = ledger_of(batches(log), 0, end, [])
    assert ledger.gaps == [gap]
    assert ledger.unexplained == gap[2]


def test_a_range_cuts_the_batches_at_its_ends():
    """Only offsets inside the range are counted."""
    ledger = ledger_of(batches("-10 -10"), 4, 15, [])
    assert (ledger.visible, ledger.unexplained) == (11, 0)


def test_gaps_are_bounded_and_counted():
    """Every other offset is missing: the first gaps are kept, all are counted."""
    count = 3 * GAPS_MAX
    ledger = ledger_of(batches("-1 _1 " * count), 0, 2 * count, [])
    assert len(ledger.gaps) == GAPS_MAX
    assert (ledger.gap_count, ledger.unexplained) == (count, count)


@given(st.data(), st.integers(1, 60))
def test_it_agrees_with_the_model(data: st.DataObject, steps: int):
    """On any history, trimmed or compacted, windows add up, and visible is what readers see."""
    log = NativeLog()

    def choose(below: int) -> int:
        return data.draw(st.integers(0, below - 1)) if below > 1 else 0

    grow(log, choose, steps=steps)
    if data.draw(st.booleans()):
        log.compact(choose)
    fetched = log.fetch(log.start, 10**6, lambda _: 0)
    aborted = [(one.producer_id, one.first_offset) for one in fetched.aborted]
    ledger = ledger_of(fetched.batches, log.start, log.stable, aborted)
    assert ledger.visible == len(log.committed(log.start, log.stable))
    assert ledger.unexplained >= 0
    if ledger.gap_count <= GAPS_MAX:
        assert ledger.unexplained == sum(gap.missing for gap in ledger.gaps)
    windows = ledger.windows()
    assert len(windows) <= WINDOWS_MAX
    assert sum(one.visible for one in windows) == ledger.visible
    assert sum(one.aborted for one in windows) == ledger.aborted
    assert sum(one.markers for one in windows) == ledger.markers
    assert sum(one.end - one.first for one in windows) == log.stable - log.start


def test_windows_follow_the_offsets():
    """A batch that spans windows is shared out among them."""
    ledger = ledger_of(batches("-1000 a.1000 a!"), 0, 2001, [(ord("a"), 1000)])
    windows = ledger.windows()
    assert windows[0].visible == windows[0].end - windows[0].first
    assert windows[-2].aborted == windows[-2].end - windows[-2].first
    assert windows[-1].markers == 1
