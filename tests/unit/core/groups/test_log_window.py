"""H3: what was read once of the log is not read again."""

import hypothesis.strategies as st
from hypothesis import example, given, settings

from stilltide.pipeline.core.groups import lag
from stilltide.pipeline.core.groups.frontier import LogRead, ReadLog, VisibleRecord
from stilltide.pipeline.core.groups.lag import LogWindow
from stilltide.schemas.values import EndOffset, Offset
from tests.support.examples import examples

READS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 15), st.integers(0, 40)), max_size=30)


def read(wanted: ReadLog, decided: int) -> LogRead:
    """A log in which every third offset shows nothing."""
    end = min(wanted.end, decided)
    offsets = [at for at in range(wanted.first, end) if at % 3]
    records = [VisibleRecord(Offset(at), None) for at in offsets]
    return LogRead(records, EndOffset(max(wanted.first, end)))


@settings(max_examples=examples(100))
@given(READS, st.integers(2, 20))
@example([(0, 5, 40), (10, 5, 40), (0, 12, 40), (11, 15, 40)], 20)
def test_an_answer_is_what_a_read_would_find(reads: list[tuple[int, int, int]], records_max: int):
    """Whatever was read before, in whatever order, and however little is kept."""
    before, lag.RECORDS_MAX = lag.RECORDS_MAX, records_max
    try:
        window, decided = LogWindow(), 0
        for first, length, more in reads:
            decided = max(decided, more)
            wanted = ReadLog(Offset(first), EndOffset(first + length))
            missing = window.missing(wanted)
            if missing is None:
                found = window.answer(wanted)
            else:
                assert missing.first >= wanted.first
                found = window.answered(missing, wanted, read(missing, decided))
            expected = read(wanted, decided)
            assert (list(found.records), found.read_to) == (expected.records, expected.read_to)
    finally:
        lag.RECORDS_MAX = before


def test_a_read_behind_the_last_one_asks_for_the_rest_only():
    """A group that goes on costs what is new."""
    window = LogWindow()
    wanted = ReadLog(Offset(0), EndOffset(10))
    window.answered(wanted, wanted, read(wanted, 10))
    assert window.missing(ReadLog(Offset(4), EndOffset(12))) == ReadLog(Offset(10), EndOffset(12))
    assert window.missing(ReadLog(Offset(4), EndOffset(10))) is None
