"""Attempts at snapshots, and which snapshots are kept (I1, I2, I3, I4, I5)."""

import hypothesis.strategies as st
from hypothesis import given

from stilltide.pipeline.core.groups.position_snapshots import (
    PositionSnapshotBuilder,
    PositionSnapshotLimits,
    ReadDecidedEnd,
    ReadEnd,
    SnapshotEffect,
    WriteSignal,
    passed,
    rounds_of,
    with_snapshot,
)
from stilltide.schemas.replication.origins import Incarnation
from stilltide.schemas.replication.signals import (
    Position,
    PositionSnapshot,
    PositionSnapshotRequest,
    PositionSnapshotResponse,
    PositionSnapshots,
    RequestKey,
    ResponseKey,
    SnapshotsKey,
)
from stilltide.schemas.values import ClusterName, EndOffset, TopicPartition
from tests.support.schemas.wire import ROUND_TRIPS

A, B, C = map(ClusterName, "abc")
DATA = TopicPartition("t", 0)
ON_A, ON_B, ON_C = b"a-------", b"b-------", b"c-------"
FIRST = b"nonce---" + bytes(7) + b"\x01"


def builder(*remotes: ClusterName, decided: int = 5) -> PositionSnapshotBuilder:
    """One that has read its signals, with links connected, before its first attempt."""
    made = PositionSnapshotBuilder(
        DATA, A, remotes or (B,), nonce=b"nonce---", limits=PositionSnapshotLimits()
    )
    made.caught_up(0)
    if decided:
        made.log_moved(ON_A, EndOffset(decided), 0)
    return made


def asking(*remotes: ClusterName) -> PositionSnapshotBuilder:
    """One whose first attempt is under way."""
    made = builder(*remotes)
    made.links_changed(0, connected=True)
    return made


def asked(round_: int = 1, decided: int = 5, attempt: bytes = FIRST) -> list[SnapshotEffect]:
    """A request of `a`."""
    request = PositionSnapshotRequest(attempt, round_, ON_A, EndOffset(decided))
    return [WriteSignal(RequestKey(DATA, A), request)]


def answered(
    made: PositionSnapshotBuilder,
    who: ClusterName,
    decided: int,
    round_: int = 1,
    attempt: bytes = FIRST,
) -> list[SnapshotEffect]:
    """A response that took effect, 9 ms later."""
    topic = ON_B if who == B else ON_C
    value = PositionSnapshotResponse(attempt, round_, topic, EndOffset(decided))
    return made.signal_read(ResponseKey(DATA, who, A), value, 9)


def snapshot(local_end: int) -> PositionSnapshot:
    """One of that local end."""
    return PositionSnapshot(local_end.to_bytes(16), EndOffset(local_end), (), 0, 0)


def test_rounds():
    """I3: two iff there is more than one remote."""
    assert [rounds_of(count) for count in (1, 2, 3)] == [1, 2, 2]


def test_nothing_is_asked_without_news_or_links():
    """I1: the first attempt needs a decided record and every link."""
    made = builder(decided=0)
    assert made.links_changed(0, connected=True) == []
    assert made.log_moved(ON_A, EndOffset(0), 0) == []
    assert made.log_moved(ON_A, EndOffset(5), 0) == asked()
    assert builder().links_changed(0, connected=False) == []


def test_a_snapshot_counts_when_it_is_read_back():
    """I4: positions are of the first answers, the local end was read after the last."""
    made = asking()
    assert answered(made, B, 7) == [ReadEnd(FIRST)]
    (write,) = made.end_read(FIRST, ON_A, EndOffset(9))
    position = Position(Incarnation(B, ON_B), EndOffset(7))
    value = PositionSnapshots(
        ON_A, EndOffset(5), (PositionSnapshot(FIRST, EndOffset(9), (position,), 0, 9),)
    )
    assert write == WriteSignal(SnapshotsKey(DATA, A), value)
    assert made.cached is None
    assert made.pending is not None
    assert made.pending[1] == 0
    made.signal_read(SnapshotsKey(DATA, A), value, 10)
    assert (made.cached, made.pending, made.counts.completed) == (value, None, 1)
    assert made.deadline_ms is None, "nothing was decided since it started"
    assert made.log_moved(ON_A, EndOffset(6), 20) == []
    assert made.deadline_ms == 1000
    second = FIRST[:-1] + b"\x02"
    assert made.tick(1000) == asked(decided=6, attempt=second)


def test_the_second_round_asks_everybody_again():
    """I3: the second answers only prove that records have arrived."""
    made = asking(B, C)
    assert answered(made, B, 7) == []
    assert made.missing == {C}
    assert answered(made, B, 8) == [], "a duplicate"
    assert answered(made, C, 3) == asked(2)
    assert answered(made, C, 3) == [], "late, of the first round"
    assert answered(made, C, 4, 2) == []
    assert answered(made, B, 9, 2) == [ReadEnd(FIRST)]
    (write,) = made.end_read(FIRST, ON_A, EndOffset(9))
    assert isinstance(write, WriteSignal)
    assert isinstance(write.value, PositionSnapshots)
    assert [one.end_offset for one in write.value.snapshots[0].positions] == [7, 3]


def test_what_answers_something_else_is_ignored():
    """I2, I4: other attempts, answers before the end was read, ends of other attempts."""
    made = asking()
    assert answered(made, B, 7, attempt=b"x" * 16) == []
    assert made.end_read(FIRST, ON_A, EndOffset(9)) == []
    assert answered(made, B, 7) == [ReadEnd(FIRST)]
    assert made.end_read(b"x" * 16, ON_A, EndOffset(9)) == []
    assert made.end_read(FIRST, b"a-new---", EndOffset(9)) == [], "the topic is another one"


def test_a_silent_cluster_is_asked_once_in_a_while():
    """I4: an attempt times out; the next one waits as long again, then twice as long."""
    made, now_ms, waits = asking(), 0, []
    for _ in range(4):
        began, now_ms = now_ms, now_ms + 30_000
        assert made.deadline_ms == now_ms
        assert made.tick(now_ms) == []
        assert made.deadline_ms is not None
        now_ms = made.deadline_ms
        assert made.tick(now_ms) != []
        waits.append(now_ms - began)
    assert waits == [60_000, 90_000, 150_000, 150_000]
    assert made.counts.timed_out == 4
    assert answered(made, B, 7) == [], "the answer to the first one is late"


def test_a_request_is_answered_by_what_is_decided_after_it_was_read():
    """I2, I3: each once, whatever else is going on."""
    made = builder()
    request = PositionSnapshotRequest(b"x" * 16, 1, ON_B, EndOffset(3))
    (ask,) = made.signal_read(RequestKey(DATA, B), request, 0)
    assert ask == ReadDecidedEnd(B, request)
    assert made.signal_read(RequestKey(DATA, B), request, 0) == [], "it is being answered"
    answer = PositionSnapshotResponse(b"x" * 16, 1, ON_A, EndOffset(8))
    (write,) = made.decided_end_read(B, request, ON_A, EndOffset(8), 0)
    assert write == WriteSignal(ResponseKey(DATA, A, B), answer)
    assert made.decided_end_read(B, request, ON_A, EndOffset(9), 0) == []
    assert made.signal_read(RequestKey(DATA, B), request, 0) == [], "it was answered"


def test_a_newer_request_makes_an_older_one_moot():
    """I2: the asking cluster has given up the attempt of the older request."""
    made = builder()
    older, newer = (PositionSnapshotRequest(bytes([n]) * 16, 1, ON_B, EndOffset(3)) for n in (1, 2))
    made.signal_read(RequestKey(DATA, B), older, 0)
    made.signal_read(RequestKey(DATA, B), newer, 0)
    assert made.decided_end_read(B, older, ON_A, EndOffset(8), 0) == []
    assert len(made.decided_end_read(B, newer, ON_A, EndOffset(8), 0)) == 1


def test_a_controller_that_begins_answers_what_was_never_answered():
    """I2: its own answers are among the signals that it reads first."""
    made = PositionSnapshotBuilder(
        DATA, A, (B, C), nonce=b"nonce---", limits=PositionSnapshotLimits()
    )
    request = PositionSnapshotRequest(b"x" * 16, 2, ON_B, EndOffset(3))
    made.signal_read(RequestKey(DATA, B), request, 0)
    made.signal_read(RequestKey(DATA, C), request, 0)
    answer = PositionSnapshotResponse(b"x" * 16, 2, ON_A, EndOffset(8))
    made.signal_read(ResponseKey(DATA, A, B), answer, 0)
    assert made.caught_up(0) == [ReadDecidedEnd(C, request)]


def test_head_and_tail_stay():
    """I5: the inner one with the smallest span to its neighbours goes."""
    cached: tuple[PositionSnapshot, ...] = ()
    for local_end in (0, 10, 11, 12, 30):
        cached = with_snapshot(cached, snapshot(local_end), 4)
    assert [one.local_end for one in cached] == [0, 10, 12, 30]


@ROUND_TRIPS
@given(st.lists(st.integers(0, 1000), min_size=1), st.integers(3, 6), st.integers(0, 1000))
def test_the_cache_is_bounded_and_ascends(ends: list[int], limit: int, offset: int):
    """I5: whatever comes; the newest one that was passed is found."""
    cached: tuple[PositionSnapshot, ...] = ()
    oldest = ends[0]
    for before, end in zip([0, *ends], ends, strict=False):
        oldest = end if end < before else oldest
        cached = with_snapshot(cached, snapshot(end), limit)
        held = [one.local_end for one in cached]
        assert held == sorted(set(held))
        assert len(held) <= limit
        assert (held[0], held[-1]) == (oldest, end)
    found = passed(cached, EndOffset(offset))
    below = [one for one in cached if one.local_end <= offset]
    assert found == (below[-1] if below else None)


def test_a_log_that_was_cut_off_clears_the_cache():
    """I5: snapshots beyond the end of the log refer to records that are gone."""
    cached = (snapshot(5), snapshot(9))
    assert with_snapshot(cached, snapshot(7)) == (snapshot(7),)
    newer = snapshot(9)._replace(id=b"x" * 16)
    assert with_snapshot(cached, newer) == (snapshot(5), newer)


def test_the_back_off_ends_when_the_links_are_connected_again():
    """I13: nobody waits two minutes for a link that has come back."""
    made = asking()
    assert made.tick(30_000) == []
    assert made.deadline_ms == 60_000, "it has backed off"
    assert made.links_changed(31_000, connected=True) == []
    assert made.links_changed(32_000, connected=False) == []
    assert made.deadline_ms is None, "nothing is asked while a link is stopped"
    assert made.tick(61_000) == []
    assert [type(one) for one in made.links_changed(62_000, connected=True)] == [WriteSignal]


def test_the_back_off_goes_on_while_the_links_stay_connected():
    """I4: another cluster that does not answer is asked less and less often."""
    made = asking()
    assert made.tick(30_000) == []
    assert made.links_changed(30_001, connected=True) == []
    assert made.tick(60_000)
