"""H3, I6, I7: the offset index against a plain list of (origin, offset)."""

from collections.abc import Callable
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from stilltide.pipeline.core.groups import frontier, lag
from stilltide.pipeline.core.groups.frontier import ReadLog
from stilltide.pipeline.core.groups.lag import read_again_at_most, read_again_bounded
from stilltide.pipeline.core.offset_index import claims, intervals
from stilltide.pipeline.core.offset_index.index import OffsetIndex
from stilltide.schemas.replication.origins import Origin
from stilltide.schemas.values import EndOffset, Offset
from tests.support.examples import examples
from tests.support.links.log import HERE, SPAN_MAX, FilledLog

LINKS = st.integers(0, 1)
FEW = st.integers(1, 4)
Step = Callable[[FilledLog], None]
STEPS: st.SearchStrategy[Step] = st.one_of(
    FEW.map(lambda n: lambda log: log.write_local(n)),
    FEW.map(lambda n: lambda log: log.write_nothing(n)),
    st.tuples(LINKS, st.lists(st.integers(0, 3), min_size=1, max_size=9)).map(
        lambda it: lambda log: log.copy(*it)
    ),
    st.tuples(LINKS, FEW).map(lambda it: lambda log: log.skip(*it)),
    st.tuples(LINKS, FEW).map(lambda it: lambda log: log.lose(*it)),
    LINKS.map(lambda it: lambda log: log.recreate(it)),
)
HISTORIES = st.lists(STEPS, max_size=25)
MANY = settings(max_examples=examples(400))


def filled(steps: list[Step]) -> FilledLog:
    """The log after the steps."""
    log = FilledLog()
    for step in steps:
        step(log)
    return log


@MANY
@given(HISTORIES, st.integers(0, 100))
def test_a_position_claims_what_lies_below_it_and_nothing_else(steps: list[Step], pick: int):
    """H3: F(q) is exact for every visible record, and claims nothing that was never copied."""
    log = filled(steps)
    offset = pick % (len(log.entries) + 1)
    found = log.run(frontier.claims_below(log.view, log.indexes, Offset(offset)))
    for at, origin in enumerate(log.entries):
        if origin is not None:
            assert claims.holds(found, origin) == (at < offset), (at, origin)
    assert not [one for one in log.never_copied if claims.holds(found, one)]


@MANY
@given(HISTORIES, st.integers(0, 100), st.integers(0, 100))
def test_below_the_log_start_a_position_claims_less_never_more(
    steps: list[Step], start: int, pick: int
):
    """H3: buckets are dropped as their copies leave the log; at the log start nothing is lost."""
    log = filled(steps)
    log.trim(start % (len(log.entries) + 1))
    offset = pick % (len(log.entries) + 1)
    found = log.run(frontier.claims_below(log.view, log.indexes, Offset(offset)))
    for at, origin in enumerate(log.entries):
        if origin is not None and claims.holds(found, origin):
            assert at < offset
        elif origin is not None and offset >= log.log_start:
            assert at >= offset
    assert not [one for one in log.never_copied if claims.holds(found, one)]


@MANY
@given(HISTORIES, st.integers(0, 100), st.integers(0, 100))
def test_what_is_not_decided_is_not_claimed_to_be_copied(
    steps: list[Step], decided: int, pick: int
):
    """I6: only copies before an undecided record are claimed, for the next copy is unknown."""
    log = filled(steps)
    log.decided = decided % (len(log.entries) + 1)
    offset = pick % (len(log.entries) + 1)
    found = log.run(frontier.claims_below(log.view, log.indexes, Offset(offset)))
    for at, origin in enumerate(log.entries):
        if origin is not None and claims.holds(found, origin):
            assert at < offset
        elif origin is not None and offset <= log.decided:
            assert at >= offset


@MANY
@given(HISTORIES, st.integers(0, 100), st.data())
def test_a_prefix_ends_at_the_first_record_that_is_not_claimed(
    steps: list[Step], pick: int, data: st.DataObject
):
    """I7, I8: never ahead, and no shorter than it must be."""
    log = filled(steps)
    seen = [one for one in log.entries if one is not None]
    read = data.draw(st.lists(st.sampled_from(seen), unique=True)) if seen else []
    base = Offset(pick % (len(log.entries) + 1))
    if data.draw(st.booleans()):
        read += seen[: data.draw(st.integers(0, len(seen)))]
    claimed = claims.join(
        *({one.incarnation: intervals.interval(one.offset, one.offset + 1)} for one in read)
    )
    log.decided = data.draw(st.none() | st.integers(base, len(log.entries)))
    found = log.run(frontier.prefix(log.view, log.indexes, claimed, base))
    assert found == log.unclaimed_from(claimed, base)


@MANY
@given(HISTORIES, st.integers(0, 100), st.integers(0, 100), st.integers(0, 9), st.data())
def test_more_than_the_bound_is_never_read_again(
    steps: list[Step], start: int, pick: int, walk_max: int, data: st.DataObject
):
    """I: the bound covers records in the log and records that will be copied; holes never will."""
    log = filled(steps)
    log.trim(start % (len(log.entries) + 1))
    ahead = data.draw(st.integers(0, 5))
    position = Offset(pick % (len(log.entries) + 1))
    seen = [one for one in log.entries if one is not None]
    read = data.draw(st.lists(st.sampled_from(seen), unique=True)) if seen else []
    read += seen[: data.draw(st.integers(0, len(seen)))]
    claimed = claims.join(
        *({one.incarnation: intervals.interval(one.offset, one.offset + 1)} for one in read),
        *(
            {one.source: intervals.interval(one.position, one.position + ahead)}
            for one in log.copiers
        ),
    )
    exact = log.run(frontier.read_again(log.view, log.indexes, claimed, position))
    assert exact == sum(
        one is not None and claims.holds(claimed, one)
        for one in log.entries[max(log.log_start, position) :]
    )
    coming = ahead * len(log.copiers)
    at_most = read_again_at_most(log.view, log.indexes, claimed, position)
    assert exact + coming <= at_most
    assert at_most <= len(log.entries) - max(log.log_start, position) + coming
    bounded = log.run(read_again_bounded(log.view, log.indexes, claimed, position))
    assert bounded == exact + coming, "all of it is near"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lag, "WALK_MAX", walk_max)
        bounded = log.run(read_again_bounded(log.view, log.indexes, claimed, position))
    assert exact + coming <= bounded <= at_most


def test_the_bound_is_exact_where_everything_was_read():
    """I: copies of one source, at any position of the group in a bucket; nothing is read."""
    log = FilledLog(1)
    for _ in range(4):
        log.copy(0, [0] * SPAN_MAX)
    source, copied = log.copiers[0].source, log.copiers[0].position
    for offset in range(len(log.entries) + 1):
        left = sum(one is not None for one in log.entries[offset:])
        for coming in (0, 3):
            claimed = {source: intervals.below(copied + coming)}
            found = read_again_at_most(log.view, log.indexes, claimed, Offset(offset))
            assert found == left + coming


def test_what_nobody_has_read_is_not_counted():
    """I: a group that lags far is described without reading what it has not read anywhere."""
    log = FilledLog()
    for _ in range(9):
        log.copy(0, [0] * SPAN_MAX)
        log.copy(1, [0] * SPAN_MAX)
    claimed = {log.copiers[0].source: intervals.interval(3 * SPAN_MAX, 4 * SPAN_MAX)}
    reading = frontier.read_again(log.view, log.indexes, claimed, Offset(1))
    wanted = next(reading)
    assert wanted == ReadLog(Offset(6 * SPAN_MAX + 6), EndOffset(7 * SPAN_MAX + 6))
    behind = reading.send(log.read(wanted))
    assert behind.first > len(log.entries) - 2 * SPAN_MAX, "what the index may not know yet"
    with pytest.raises(StopIteration) as done:
        reading.send(log.read(behind))
    assert done.value.value == SPAN_MAX


def test_an_index_tells_where_to_look():
    """H3: whatever the log's length, F reads within one bucket for each link."""
    log = FilledLog()
    for _ in range(40):
        log.copy(0, [0, 0])
        log.copy(1, [1, 0])
    for offset in range(len(log.entries)):
        reading = frontier.claims_below(log.view, log.indexes, Offset(offset))
        asked: list[ReadLog] = []
        try:
            wanted = next(reading)
            while True:
                asked.append(wanted)
                wanted = reading.send(log.read(wanted))
        except StopIteration:
            assert all(one.end - one.first <= 2 * SPAN_MAX for one in asked)
            assert len(asked) <= 2


def test_a_forwarded_origin_makes_no_copy():
    """H1: an application copied the headers of another topic; the record was written here."""
    log = FilledLog()
    log.copy(0, [0, 0])
    log.entries.append(Origin(HERE._replace(topic=b"elsewher"), Offset(0)))
    claimed = {HERE: intervals.below(5), log.copiers[0].source: intervals.below(2)}
    view, at = log.view, Offset(0)
    reading = frontier.prefix(view, log.indexes, claimed, at)
    assert log.run(reading) == len(log.entries)
    claimed[HERE] = intervals.below(2)
    assert log.run(frontier.prefix(view, log.indexes, claimed, at)) == 3


def test_a_former_target_incarnation_translates_nothing():
    """H6: offsets of a former target incarnation belong to a log that is gone."""
    log = FilledLog()
    log.copy(0, [0, 0])
    now = log.view._replace(incarnation=HERE._replace(topic=b"here-001"))
    found = log.run(frontier.claims_below(now, log.indexes, Offset(2)))
    assert found == {now.incarnation: intervals.below(2)}


def test_offsets_of_the_source_are_found():
    """H3: any offset, at any age, by its stretch; what is not copied yet is not guessed."""
    log = FilledLog()
    for _ in range(10):
        log.copy(0, [0, 1])
    copier = log.copiers[0]
    for offset in range(copier.position):
        bucket = copier.index.from_source(copier.source.topic, HERE.topic, Offset(offset))
        assert bucket is not None
        assert bucket.source_from <= offset < bucket.source_to
    end = Offset(copier.position)
    assert copier.index.from_source(copier.source.topic, HERE.topic, end) is None
    assert copier.index.from_source(b"another0", HERE.topic, Offset(0)) is None


@pytest.mark.parametrize("walk_max", [1, 3])
def test_a_long_walk_is_taken_in_steps(walk_max: int, monkeypatch: pytest.MonkeyPatch):
    """I7: an evaluation is bounded; the next one goes on from there."""
    monkeypatch.setattr(frontier, "WALK_MAX", walk_max)
    log = FilledLog()
    log.write_nothing(10)
    at, steps = Offset(0), 0
    while at < 10:
        at = log.run(frontier.prefix(log.view, log.indexes, {}, at))
        steps += 1
    assert steps == -(-10 // walk_max)


@MANY
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6))), st.integers(0, 30))
@example([(0, 5), (5, 1)], 5)
def test_intervals_are_sets(pairs: list[tuple[int, int]], at: int):
    """I: union, difference and membership are those of sets; equal sets are equal values."""
    half = len(pairs) // 2
    parts = [intervals.interval(first, first + length) for first, length in pairs]
    one, other = intervals.union(*parts[:half]), intervals.union(*parts[half:])
    members = {n for first, end in one for n in range(first, end)}
    others = {n for first, end in other for n in range(first, end)}
    for found, expected in [
        (one, members),
        (intervals.union(one, other), members | others),
        (intervals.minus(one, other), members - others),
    ]:
        assert {n for first, end in found for n in range(first, end)} == expected
        assert all(before.end < after.first for before, after in pairwise(found))
        assert all(first < end for first, end in found)
        assert intervals.holds(found, at) == (at in expected)
        first_outside = intervals.first_outside(found, at)
        assert first_outside not in expected
        assert set(range(at, first_outside)) <= expected


def test_a_claim_of_many_intervals_keeps_the_lowest():
    """I: 16 for each incarnation, the highest dropped first; less than before, never more."""
    many = intervals.union(*(intervals.interval(2 * n, 2 * n + 1) for n in range(20)))
    limited = claims.limited({HERE: many})
    assert limited == {HERE: many[: claims.INTERVALS_MAX]}
    assert claims.within(limited, {HERE: many})
    assert not claims.within({HERE: many}, limited)


def test_an_index_knows_when_it_has_changed():
    """A bucket that says the same again costs no evaluation."""
    log = FilledLog()
    log.copy(0, [0])
    index = OffsetIndex(log.copiers[0].index.source)
    newest = log.copiers[0].index.newest
    index.bucket_read(0, newest)
    index.bucket_read(0, newest)
    assert index.version == 1
    assert index.copied_end(HERE.topic) == EndOffset(1)
    index.bucket_read(0, None)
    assert (index.version, index.newest, index.copied_end(HERE.topic)) == (2, None, EndOffset(0))
