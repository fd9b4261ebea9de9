"""Rounds of a replication controller (I6, I7, I8, I9)."""

from collections.abc import Callable

import pytest

from stilltide.pipeline.core.groups.controller import ReplicationController, SyncMode
from stilltide.pipeline.core.groups.frontier import LogRead, LogView, VisibleRecord
from stilltide.pipeline.core.groups.group import (
    ControllerEffect,
    GroupLag,
    GroupSeen,
    MoveGroup,
    Poll,
    ReadRecords,
    Standing,
)
from stilltide.pipeline.core.groups.pace import ControllerLimits
from stilltide.pipeline.core.groups.position_snapshots import WriteSignal
from stilltide.pipeline.core.offset_index import intervals
from stilltide.schemas.replication.origins import Claims, Incarnation, Origin
from stilltide.schemas.replication.positions import Bucket, BucketKey
from stilltide.schemas.replication.signals import (
    Applied,
    AppliedKey,
    PositionSnapshotRequest,
    RequestKey,
    ResponseKey,
    Update,
    UpdateKey,
)
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition

A, B = ClusterName("a"), ClusterName("b")
DATA = TopicPartition("t", 0)
LIMITS = ControllerLimits(publish_interval_ms=200)
ON_A, ON_B = Incarnation(A, b"a-------"), Incarnation(B, b"b-------")
UPDATE_KEY, APPLIED_KEY = UpdateKey(DATA, B, "g"), AppliedKey(DATA, B, "g")
FROM_A = UpdateKey(DATA, A, "g")
BUCKET = Bucket(ON_A.topic, ON_B.topic, Offset(0), EndOffset(4), Offset(0), EndOffset(4), {})


def view(end: int = 5, decided: int | None = None) -> LogView:
    """The log of `b`: copies of `a` from 0 to 3, and a control record."""
    return LogView(ON_B, Offset(0), EndOffset(end), EndOffset(end if decided is None else decided))


def claiming(count: int) -> Update:
    """`a` says that the group has read so many of its records, and all that `b` wrote itself."""
    claimed: Claims = {ON_A: intervals.below(count), ON_B: intervals.below(5)} if count else {}
    return Update(0, ON_A.topic, Offset(count), claimed)


def read(first: int, end: int, to: int = 5) -> LogRead:
    """What the log says."""
    records = [
        VisibleRecord(Offset(at), Origin(ON_A, Offset(at))) for at in range(first, min(4, end))
    ]
    return LogRead(records, EndOffset(min(end, to)))


def begun(claimed: int = 2, reset: Offset | None = None) -> ReplicationController:
    """One on `b` that has read its signals and the index up to offset 1, in its first round.

    An operator has asked for a reset before that round, if one is given.
    """
    made = ReplicationController(DATA, B, [A], mode=SyncMode.EXACT, limits=LIMITS)
    made.bucket_read(BucketKey(A, B, DATA, 0), BUCKET)
    made.bucket_read(BucketKey(A, B, TopicPartition("u", 0), 0), BUCKET)
    made.positions_read(EndOffset(1), 0)
    made.signal_read(FROM_A, claiming(claimed))
    if reset is not None:
        made.reset("g", reset)
    assert made.tick(0) == []
    assert made.caught_up(0) == [Poll(1, DATA, ("g",))]
    return made


def polled(
    made: ReplicationController,
    seen: GroupSeen | None = None,
    *,
    number: int = 1,
    positions_end: int = 1,
    now_ms: int = 0,
) -> list[ControllerEffect]:
    """The answer to a poll."""
    groups = {"g": seen or GroupSeen(None)}
    return made.polled(number, view(), groups, EndOffset(positions_end), now_ms)


def test_a_group_is_moved_to_what_was_read_elsewhere():
    """I7: one read of the log for the bucket that reaches out, then the move, then its note."""
    made = begun()
    assert polled(made) == [ReadRecords(1, Offset(0), EndOffset(4))]
    assert made.log_read(1, read(0, 4), 0) == [ReadRecords(1, Offset(4), EndOffset(5))]
    assert made.log_read(1, read(4, 5), 0) == [MoveGroup("g", DATA, ON_B.topic, None, Offset(2), 0)]
    assert made.standing("g") is Standing.MOVING
    noted = Applied(0, ON_B.topic, Offset(2), Offset(2), None, {})
    assert made.moved("g", 1, done=True) == [WriteSignal(APPLIED_KEY, noted)]
    assert made.moved("g", 1, done=True) == []


def test_a_round_waits_for_the_index():
    """I6: an index that is behind would give too small claims for what the group has read."""
    made = begun()
    assert polled(made, positions_end=3) == []
    assert made.positions_read(EndOffset(2), 0) == []
    assert made.positions_read(EndOffset(3), 0) == [ReadRecords(1, Offset(0), EndOffset(4))]


def test_what_comes_late_or_twice_changes_nothing():
    """Machine contract: results that come late or twice change nothing."""
    made = begun()
    assert polled(made, number=7) == []
    assert made.log_read(1, read(0, 4), 0) == []
    polled(made)
    assert polled(made) == []
    assert made.log_read(7, read(0, 4), 0) == []
    assert made.moved("g", 0, done=True) == []
    assert made.moved("h", 0, done=True) == []


def test_a_group_is_looked_at_again_when_its_note_was_read_back():
    """I9: the next decision is based on the signals that were read back."""
    made = begun()
    polled(made)
    made.log_read(1, read(0, 4), 0)
    made.log_read(1, read(4, 5), 0)
    (write,) = made.moved("g", 0, done=True)
    assert isinstance(write, WriteSignal)
    there = GroupSeen(Offset(2), 0)
    assert made.tick(100) == [Poll(2, DATA, ("g",))]
    made.signal_read(FROM_A, claiming(3))
    assert polled(made, there, number=2, now_ms=100) == [], "not read back"
    made.signal_read(write.key, write.value)
    assert made.tick(200) == [Poll(3, DATA, ("g",))]
    move = MoveGroup("g", DATA, ON_B.topic, Offset(2), Offset(3), 0)
    assert polled(made, there, number=3, now_ms=200) == [move], "the log was read before"


def test_a_signal_that_is_never_read_back_is_not_waited_for_long():
    """A signal may be replaced and compacted before it is read; the wait for it is bounded."""
    made = begun()
    polled(made)
    made.log_read(1, read(0, 4), 0)
    made.log_read(1, read(4, 5), 0)
    made.moved("g", 0, done=True)
    made.tick(100)
    assert polled(made, GroupSeen(Offset(2), 0), number=2, now_ms=100) == []
    made.tick(10_000)
    effects = polled(made, GroupSeen(Offset(2), 0), number=3, now_ms=10_000)
    noted = Applied(0, ON_B.topic, Offset(2), None, None, {})
    assert effects == [WriteSignal(APPLIED_KEY, noted)]


def test_a_move_that_was_refused_is_thought_over():
    """I7: a move fails if a member joined the group meanwhile, and the group is evaluated again."""
    made = begun()
    polled(made)
    made.log_read(1, read(0, 4), 0)
    made.log_read(1, read(4, 5), 0)
    assert made.moved("g", 0, done=False) == []
    assert made.standing("g") is Standing.ACTIVE
    made.tick(100)
    move = MoveGroup("g", DATA, ON_B.topic, None, Offset(2), 0)
    assert polled(made, number=2, now_ms=100) == [move]


def test_what_has_not_changed_is_not_looked_at():
    """An idle group costs nothing but the poll."""
    made = begun(claimed=0)
    assert polled(made, GroupSeen(Offset(0), 0)) != []
    made.log_read(1, read(0, 4), 0)
    made.log_read(1, read(4, 5), 0)
    for number in range(2, 5):
        assert made.deadline_ms is not None
        made.tick(made.deadline_ms)
        now_ms = 100 * number
        assert polled(made, GroupSeen(Offset(0), 0), number=number, now_ms=now_ms) == []


IDLE = GroupSeen(Offset(0), 0)


def resting() -> tuple[ReplicationController, int, int]:
    """One that has looked at an idle group until it rests; the last look's number, and its time."""
    made = begun(claimed=0)
    (write,) = polled(made, IDLE)
    assert isinstance(write, WriteSignal)
    made.signal_read(write.key, write.value)
    number, now_ms = 1, 0
    while made.deadline_ms == now_ms + LIMITS.poll_interval_ms:
        number, now_ms = number + 1, made.deadline_ms
        assert made.tick(now_ms) == [Poll(number, DATA, ("g",))]
        assert polled(made, IDLE, number=number, now_ms=now_ms) == []
    assert now_ms == LIMITS.poll_interval_ms + LIMITS.rest_after_ms, "since its note was read back"
    return made, number, now_ms


def test_where_nothing_changes_it_looks_seldom():
    """After five seconds without changes rounds are rarer, at times that all partitions share."""
    made, number, now_ms = resting()
    now_ms -= now_ms % LIMITS.rest_interval_ms
    for _ in range(3):
        number, now_ms = number + 1, now_ms + LIMITS.rest_interval_ms
        assert made.deadline_ms == now_ms
        assert made.tick(now_ms - 1) == []
        assert made.tick(now_ms) == [Poll(number, DATA, ("g",))]
        assert polled(made, IDLE, number=number, now_ms=now_ms) == []


@pytest.mark.parametrize(
    "news",
    [
        lambda made: made.signal_read(UPDATE_KEY, claiming(2)),
        lambda made: made.bucket_read(BucketKey(A, B, DATA, 0), BUCKET),
        lambda made: made.reset("g", Offset(0)),
    ],
    ids=["signal", "bucket", "reset"],
)
def test_news_ends_a_rest(news: Callable[[ReplicationController], None]):
    """After a signal or bucket the next round begins as soon as in times of changes."""
    made, _, now_ms = resting()
    news(made)
    assert made.deadline_ms == now_ms + LIMITS.poll_interval_ms


def test_attempts_at_position_snapshots_end_no_rest():
    """Where a link is missing they are repeated for ever, and change no group."""
    made, _, now_ms = resting()
    next_ms = made.deadline_ms
    made.signal_read(
        RequestKey(DATA, B), PositionSnapshotRequest(b"1", 0, ON_B.topic, EndOffset(5))
    )
    made.signal_read(ResponseKey(DATA, A, B), None)
    assert made.deadline_ms == next_ms
    assert made.pace.rests(now_ms + LIMITS.rest_interval_ms)


def test_an_update_of_another_cluster_is_looked_into_at_once():
    """An update that comes during a round begins another one: the round may have missed it."""
    made, number, now_ms = resting()
    made.signal_read(FROM_A, Update(0, ON_A.topic, Offset(0), {ON_B: intervals.below(5)}))
    assert made.deadline_ms == now_ms + LIMITS.update_interval_ms
    now_ms += LIMITS.update_interval_ms
    assert made.tick(now_ms) == [Poll(number + 1, DATA, ("g",))]
    made.signal_read(FROM_A, Update(0, ON_A.topic, Offset(0), {ON_B: intervals.below(5)}))
    assert made.deadline_ms is None
    made.polled(number + 1, view(), {}, EndOffset(1), now_ms + 7)
    assert made.deadline_ms == now_ms + 7 + LIMITS.update_interval_ms
    now_ms += 7 + LIMITS.update_interval_ms
    made.tick(now_ms)
    made.polled(number + 2, view(), {}, EndOffset(1), now_ms)
    assert made.deadline_ms is not None
    assert made.deadline_ms > now_ms + LIMITS.update_interval_ms


@pytest.mark.parametrize(
    ("look_ms", "after_ms"),
    [
        (0, LIMITS.poll_interval_ms),
        (30, LIMITS.poll_interval_ms),
        (500, 500 + LIMITS.update_interval_ms),
    ],
)
def test_looks_begin_at_intervals(look_ms: int, after_ms: int):
    """Rounds begin at intervals, however long one takes, with a pause in between."""
    made = begun()
    made.polled(1, view(), {}, EndOffset(1), look_ms)
    assert made.deadline_ms == after_ms


@pytest.mark.parametrize(
    ("end", "groups", "rests"),
    [
        (5, {"g": IDLE}, True),
        (5, {"g": IDLE._replace(active=True)}, False),
        (5, {}, True),
        (6, {}, False),
    ],
    ids=["nothing", "a member", "no group", "a record"],
)
def test_what_a_look_finds_ends_a_rest(end: int, groups: dict[str, GroupSeen], *, rests: bool):
    """What is new about a group, or about the log, with or without groups."""
    made, number, now_ms = resting()
    now_ms += LIMITS.rest_interval_ms - now_ms % LIMITS.rest_interval_ms
    made.tick(now_ms)
    made.polled(number + 1, view(end), groups, EndOffset(1), now_ms)
    interval_ms = LIMITS.rest_interval_ms if rests else LIMITS.poll_interval_ms
    assert made.deadline_ms == now_ms + interval_ms


def test_updates_of_a_group_come_at_intervals():
    """I6: a group that reads on all the time is published now and then, with nothing left out."""
    made = begun()
    active = GroupSeen(Offset(3), 0, active=True)
    assert polled(made, active) == [ReadRecords(1, Offset(3), EndOffset(4))]
    (first,) = made.log_read(1, read(3, 4), 0)
    assert isinstance(first, WriteSignal)
    assert first.key == UPDATE_KEY
    made.signal_read(first.key, first.value)
    made.tick(100)
    further = active._replace(offset=Offset(4))
    assert polled(made, further, number=2, now_ms=100) == []
    assert made.standing("g") is Standing.PUBLISHED_LATELY
    made.tick(200)
    (second,) = polled(made, further, number=3, now_ms=200)
    assert isinstance(second, WriteSignal)
    assert second.value == Update(
        0, ON_B.topic, Offset(4), {ON_A: intervals.below(4), ON_B: intervals.below(5)}
    )


def test_what_no_update_tells_yet_is_said():
    """I6: the lag shows how many offsets read here are unpublished, and since when."""
    made = begun()
    assert made.lag("g", 0) is None, "nobody has looked"
    active = GroupSeen(Offset(3), 0, active=True)
    polled(made, active, now_ms=50)
    assert made.lag("h", 0) is None
    assert made.lag("g", 90) == GroupLag(Standing.NOTHING_CLAIMED, 3, 40)
    (write,) = made.log_read(1, read(3, 4), 60)
    assert isinstance(write, WriteSignal)
    assert made.lag("g", 90) == GroupLag(Standing.ACTIVE, 3, 40), "written is not durable"
    made.signal_read(write.key, write.value)
    assert made.lag("g", 90) == GroupLag(Standing.ACTIVE, 0, 0)
    made.tick(200)
    polled(made, active._replace(offset=Offset(4)), number=2, now_ms=200)
    lag = made.lag("g", 260)
    assert lag is not None
    assert (lag.untold, lag.untold_ms) == (1, 60)


def test_an_operator_s_reset_is_done_in_the_next_round():
    """I10: it becomes an update of the next generation."""
    made = begun(reset=Offset(1))
    effects = polled(made, GroupSeen(Offset(3), 0))
    assert effects == [ReadRecords(1, Offset(1), EndOffset(4))]
    (write,) = made.log_read(1, read(1, 4), 0)
    claimed: Claims = {ON_A: intervals.below(1), ON_B: intervals.below(1)}
    assert write == WriteSignal(UPDATE_KEY, Update(1, ON_B.topic, Offset(1), claimed))
    made.signal_read(write.key, write.value)
    made.tick(100)
    polled(made, GroupSeen(Offset(3), 0), number=2, now_ms=100)
    assert made.log_read(2, read(0, 1), 100) == [ReadRecords(2, Offset(4), EndOffset(5))]
    (move,) = made.log_read(2, read(4, 5), 100)
    assert isinstance(move, MoveGroup)
    assert move.adopts, "it forgets what is acknowledged above its new position"


def test_a_reset_does_not_count_members_that_had_left_before_it():
    """I10: the poll under way may have been answered before the last member left."""
    made = begun(claimed=0)
    asked = made.reset("g", Offset(1))
    polled(made, GroupSeen(Offset(3), 0, active=True))
    assert made.groups["g"].result_of(asked) is None
    assert made.tick(100) == [Poll(2, DATA, ("g",))]
    effects = polled(made, GroupSeen(Offset(3), 0), number=2, now_ms=100)
    assert effects == [ReadRecords(2, Offset(1), EndOffset(4))]
    assert made.groups["g"].result_of(asked) is None


def test_another_topic_of_that_name_is_read_anew():
    """H6: cached records of the former topic are not used."""
    made = begun()
    polled(made)
    made.log_read(1, read(0, 4), 0)
    made.log_read(1, read(4, 5), 0)
    made.moved("g", 0, done=False)
    made.tick(100)
    now = view()._replace(incarnation=ON_B._replace(topic=b"b-new---"))
    effects = made.polled(2, now, {"g": GroupSeen(None)}, EndOffset(1), 100)
    assert effects == [ReadRecords(2, Offset(0), EndOffset(5))]
