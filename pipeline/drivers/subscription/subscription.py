"""Runs a read-committed subscription: reads data, markers and snapshots, returns visible records.

*Source*: docs/protocols D1-D5, D7 (rules in `core.read_committed`), C4 (repeated markers).

*Invariants*:
- No record of a partition is handed out after `revoked`.
- A committed position never passes a record that the application has not taken.
- Any failure stops the whole subscription and is raised from the next call.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import NO_METADATA, Committed, GroupReader
from stilltide.connectors.ports.records import Record
from stilltide.pipeline.core.read_committed.effects import Statistics
from stilltide.pipeline.drivers.read_committed.evidence import EvidenceDeps
from stilltide.pipeline.drivers.read_committed.snapshot_asker import Blocked, SnapshotAsker
from stilltide.pipeline.drivers.shared.named_partitions import require_topics
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.tasks import Tasks
from stilltide.pipeline.drivers.subscription.changes import Changes
from stilltide.pipeline.drivers.subscription.commits import GroupCommits
from stilltide.pipeline.drivers.subscription.deliveries import Deliveries
from stilltide.pipeline.drivers.subscription.elsewhere import ElsewhereFilter
from stilltide.pipeline.drivers.subscription.intake import Intake
from stilltide.pipeline.drivers.subscription.options import AssignmentListener, SubscriptionOptions
from stilltide.pipeline.drivers.subscription.seeking import LogPositions, Seeking
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
        rebalanced_at: loop time at which partitions were last assigned or revoked.
        rebalance_count: number of times that partitions were assigned or revoked.
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
        self._tailing: asyncio.Task[None] | None = None
        self.listener: AssignmentListener | None = None
        self.rebalanced_at = 0.0
        self.rebalance_count = 0

    async def start(self) -> None:
        """Joins the group and begins to read.

        Raises:
            FatalError: a topic, or a system topic, does not exist.
            NoTopicError: no topic fits a pattern.
            UnavailableError: the cluster cannot be reached.
        """
        options = self._options
        found = await self._topics.first(self._at_start, (*_SYSTEM_TOPICS, REPLICATION_MARKERS))
        require_topics(_SYSTEM_TOPICS, found)
        self._cluster_id = await self._outages.call(self._admin.cluster_id)
        if REPLICATION_MARKERS in found:
            self._deliveries.elsewhere = ElsewhereFilter(
                self._connector, self._admin, options.group, self._topics.ids
            )
        deps = _evidence(self._connector, self._admin, self._outages, options, found)
        intake = Intake(
            _reader(self._connector, options), deps, options, self._deliveries, self.changes
        )
        commits = GroupCommits(
            intake.reader, self._outages, self._deliveries, lambda: self.rebalance_count
        )
        seeking = Seeking(
            LogPositions(self._admin, self._outages, options),
            intake,
            commits,
            self._deliveries,
            topic_ids=self._topics.ids,
            tasks=self._tasks,
            tail_again=partial(self._tail_again, rebalanced=False),
            listener=self.listener,
        )
        self._joined = _Joined(intake, commits, seeking)
        self.rebalanced_at = asyncio.get_running_loop().time()
        await self._at_start.call(
            lambda: intake.reader.subscribe(
                sorted(self._topics.ids), assigned=self._on_assigned, revoked=self._on_revoked
            )
        )
        asker = SnapshotAsker(
            self._connector,
            client_id=f"{options.client_id}-asks",
            after_s=options.ask_after_s,
            blocked=intake.decided.blocked,
        )
        self._tasks.start(self._topics.run(intake))
        self._tasks.start(seeking.read(lambda: self._topics.read(intake)))
        self._tasks.start(asker.run())

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
        queue = self._deliveries.buffer.next_queue()
        if not queue and self.fetch():
            queue = self._deliveries.buffer.next_queue()
        return queue

    def queue(self, data: TopicPartition) -> deque[Record]:
        """Visible records of one partition, under the rules of `next_queue`."""
        self.look()
        return self.buffered(data)

    def buffered(self, data: TopicPartition) -> deque[Record]:
        """Visible records of one partition, for a caller that has just called `look`."""
        return self._deliveries.buffer.queue(data)

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
        async with self._topics.committing():
            await self.joined.commits.commit()

    async def commit_cursors(
        self,
        cursors: Mapping[TopicPartition, Offset],
        metadata: Mapping[TopicPartition, str] = NO_METADATA,
    ) -> None:
        """Commits these offsets, with metadata; raises as `commit`."""
        self.look()
        async with self._topics.committing():
            await self.joined.commits.commit_cursors(cursors, metadata)

    async def seek(
        self,
        data: TopicPartition,
        offset: Offset,
        about_to: Callable[[], None] = lambda: None,
    ) -> None:
        """Goes on reading a partition at an offset; buffered records of the partition are dropped.

        Args:
            data: a partition that is assigned to this member.
            offset: an offset from the log start to the log end, both included.
            about_to: called when nothing can keep the partition from being moved any more, in the
                same turn of the event loop; may refuse by an error.

        Raises:
            NotAssignedError: the partition is not assigned to this member.
            OffsetOutOfRangeError: the offset is not in the log; nothing was changed.
            UnavailableError: the cluster stayed away.
        """
        self.look()
        await self.joined.seeking.seek(data, offset, about_to)

    def position(self, data: TopicPartition) -> EndOffset | None:
        """The end offset of what was taken or is withheld for good; None: not assigned."""
        return self._deliveries.buffer.position(data)

    def statistics(self) -> dict[TopicPartition, Statistics]:
        """Counts of each assigned partition since its assignment; see `Deliveries.statistics`."""
        read = self.joined.intake.decided.statistics()
        return {data: self._deliveries.statistics(data, one) for data, one in read.items()}

    def blocked(self) -> dict[TopicPartition, Blocked]:
        """The undecided record of each partition that has one."""
        return self.joined.intake.decided.blocked()

    def identity(self) -> Identity:
        """Who reads, as of the last assignment; known after `start`."""
        member = self.joined.intake.reader.member_id
        return Identity(self._cluster_id, member, self._options.client_id, self._topics.ids)

    @property
    def joined(self) -> _Joined:
        """The member of the group, for drivers that are built on this one."""
        assert self._joined is not None, "call it after `start`"
        return self._joined

    def _on_assigned(self, positions: Mapping[TopicPartition, Offset]) -> None:
        intake, commits, _ = self.joined
        self._topics.assigned({data.topic for data in positions})
        positions = {data: at for data, at in positions.items() if data.topic in self._topics.ids}
        committed = {data: intake.reader.committed(data) for data in positions}
        opened = self._deliveries.open(positions, committed)
        commits.open(positions)
        intake.add(positions, self._topics.ids)
        self._tail_again(rebalanced=True)
        if opened:
            self._tasks.start(intake.learn(opened))
        if self.listener is not None:
            self.listener.assigned(
                {data: committed[data] or Committed(at, "") for data, at in positions.items()}
            )

    def _on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        intake, commits, _ = self.joined
        for data in intake.decided.partitions & set(partitions):
            self._deliveries.drop(data)
        commits.drop(partitions)
        intake.drop(partitions)
        self._tail_again(rebalanced=True)
        if self.listener is not None:
            self.listener.revoked(partitions)

    def _tail_again(self, *, rebalanced: bool) -> None:
        """Reads markers and snapshots of the present partitions from their starts (D5).

        Does not wait for the old readers' end.
        """
        if rebalanced:
            self.rebalanced_at = asyncio.get_running_loop().time()
            self.rebalance_count += 1
        if self._tailing is not None:
            self._tailing.cancel()
        self._tailing = self._tasks.start(self.joined.intake.decided.run())
        self.changes.wake()


def _reader(connector: Connector, options: SubscriptionOptions) -> GroupReader:
    return connector.group_reader(
        options.client_id,
        options.group,
        from_start=options.from_start,
        since_ms=options.since_ms,
        metadata_max_age_s=options.metadata_max_age_s,
    )


def _evidence(
    connector: Connector,
    admin: LogAdmin,
    outages: OutageGuard,
    options: SubscriptionOptions,
    found: Mapping[str, TopicDescription],
) -> EvidenceDeps:
    return EvidenceDeps(
        connector,
        admin,
        outages,
        options.client_id,
        marker_partitions=found[TXN_MARKERS].partition_count,
        snapshot_partitions=found[TXN_SNAPSHOTS].partition_count,
        metadata_max_age_s=options.metadata_max_age_s,
    )
