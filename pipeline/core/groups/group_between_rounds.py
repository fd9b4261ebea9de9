"""The controller's state of a group from one round to the next.

*Source*: docs/protocols I8, I9, I14 (results of resets).
*Invariants*: a group is busy from a decision until the signal of that decision was read back, or
was replaced by another one.
"""

from dataclasses import dataclass, field
from enum import Enum

from stilltide.pipeline.core.groups.controller_effects import ControllerEffect, MoveGroup
from stilltide.pipeline.core.groups.frontier import LogView
from stilltide.pipeline.core.groups.group import (
    Decision,
    GroupSeen,
    Move,
    Note,
    Publish,
    ReplicatedGroup,
    Standing,
)
from stilltide.pipeline.core.groups.lag import GroupLag
from stilltide.pipeline.core.groups.position_snapshot_effects import WriteSignal
from stilltide.schemas.replication.signals import (
    Applied,
    AppliedKey,
    SignalKey,
    SignalValue,
    Update,
    UpdateKey,
)
from stilltide.schemas.values import ClusterName, Offset, TopicPartition


class ResetResult(Enum):
    """How a reset ended."""

    DONE = "the update of the next generation was read back"
    REFUSED = "the group has members, or the log has no such offset"
    OVERTAKEN = "the group has another generation than the reset names"


@dataclass(frozen=True, slots=True)
class Reset:
    """A reset that an operator has asked for: to `offset` here, from `generation` to the next.

    With `stop` it is carried out although the group has members.
    """

    offset: Offset
    generation: int
    stop: bool = False


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
    reset_refused: bool | None = False  # None: the reset waits for the next round

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
        return max(0, (offset or 0) - max(0, self.state.told(view.incarnation.topic)))

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
