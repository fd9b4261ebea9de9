"""Begins to read assigned partitions of a member, and moves the member to other positions.

*Source*: docs/protocols G Seeking, G4 (a position that the log does not hold).

*Invariants*: positions are checked before anything is changed.
"""

import asyncio
from collections.abc import Collection, Container, Mapping, Sequence

from stilltide.connectors.errors import FencedError, OffsetOutOfRangeError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.core.outside_log import OutsideLog, outside_log
from stilltide.pipeline.drivers.groups.outside import log_ranges
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.tasks import Tasks
from stilltide.pipeline.drivers.subscription.commits import GroupCommits
from stilltide.pipeline.drivers.subscription.deliveries import Deliveries
from stilltide.pipeline.drivers.subscription.intake import Intake
from stilltide.pipeline.drivers.subscription.options import (
    AssignmentListener,
    OutOfRange,
    SubscriptionOptions,
)
from stilltide.pipeline.drivers.subscription.topics import SubscribedTopics
from stilltide.pipeline.errors import NotAssignedError
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.values import Offset, TopicPartition

_log = get_logger(__name__)


def require_assigned(data: TopicPartition, assigned: Container[TopicPartition]) -> None:
    """Raises `NotAssignedError` for a partition that this member does not read."""
    if data not in assigned:
        raise NotAssignedError(
            "the partition is not assigned to this member",
            detail="only the member that reads a partition can move in it",
            hint="wait until `position` of the partition is not None, or ask another member",
            data=data,
        )


class Seeking:
    """Moves assigned partitions of a member to other positions.

    Args:
        admin: admin client of the cluster; the caller closes it.
        options: options of the subscription.
        topics: the topics that are read.
        intake: reads the partitions.
        commits: commits for the group.
        deliveries: the records that wait to be taken.
        tasks: runs what goes on in the background; an error of theirs ends the subscription.
        outages: repeats calls while the cluster is away.
        listener: told that partitions are given up, and assigned again, when they go on elsewhere.
    """

    def __init__(
        self,
        admin: LogAdmin,
        options: SubscriptionOptions,
        topics: SubscribedTopics,
        intake: Intake,
        commits: GroupCommits,
        *,
        deliveries: Deliveries,
        tasks: Tasks,
        outages: OutageGuard,
        listener: AssignmentListener | None,
    ) -> None:
        self._admin = admin
        self._options = options
        self._topics = topics
        self._intake = intake
        self._commits = commits
        self._deliveries = deliveries
        self._tasks = tasks
        self._outages = outages
        self._listener = listener
        self._tailing: asyncio.Task[None] | None = None

    async def check(self, data: TopicPartition, offset: Offset) -> None:
        """Whether a partition can be moved to an offset; raises as `SubscriptionDriver.seek`."""
        require_assigned(data, self._intake.decided.partitions)
        await self._require_in_log(data, offset)
        require_assigned(data, self._intake.decided.partitions)  # a rebalance may have come

    async def take_up(self, partitions: Collection[TopicPartition]) -> bool:
        """Has those of the partitions of which the log does not hold the position go on elsewhere.

        The new positions are committed first: a member that takes over would else go on at the end
        of that time. Returns whether there were such partitions.

        Raises:
            OffsetOutOfRangeError: the group is not to go on by itself (`out_of_range`).
            UnavailableError: the cluster stayed away.
        """
        intake = self._intake
        before = {it: at for it, at in intake.positions.items() if it in partitions}
        outside = await self._outside(before)
        # A rebalance, or a seek, may have come meanwhile.
        outside = [it for it in outside if intake.positions.get(it.data) == it.offset]
        commits = self._kept(self._instead(outside))
        if not commits:
            return False
        positions = {data: at for data, (at, _) in commits.items()}
        metadata = {data: it.metadata for data, it in commits.items()}
        try:
            await self._commits.commit_cursors(positions, metadata)
        except FencedError:
            return True  # another assignment follows
        if any(intake.positions.get(it.data) != it.offset for it in outside):
            return True  # as above
        if self._listener is not None:
            self._listener.revoked(list(positions))
        await self.go_on(positions)
        if self._listener is not None:
            self._listener.assigned(commits)
        return True

    def begin(
        self, positions: Mapping[TopicPartition, Offset]
    ) -> Mapping[TopicPartition, Committed | None]:
        """Begins to decide these partitions, from these positions on; returns their commits."""
        intake, ids = self._intake, self._topics.ids
        committed = {data: intake.reader.committed(data) for data in positions}
        opened = self._deliveries.open(positions, committed)
        intake.add(positions, ids)
        self.tail_again()
        if opened:
            self._tasks.start(intake.learn(opened, ids))
        return committed

    def tail_again(self) -> None:
        """Reads the snapshots of the present partitions from their start, then their markers (D5).

        Does not wait for the old readers' end.
        """
        if self._tailing is not None:
            self._tailing.cancel()
        self._tailing = self._tasks.start(self._intake.decided.run())
        self._deliveries.changes.wake()

    def _kept(self, positions: Mapping[TopicPartition, Offset]) -> dict[TopicPartition, Committed]:
        """The commits that move the group; messages that are acknowledged stay so (G)."""
        listener = self._listener
        if listener is None:
            return {data: Committed(at, "") for data, at in positions.items()}
        return {data: listener.kept(data, at) for data, at in positions.items()}

    async def go_on(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Goes on reading assigned partitions at these offsets; drops what is buffered of them."""
        for data in positions:
            self._deliveries.drop(data)
        self._commits.drop(positions)
        self._intake.drop(positions)
        self.begin(positions)
        try:
            await self._intake.move()
        except Exception as error:
            self._tasks.failed(error)  # the reader is not where the buffers say
            raise

    async def _require_in_log(self, data: TopicPartition, offset: Offset) -> None:
        """Checks that an offset lies from the log start to the log end, both included.

        Raises:
            OffsetOutOfRangeError: it does not, or the partition is gone.
            UnavailableError: the cluster stayed away.
        """
        starts = await self._outages.call(self._admin.start_offsets, [data])
        ends = await self._outages.call(self._admin.end_offsets, [data])
        start, end = starts.get(data, Offset(0)), ends.get(data, -1)
        if not start <= offset <= end:
            raise OffsetOutOfRangeError(
                f"the log holds offsets {start} to {end}",
                hint="seek to one of these offsets",
                data=data,
                offset=offset,
            )

    async def _outside(self, positions: Mapping[TopicPartition, Offset]) -> list[OutsideLog]:
        """Those of these positions of the group that their logs do not hold.

        Raises:
            UnavailableError: the cluster stayed away.
        """
        ranges = await self._outages.call(log_ranges, self._admin, sorted(positions))
        group = self._options.group
        logs = (outside_log(it, group, positions[it], *ranges[it]) for it in ranges)
        return [one for one in logs if one is not None]

    def _instead(self, outside: Sequence[OutsideLog]) -> dict[TopicPartition, Offset]:
        """The positions at which the group goes on instead of those that no log holds.

        Raises:
            OffsetOutOfRangeError: the group is not to go on by itself (`out_of_range`).
        """
        for log in outside:
            if self._options.out_of_range is OutOfRange.RAISE:
                raise _not_held(log)
            _log.warning("a position lies outside of its log", where=log.text)
        at_start = self._options.out_of_range is OutOfRange.EARLIEST
        return {one.data: one.start if at_start else Offset(one.end) for one in outside}

    async def offsets_since(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, Offset]:
        """The first offsets of records that are not older than a time, else the log ends.

        Raises:
            UnavailableError: the cluster stayed away.
        """
        return await self._outages.call(
            self._admin.start_offsets, partitions, since_ms=timestamp_ms
        )


def _not_held(log: OutsideLog) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"the position of group {log.group} lies {log.where} of the log",
        detail=f"the log holds offsets {log.start} to {log.end}",
        hint=(
            f"stop the group's consumers and move the group: `{log.command()}`; or make the"
            ' subscription with `out_of_range="earliest"` or `"latest"`'
        ),
        data=log.data,
        offset=log.offset,
    )
