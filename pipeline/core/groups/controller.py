"""The controller of one data partition on one cluster: evaluates its replicated groups in rounds.

*Source*: docs/protocols I6, I7, I8, I10, I12, I14, I16.
*Invariants*: a round evaluates every group with the offsets, log and index of one moment: the index
is read past the end that it had after offsets and log were read; decisions about a group are
carried out and read back before the group is evaluated again; a group without changes is not
evaluated, and a poll without changes costs one comparison (I16).

A round costs one read of the groups' and the log's offsets, and what `frontier` reads of the log.

For links without `origin` headers, positions are carried over by position snapshots, as in Pulsar
(I5, I12): a group is moved forward only, and only while inactive, to a position snapshot that it
has passed on another cluster; records between two position snapshots are read again.
"""

from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from stilltide.pipeline.core.groups.frontier import LogRead, LogView, Reading, ReadLog
from stilltide.pipeline.core.groups.group import (
    ControllerEffect,
    Decision,
    Evaluation,
    GroupBetweenRounds,
    GroupLag,
    GroupSeen,
    Move,
    Note,
    Poll,
    Publish,
    ReadRecords,
    ReplicatedGroup,
    Reset,
    Standing,
)
from stilltide.pipeline.core.groups.lag import LogWindow, read_again_bounded
from stilltide.pipeline.core.groups.pace import ControllerLimits, Pace, Settled
from stilltide.pipeline.core.groups.position_snapshots import passed
from stilltide.pipeline.core.offset_index.claims import NO_CLAIMS
from stilltide.pipeline.core.offset_index.index import OffsetIndex
from stilltide.schemas.replication.positions import Bucket, BucketKey
from stilltide.schemas.replication.signals import (
    Applied,
    AppliedKey,
    PositionSnapshots,
    RequestKey,
    ResponseKey,
    SignalKey,
    SignalValue,
    SnapshotsKey,
    Update,
    UpdateKey,
)
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition


class SyncMode(StrEnum):
    """How positions of groups are carried over between clusters (I12)."""

    EXACT = "exact"
    SNAPSHOT = "snapshot"


@dataclass(slots=True)
class _Round:
    """One round: a poll, then an evaluation of each group."""

    number: int
    view: LogView | None = None
    positions_end: int = 0
    groups: Mapping[str, GroupSeen] = field(default_factory=dict[str, GroupSeen])
    left: list[str] = field(default_factory=list[str])
    group: str = ""
    quiet: bool = True
    evaluation: Generator[ReadLog, LogRead, Evaluation] | None = None
    wanted: ReadLog | None = None
    asked: ReadLog | None = None


def is_about_groups(key: SignalKey) -> bool:
    """Whether a group may have to be evaluated again after a signal.

    Requests for position snapshots and their answers change no group; only snapshots may.
    """
    return not isinstance(key, RequestKey | ResponseKey)


class ReplicationController:
    """The replicated groups of one data partition on one cluster.

    Args:
        data: the data partition.
        here: this cluster.
        remotes: the other clusters; a link copies from each of them.
        mode: how positions are carried over.
        limits: how often groups are evaluated, published and committed again.

    Attributes:
        pace: when rounds are due, and whether a poll that says the same as the last one may be
            reported later (I16).
    """

    def __init__(
        self,
        data: TopicPartition,
        here: ClusterName,
        remotes: Sequence[ClusterName],
        *,
        mode: SyncMode,
        limits: ControllerLimits,
    ) -> None:
        self.indexes = {remote: OffsetIndex(remote) for remote in remotes}
        self.groups: dict[str, GroupBetweenRounds] = {}
        self._data = data
        self._here = here
        self._mode = mode
        self._limits = limits
        self._snapshots: PositionSnapshots | None = None
        self._caught_up = False
        self._positions_read_to = EndOffset(0)
        self._window = LogWindow()
        self._view: LogView | None = None  # of the last poll
        self._number = 0
        self._round: _Round | None = None
        self.pace = Pace(limits)

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` is due next."""
        return self.pace.next_ms if self._caught_up and self._round is None else None

    def standing(self, group: str) -> Standing:
        """Why a group's position is what it is."""
        replicated = self.groups.get(group)
        return replicated.standing if replicated else Standing.NOTHING_CLAIMED

    def lag(self, group: str, now_ms: int) -> GroupLag | None:
        """How much of a group's reading is unpublished, as of the last poll; None before that."""
        replicated, view = self.groups.get(group), self._view
        if replicated is None or replicated.seen is None or view is None:
            return None
        return replicated.lag(view, now_ms)

    def read_again(self, group: str) -> tuple[Hashable, Reading[int]] | None:
        """The most records that a plain consumer reads again if it begins here now.

        The number holds by what is known on this cluster, and is the same for equal inputs, which
        come first; None: the group was not polled yet.
        """
        replicated, view = self.groups.get(group), self._view
        if replicated is None or replicated.seen is None or view is None:
            return None
        offset = view.log_start if replicated.seen.offset is None else replicated.seen.offset
        indexes = list(self.indexes.values())
        inputs = view, offset, replicated.state.version, tuple(index.version for index in indexes)
        return inputs, read_again_bounded(view, indexes, replicated.state.read_anywhere(), offset)

    # -- signals and buckets

    def bucket_read(self, key: BucketKey, bucket: Bucket | None) -> None:
        """Takes a record of the positions partition, in log order."""
        if key.data == self._data and key.target == self._here and key.source in self.indexes:
            self.indexes[key.source].bucket_read(key.number, bucket)
            self.pace.end_rest()

    def positions_read(self, stable_offset: EndOffset, now_ms: int) -> list[ControllerEffect]:
        """Every bucket below this last stable offset was reported."""
        self._positions_read_to = max(self._positions_read_to, stable_offset)
        return self.tick(now_ms)

    def signal_read(self, key: SignalKey, value: SignalValue | None) -> None:
        """Takes a signal on this cluster, in log order; None is a tombstone."""
        if not is_about_groups(key):
            return
        self.pace.end_rest()
        if isinstance(key, SnapshotsKey) and key.source == self._here:
            assert value is None or isinstance(value, PositionSnapshots)
            self._snapshots = value
        elif isinstance(key, UpdateKey):
            assert value is None or isinstance(value, Update)
            self._group(key.group).state.update_read(key.source, value)
            self._group(key.group).read_back(key, value)
            if key.source != self._here:
                self.pace.updated()
        elif isinstance(key, AppliedKey) and key.source == self._here:
            assert value is None or isinstance(value, Applied)
            self._group(key.group).state.applied_read(value)
            if self._group(key.group).read_back(key, value):
                self.pace.at_once()  # the move may have stopped at the bound of a walk

    def caught_up(self, now_ms: int) -> list[ControllerEffect]:
        """All signals that existed at the start were read."""
        self._caught_up = True
        return self.tick(now_ms)

    def _group(self, name: str) -> GroupBetweenRounds:
        group = self.groups.get(name)
        if group is None:
            is_by_snapshots = self._mode is SyncMode.SNAPSHOT
            state = ReplicatedGroup(self._here, by_snapshots=is_by_snapshots)
            group = GroupBetweenRounds(name, self._data, self._here, state)
            self.groups[name] = group
        return group

    # -- rounds

    def tick(self, now_ms: int) -> list[ControllerEffect]:
        """Begins the next round when it is due, or goes on with the present one."""
        if not self._caught_up:
            return []
        round_ = self._round
        if round_ is None:
            if now_ms < self.pace.next_ms:
                return []
            self._number += 1
            self.pace.look_begins(now_ms)
            self._round = _Round(self._number)
            return [Poll(self._number, self._data, tuple(self.groups))]
        if round_.view is None or round_.evaluation is not None:
            return []
        if self._positions_read_to < round_.positions_end:
            return []
        return self._next_group(round_, now_ms)

    def polled(
        self,
        number: int,
        view: LogView,
        groups: Mapping[str, GroupSeen],
        positions_end: EndOffset,
        now_ms: int,
    ) -> list[ControllerEffect]:
        """The result of `Poll`.

        Args:
            number: number of the poll.
            view: offsets of the log.
            groups: replicated groups, among them every group that the effect names.
            positions_end: end of the positions partition, read after everything else.
            now_ms: time of the clock of every `now_ms`.
        """
        round_ = self._round
        if round_ is None or round_.number != number or round_.view is not None:
            return []
        settled = self.pace.settled
        if settled is not None and now_ms < settled.until_ms and settled[:2] == (view, groups):
            self._round = None
            self.pace.look_ended(now_ms)
            return []
        self.pace.settled = None
        before, self._view = self._view, view
        if view != before:
            self.pace.changed(now_ms)
        if before is None or before[:2] != view[:2]:
            self._window = LogWindow()
        for name, seen in groups.items():
            self._group(name).polled(seen, view, now_ms)
        round_.view, round_.positions_end = view, positions_end
        round_.groups, round_.left = groups, list(groups)
        return self.tick(now_ms)

    def _next_group(self, round_: _Round, now_ms: int) -> list[ControllerEffect]:
        """Evaluates one group after the other, until an evaluation has to read the log."""
        effects: list[ControllerEffect] = []
        while round_.left:
            name = round_.left.pop()
            group = self.groups[name]
            if group.is_busy(now_ms, self._limits.read_back_ms):
                round_.quiet = False
                continue
            evaluation = self._evaluation(round_, group, now_ms)
            if evaluation is None:
                round_.quiet &= group.standing is not Standing.PUBLISHED_LATELY
                round_.quiet &= group.reset_refused is not None
                continue
            round_.quiet = False
            self.pace.changed(now_ms)
            round_.group, round_.evaluation = name, evaluation
            wanted = self._advance(round_, None, effects, now_ms)
            if wanted:
                return [*effects, *wanted]
        if round_.quiet and round_.view is not None:
            again_ms = self._limits.commit_again_ms
            due_ms = (self.groups[name].since_ms + again_ms for name in round_.groups)
            until_ms = min((it for it in due_ms if it > now_ms), default=inf)
            self.pace.settled = Settled(round_.view, round_.groups, until_ms)
        self._round = None
        self.pace.look_ended(now_ms)
        return effects

    def _evaluation(
        self, round_: _Round, group: GroupBetweenRounds, now_ms: int
    ) -> Generator[ReadLog, LogRead, Evaluation] | None:
        """The evaluation of a group; None: nothing has changed since the last evaluation."""
        view, seen, limits = round_.view, group.seen, self._limits
        assert view is not None
        assert seen is not None
        indexes = list(self.indexes.values())
        if group.reset is not None and group.reset_refused is None:
            if round_.number < group.reset.first_round:
                return None  # what this round has seen may be older than the request
            group.reset_refused, group.looked_at = False, None
            if group.reset.generation == group.generation:
                reset = group.reset
                return group.state.reset(view, indexes, seen, reset.offset, stop=reset.stop)
        published_ms = group.published_ms
        may_publish = published_ms is None or now_ms >= published_ms + limits.publish_interval_ms
        commit_again = now_ms >= group.since_ms + limits.commit_again_ms
        versions = tuple(index.version for index in indexes)
        what = (view, seen, group.state.version, self._snapshots, versions, commit_again)
        if what == group.looked_at and (
            group.standing is not Standing.PUBLISHED_LATELY or not may_publish
        ):
            return None
        group.looked_at = what
        if self._mode is SyncMode.SNAPSHOT:
            return evaluate_by_snapshots(group.state, view, self._snapshots, seen)
        return group.state.evaluate(
            view, indexes, seen, may_publish=may_publish, commit_again=commit_again
        )

    def log_read(self, number: int, read: LogRead, now_ms: int) -> list[ControllerEffect]:
        """The result of `ReadRecords`."""
        round_ = self._round
        if round_ is None or round_.number != number or round_.asked is None:
            return []
        assert round_.wanted is not None
        whole = self._window.answered(round_.asked, round_.wanted, read)
        round_.asked = None
        effects: list[ControllerEffect] = []
        wanted = self._advance(round_, whole, effects, now_ms)
        return [*effects, *(wanted or self.tick(now_ms))]

    def _advance(
        self,
        round_: _Round,
        read: LogRead | None,
        effects: list[ControllerEffect],
        now_ms: int,
    ) -> list[ControllerEffect]:
        """Continues the evaluation; returns a read that it needs, or adds its decisions."""
        evaluation = round_.evaluation
        assert evaluation is not None
        try:
            while True:
                wanted = next(evaluation) if read is None else evaluation.send(read)
                missing = self._window.missing(wanted)
                if missing is not None:
                    round_.wanted, round_.asked = wanted, missing
                    return [ReadRecords(round_.number, missing.first, missing.end)]
                read = self._window.answer(wanted)
        except StopIteration as done:
            result: Evaluation = done.value
        round_.evaluation = None
        group = self.groups[round_.group]
        group.standing = result.standing
        if result.standing is Standing.RESET_REFUSED:
            group.reset_refused = True
        effects += [group.carry_out(decision, now_ms) for decision in result.decisions]
        return []

    def reset(
        self, group: str, offset: Offset, *, generation: int | None = None, stop: bool = False
    ) -> Reset:
        """An operator resets a group on all clusters, to `offset` here (I10), in the next round.

        Not in the present one, which may have asked before the last member of the group left.
        A group with another generation than `generation` is left as it is; None: the present one.
        `GroupBetweenRounds.result_of` tells the result. A group with members is not reset without
        `stop`.
        """
        replicated = self._group(group)
        if generation is None:
            generation = replicated.generation
        reset = Reset(offset, generation, stop, first_round=self._number + 1)
        replicated.reset_requested(reset)
        self.pace.end_rest()
        return reset

    def look_now(self) -> int:
        """A round shall begin at once; returns its number, see `has_looked`."""
        self.pace.end_rest()
        self.pace.at_once()
        return self._number + 1

    def has_looked(self, group: str, number: int) -> bool:
        """Whether the round `number` has ended, and what it decided about a group was read back."""
        replicated = self.groups.get(group)
        if self._number < number or (self._number == number and self._round is not None):
            return False
        if replicated is None:
            return True
        is_busy = bool(replicated.unread) or replicated.move is not None
        return not is_busy and replicated.standing is not Standing.PUBLISHED_LATELY

    def moved(self, group: str, now_ms: int, *, done: bool) -> list[ControllerEffect]:
        """The result of `MoveGroup`."""
        replicated = self.groups.get(group)
        return [] if replicated is None else replicated.moved(now_ms, done=done)


def evaluate_by_snapshots(
    group: ReplicatedGroup, view: LogView, snapshots: PositionSnapshots | None, seen: GroupSeen
) -> Reading[Evaluation]:
    """Decides as `ReplicatedGroup.evaluate` does, but reads no records of the log.

    Each new offset is published or noted, so that a lower one shows a reset by hand.
    """
    yield from ()
    offset, topic = seen.offset, view.incarnation.topic
    decisions: list[Decision] = []
    if offset is not None:
        if offset > view.end:
            return Evaluation([], Standing.BEYOND_THE_END)
        until, noted = group.left_alone_until(topic, offset), group.noted(topic)
        if until is None:
            decisions += _published(group, view, snapshots, offset)
        is_new = until is None and not decisions and offset > group.reached(topic)
        if is_new or until != (noted.until if noted is not None else None):
            decisions.append(Note(Applied(0, topic, offset, None, until, NO_CLAIMS)))
        if until is not None:
            return Evaluation(decisions, Standing.RESET_BY_HAND)
    if seen.active:
        return Evaluation(decisions, Standing.ACTIVE)
    ends = [
        position.end_offset
        for source, update in group.updates.items()
        for position in update.positions
        if source != view.incarnation.cluster and position.incarnation == view.incarnation
    ]
    to = max((one for one in ends if one <= view.end), default=None)
    if to is None:
        return Evaluation(decisions, Standing.NOTHING_CLAIMED)
    to = Offset(max(to, view.log_start))
    if offset is not None and to <= offset:
        return Evaluation(decisions, Standing.AT_THE_PREFIX)
    decisions.append(Move(offset, Applied(0, topic, to, to, None, NO_CLAIMS)))
    return Evaluation(decisions, Standing.MOVING)


def _published(
    group: ReplicatedGroup, view: LogView, snapshots: PositionSnapshots | None, offset: Offset
) -> list[Decision]:
    here, topic = view.incarnation
    if snapshots is None or snapshots.incarnation != topic:
        return []
    snapshot = passed(snapshots.snapshots, EndOffset(offset))
    own = group.updates.get(here)
    if snapshot is None or (own is not None and own.snapshot_id == snapshot.id):
        return []
    update = Update(0, topic, offset, NO_CLAIMS, snapshot.positions, snapshot.id)
    return [Publish(update)]
