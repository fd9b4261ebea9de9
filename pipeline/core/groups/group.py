"""A consumer group on one data partition: what it has read anywhere, and where it stands here.

*Source*: docs/protocols I6-I11.
*Invariants*:
- I6 What the group did here is published before anything that others did is applied; what was lost
  by a clamp (I9), or applied and not read here, is never claimed.
- I8 Never ahead: a group is moved to the end of a prefix of the log that is claimed, forward only.
- I10 After a reset by hand the group is left alone until it has itself passed where it was; a
  higher generation is the only thing that moves it back.

All state is that of the signals as they are read; what an evaluation decides is written, and the
next evaluation waits until it was read back. So a second controller, or a lost write, changes what
is decided next, never what it is based on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from stilltide.pipeline.core.groups.frontier import LogView, Reading, claims_below, prefix
from stilltide.pipeline.core.offset_index import claims
from stilltide.pipeline.core.offset_index.claims import NO_CLAIMS
from stilltide.pipeline.core.offset_index.index import OffsetIndex
from stilltide.schemas.replication.origins import Claims
from stilltide.schemas.replication.signals import Applied, Update
from stilltide.schemas.values import ClusterName, Offset


class GroupSeen(NamedTuple):
    """A group on this cluster at one moment.

    Attributes:
        offset: committed for the data partition; None: nothing.
        generation: what the commit's metadata says (I11); None: nothing.
        active: the group has members, so its offsets cannot be moved.
        elsewhere: it has committed for some partition of the topic.
    """

    offset: Offset | None
    generation: int | None = None
    active: bool = False
    elsewhere: bool = False


class Standing(StrEnum):
    """Why a group is where it is: the answer to "why does it not advance?"."""

    AT_THE_PREFIX = "it stands at the end of what was read"
    NOTHING_CLAIMED = "no cluster has said that it read anything"
    MOVING = "it is being moved"
    ACTIVE = "it has members here, so it is not moved"
    RESET_BY_HAND = "it was set back by hand, and is left alone until it has passed that offset"
    BEYOND_THE_END = "its offset lies beyond the end of the log"
    BEYOND_WHAT_IS_DECIDED = "it has read what is not decided yet"
    RESET_REFUSED = "it was not set back: it has members here, or the log has no such offset"
    PUBLISHED_LATELY = "what it read is published a moment later"


@dataclass(frozen=True, slots=True)
class Publish:
    """Write an update of this cluster."""

    update: Update


@dataclass(frozen=True, slots=True)
class Note:
    """Write what is known of the group here; durable before whatever follows."""

    applied: Applied


@dataclass(frozen=True, slots=True)
class Move:
    """Move the group here to `applied.offset` and tag it with `applied.generation`; then note that.

    Only if it is still inactive and at `expected`; also right afterwards it must be where it was
    moved to. Otherwise nothing is noted.
    """

    expected: Offset | None
    applied: Applied


Decision = Publish | Note | Move


class Evaluation(NamedTuple):
    """What follows from a look at a group; decisions in their order."""

    decisions: Sequence[Decision]
    standing: Standing


class ReplicatedGroup:
    """One group on one data partition of this cluster.

    Args:
        here: this cluster.
    """

    def __init__(self, here: ClusterName) -> None:
        self._here = here
        self.updates: dict[ClusterName, Update] = {}
        self.applied: Applied | None = None
        self.version = 0  # of the signals read

    def update_read(self, source: ClusterName, update: Update | None) -> None:
        """The newest update of a cluster; None: a tombstone."""
        self.version += 1
        if update is None:
            self.updates.pop(source, None)
        else:
            self.updates[source] = update

    def applied_read(self, applied: Applied | None) -> None:
        """What was last done here; None: a tombstone."""
        self.version += 1
        self.applied = applied

    @property
    def generation(self) -> int:
        """The highest that anybody knows of (I10)."""
        known = [one.generation for one in self.updates.values()]
        return max(*known, self.applied_generation, 0)

    @property
    def applied_generation(self) -> int:
        """The one that was applied here; another one is adopted first."""
        return self.applied.generation if self.applied else 0

    def own(self, topic: bytes) -> Update | None:
        """The update of this cluster, if it is of this generation and incarnation."""
        own = self.updates.get(self._here)
        return own if own is not None and own[:2] == (self.generation, topic) else None

    def noted(self, topic: bytes) -> Applied | None:
        """What was last done here with this incarnation."""
        noted = self.applied
        return noted if noted is not None and noted.incarnation == topic else None

    def reached(self, topic: bytes) -> int:
        """The highest offset here that a signal names; -1: none."""
        return _highest(self.own(topic), self.noted(topic))

    def read_anywhere(self) -> Claims:
        """J: what the group has read according to the newest updates of its generation."""
        generation = self.generation
        current = [one.claims for one in self.updates.values() if one.generation == generation]
        return claims.join(*current)

    def reset(
        self, view: LogView, indexes: Sequence[OffsetIndex], seen: GroupSeen, offset: Offset
    ) -> Reading[Evaluation]:
        """Sets the group back everywhere to what lies below `offset` here (I10).

        Each cluster adopts it once the group is inactive there; this one, too.
        """
        if seen.active or not view.log_start <= offset <= view.end:
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
        """Decides what to write and whether to move.

        The index was read past the end that it had after `seen` and `view` were read.

        Args:
            view: the log.
            indexes: of every link to this cluster.
            seen: the group.
            may_publish: enough time has passed since the last update.
            commit_again: its offset would soon expire if it stays where it is (I8).
        """
        look = _Look(self, view, indexes, seen)
        look.may_publish, look.commit_again = may_publish, commit_again
        return (yield from look.evaluate())


def _highest(own: Update | None, applied: Applied | None) -> int:
    told = [one.offset for one in (own, applied) if one is not None]
    return max((one for one in told if one is not None), default=-1)


class _Look:
    """One evaluation: decisions so far, and what they leave of the state."""

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
        self.own_claims: Claims | None = None  # of the committed offset
        self.may_publish = self.commit_again = False

    def evaluate(self) -> Reading[Evaluation]:
        """I10, then I6, then I7."""
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
            return self._done(Standing.BEYOND_WHAT_IS_DECIDED)  # nor is what it claims
        return (yield from self._apply())

    def _done(self, standing: Standing) -> Evaluation:
        return Evaluation(self.decisions, standing)

    def _note(self, applied: Applied) -> None:
        self.applied = applied
        self.decisions.append(Note(applied))

    def _noted(self, offset: Offset | None) -> Applied:
        """What is known of the group, with its offset as it is now; no generation is adopted."""
        if self.applied is None:
            topic = self.view.incarnation.topic
            return Applied(self.applied_generation, topic, offset, None, None, self.lost)
        kept = self.applied.applied_offset if self.applied.applied_offset == offset else None
        return self.applied._replace(offset=offset, applied_offset=kept, lost=self.lost)

    def _reached(self) -> int:
        return _highest(self.own, self.applied)

    def _set_back(self, offset: Offset) -> bool:
        """I10: whether the group is to be left alone since somebody moved it back."""
        until = self.applied.until if self.applied else None
        if until is None:
            reached = self._reached()
            if offset >= reached:
                return False
            self._note(self._noted(offset)._replace(until=Offset(reached), applied_offset=None))
            return True
        if offset < until:
            return True
        self._note(self._noted(offset)._replace(until=None, applied_offset=None))
        return False

    def _publish(self, offset: Offset) -> Reading[bool]:
        """I6: whether what the group did here is published, or need not be."""
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
        """I7-I9: where the group belongs, and what it takes to get it there."""
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
        """I11: whether a Subscription would read again here what it could skip."""
        if self.seen.generation == self.generation or self.own_claims is None:
            return False
        return not claims.within(self.claimed, self.own_claims)
