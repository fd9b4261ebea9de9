"""Moves a subscription to other positions, and checks positions before anything is changed."""

from collections.abc import Awaitable, Callable, Collection, Container, Mapping, Sequence

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
            topic=data.topic,
            partition=data.partition,
        )


class LogPositions:
    """Looks offsets up in the logs of a cluster.

    Args:
        admin: admin client of the cluster; the caller closes it.
        outages: repeats calls while the cluster is away.
        options: options of the subscription.
    """

    def __init__(self, admin: LogAdmin, outages: OutageGuard, options: SubscriptionOptions) -> None:
        self._admin = admin
        self._outages = outages
        self._options = options

    async def require_in_log(self, data: TopicPartition, offset: Offset) -> None:
        """Checks that an offset lies from the log start to the log end, both included.

        Raises:
            OffsetOutOfRangeError: it does not, or the partition is gone.
            UnavailableError: the cluster stayed away.
        """
        starts = await self._outages.call(lambda: self._admin.start_offsets([data]))
        ends = await self._outages.call(lambda: self._admin.end_offsets([data]))
        start, end = starts.get(data, Offset(0)), ends.get(data, -1)
        if not start <= offset <= end:
            raise OffsetOutOfRangeError(
                f"the log holds offsets {start} to {end}",
                hint="seek to one of these offsets",
                topic=data.topic,
                partition=data.partition,
                offset=offset,
            )

    async def outside(self, positions: Mapping[TopicPartition, Offset]) -> list[OutsideLog]:
        """Those of these positions of the group that their logs do not hold.

        Raises:
            UnavailableError: the cluster stayed away.
        """
        ranges = await self._outages.call(lambda: log_ranges(self._admin, sorted(positions)))
        group = self._options.group
        found = (outside_log(it, group, positions[it], *ranges[it]) for it in ranges)
        return [one for one in found if one is not None]

    def instead(self, outside: Sequence[OutsideLog]) -> dict[TopicPartition, Offset]:
        """The positions at which the group goes on instead of those that no log holds.

        Raises:
            OffsetOutOfRangeError: the group is not to go on by itself (`out_of_range`).
        """
        for one in outside:
            if self._options.out_of_range is OutOfRange.RAISE:
                raise _not_held(one)
            _log.warning("a position lies outside of its log", where=one.text)
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
            lambda: self._admin.start_offsets(partitions, since_ms=timestamp_ms)
        )


class Seeking:
    """Moves assigned partitions of a member to other positions.

    Args:
        logs: looks offsets up.
        intake: reads the partitions.
        commits: commits for the group.
        deliveries: the records that wait to be taken.
        topic_ids: Kafka's ids of the topics that are read, by name.
        tasks: runs what goes on in the background; an error of theirs ends the subscription.
        tail_again: has markers and snapshots of the present partitions read from their starts.
        listener: told that partitions are given up, and assigned again, when they go on elsewhere.
    """

    def __init__(
        self,
        logs: LogPositions,
        intake: Intake,
        commits: GroupCommits,
        deliveries: Deliveries,
        *,
        topic_ids: Mapping[str, bytes],
        tasks: Tasks,
        tail_again: Callable[[], None],
        listener: AssignmentListener | None,
    ) -> None:
        self._logs = logs
        self._intake = intake
        self._commits = commits
        self._deliveries = deliveries
        self._topic_ids = topic_ids
        self._tasks = tasks
        self._tail_again = tail_again
        self._listener = listener
        self.offsets_since = logs.offsets_since

    async def seek(
        self, data: TopicPartition, offset: Offset, about_to: Callable[[], None]
    ) -> None:
        """Moves one partition; see `SubscriptionDriver.seek`."""
        require_assigned(data, self._intake.decided.partitions)
        await self._logs.require_in_log(data, offset)
        require_assigned(data, self._intake.decided.partitions)  # a rebalance may have come
        about_to()
        await self._go_on({data: offset})

    async def read(self, read: Callable[[], Awaitable[None]]) -> None:
        """Reads until cancelled, also over positions that the logs do not hold.

        Raises:
            OffsetOutOfRangeError: the group is not to go on by itself.
            Errors of `read`.
        """
        while True:
            try:
                await read()
            except OffsetOutOfRangeError:
                if not await self.take_up(self._intake.positions.keys()):
                    raise

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
        outside = await self._logs.outside(before)
        # A rebalance, or a seek, may have come meanwhile.
        outside = [it for it in outside if intake.positions.get(it.data) == it.offset]
        commits = self._kept(self._logs.instead(outside))
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
        await self._go_on(positions)
        if self._listener is not None:
            self._listener.assigned(commits)
        return True

    def _kept(self, positions: Mapping[TopicPartition, Offset]) -> dict[TopicPartition, Committed]:
        """The commits that move the group; messages that are acknowledged stay so (G)."""
        listener = self._listener
        if listener is None:
            return {data: Committed(at, "") for data, at in positions.items()}
        return {data: listener.kept(data, at) for data, at in positions.items()}

    async def _go_on(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Goes on reading assigned partitions at these offsets; drops what is buffered of them."""
        intake, deliveries = self._intake, self._deliveries
        committed = {data: intake.reader.committed(data) for data in positions}
        for data in positions:
            deliveries.drop(data)
        opened = deliveries.open(positions, committed)
        self._commits.drop(positions)
        intake.drop(positions)
        intake.add(positions, self._topic_ids)
        self._tail_again()
        if opened:
            self._tasks.start(intake.learn(opened))
        try:
            await intake.move()
        except Exception as error:
            self._tasks.failed(error)  # the reader is not where the buffers say
            raise


def _not_held(one: OutsideLog) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"the position of group {one.group} lies {one.where} of the log",
        detail=f"the log holds offsets {one.start} to {one.end}",
        hint=(
            f"stop the group's consumers and move the group: `{one.command()}`; or make the"
            ' subscription with `out_of_range="earliest"` or `"latest"`'
        ),
        topic=one.data.topic,
        partition=one.data.partition,
        offset=one.offset,
    )
