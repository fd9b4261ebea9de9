"""Positions carried over by position snapshots, as in Pulsar: for links without `origin` headers.

*Source*: docs/protocols I5, I12. *Invariants*: a position comes from a position snapshot that the
group has passed on another cluster; a group is moved forward only, and only while inactive. Records
between two position snapshots are read again.
"""

from stilltide.pipeline.core.groups.frontier import LogView, Reading
from stilltide.pipeline.core.groups.group import (
    Decision,
    Evaluation,
    GroupSeen,
    Move,
    Publish,
    ReplicatedGroup,
    Standing,
)
from stilltide.pipeline.core.groups.position_snapshot_cache import passed
from stilltide.pipeline.core.offset_index.claims import NO_CLAIMS
from stilltide.schemas.replication.signals import Applied, PositionSnapshots, Update
from stilltide.schemas.values import EndOffset, Offset


def evaluate_by_snapshots(
    group: ReplicatedGroup, view: LogView, snapshots: PositionSnapshots | None, seen: GroupSeen
) -> Reading[Evaluation]:
    """Decides as `ReplicatedGroup.evaluate` does, but reads no records of the log."""
    yield from ()
    decisions: list[Decision] = []
    here, topic = view.incarnation
    if seen.offset is not None and snapshots is not None and snapshots.incarnation == topic:
        snapshot = passed(snapshots.snapshots, EndOffset(seen.offset))
        own = group.updates.get(here)
        if snapshot is not None and (own is None or own.snapshot_id != snapshot.id):
            update = Update(0, topic, seen.offset, NO_CLAIMS, snapshot.positions, snapshot.id)
            decisions.append(Publish(update))
    if seen.active:
        return Evaluation(decisions, Standing.ACTIVE)
    told = [
        position.end_offset
        for source, update in group.updates.items()
        for position in update.positions
        if source != here and position.incarnation == view.incarnation
    ]
    to = max((one for one in told if one <= view.end), default=None)
    if to is None:
        return Evaluation(decisions, Standing.NOTHING_CLAIMED)
    to = Offset(max(to, view.log_start))
    if seen.offset is not None and to <= seen.offset:
        return Evaluation(decisions, Standing.AT_THE_PREFIX)
    decisions.append(Move(seen.offset, Applied(0, topic, to, to, None, NO_CLAIMS)))
    return Evaluation(decisions, Standing.MOVING)
