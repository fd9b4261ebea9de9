"""A reader of any part of a snapshot log draws no wrong conclusion (D4, E2, E3, E4)."""

import hypothesis.strategies as st
from hypothesis import given, settings

from tests.support.examples import examples
from tests.support.snapshots.history import History, compactions, is_star


def eight_parts() -> History:
    """Snapshots that seal eight parts, and drop some of them again."""
    history = History()
    for round_number in range(6):
        history.end_txns(aborted=3, committed=1)
        history.take()
        if round_number > 2:
            history.retain(9)
    history.take()
    assert history.part_count() == 8
    return history


def test_every_prefix_and_every_compaction_of_eight_parts():
    """E3: a reader at any record of any legal log is right, or is told of a missing part."""
    history = eight_parts()
    log = [one for one in history.log if not is_star(one)]
    seen = gaps = 0
    for read_to in range(1, len(history.log) + 1):
        for left in compactions(log, read_to):
            seen += 1
            gaps += not history.check(read_to, left)
    assert seen > 5000
    assert gaps > 0


def test_what_was_read_to_the_end_has_no_gap():
    """E4: compaction runs ahead of a reader, never ahead of the log."""
    history = eight_parts()
    for boundary in history.boundaries[1:]:
        log = history.log[:boundary]
        for left in compactions([one for one in log if not is_star(one)], boundary):
            assert history.check(boundary, left)


def test_a_writer_that_begins_anywhere_lacks_no_abort():
    """E4: its snapshot and the markers from K* on hold all there is."""
    history = eight_parts()
    for boundary in history.boundaries[1:]:
        log = history.log[:boundary]
        stars = [one for one in log if is_star(one)][-1:]
        for left in compactions([one for one in log if not is_star(one)], boundary):
            history.check_writer(sorted([*left, *stars], key=lambda one: one[0]))


ROUNDS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 2), st.none() | st.integers(0, 30), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(150))
@given(ROUNDS, st.data())
def test_random_prefixes_and_compactions_of_many_parts(
    rounds: list[tuple[int, int, int | None, bool]], draw: st.DataObject
):
    """E3, E4: the same of longer logs, whose writers are replaced in between."""
    history = History()
    for aborted, committed, retained, replaced in rounds:
        history.end_txns(aborted=aborted, committed=committed)
        history.take()
        if retained is not None:
            history.retain(retained)
        if replaced:
            history.world.start_writer()
    log = history.log
    if not log:
        return
    for read_to in draw.draw(st.lists(st.integers(1, len(log)), min_size=1, max_size=5)):
        gone = draw.draw(st.sets(st.integers(0, read_to - 1), max_size=30))
        superseded = {n for n, one in enumerate(log) if any(one[1] == it[1] for it in log[n + 1 :])}
        left = [one for n, one in enumerate(log[:read_to]) if n not in gone & superseded]
        history.check(read_to, left)
        if read_to in history.boundaries:
            within = {n for n in gone if any(log[n][1] == it[1] for it in log[n + 1 : read_to])}
            left = [one for n, one in enumerate(log[:read_to]) if n not in within]
            assert history.check(read_to, left)
            history.check_writer(left)


FAILING = st.lists(
    st.tuples(st.integers(0, 5), st.none() | st.integers(0, 12), st.booleans(), st.integers(0, 99)),
    min_size=2,
    max_size=10,
)


@settings(max_examples=examples(150))
@given(FAILING, st.data())
def test_records_of_aborted_transactions_mislead_nobody(
    rounds: list[tuple[int, int | None, bool, int]], draw: st.DataObject
):
    """E3: a reader of uncommitted records is right, or is told of a missing part."""
    history = History()
    for aborted, retained, committed, pick in rounds:
        history.end_txns(aborted=aborted, committed=1)
        history.take(committed=committed)
        history.disturb_markers(pick)
        if retained is not None:
            history.retain(retained)
    log = history.everything
    for read_to in draw.draw(st.lists(st.integers(1, len(log)), min_size=1, max_size=8)):
        gone = draw.draw(st.sets(st.integers(0, read_to - 1), max_size=30))
        replaced = {
            n
            for n, one in enumerate(log)
            if any(one[1] == it[1] and it[0] not in history.aborted for it in log[n + 1 :])
        }
        takes = gone & (replaced | history.aborted)
        history.check(read_to, [one for one in log[:read_to] if one[0] not in takes])
