"""The decisions about a group (I6, I7, I8, I9, I10, I11, I12)."""

from collections.abc import Sequence

import pytest

from stilltide.pipeline.core.groups.controller import evaluate_by_snapshots
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
from stilltide.pipeline.core.offset_index import intervals
from stilltide.schemas.replication.origins import Claims, Incarnation
from stilltide.schemas.replication.signals import (
    Applied,
    Position,
    PositionSnapshot,
    PositionSnapshots,
    Update,
)
from stilltide.schemas.values import ClusterName, EndOffset, Offset
from tests.support.links.log import HERE, FilledLog

X, OTHER = ClusterName("x"), ClusterName("y")
ON_X = Incarnation(X, b"%08d" % 0)


def applied(offset: int | None, **changes: object) -> Applied:
    """What was done here."""
    at = None if offset is None else Offset(offset)
    return Applied(0, HERE.topic, at, None, None, {})._replace(**changes)


def moved(expected: int | None, to: int, lost: Claims | None = None, generation: int = 0) -> Move:
    """A move, and what is noted then."""
    at = Offset(to)
    return Move(
        None if expected is None else Offset(expected),
        Applied(generation, HERE.topic, at, at, None, lost or {}),
    )


def update(claimed: Claims, generation: int = 0, offset: int | None = 0) -> Update:
    """Of whatever cluster."""
    at = None if offset is None else Offset(offset)
    return Update(generation, HERE.topic, at, claimed)


class Rig:
    """A group over a log of copies of `x`: one control record, two copies, one local record."""

    def __init__(self) -> None:
        self.log = FilledLog(1)
        self.log.write_nothing(1)
        self.log.copy(0, [0, 0])
        self.log.write_local(1)  # 4, behind the copies and their control record
        self.group = ReplicatedGroup(HERE.cluster)

    def others(self, *claimed: Claims, generation: int = 0):
        """Updates of other clusters."""
        for number, one in enumerate(claimed):
            self.group.update_read(ClusterName(f"y{number}"), update(one, generation))

    def look(self, offset: int | None, **seen: object) -> tuple[Sequence[Decision], Standing]:
        """An evaluation, with decisions carried out and read back."""
        at = None if offset is None else Offset(offset)
        found = self.log.run(
            self.group.evaluate(
                self.log.view,
                self.log.indexes,
                GroupSeen(at)._replace(**{k: v for k, v in seen.items() if k in GroupSeen._fields}),
                may_publish=bool(seen.get("may_publish", True)),
                commit_again=bool(seen.get("commit_again")),
            )
        )
        for decision in found.decisions:
            if isinstance(decision, Publish):
                self.group.update_read(HERE.cluster, decision.update)
            else:
                self.group.applied_read(decision.applied)
        return found


READ_BY_X: Claims = {ON_X: intervals.below(1)}


def test_what_a_group_did_here_is_published_first():
    """I6: own claims joined with those received; then it is moved on."""
    rig = Rig()
    rig.others({HERE: intervals.interval(4, 5)})
    joined: Claims = {HERE: (*intervals.below(2), *intervals.interval(4, 5)), **READ_BY_X}
    decisions, standing = rig.look(2, generation=0)
    assert decisions == [Publish(update(joined, offset=2))]
    assert standing is Standing.AT_THE_PREFIX
    rig.others({ON_X: intervals.below(2)})
    assert rig.look(2) == ([moved(2, 5)], Standing.MOVING)
    assert rig.look(5, generation=0) == ([], Standing.AT_THE_PREFIX)


def test_nothing_is_said_twice():
    """I6: an update that says what is known already is not written; a note says that it moved."""
    rig = Rig()
    rig.others({HERE: intervals.below(5), ON_X: intervals.below(2)})
    assert rig.look(3, active=True) == ([Note(applied(3))], Standing.ACTIVE)
    assert rig.look(3, active=True) == ([], Standing.ACTIVE)


def test_what_was_applied_is_not_claimed():
    """I6: records read on another cluster are published there, not here."""
    rig = Rig()
    rig.group.applied_read(applied(3, applied_offset=Offset(3)))
    assert rig.look(3, active=True) == ([], Standing.ACTIVE)
    decisions, _ = rig.look(4, active=True)
    assert [type(one) for one in decisions] == [Publish]


def test_a_group_with_members_is_published_and_not_moved():
    """I7: Kafka refuses to change the offsets of a group with members."""
    rig = Rig()
    rig.others({HERE: intervals.below(5), ON_X: intervals.below(2)})
    assert rig.look(None, active=True) == ([], Standing.ACTIVE)
    assert rig.look(None) == ([moved(None, 5)], Standing.MOVING)


def test_updates_of_a_busy_group_wait_a_moment():
    """I6: and nothing is applied before they are written."""
    rig = Rig()
    assert rig.look(2, may_publish=False) == ([], Standing.PUBLISHED_LATELY)


def test_a_group_that_another_partition_knows_gets_an_update_here():
    """I6: the update without offset makes every cluster create the group on all partitions."""
    rig = Rig()
    assert rig.look(None) == ([], Standing.NOTHING_CLAIMED)
    decisions, _ = rig.look(None, elsewhere=True)
    assert decisions == [Publish(update({}, offset=None)), moved(None, 1)]


def test_what_left_the_log_unread_is_never_claimed():
    """I9: noted before the move, and kept out of what the group claims from then on."""
    rig = Rig()
    rig.log.trim(3)
    rig.group.applied_read(applied(1))
    rig.others({HERE: intervals.below(1)})
    lost: Claims = {HERE: intervals.interval(1, 3), ON_X: intervals.below(2)}
    decisions, _ = rig.look(1)
    assert decisions == [Note(applied(1, lost=lost)), moved(1, 4, lost=lost)]
    decisions, _ = rig.look(5)
    held = intervals.union(intervals.below(1), intervals.interval(3, 5))
    assert decisions == [Publish(update({HERE: held}, offset=5))]
    rig.others({HERE: intervals.below(5), ON_X: intervals.below(2)})
    rig.log.write_local(1)
    rig.others({HERE: intervals.below(6), ON_X: intervals.below(2)})
    assert rig.look(5)[0] == [moved(5, 6)], "somebody has read it after all"


def test_a_group_set_back_by_hand_is_left_alone():
    """I10: no claim, no move, until it has passed where it was; then it goes on."""
    rig = Rig()
    rig.others({HERE: intervals.below(5), ON_X: intervals.below(2)})
    rig.group.applied_read(applied(4))
    held = applied(1, until=Offset(4))
    assert rig.look(1) == ([Note(held)], Standing.RESET_BY_HAND)
    assert rig.look(2) == ([], Standing.RESET_BY_HAND)
    decisions, standing = rig.look(4)
    assert decisions == [Note(applied(4)), moved(4, 5)]
    assert standing is Standing.MOVING


def test_a_reset_is_replicated_as_a_command():
    """I10: a higher generation replaces the lower ones, and is the only thing that moves back."""
    rig = Rig()
    rig.look(4)
    reset = rig.group.reset(rig.log.view, rig.log.indexes, GroupSeen(Offset(4)), Offset(1))
    (publish,), standing = rig.log.run(reset)
    assert publish == Publish(update({HERE: intervals.below(1)}, generation=1, offset=1))
    assert standing is Standing.MOVING
    rig.group.update_read(HERE.cluster, publish.update)
    assert rig.look(4, active=True) == ([], Standing.ACTIVE), "and it claims nothing meanwhile"
    assert rig.look(4)[0] == [moved(4, 1, generation=1)]
    assert rig.look(1, generation=1) == ([], Standing.AT_THE_PREFIX)


@pytest.mark.parametrize(("offset", "active"), [(6, False), (-1, False), (1, True)])
def test_a_reset_that_cannot_be_is_refused(offset: int, *, active: bool):
    """I10: a group with members, an offset that the log does not have."""
    rig = Rig()
    rig.log.trim(0 if offset >= 0 else 1)
    seen = GroupSeen(Offset(4), active=active)
    reset = rig.group.reset(rig.log.view, rig.log.indexes, seen, Offset(max(0, offset)))
    assert rig.log.run(reset) == ([], Standing.RESET_REFUSED)


def test_a_tag_that_was_wiped_comes_back():
    """I11: but only when a Subscription would else read again what it could skip."""
    rig = Rig()
    rig.look(2, active=True)
    assert rig.look(2) == ([], Standing.AT_THE_PREFIX)
    rig.others({HERE: intervals.interval(4, 5)})
    assert rig.look(2)[0] == [moved(2, 2)]
    assert rig.look(2, generation=0)[0] == []


def test_an_idle_position_is_committed_again():
    """I8: an idle position is committed again before Kafka's offset retention ends."""
    rig = Rig()
    rig.look(2, active=True)
    assert rig.look(2, commit_again=True) == ([moved(2, 2)], Standing.MOVING)


def test_what_is_not_decided_holds_a_group_up():
    """I8: a group beyond the decided end is neither published nor moved."""
    rig = Rig()
    rig.log.decided = 2
    assert rig.look(3)[1] is Standing.BEYOND_WHAT_IS_DECIDED
    assert rig.look(9) == ([], Standing.BEYOND_THE_END)


def test_claims_that_do_not_fit_are_not_written_over_and_over():
    """I: what is limited says less; saying it again changes nothing."""
    rig = Rig()
    holes = intervals.union(*(intervals.interval(2 * n, 2 * n + 1) for n in range(5, 30)))
    rig.others({HERE: holes})
    assert [type(one) for one in rig.look(2, active=True)[0]] == [Publish]
    rig.group.update_read(ClusterName("y0"), None)
    assert rig.look(2, active=True) == ([], Standing.ACTIVE)


def test_claims_of_a_former_topic_stay_as_they_are():
    """I10, H6: an offset of another incarnation is no progress of this one."""
    rig = Rig()
    former = applied(99, incarnation=b"former--", until=Offset(99))
    rig.group.applied_read(former)
    decisions, _ = rig.look(2, active=True)
    assert [type(one) for one in decisions] == [Publish]


def snapshots(*ends: int) -> PositionSnapshots:
    """Of this cluster; `x` was 10 further."""
    return PositionSnapshots(
        HERE.topic,
        EndOffset(0),
        tuple(
            PositionSnapshot(
                end.to_bytes(16), EndOffset(end), (Position(ON_X, EndOffset(end + 10)),), 0, 0
            )
            for end in ends
        ),
    )


class SnapshotRig(Rig):
    """A group whose positions are carried over by position snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.group = ReplicatedGroup(HERE.cluster, by_snapshots=True)

    def see(
        self, offset: int | None, held: PositionSnapshots | None = None, *, active: bool = False
    ) -> Evaluation:
        """An evaluation whose decisions are not carried out."""
        at = None if offset is None else Offset(offset)
        seen = GroupSeen(at, active=active)
        return self.log.run(evaluate_by_snapshots(self.group, self.log.view, held, seen))


def test_a_passed_snapshot_is_published_and_applied_forward_only():
    """I12: a group is moved forward to a position snapshot that it has passed elsewhere."""
    rig = SnapshotRig()
    look = rig.see
    newest = Update(
        0, HERE.topic, Offset(3), {}, (Position(ON_X, EndOffset(13)),), bytes(15) + b"\3"
    )
    assert look(3, snapshots(1, 3, 4)) == ([Publish(newest)], Standing.NOTHING_CLAIMED)
    rig.group.update_read(HERE.cluster, newest)
    assert look(3, snapshots(1, 3, 4), active=True) == ([], Standing.ACTIVE)
    told = Update(0, ON_X.topic, Offset(9), {}, (Position(HERE, EndOffset(4)),), b"s" * 16)
    rig.group.update_read(X, told)
    assert look(3)[0] == [moved(3, 4)]
    assert look(None)[0] == [moved(None, 4)]
    assert look(4) == ([Note(applied(4))], Standing.AT_THE_PREFIX)
    rig.group.applied_read(applied(4))
    assert look(4) == ([], Standing.AT_THE_PREFIX)
    rig.group.update_read(X, told._replace(positions=(Position(HERE, EndOffset(9)),)))
    assert look(4) == ([], Standing.NOTHING_CLAIMED), "a position beyond the end of the log"


def test_a_reset_by_hand_is_respected_with_snapshots():
    """I10, I12: the group is left alone up to its former offset, and noted offsets are not told."""
    rig = SnapshotRig()
    rig.group.update_read(
        X, Update(0, ON_X.topic, Offset(9), {}, (Position(HERE, EndOffset(4)),), b"s" * 16)
    )
    rig.group.applied_read(applied(5))
    assert rig.group.highest_known(HERE.topic) == -1
    reset = applied(1, until=5)
    assert rig.see(1, snapshots(1)) == ([Note(reset)], Standing.RESET_BY_HAND)
    rig.group.applied_read(reset)
    for offset in (1, 3, 4):
        assert rig.see(offset, snapshots(1)) == ([], Standing.RESET_BY_HAND)
    assert rig.see(5) == ([Note(applied(5))], Standing.AT_THE_PREFIX)
