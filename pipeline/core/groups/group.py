"""A replicated group on one data partition: what it has read on any cluster, and its position here.

*Source*: docs/protocols I6, I7, I8, I9, I10, I11, I14 (results of resets). Each effect about
a group is carried out before the next one about that group begins. When a write fails, or its
outcome is unknown, the controller ends: another one begins by reading the signals.
*Invariants*:
- I6 What the group has read here is published before reading on other clusters is applied here;
  records that were lost by a clamp (I9), or applied and not read here, are never claimed.
- I8 A group is moved forward only, to the end of a prefix of the log whose records are all claimed.
- I10 After a reset by hand the group is left alone until it has passed its former position again;
  only a higher generation moves a group back.
- A group is busy from a decision until the signal of that decision was read back, or was replaced
  by another one.

All state comes from the signals that were read. Decisions are written as signals, and the next
evaluation waits until they are read back, so a second controller or a lost write cannot make an
evaluation use wrong state.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple

from stilltide.pipeline.core.groups.frontier import LogView, Reading, claims_below, prefix
from stilltide.pipeline.core.groups.position_snapshots import WriteSignal
from stilltide.pipeline.core.offset_index import claims
from stilltide.pipeline.core.offset_index.claims import NO_CLAIMS
from stilltide.pipeline.core.offset_index.index import OffsetIndex
from stilltide.schemas.replication.origins import Claims
from stilltide.schemas.replication.signals import (
    Applied,
    AppliedKey,
    SignalKey,
    SignalValue,
    Update,
    UpdateKey,
)
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition


class GroupSeen(NamedTuple):
    """A group on this cluster at one moment.

    Attributes:
        offset: offset committed for the data partition; None: none.
        generation: generation in the commit's metadata (I11); None: none.
        active: whether the group has members, so that its offsets cannot be moved.
        elsewhere: whether the group has committed an offset of another partition of the topic; may
            be False if a cluster has published anything about the group on this one.
    """

    offset: Offset | None
    generation: int | None = None
    active: bool = False
    elsewhere: bool = False


class Standing(StrEnum):
    """Why a group's position is what it is, or why the position does not advance."""

    AT_THE_PREFIX = "in sync: at the end of what the group has read on any cluster"
    NOTHING_CLAIMED = "no cluster has published that the group has read anything"
    MOVING = "the group is being moved"
    ACTIVE = "the group has members on this cluster, so it is not moved"
    RESET_BY_HAND = "the group was reset by hand, and is left alone up to its former offset"
    BEYOND_THE_END = "the group's offset is beyond the end of the log"
    BEYOND_WHAT_IS_DECIDED = "the group's offset is beyond the decided end of the log"
    RESET_REFUSED = "the reset was refused: the group has members, or the log has no such offset"
    PUBLISHED_LATELY = "what the group has read is published a moment later"


@dataclass(frozen=True, slots=True)
class Publish:
    """Decision: publish this update of the cluster."""

    update: Update


@dataclass(frozen=True, slots=True)
class Note:
    """Decision: write the state of the group here, durable before the next decision."""

    applied: Applied


@dataclass(frozen=True, slots=True)
class Move:
    """Decision: commit `applied.offset` with the tag `applied.generation`, then write `applied`.

    The group must still be inactive and at `expected` before the commit, and at the new offset
    right afterwards. Otherwise `applied` is not written.
    """

    expected: Offset | None
    applied: Applied


Decision = Publish | Note | Move


class Evaluation(NamedTuple):
    """The result of an evaluation: decisions in the order to carry out, and the standing."""

    decisions: Sequence[Decision]
    standing: Standing


class GroupLag(NamedTuple):
    """The lag of a group on one data partition of this cluster.

    Attributes:
        standing: why the group's position is what it is.
        untold: offsets that the group has passed here and that this cluster has not published.
        untold_ms: time since when there are such offsets; 0: there are none.
    """

    standing: Standing
    untold: int
    untold_ms: int


@dataclass(frozen=True, slots=True)
class Poll:
    """Effect: read, from now on and in this order: groups, log, positions' end; report `polled`.

    The topic id must be the same before and after, since offsets of a former topic mean other
    records.

    Attributes:
        number: number of the poll.
        data: the data partition.
        groups: groups to read in addition to the replicated ones.
    """

    number: int
    data: TopicPartition
    groups: Collection[str]


@dataclass(frozen=True, slots=True)
class ReadRecords:
    """Effect: read the visible records of `[first, end)` of the data partition; report `log_read`.

    Records are read as far as they are decided. If the log start has passed `first`, or the topic
    was replaced, the report holds no records, and its `read_to` is `first`.
    """

    number: int
    first: Offset
    end: EndOffset


@dataclass(frozen=True, slots=True)
class MoveGroup:
    """Effect: commit this offset for a group that has no members; report `moved`.

    The move is done if the topic is still `incarnation`, the group has no members and the offset
    `expected` right before, and has `offset` right afterwards. The commit's metadata gets the
    generation, and keeps the acknowledged offsets above (I11), unless the group adopts the
    generation and does not go forward (I10).

    Attributes:
        group: name of the group.
        data: the data partition.
        incarnation: incarnation of the topic to which the offsets belong.
        expected: offset that the group has committed; None: none.
        offset: offset to commit.
        generation: generation for the commit's metadata.
        adopts: whether the group adopts the generation here: it was reset.
    """

    group: str
    data: TopicPartition
    incarnation: bytes
    expected: Offset | None
    offset: Offset | None
    generation: int
    adopts: bool = False


ControllerEffect = Poll | ReadRecords | MoveGroup | WriteSignal
"""What the driver carries out."""


class ReplicatedGroup:
    """One group on one data partition of this cluster.

    Args:
        here: this cluster.
        by_snapshots: whether positions are carried over by position snapshots (I12).
    """

    def __init__(self, here: ClusterName, *, by_snapshots: bool = False) -> None:
        self._here = here
        self._by_snapshots = by_snapshots
        self.updates: dict[ClusterName, Update] = {}
        self.applied: Applied | None = None
        self.version = 0  # raised by each signal

    def update_read(self, source: ClusterName, update: Update | None) -> None:
        """Takes the newest update of a cluster; None: a tombstone."""
        self.version += 1
        if update is None:
            self.updates.pop(source, None)
        else:
            self.updates[source] = update

    def applied_read(self, applied: Applied | None) -> None:
        """Takes the last `Applied` of this cluster; None: a tombstone."""
        self.version += 1
        self.applied = applied

    @property
    def generation(self) -> int:
        """The highest generation in any signal (I10)."""
        known = [one.generation for one in self.updates.values()]
        return max(*known, self.applied_generation, 0)

    @property
    def applied_generation(self) -> int:
        """The generation that was applied here; a higher one is adopted first."""
        return self.applied.generation if self.applied else 0

    def own(self, topic: bytes) -> Update | None:
        """The update of this cluster, if it has the current generation and this incarnation."""
        own = self.updates.get(self._here)
        return own if own is not None and own[:2] == (self.generation, topic) else None

    def noted(self, topic: bytes) -> Applied | None:
        """The last `Applied` of this cluster, if it has this incarnation."""
        noted = self.applied
        return noted if noted is not None and noted.incarnation == topic else None

    def reached(self, topic: bytes) -> int:
        """The highest offset of this cluster that a signal of it contains; -1: none."""
        return _highest(self.own(topic), self.noted(topic))

    def highest_known(self, topic: bytes) -> int:
        """The highest offset of this cluster that other clusters know, or gave; -1: none.

        With position snapshots an offset is also noted to notice resets by hand (I12).
        """
        noted = self.noted(topic)
        if noted is not None and self._by_snapshots:
            noted = noted._replace(offset=noted.applied_offset)
        return _highest(self.own(topic), noted)

    def left_alone_until(self, topic: bytes, offset: Offset) -> Offset | None:
        """The offset up to which the group is left alone after a reset by hand; None: no reset."""
        return _left_alone_until(self.own(topic), self.noted(topic), offset)

    def read_anywhere(self) -> Claims:
        """J: union of all clusters' claims in the current generation (I7)."""
        generation = self.generation
        current = [one.claims for one in self.updates.values() if one.generation == generation]
        return claims.join(*current)

    def reset(
        self,
        view: LogView,
        indexes: Sequence[OffsetIndex],
        seen: GroupSeen,
        offset: Offset,
        *,
        stop: bool = False,
    ) -> Reading[Evaluation]:
        """Resets the group on all clusters to the records below `offset` here (I10).

        Each cluster, this one too, adopts the new generation once the group is inactive there. With
        `stop` the group may have members, which are removed afterwards (I14).
        """
        if (seen.active and not stop) or not view.log_start <= offset <= view.end:
            return Evaluation([], Standing.RESET_REFUSED)
        read = yield from claims_below(view, indexes, offset)
        topic = view.incarnation.topic
        update = Update(self.generation + 1, topic, offset, claims.limited(read))
        return Evaluation([Publish(update)], Standing.MOVING)

    def evaluate(
        self,
        view: LogView,
        indexes: Sequence[OffsetIndex],
        seen: GroupSeen,
        *,
        may_publish: bool,
        commit_again: bool = False,
    ) -> Reading[Evaluation]:
        """Decides what to write and whether to move the group.

        The index was read past the end that it had after `seen` and `view` were read.

        Args:
            view: offsets of the log.
            indexes: offset index of every link to this cluster.
            seen: the group on this cluster.
            may_publish: whether enough time has passed since the last update.
            commit_again: whether the committed offset would soon expire (I8).
        """
        look = _GroupEvaluation(self, view, indexes, seen)
        look.may_publish, look.commit_again = may_publish, commit_again
        return (yield from look.evaluate())


def _highest(own: Update | None, applied: Applied | None) -> int:
    offsets = [one.offset for one in (own, applied) if one is not None]
    return max((one for one in offsets if one is not None), default=-1)


def _left_alone_until(own: Update | None, applied: Applied | None, offset: Offset) -> Offset | None:
    if applied is not None and applied.until is not None:
        return applied.until if offset < applied.until else None
    reached = _highest(own, applied)
    return Offset(reached) if offset < reached else None


class _GroupEvaluation:
    """One evaluation: the decisions so far, and the state after them."""

    def __init__(
        self,
        group: ReplicatedGroup,
        view: LogView,
        indexes: Sequence[OffsetIndex],
        seen: GroupSeen,
    ) -> None:
        topic = view.incarnation.topic
        self.view = view
        self.indexes = indexes
        self.seen = seen
        self.decisions: list[Decision] = []
        self.updates = group.updates
        self.generation = group.generation
        self.applied_generation = group.applied_generation
        self.adopting = self.applied_generation < self.generation
        self.claimed = group.read_anywhere()
        self.own: Update | None = group.own(topic)
        self.applied: Applied | None = group.noted(topic)
        self.lost = self.applied.lost if self.applied else NO_CLAIMS
        self.own_claims: Claims | None = None  # claims of the committed offset
        self.may_publish = self.commit_again = False

    def evaluate(self) -> Reading[Evaluation]:
        """Applies I10, then I6, then I7."""
        offset = self.seen.offset
        if offset is not None and not self.adopting:
            if offset > self.view.end:
                return self._done(Standing.BEYOND_THE_END)
            if self._set_back(offset):
                return self._done(Standing.RESET_BY_HAND)
            published = yield from self._publish(offset)
            if not published:
                return self._done(Standing.PUBLISHED_LATELY)
        elif offset is None and self.seen.elsewhere and not self.updates:
            self._write_update(None, NO_CLAIMS)
        if self.seen.active:
            return self._done(Standing.ACTIVE)
        if offset is not None and offset > self.view.decided_end:
            return self._done(Standing.BEYOND_WHAT_IS_DECIDED)  # its claims are undecided too
        return (yield from self._apply())

    def _done(self, standing: Standing) -> Evaluation:
        return Evaluation(self.decisions, standing)

    def _note(self, applied: Applied) -> None:
        self.applied = applied
        self.decisions.append(Note(applied))

    def _noted(self, offset: Offset | None) -> Applied:
        """The last `Applied` with the group's present offset; no generation is adopted."""
        if self.applied is None:
            topic = self.view.incarnation.topic
            return Applied(self.applied_generation, topic, offset, None, None, self.lost)
        kept = self.applied.applied_offset if self.applied.applied_offset == offset else None
        return self.applied._replace(offset=offset, applied_offset=kept, lost=self.lost)

    def _reached(self) -> int:
        return _highest(self.own, self.applied)

    def _set_back(self, offset: Offset) -> bool:
        """I10: whether the group is left alone because it was moved back by hand."""
        until = _left_alone_until(self.own, self.applied, offset)
        if until != (self.applied.until if self.applied else None):
            self._note(self._noted(offset)._replace(until=until, applied_offset=None))
        return until is not None

    def _publish(self, offset: Offset) -> Reading[bool]:
        """I6: whether what the group has read here is published, or need not be."""
        came_from_here = self.applied is not None and self.applied.applied_offset == offset
        if came_from_here and not (self.own and self.own.offset == offset):
            return True
        read = yield from claims_below(self.view, self.indexes, offset)
        self.own_claims = claims.minus(read, self.lost)
        if self.updates and claims.within(self.own_claims, self.claimed):
            if offset > self._reached():
                self._note(self._noted(offset))
            return True
        if not self.may_publish:
            return False
        self._write_update(offset, self.own_claims)
        return True

    def _write_update(self, offset: Offset | None, own_claims: Claims) -> None:
        topic = self.view.incarnation.topic
        joined = claims.limited(claims.join(own_claims, self.claimed))
        update = Update(self.generation, topic, offset, joined)
        if update != self.own:  # limits may keep own claims out of what is written
            self.decisions.append(Publish(update))
            self.own = update
            self.claimed = claims.join(self.claimed, joined)
            self.updates = {**self.updates, self.view.incarnation.cluster: update}

    def _apply(self) -> Reading[Evaluation]:
        """I7, I8: decides to which offset the group is moved; I9: notes before what is lost."""
        offset, log_start = self.seen.offset, self.view.log_start
        anew = self.adopting or offset is None
        if not (self.claimed or self.adopting or (offset is None and self.updates)):
            return self._done(Standing.NOTHING_CLAIMED)
        base = log_start if anew or offset is None else Offset(max(offset, log_start))
        to = yield from prefix(self.view, self.indexes, self.claimed, base)
        same = to == offset
        if same and not (self.adopting or self.commit_again or self._tag_is_missing()):
            return self._done(Standing.AT_THE_PREFIX)
        lost = NO_CLAIMS if self.adopting else self.lost
        if anew or offset is None or offset < log_start:
            gone = yield from claims_below(self.view, self.indexes, log_start)
            lost = claims.join(lost, gone)
        lost = claims.widened(claims.minus(lost, self.claimed))
        if claims.minus(lost, self.lost):
            self.lost = claims.widened(claims.join(self.lost, lost))
            self._note(self._noted(self.applied.offset if self.applied else None))
        topic = self.view.incarnation.topic
        self.decisions.append(Move(offset, Applied(self.generation, topic, to, to, None, lost)))
        return self._done(Standing.MOVING)

    def _tag_is_missing(self) -> bool:
        """I11: whether a Subscription could skip records here if the commit had the generation."""
        if self.seen.generation == self.generation or self.own_claims is None:
            return False
        return not claims.within(self.claimed, self.own_claims)


class ResetResult(Enum):
    """How a reset ended."""

    DONE = "the update of the next generation was read back"
    REFUSED = "the group has members, or the log has no such offset"
    OVERTAKEN = "the group has another generation than the reset names"


@dataclass(frozen=True, slots=True)
class Reset:
    """A reset that an operator has asked for: to `offset` here, from `generation` to the next.

    Attributes:
        stop: whether it is carried out although the group has members.
        first_round: number of the first round that began after the reset was asked for.
    """

    offset: Offset
    generation: int
    stop: bool = False
    first_round: int = field(default=0, compare=False)


@dataclass(slots=True)
class GroupBetweenRounds:
    """A group's last poll, its standing, and decisions that are being carried out."""

    name: str
    data: TopicPartition
    here: ClusterName
    state: ReplicatedGroup
    seen: GroupSeen | None = None
    standing: Standing = Standing.NOTHING_CLAIMED
    looked_at: object = None  # the inputs of the last evaluation
    published_ms: int | None = None
    since_ms: int = 0  # when its offset last changed
    untold_since_ms: int | None = None  # since when its offset is above this cluster's signals
    unread: dict[SignalKey, SignalValue] = field(default_factory=dict[SignalKey, SignalValue])
    written_ms: int = 0
    move: Move | None = None  # being carried out
    reset: Reset | None = None  # the last one that was requested
    reset_refused: bool | None = False  # None: the reset waits for its first round

    @property
    def generation(self) -> int:
        """The highest generation of the group in any signal (I10)."""
        return self.state.generation

    def reset_requested(self, reset: Reset) -> None:
        """An operator has asked for this reset."""
        self.reset, self.reset_refused = reset, None

    def result_of(self, reset: Reset) -> ResetResult | None:
        """How a reset has ended, as far as signals say; None: it is under way, or was not asked."""
        if self.generation == reset.generation:
            refused = self.reset == reset and self.reset_refused is True
            return ResetResult.REFUSED if refused else None
        own = self.state.updates.get(self.here)
        if own is not None and own.generation == reset.generation + 1 == self.generation:
            return ResetResult.DONE if own.offset == reset.offset else ResetResult.OVERTAKEN
        return ResetResult.OVERTAKEN

    def untold(self, view: LogView) -> int:
        """How many offsets the group is above the highest in this cluster's signals."""
        offset = self.seen.offset if self.seen else None
        return max(0, (offset or 0) - max(0, self.state.highest_known(view.incarnation.topic)))

    def lag(self, view: LogView, now_ms: int) -> GroupLag:
        """How much of the group's reading is unpublished, as of the last poll."""
        untold, since_ms = self.untold(view), self.untold_since_ms
        untold_ms = now_ms - since_ms if untold and since_ms is not None else 0
        return GroupLag(self.standing, untold, untold_ms)

    def polled(self, seen: GroupSeen, view: LogView, now_ms: int) -> None:
        """Takes the group as it is now, and the log of the same moment."""
        if self.seen is None or self.seen.offset != seen.offset:
            self.since_ms = now_ms
        self.seen = seen
        if not self.untold(view):
            self.untold_since_ms = None
        elif self.untold_since_ms is None:
            self.untold_since_ms = now_ms

    def is_busy(self, now_ms: int, read_back_ms: int) -> bool:
        """Whether decisions are being carried out.

        Another controller may replace a signal before it is read back, so the controller waits for
        a signal for at most `read_back_ms`.
        """
        if self.move is not None:
            return True
        if now_ms >= self.written_ms + read_back_ms:
            self.unread.clear()
        return bool(self.unread)

    def carry_out(self, decision: Decision, now_ms: int) -> ControllerEffect:
        """The effect that carries out a decision; the group is busy from now on."""
        match decision:
            case Publish(update):
                self.published_ms = now_ms
                return self._write(UpdateKey(self.data, self.here, self.name), update, now_ms)
            case Note(applied):
                return self._write(AppliedKey(self.data, self.here, self.name), applied, now_ms)
            case Move(expected, applied):
                self.move = decision
                return MoveGroup(
                    self.name,
                    self.data,
                    applied.incarnation,
                    expected,
                    applied.offset,
                    applied.generation,
                    adopts=applied.generation > self.state.applied_generation,
                )

    def moved(self, now_ms: int, *, done: bool) -> list[ControllerEffect]:
        """The result of `MoveGroup`: writes the `Applied` of a move that was done."""
        if self.move is None:
            return []
        move, self.move = self.move, None
        self.looked_at = None
        self.since_ms = now_ms
        if not done:
            self.standing = Standing.ACTIVE
            return []
        key = AppliedKey(self.data, self.here, self.name)
        return [self._write(key, move.applied, now_ms)]

    def _write(
        self, key: UpdateKey | AppliedKey, value: Update | Applied, now_ms: int
    ) -> WriteSignal:
        self.unread[key] = value
        self.written_ms = now_ms
        return WriteSignal(key, value)

    def read_back(self, key: UpdateKey | AppliedKey, value: SignalValue | None) -> bool:
        """Takes a signal of the group; True when it ends a move of this controller."""
        if key.source == self.here:
            self.untold_since_ms = None  # until the next poll
        unread = self.unread
        if key not in unread or unread[key] != value:
            return False
        del unread[key]
        return isinstance(value, Applied) and value.applied_offset is not None
