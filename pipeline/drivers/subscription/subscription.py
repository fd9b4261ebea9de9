"""Runs a read-committed subscription: reads data, markers and snapshots, returns visible records.

*Source*: docs/protocols C13, D8, G4; D1, D2, D3, D4, D7 (rules in `core.read_committed`).

*Invariants*:
- No record of a partition is handed out after `revoked`.
- A committed position never passes a record that the application has not taken.
- Any failure stops the whole subscription and is raised from the next call.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Committed, GroupReader, Record
from stilltide.pipeline.core.read_committed.machine import Statistics
from stilltide.pipeline.drivers.read_committed.decided import Blocked, SnapshotAsker
from stilltide.pipeline.drivers.read_committed.outcome_tails import OutcomeLogs
from stilltide.pipeline.drivers.shared.named_partitions import require_topics
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.tasks import Tasks
from stilltide.pipeline.drivers.subscription.commits import GroupCommits
from stilltide.pipeline.drivers.subscription.deliveries import Changes, Deliveries
from stilltide.pipeline.drivers.subscription.intake import Intake
from stilltide.pipeline.drivers.subscription.options import AssignmentListener, SubscriptionOptions
from stilltide.pipeline.drivers.subscription.seeking import Seeking
from stilltide.pipeline.drivers.subscription.topics import SubscribedTopics
from stilltide.schemas.topics import REPLICATION_MARKERS, TXN_MARKERS, TXN_SNAPSHOTS
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

TURN_RECORDS = 256
"""Records taken from one partition's queue before the next partition's turn."""

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


class SubscriptionDriver:
    """Reads as a member of the group from `start` to `close`; one task at a time takes records.

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
        self._deliveries = Deliveries(self.changes)
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
        commits = GroupCommits(reader, self._outages, self._deliveries, self._topics)
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
        self._joined = _Joined(intake, commits, seeking)
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
        intake, _, seeking = self.joined
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
        _, commits, seeking = self.joined
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
        intake, commits, seeking = self.joined
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
