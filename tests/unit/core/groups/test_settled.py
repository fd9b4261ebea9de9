"""I16: a poll that says what the last one said is answered without a look at any group.

A second controller gets the same inputs and forgets, before each poll, that nothing has changed.
Both must have the same effects, standings and deadlines.
"""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from stilltide.pipeline.core.groups.controller import ReplicationController, SyncMode
from stilltide.pipeline.core.groups.group import (
    ControllerEffect,
    GroupSeen,
    MoveGroup,
    Poll,
    ReadRecords,
    Standing,
)
from stilltide.pipeline.core.groups.pace import ControllerLimits
from stilltide.pipeline.core.groups.position_snapshots import WriteSignal
from stilltide.schemas.replication.positions import Bucket, BucketKey
from stilltide.schemas.values import EndOffset, Offset
from tests.support.examples import examples
from tests.unit.core.groups.test_controller import (
    DATA,
    FROM_A,
    ON_A,
    ON_B,
    A,
    B,
    begun,
    claiming,
    polled,
    read,
    view,
)

HOUR_MS = 3_600_000
Call = Callable[[ReplicationController], list[ControllerEffect]]


class Twins:
    """A controller, and one that never skips a look."""

    def __init__(self) -> None:
        self.one, self.thorough = begun(), begun()
        self.now_ms = 0
        self.positions_end = 1
        self.seen = GroupSeen(None)
        self.end = 5
        self.written: list[WriteSignal] = []
        self.poll: Poll | None = Poll(1, DATA, ("g",))

    def do(self, call: Call) -> None:
        """Does the same with both, and carries out what they want until they rest."""
        self.thorough.pace.settled = None
        effects = call(self.one)
        assert effects == call(self.thorough)
        assert self.one.standing("g") is self.thorough.standing("g")
        assert self.one.deadline_ms == self.thorough.deadline_ms
        for effect in effects:
            match effect:
                case Poll():
                    self.poll = effect
                case ReadRecords(number, first, until):
                    found = read(first, until, self.end)
                    self.do(lambda it, n=number, f=found: it.log_read(n, f, self.now_ms))
                case WriteSignal():
                    self.written.append(effect)
                case MoveGroup(offset=offset):
                    self._move(GroupSeen(offset, effect.generation))

    def _move(self, there: GroupSeen) -> None:
        done = not self.seen.active
        if done:
            self.seen = there
        self.do(lambda it: it.moved("g", self.now_ms, done=done))

    def read_back(self) -> None:
        """The signals that were written are read."""
        written, self.written = self.written, []
        for one in written:
            asked(lambda it, one=one: it.signal_read(one.key, one.value))(self)

    def rest(self) -> None:
        """Looks until nothing is left to be done."""
        for _ in range(5):
            self.now_ms += 600
            self.look()
            self.read_back()

    def look(self) -> None:
        """A poll is answered, if one was asked for."""
        self.do(lambda it: it.tick(self.now_ms))
        poll, self.poll = self.poll, None
        if poll is not None:
            groups = {"g": self.seen}
            end = EndOffset(self.positions_end)
            self.do(
                lambda it: it.polled(poll.number, view(self.end), dict(groups), end, self.now_ms)
            )


def bucket(made: ReplicationController, to: int) -> None:
    """The link has copied more."""
    grown = Bucket(ON_A.topic, ON_B.topic, Offset(0), EndOffset(to), Offset(0), EndOffset(to), {})
    made.bucket_read(BucketKey(A, B, DATA, 0), grown)


Step = Callable[[Twins], None]


def asked(change: Callable[[ReplicationController], object]) -> Step:
    """Something that has no effect by itself."""

    def call(made: ReplicationController) -> list[ControllerEffect]:
        change(made)
        return []

    return lambda twins: twins.do(call)


def time_passes(by_ms: int) -> Step:
    """Until the next step."""

    def step(twins: Twins) -> None:
        twins.now_ms += by_ms

    return step


def group_is(offset: int, *, active: bool) -> Step:
    """A commit of the group, or members that come and go."""

    def step(twins: Twins) -> None:
        twins.seen = GroupSeen(Offset(offset), twins.seen.generation, active)

    return step


def log_grows(end: int) -> Step:
    """The end of the log, or of the positions partition."""

    def step(twins: Twins) -> None:
        twins.end = max(twins.end, end)

    return step


def positions_grow(end: int) -> Step:
    """The links have written more of the index."""

    def step(twins: Twins) -> None:
        twins.positions_end = max(twins.positions_end, end)
        twins.do(lambda it: it.positions_read(EndOffset(twins.positions_end), twins.now_ms))

    return step


def claimed(count: int) -> Step:
    """Cluster a says what the group has read there."""
    return asked(lambda made: made.signal_read(FROM_A, claiming(count)))


STEPS = st.lists(
    st.one_of(
        st.just(Twins.rest),
        st.just(Twins.rest),
        st.just(Twins.look),
        st.sampled_from([20, 100, 500, 6_000, 43 * HOUR_MS]).map(time_passes),
        st.just(Twins.look),
        st.builds(group_is, st.integers(0, 6), active=st.booleans()),
        st.integers(0, 4).map(
            lambda it: asked(lambda made: made.signal_read(FROM_A, claiming(it)))
        ),
        st.integers(3, 4).map(lambda it: asked(lambda made: bucket(made, it))),
        st.integers(5, 7).map(log_grows),
        st.integers(1, 4).map(positions_grow),
        st.just(Twins.read_back),
        st.integers(0, 5).map(lambda it: asked(lambda made: made.reset("g", Offset(it)))),
        st.just(asked(lambda made: made.look_now())),
    ),
    max_size=40,
)


@settings(max_examples=examples(300))
@given(STEPS)
def test_a_skipped_look_would_have_decided_nothing(steps: list[Step]):
    """Whatever comes in between."""
    twins = Twins()
    twins.rest()
    for step in steps:
        step(twins)


def test_a_look_is_skipped():
    """The rule has an effect: a settled group's inputs are not even compared."""
    made = ReplicationController(DATA, B, [A], mode=SyncMode.EXACT, limits=ControllerLimits())
    assert made.caught_up(0) == [Poll(1, DATA, ())]
    assert polled(made, GroupSeen(None), positions_end=0) == []
    assert made.standing("g") is Standing.NOTHING_CLAIMED
    for number, now_ms in ((2, 1000), (3, 2000)):
        assert made.tick(now_ms) == [Poll(number, DATA, ("g",))]
        assert polled(made, GroupSeen(None), number=number, positions_end=0, now_ms=now_ms) == []
    assert made.pace.settled is not None
    held = made.groups["g"]
    held.looked_at = None  # a look would evaluate the group again
    made.tick(3000)
    assert polled(made, GroupSeen(None), number=4, positions_end=0, now_ms=3000) == []
    assert held.looked_at is None
