"""One ownership of a partition of replication-markers: its data partitions and their controllers.

*Source*: docs/protocols I, H2 (reads at read_committed), B4 (a new ownership after a delay).
*Invariants*: machines are fed every signal and bucket from the log starts on, and act only after
everything that existed at the start was read; any failure ends the ownership.

Refuses: records that are no signals or buckets.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from stilltide.connectors.clock import Clock
from stilltide.connectors.errors import (
    ConnectorError,
    FatalError,
    OffsetOutOfRangeError,
    RecordRefusedError,
)
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import GroupConnector
from stilltide.connectors.ports.readers import LogReader
from stilltide.connectors.ports.records import EndReached, Record
from stilltide.connectors.ports.writers import LogWriter
from stilltide.pipeline.core.groups.controller import (
    ReplicationController,
    SyncMode,
)
from stilltide.pipeline.core.groups.pace import ControllerLimits
from stilltide.pipeline.core.groups.position_snapshots import (
    NONCE_BYTES,
    PositionSnapshotBuilder,
    PositionSnapshotLimits,
)
from stilltide.pipeline.core.link_liveness import LinkLiveness
from stilltide.pipeline.drivers.groups.controller import ControlledPartition, ControllerDeps
from stilltide.pipeline.drivers.groups.replicated import Replicated
from stilltide.pipeline.drivers.groups.requests.answers import GroupAnswers, RequestDeps
from stilltide.pipeline.drivers.groups.rounds.moves import GroupMoves
from stilltide.pipeline.drivers.groups.rounds.polls import GroupPolls
from stilltide.pipeline.drivers.groups.stats import controller_stats, shown_groups
from stilltide.pipeline.drivers.read_committed.decided_log import DecidedLog
from stilltide.pipeline.drivers.service.ended import OwnerEnd
from stilltide.pipeline.drivers.service.passed_over import pass_over
from stilltide.pipeline.drivers.service.replies import Replies
from stilltide.pipeline.drivers.service.tenure import Retry, hold, retry_soon
from stilltide.pipeline.drivers.shared.log_scan import LastRecords
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.system_topics import require_topics
from stilltide.pipeline.errors import PipelineError
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.metrics.groups import ControllerStats
from stilltide.schemas.errors import DecodeError, StilltideError, placed_each
from stilltide.schemas.placement import system_partition
from stilltide.schemas.replication import positions as replication_positions
from stilltide.schemas.replication import signals as replication_markers
from stilltide.schemas.topics import (
    REPLICATION_MARKERS,
    REPLICATION_POSITIONS,
    TXN_MARKERS,
    TXN_SNAPSHOTS,
)
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition

log = get_logger(__name__)

LOOK_S = 2.0
"""Seconds between two looks at the topics and groups to replicate."""

MEASURE_S = 0.5
"""Seconds between the counts of two groups' re-reads; one takes 10 ms if the group lags far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationDeps:
    """Dependencies that the replication owners of one worker share.

    Attributes:
        connector: the cluster.
        admin: admin client of the cluster.
        writer: writes signals.
        replies: sends answers.
        clock: the clocks.
        here: name of the cluster.
        remotes: names of the other clusters.
        replicated: selects the replicated groups.
        first: finds an offset of a data partition below which everything is decided; reading
            begins there.
        partition_count: number of partitions of replication-markers.
        mode: way in which positions are carried over (I12).
        snapshot_limits: times and sizes of position snapshots.
        controller_limits: times between looks at groups.
        snapshot_taken: called with the duration of each position snapshot, in s.
    """

    connector: GroupConnector
    admin: LogAdmin
    writer: LogWriter
    replies: Replies
    clock: Clock
    here: ClusterName
    remotes: Sequence[ClusterName]
    replicated: Replicated
    first: Callable[[TopicPartition], Awaitable[Offset]]
    partition_count: int
    mode: SyncMode
    snapshot_limits: PositionSnapshotLimits = field(default_factory=PositionSnapshotLimits)
    controller_limits: ControllerLimits = field(default_factory=ControllerLimits)
    snapshot_taken: Callable[[float], None] = lambda _s: None


class OwnedReplication:
    """One ownership, from reading the signals to its end.

    Args:
        partition: number of the partition of replication-markers and replication-positions.
        deps: dependencies shared with other owners.

    Attributes:
        partitions: data partitions that signals, buckets or settings name.
        serving: whether all signals and buckets that existed at the start were read.
    """

    def __init__(self, partition: int, deps: ReplicationDeps) -> None:
        self.partitions: dict[TopicPartition, ControlledPartition] = {}
        self.serving = False
        self._partition = partition
        self._deps = deps
        self._markers = TopicPartition(REPLICATION_MARKERS, partition)
        self._positions = TopicPartition(REPLICATION_POSITIONS, partition)
        self._started: set[TopicPartition] = set()
        self._liveness = LinkLiveness()
        self._controller_deps: ControllerDeps | None = None

    @property
    def served(self) -> dict[TopicPartition, ControlledPartition]:
        """The data partitions whose controllers run."""
        return {data: self.partitions[data] for data in sorted(self._started)}

    async def run(self) -> None:
        """Serves until an error ends it; always raises.

        Raises:
            ConnectorError, PipelineError: a read, a question or a write failed.
            DecodeError: a record that no link or controller writes; names its place.
        """
        deps = self._deps
        outages = OutageGuard(deps.admin)
        names = [TXN_MARKERS, TXN_SNAPSHOTS, REPLICATION_MARKERS, REPLICATION_POSITIONS]
        found = await outages.call(lambda: deps.admin.describe_topics(names))
        require_topics(names, found)
        decided = DecidedLog(
            deps.connector,
            deps.admin,
            outages,
            client_id=f"replication-{self._partition}",
            marker_partitions=found[TXN_MARKERS].partition_count,
            snapshot_partitions=found[TXN_SNAPSHOTS].partition_count,
            first=deps.first,
        )
        groups = deps.connector.group_admin()
        polls = GroupPolls(deps.admin, groups, decided, here=deps.here, positions=self._positions)
        moves = GroupMoves(groups)
        self._controller_deps = ControllerDeps(
            admin=deps.admin,
            groups=groups,
            writer=deps.writer,
            clock=deps.clock,
            markers=self._markers,
            decided=decided,
            polls=polls,
            moves=moves,
            replicated=deps.replicated.groups,
            snapshot_taken=deps.snapshot_taken,
        )
        reader = deps.connector.reader(f"replication-{self._partition}")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(decided.run())
                tasks.create_task(polls.run())
                tasks.create_task(moves.run())
                tasks.create_task(self._follow(reader, outages, tasks, decided))
        except BaseExceptionGroup as group:
            raise _first(group) from group
        finally:
            self.serving = False
            await reader.close()
            await decided.close()
            await groups.close()

    async def _follow(
        self,
        reader: LogReader,
        outages: OutageGuard,
        tasks: asyncio.TaskGroup,
        decided: DecidedLog,
    ) -> None:
        """Reads signals and positions from their log starts."""
        logs = [self._markers, self._positions]
        admin = self._deps.admin
        starts = await outages.call(lambda: admin.start_offsets(logs))
        ends = await outages.call(lambda: admin.end_offsets(logs))
        await reader.assign(starts)
        read_to: dict[TopicPartition, int] = dict(starts)
        history = await self._history(reader, outages, ends, read_to)
        for records in history.slices():
            with placed_each(records) as each:
                for item in each:
                    await self._taken(item)
            await asyncio.sleep(0)  # the worker's other tasks run during a long replay
        self._positions_read(read_to)
        self.serving = True
        tasks.create_task(self._look(tasks, decided))
        tasks.create_task(self._measure())
        while True:
            with placed_each(await outages.call(reader.read, may_rest=True)) as each:
                for item in each:
                    read_to[item.data] = await self._taken(item)
            self._positions_read(read_to)
            await asyncio.sleep(0)  # as above

    async def _history(
        self,
        reader: LogReader,
        outages: OutageGuard,
        ends: Mapping[TopicPartition, EndOffset],
        read_to: dict[TopicPartition, int],
    ) -> LastRecords:
        """The last record of each key up to `ends`, and perhaps some after (E10)."""
        last = LastRecords()
        while any(read_to[data] < end for data, end in ends.items()):
            for item in await outages.call(reader.read, may_rest=True):
                if isinstance(item, Record):
                    last.add(item)
                    read_to[item.data] = item.offset + 1
                else:
                    read_to[item.data] = item.end_offset
            await asyncio.sleep(0)  # the worker's other tasks run during a long replay
        return last

    def _positions_read(self, read_to: Mapping[TopicPartition, int]) -> None:
        for one in self.partitions.values():
            one.positions_read(EndOffset(read_to[self._positions]))

    async def _taken(self, item: Record | EndReached) -> int:
        """Feeds one record, or passes over it (B10); returns the offset after the record."""
        try:
            return self._item_read(item)
        except DecodeError as error:
            assert isinstance(item, Record)
            await pass_over(self._deps.connector, item, error)
            return item.offset + 1

    def _item_read(self, item: Record | EndReached) -> int:
        """Feeds one record to its machine; returns the offset after the record."""
        if isinstance(item, EndReached):
            return item.end_offset
        if item.topic == REPLICATION_MARKERS:
            key, value = replication_markers.decode(item.key, item.value)
            self._of(key.data).signal_read(key, value)
        elif (beat := replication_positions.beat_key(item.key)) is not None:
            if item.value is not None and beat.target == self._deps.here:
                now_ms, wall_ms = self._deps.clock.monotonic_ms(), self._deps.clock.now_ms()
                since_ms = now_ms if self.serving else None
                told = replication_positions.decode_beat(item.value)
                self._liveness.beat_read(beat.source, told, since_ms, now_ms, wall_ms)
        elif not replication_positions.is_of_link(item.key):
            bucket_key = replication_positions.decode_key(item.key)
            bucket = None
            if item.value is not None:
                bucket = replication_positions.decode_bucket(item.value)
            if bucket_key.target == self._deps.here:
                self._of(bucket_key.data).bucket_read(bucket_key, bucket)
        return item.offset + 1

    def _of(self, data: TopicPartition) -> ControlledPartition:
        controlled = self.partitions.get(data)
        if controlled is None:
            deps = self._deps
            assert self._controller_deps is not None
            builder = PositionSnapshotBuilder(
                data,
                deps.here,
                deps.remotes,
                nonce=deps.connector.chance.token(NONCE_BYTES),
                limits=deps.snapshot_limits,
            )
            machine = ReplicationController(
                data, deps.here, deps.remotes, mode=deps.mode, limits=deps.controller_limits
            )
            controlled = ControlledPartition(
                data, self._controller_deps, builder, machine, self._liveness
            )
            self.partitions[data] = controlled
        return controlled

    async def _look(self, tasks: asyncio.TaskGroup, decided: DecidedLog) -> None:
        """Starts the controllers of data partitions that are wanted and exist."""
        deps = self._deps
        assert self._controller_deps is not None
        while True:
            await deps.replicated.look(self._controller_deps.groups)
            enabled = deps.replicated.topics()
            wanted = {data.topic for data, one in self.partitions.items() if one.is_wanted}
            found = await deps.admin.describe_topics(sorted(enabled | wanted))
            for topic in found.values():
                for number in range(topic.partition_count):
                    data = TopicPartition(topic.name, number)
                    if data in self._started or not self._is_ours(data):
                        continue
                    if topic.name in enabled or self._of(data).is_wanted:
                        await decided.add(data)
                        self._started.add(data)
                        tasks.create_task(self._of(data).run())
            await asyncio.sleep(LOOK_S)

    async def _measure(self) -> None:
        """Counts the records that groups would read again, one group after the other."""
        while True:
            for one in self.served.values():
                for group in shown_groups(one.groups):
                    with suppress(ConnectorError):
                        await one.measure(group)
                    await asyncio.sleep(MEASURE_S)
            await asyncio.sleep(MEASURE_S)

    def _is_ours(self, data: TopicPartition) -> bool:
        return system_partition(data, self._deps.partition_count) == self._partition


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error, which has caused the others."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class ReplicationDriver:
    """The controllers of one partition, for as long as it is assigned to this worker.

    Args:
        partition: number of the partition of replication-markers, replication-positions and
            group-requests.
        deps: dependencies shared with other owners.
    """

    def __init__(self, partition: int, deps: ReplicationDeps) -> None:
        self.assigned = True
        self.owned: OwnedReplication | None = None
        self._partition = partition
        self._deps = deps
        self._requests = GroupAnswers(
            partition,
            RequestDeps(
                replies=deps.replies,
                clock=deps.clock,
                partition_count=deps.partition_count,
                mode=deps.mode,
                enabled=deps.replicated.topics,
            ),
            lambda: self.owned.served if self.owned is not None and self.owned.serving else None,
        )

    @property
    def serving(self) -> bool:
        """Whether it has read the signals and buckets that existed at the start."""
        return self.owned is not None and self.owned.serving

    def stats(self) -> dict[TopicPartition, ControllerStats]:
        """The figures of the data partitions whose controllers run; empty until it serves."""
        if self.owned is None or not self.owned.serving:
            return {}
        now_ms = self._deps.clock.monotonic_ms()
        return {data: controller_stats(one, now_ms) for data, one in self.owned.served.items()}

    def requests_received(self, value: bytes | None, *, operator: bool = False) -> None:
        """Takes one value of group-requests, to which only operators may write (C15).

        Raises:
            DecodeError: the value, or a part of it, is no request; the other parts were taken.
        """
        del operator
        self._requests.received(value)

    def refuse(self, value: bytes | None, end: OwnerEnd) -> None:
        """Refuses requests while this owner has ended (B8); who asked for a reset is told of it.

        Raises:
            DecodeError: the value, or a part of it, is no request.
        """
        self._requests.refuse(value, end)

    async def run(self) -> None:
        """Serves until cancelled, or until a failure while the partition is not assigned.

        Raises:
            DecodeError: a record of a system topic is foreign; names its place.
            FatalError: a topic cannot be read or written.
        """
        await hold(self, self._own, self._failed)

    async def _own(self) -> None:
        self.owned = OwnedReplication(self._partition, self._deps)
        try:
            await self.owned.run()
        finally:
            self._requests.drop()

    def _failed(self, error: StilltideError) -> Retry | None:
        match error:
            case FatalError() if not isinstance(error, OffsetOutOfRangeError | RecordRefusedError):
                return None
            case ConnectorError() | PipelineError():
                tell = log.debug if isinstance(error, RecordRefusedError) else log.warning
                tell("replication_begins_again", partition=self._partition, why=str(error))
                return retry_soon(self._deps.connector.chance)
            case _:
                return None
