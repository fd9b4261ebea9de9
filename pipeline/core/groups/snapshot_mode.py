"""Positions carried over by position snapshots, as in Pulsar: for links without `origin` headers.

*Source*: docs/protocols I5, I10, I12. *Invariants*: a position comes from a position snapshot that
the group has passed on another cluster; a group is moved forward only, and only while inactive; a
group that was reset by hand is left alone up to its former offset. Records between two position
snapshots are read again.
"""

from stilltide.pipeline.core.groups.frontier import LogView, Reading
from stilltide.pipeline.core.groups.group import (
    Decision,
    Evaluation,
    GroupSeen,
    Move,
    Note,
    Publish,
    ReplicatedGroup,
    Standing,
)
from stilltide.pipeline.core.groups.position_snapshots import passed
from stilltide.pipeline.core.offset_index.claims import NO_CLAIMS
from stilltide.schemas.replication.signals import Applied, PositionSnapshots, Update
from stilltide.schemas.values import EndOffset, Offset


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
    told = [
        position.end_offset
        for source, update in group.updates.items()
        for position in update.positions
        if source != view.incarnation.cluster and position.incarnation == view.incarnation
    ]
    to = max((one for one in told if one <= view.end), default=None)
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
