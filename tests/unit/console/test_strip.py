"""The strip of a window of records."""

from collections import Counter

import pytest

from stilltide.pipeline.console.views import COLUMNS_MAX, LANES_MAX, WIDTH, strip
from stilltide.pipeline.core.read_committed.machine import RecordVerdict
from stilltide.pipeline.core.status.asks import JudgedRun, PartitionEnds, Records, TxnSpan
from stilltide.schemas.values import EndOffset, Offset
from tests.support.status.samples import DATA

V, A, U = RecordVerdict.VISIBLE, RecordVerdict.ABORTED, RecordVerdict.UNDECIDED


def window(
    start: int, end: int, *runs: tuple[int, int, RecordVerdict], spans: tuple[TxnSpan, ...] = ()
) -> Records:
    """A window with these runs."""
    counts = Counter[RecordVerdict]()
    for first, until, verdict in runs:
        counts[verdict] += until - first
    return Records(
        PartitionEnds(DATA, Offset(0), EndOffset(end), EndOffset(end)),
        Offset(start),
        EndOffset(end),
        None,
        tuple(JudgedRun(Offset(it), EndOffset(to), verdict) for it, to, verdict in runs),
        counts,
        spans,
        len(spans),
        (),
    )


def test_neighbours_of_one_kind_are_one_bar():
    """Whatever the number of records: the bars show where each kind begins and ends."""
    drawn = strip(window(0, 2000, (0, 1000, V), (1000, 1500, A), (1500, 2000, U)), {})
    assert drawn is not None
    assert [(it.x, it.width, it.kind) for it in drawn.bars] == [
        (0, 500, "visible"),
        (500, 250, "aborted"),
        (750, 250, "undecided"),
    ]
    assert drawn.label.startswith("Offsets 0 to 2,000: 500 aborted, 500 undecided, 1,000 visible")


def test_a_single_record_among_many_is_seen():
    """One of two thousand has a bar of its own, in front of the others of its column."""
    drawn = strip(window(0, 2000, (0, 777, V), (777, 778, U), (778, 2000, V)), {})
    assert drawn is not None
    (one,) = [it for it in drawn.bars if it.kind == "undecided"]
    assert (one.x, one.width) == (385, 5)
    assert one.height >= 1


def test_the_number_of_bars_is_bounded():
    """Records that alternate, and many transactions at the same time."""
    runs = [(it, it + 1, (V, A, U)[it % 3]) for it in range(2000)]
    spans = tuple(TxnSpan(f"0:{it}", Offset(it), Offset(1999), 2, V) for it in range(100))
    drawn = strip(window(0, 2000, *runs, spans=spans), {})
    assert drawn is not None
    assert len(drawn.bars) <= 3 * COLUMNS_MAX + LANES_MAX
    assert all(0 <= it.x < WIDTH and it.x + it.width <= WIDTH for it in drawn.bars)
    assert all(it.y >= 0 and it.y + it.height <= drawn.height for it in drawn.bars)


def test_transactions_of_one_lane_do_not_overlap():
    """The second one begins before the first one ends, the third one after it."""
    spans = (
        TxnSpan("0:1", Offset(0), Offset(49), 2, V),
        TxnSpan("0:2", Offset(40), Offset(99), 2, A),
        TxnSpan("0:3", Offset(50), Offset(99), 2, U),
    )
    drawn = strip(window(0, 100, spans=spans), {})
    assert drawn is not None
    first, second, third = drawn.bars
    assert first.y == third.y < second.y
    assert first.x + first.width <= third.x


@pytest.mark.parametrize(("at", "marks"), [(0, 1), (100, 1), (101, 0), (None, 0)])
def test_marks_within_the_window_are_lines(at: int | None, marks: int):
    """A mark elsewhere is only told."""
    drawn = strip(window(0, 100, (0, 100, V)), {"readers wait at": at})
    assert drawn is not None
    assert sum(it.kind == "mark" for it in drawn.bars) == marks


def test_without_offsets_there_is_no_strip():
    """An empty partition."""
    assert strip(window(7, 7), {}) is None
