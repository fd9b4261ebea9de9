"""Runs a read-committed subscription: reads data, markers and snapshots, returns visible records.

*Source*: docs/protocols C13, D8, G Seeking, G4 (a position that the log does not hold); D1, D2, D3,
D4, D7 (rules in `core.read_committed`).

*Invariants*:
- No record of a partition is handed out after `revoked`.
- A committed position never passes a record that the application has not taken.
- Any failure stops the whole subscription and is raised from the next call.
- Positions are checked before a member is moved to them.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Container, Mapping, Sequence
from typing import NamedTuple

from stilltide.connectors.errors import FatalError, FencedError, OffsetOutOfRangeError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Committed, GroupReader, Record
from stilltide.pipeline.core.outside_log import OutsideLog, outside_log
from stilltide.pipeline.core.read_committed.machine import Statistics
from stilltide.pipeline.drivers.groups.outside import log_ranges
from stilltide.pipeline.drivers.read_committed.decided import Blocked, SnapshotAsker
from stilltide.pipeline.drivers.read_committed.outcome_tails import OutcomeLogs
from stilltide.pipeline.drivers.shared.named_partitions import require_topics
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.tasks import Tasks
from stilltide.pipeline.drivers.subscription.commits import GroupCommits
from stilltide.pipeline.drivers.subscription.deliveries import Changes, Deliveries
from stilltide.pipeline.drivers.subscription.intake import Intake
from stilltide.pipeline.drivers.subscription.options import (
    AssignmentListener,
    OutOfRange,
    SubscriptionOptions,
)
from stilltide.pipeline.drivers.subscription.topics import SubscribedTopics
from stilltide.pipeline.errors import NotAssignedError
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.topics import REPLICATION_MARKERS, TXN_MARKERS, TXN_SNAPSHOTS
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

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
        self._commits.sought(positions)
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


_SYSTEM_TOPICS = (TXN_MARKERS, TXN_SNAPSHOTS)


class Identity(NamedTuple):
    """Who reads, and where.

    Attributes:
        cluster_id: Kafka's id of the cluster that the messages are from (C11).
        group_member: Kafka's id of the member of the group (C15).
        client_name: name of the client in operators' lists.
        topic_ids: Kafka's ids of the topics that are read, by name (G3).
    """

    cluster_id: str
    group_member: str
    client_name: str
    topic_ids: Mapping[str, bytes]


class _Joined(NamedTuple):
    """The objects that are made once the topics are known."""

    intake: Intake
    commits: GroupCommits
    seeking: Seeking
    deliveries: Deliveries


class SubscriptionDriver:
    """Reads as a member of the group from `start` to `close`; one task at a time takes records.

    Args:
        connector: the cluster.
        options: what is read, and how.

    Attributes:
        changes: wakes the application's call, and ends the subscription.
        listener: called when partitions are assigned or revoked.
    """

    def __init__(self, connector: Connector, options: SubscriptionOptions) -> None:
        self._connector = connector
        self._options = options
        self._admin = connector.admin()
        self._outages = OutageGuard(self._admin, timeout_s=options.unavailable_timeout_s)
        self._at_start = OutageGuard(self._admin, timeout_s=options.start_timeout_s)
        self.changes = Changes()
        self._tasks = Tasks(self.changes.fail)
        self._deliveries = Deliveries(self.changes, timestamps=options.timestamps)
        self._topics = SubscribedTopics(self._admin, self._outages, options)
        self._joined: _Joined | None = None
        self._cluster_id = ""
        self.listener: AssignmentListener | None = None

    async def start(self) -> None:
        """Joins the group and begins to read.

        Raises:
            FatalError: a topic, or a system topic, does not exist.
            NoTopicError: no topic fits a pattern.
            UnavailableError: the cluster cannot be reached.
        """
        options = self._options
        described = await self._topics.first(self._at_start, (*_SYSTEM_TOPICS, REPLICATION_MARKERS))
        require_topics(_SYSTEM_TOPICS, described)
        self._cluster_id = await self._outages.call(self._admin.cluster_id)
        self._deliveries.replicated = REPLICATION_MARKERS in described
        logs = OutcomeLogs.of(
            self._connector,
            self._admin,
            self._outages,
            options.client_id,
            topics=described,
            metadata_max_age_s=options.metadata_max_age_s,
        )
        reader = _reader(self._connector, options)
        intake = Intake(reader, logs, options, self._deliveries, self.changes)
        commits = GroupCommits(
            reader, self._outages, self._deliveries, self._topics, alone=self.listener is None
        )
        seeking = Seeking(
            self._admin,
            options,
            self._topics,
            intake,
            commits,
            deliveries=self._deliveries,
            tasks=self._tasks,
            outages=self._outages,
            listener=self.listener,
        )
        self._joined = _Joined(intake, commits, seeking, self._deliveries)
        await self._at_start.call(
            intake.reader.subscribe,
            sorted(self._topics.ids),
            assigned=self._on_assigned,
            revoked=self._on_revoked,
        )
        self._tasks.start(self._topics.run(intake))
        self._tasks.start(self._read())
        self._tasks.start(SnapshotAsker(intake.decided, after_s=options.ask_after_s).run())

    async def close(self) -> None:
        """Stops reading and leaves the group; commits nothing. Safe to call twice.

        A call that waits for a record raises `FatalError`.
        """
        self.changes.fail(FatalError("the subscription is closed"))
        if self._joined is not None:
            await self._joined.intake.close()  # first, since a rebalance would start another task
        await self._tasks.close()
        await self._admin.close()

    def next_queue(self) -> deque[Record]:
        """Visible records of the partition whose turn it is, to be taken from the left.

        Empty if there are none yet. Whenever the caller lets the event loop run, the queue may
        grow, and it is emptied if the partition is revoked. Call again after at most
        `TURN_RECORDS`, so that fetching goes on and other partitions have their turn. Raises the
        failure of the subscription.
        """
        self.look()
        queue = self._deliveries.next_queue()
        if not queue and self.fetch():
            queue = self._deliveries.next_queue()
        return queue

    def queue(self, data: TopicPartition) -> deque[Record]:
        """Visible records of one partition, under the rules of `next_queue`."""
        self.look()
        return self.buffered(data)

    def buffered(self, data: TopicPartition) -> deque[Record]:
        """Visible records of one partition, for a caller that has just called `look`."""
        return self._deliveries.queue(data)

    def look(self) -> None:
        """Raises the failure, if there is one; resumes reading when there is room."""
        self.joined.intake.look()

    def fetch(self) -> bool:
        """Reads in place of the resting reader; True: there may be more. Raises as `next_queue`."""
        return self.joined.intake.fetch()

    async def changed(self, timeout_s: float | None = None) -> None:
        """Returns once something may have changed since the last call, or after the time-out."""
        self.look()
        due_s = await self.joined.commits.commit_due()
        if due_s is not None:
            timeout_s = due_s if timeout_s is None else min(timeout_s, due_s)
        await self.changes.wait(timeout_s)

    async def commit(self) -> None:
        """Commits, for each assigned partition, the position after the records taken.

        Raises:
            FencedError: the group has moved a partition to another member.
            UnavailableError: the cluster stayed away.
        """
        self.look()
        await self.joined.commits.commit()

    async def seek(self, data: TopicPartition, offset: Offset) -> None:
        """Goes on at an offset of a partition (G Seeking); drops its buffered records.

        Args:
            data: a partition that is assigned to this member.
            offset: an offset from the log start to the log end, both included.

        Raises:
            NotAssignedError: the partition is not assigned to this member.
            OffsetOutOfRangeError: the offset is not in the log; nothing was changed.
            UnavailableError: the cluster stayed away.
        """
        self.look()
        await self.joined.seeking.check(data, offset)
        await self.joined.seeking.go_on({data: offset})

    def position(self, data: TopicPartition) -> EndOffset | None:
        """The end offset of what was taken or is withheld for good; None: not assigned."""
        return self._deliveries.position(data)

    def statistics(self) -> dict[TopicPartition, Statistics]:
        """Counts of each assigned partition since its assignment; see `Deliveries.statistics`."""
        decided, statistics = self.joined.intake.decided, self._deliveries.statistics
        machines = ((data, decided.machine(data)) for data in decided.partitions)
        return {data: statistics(data, it.statistics) for data, it in machines if it is not None}

    def blocked(self) -> dict[TopicPartition, Blocked]:
        """The undecided record of each partition that has one."""
        return self.joined.intake.decided.blocked()

    def identity(self) -> Identity:
        """Who reads, as of the last assignment; known after `start`."""
        member = self.joined.intake.reader.member_id
        return Identity(self._cluster_id, member, self._options.client_id, self._topics.ids)

    @property
    def rebalance_count(self) -> int:
        """Number of times that partitions were assigned or revoked."""
        return 0 if self._joined is None else self._joined.commits.rebalance_count

    @property
    def joined(self) -> _Joined:
        """The member of the group, for drivers that are built on this one."""
        assert self._joined is not None, "call it after `start`"
        return self._joined

    async def _read(self) -> None:
        """Reads until cancelled, also when a topic that fits a pattern is gone (D8).

        Raises:
            TopicRecreatedError: a topic was deleted and created again (C13).
            OffsetOutOfRangeError: the group is not to go on by itself where its logs end (G4).
            Errors of reading.
        """
        intake, _, seeking, _ = self.joined
        while True:
            before = self._topics.changes
            try:
                await intake.run()
            except FatalError as error:
                await intake.decided.look()  # names the cause, if a topic was created again
                await self._topics.look()
                if self._topics.changes != before:
                    continue
                outside = isinstance(error, OffsetOutOfRangeError)
                if not (outside and await seeking.take_up(intake.positions.keys())):
                    raise

    def _on_assigned(self, positions: Mapping[TopicPartition, Offset]) -> None:
        _, commits, seeking, _ = self.joined
        self._topics.assigned({data.topic for data in positions})
        positions = {data: at for data, at in positions.items() if data.topic in self._topics.ids}
        commits.open(positions)
        commits.rebalanced()
        committed = seeking.begin(positions)
        if self.listener is not None:
            self.listener.assigned(
                {data: committed[data] or Committed(at, "") for data, at in positions.items()}
            )

    def _on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        intake, commits, seeking, _ = self.joined
        for data in intake.decided.partitions & set(partitions):
            self._deliveries.drop(data)
        commits.drop(partitions)
        commits.rebalanced()
        intake.drop(partitions)
        seeking.tail_again()
        if self.listener is not None:
            self.listener.revoked(partitions)


def _reader(connector: Connector, options: SubscriptionOptions) -> GroupReader:
    return connector.group_reader(
        options.client_id,
        options.group,
        from_start=options.from_start,
        since_ms=options.since_ms,
        metadata_max_age_s=options.metadata_max_age_s,
    )
