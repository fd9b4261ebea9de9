"""One ownership of a partition of replication-markers: its data partitions and their controllers.

*Source*: docs/protocols E10, I1, I13, H2 (reads at read_committed), B4 (a new ownership after a
delay).
*Invariants*: machines are fed every signal and bucket from the log starts on, and act only after
everything that existed at the start was read; any failure ends the ownership.
"""

import asyncio
from collections import OrderedDict
from contextlib import suppress
from functools import partial

from stilltide.connectors.errors import (
    ConnectorError,
    FatalError,
    OffsetOutOfRangeError,
    RecordRefusedError,
)
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.core.groups.controller import (
    ReplicationController,
    SyncMode,
)
from stilltide.pipeline.core.groups.position_snapshots import (
    NONCE_BYTES,
    PositionSnapshotBuilder,
)
from stilltide.pipeline.core.link_liveness import LinkLiveness
from stilltide.pipeline.drivers.groups.answers import reset_group, synced, taken_positions
from stilltide.pipeline.drivers.groups.controller import (
    ControlledPartition,
    Controllers,
    GroupsOwnerDeps,
    controller_stats,
    shown_groups,
)
from stilltide.pipeline.drivers.groups.rounds import GroupMoves, GroupPolls
from stilltide.pipeline.drivers.read_committed.decided_log import DecidedLog
from stilltide.pipeline.drivers.read_committed.outcome_tails import OutcomeLogs
from stilltide.pipeline.drivers.service.ended import OwnerEnd
from stilltide.pipeline.drivers.shared.feed import TopicFeed
from stilltide.pipeline.drivers.shared.joint_question import JointQuestion
from stilltide.pipeline.drivers.shared.named_partitions import require_topics
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.errors import PipelineError
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.metrics.groups import ControllerStats
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.framing import decode_each
from stilltide.schemas.replication import positions, signals
from stilltide.schemas.replication import requests as group_requests
from stilltide.schemas.replication.positions import (
    Beat,
    BeatKey,
    Bucket,
    BucketKey,
    LastError,
    LastErrorKey,
    PositionsItem,
    PositionsKey,
    PositionsValue,
)
from stilltide.schemas.replication.requests import (
    GroupAnswer,
    GroupRequest,
    ResetGroup,
    SyncGroup,
    TakePositions,
)
from stilltide.schemas.replication.signals import SignalKey, SignalValue
from stilltide.schemas.service.envelopes import RefusalCode, Refused, Response, Unreadable
from stilltide.schemas.topics import (
    REPLICATION_MARKERS,
    REPLICATION_POSITIONS,
    TXN_MARKERS,
    TXN_SNAPSHOTS,
    system_partition,
)
from stilltide.schemas.values import EndOffset, TopicPartition

log = get_logger(__name__)

_Item = tuple[SignalKey, SignalValue | None] | PositionsItem

IN_WORK_MAX = 1000
"""Requests in work; further ones are dropped, and clients repeat them."""

ANSWERS_MAX = 1000
"""Answers that are kept for repeated requests; the oldest are forgotten first."""

WORK_S_MAX = 120.0
"""Longest work on a request; after that it is dropped."""

LOOK_S = 2.0
"""Seconds between two looks at the topics and groups to replicate."""

BEGUN_MAX = 100
"""Most controllers that begin together."""

MEASURE_S = 0.5
"""Seconds between the counts of two groups' re-reads; one takes 10 ms if the group lags far."""


class GroupsOwnership:
    """One ownership, from reading the signals to its end.

    Args:
        partition: number of the partition of replication-markers and replication-positions.
        deps: dependencies shared with other owners.

    Attributes:
        partitions: data partitions that signals, buckets or settings name.
        serving: whether all signals and buckets that existed at the start were read.
    """

    def __init__(self, partition: int, deps: GroupsOwnerDeps) -> None:
        self.partitions: dict[TopicPartition, ControlledPartition] = {}
        self.serving = False
        self._partition = partition
        self._deps = deps
        self._signals = TopicPartition(REPLICATION_MARKERS, partition)
        self._positions = TopicPartition(REPLICATION_POSITIONS, partition)
        self._started: set[TopicPartition] = set()
        self._liveness = LinkLiveness()
        self._controllers: Controllers | None = None
        self._positions_read_to = EndOffset(0)  # once everything was read that existed

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
        topics = await outages.call(deps.admin.describe_topics, names)
        require_topics(names, topics)
        client_id = f"replication-{self._partition}"
        decided = DecidedLog(
            OutcomeLogs.of(deps.connector, deps.admin, outages, client_id, topics=topics)
        )
        groups = deps.connector.group_admin()
        polls = GroupPolls(groups, decided, here=deps.here, positions=self._positions)
        moves = GroupMoves(groups)
        topics = JointQuestion(groups.topics)
        self._controllers = Controllers(
            deps=deps,
            groups=groups,
            topics=topics,
            signals=self._signals,
            decided=decided,
            polls=polls,
            moves=moves,
        )
        feed = self._feed(outages)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(decided.run())
                tasks.create_task(polls.run())
                tasks.create_task(moves.run())
                tasks.create_task(self._follow(feed, tasks, decided))
        except BaseExceptionGroup as group:
            raise _first(group) from group
        finally:
            self.serving = False
            await feed.close()
            await decided.close()
            await topics.close()
            await groups.close()

    async def _follow(
        self, feed: TopicFeed[_Item], tasks: asyncio.TaskGroup, decided: DecidedLog
    ) -> None:
        """Takes signals and buckets from their log starts; acts after the end as of now."""
        async for items in feed.follow():
            for key, value in items:
                self._take(key, value)
            if not feed.caught_up:
                continue
            read_to = EndOffset(feed.positions[self._positions])
            if read_to != self._positions_read_to:  # not for each list of signals: they are many
                self._positions_read_to = read_to
                for controlled in self.partitions.values():
                    controlled.positions_read(read_to)
            if not self.serving:
                self.serving = True
                tasks.create_task(self._look(tasks, decided))
                tasks.create_task(self._measure())

    def _feed(self, outages: OutageGuard) -> TopicFeed[_Item]:
        deps, logs = self._deps, [self._signals, self._positions]
        name = f"replication-{self._partition}"
        return TopicFeed(deps.connector, deps.admin, name, logs, self._decode, outages=outages)

    def _decode(self, record: Record) -> _Item | None:
        """What a record says about groups here, or links into this cluster; None: nothing."""
        if record.topic == REPLICATION_MARKERS:
            return signals.decode(record.key, record.value)
        key = positions.key_of(record.key)
        if isinstance(key, LastErrorKey) or key.target != self._deps.here:
            return None
        return key, positions.value_of(key, record.value)

    def _take(self, key: SignalKey | PositionsKey, value: SignalValue | PositionsValue) -> None:
        match key, value:
            case BeatKey(), Beat():
                clock = self._deps.connector.clock
                now_ms, wall_ms = clock.monotonic_ms(), clock.now_ms()
                since_ms = now_ms if self.serving else None
                self._liveness.beat_read(key.source, value, since_ms, now_ms, wall_ms)
            case BeatKey() | LastErrorKey(), _:
                pass
            case BucketKey(), Bucket() | None:
                self._of(key.data).bucket_read(key, value)
            case BucketKey(), _:
                raise AssertionError(value)
            case _:
                assert not isinstance(value, Bucket | Beat | LastError)
                self._of(key.data).signal_read(key, value)

    def _of(self, data: TopicPartition) -> ControlledPartition:
        controlled = self.partitions.get(data)
        if controlled is None:
            deps = self._deps
            assert self._controllers is not None
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
                data, self._controllers, builder, machine, self._liveness
            )
            controlled.positions_read(self._positions_read_to)
            self.partitions[data] = controlled
        return controlled

    async def _look(self, tasks: asyncio.TaskGroup, decided: DecidedLog) -> None:
        """Starts the controllers of data partitions that are wanted and exist."""
        deps = self._deps
        assert self._controllers is not None
        while True:
            await deps.replicated.look(self._controllers.groups)
            enabled = deps.replicated.topics()
            wanted = {data.topic for data, known in self.partitions.items() if known.is_wanted}
            topics = await deps.admin.describe_topics(sorted(enabled | wanted))
            new = [
                data
                for topic in topics.values()
                for data in map(partial(TopicPartition, topic.name), range(topic.partition_count))
                if data not in self._started
                and self._is_ours(data)
                and (topic.name in enabled or self._of(data).is_wanted)
            ]
            # Together: a snapshot of each is taken, and the readers of logs begin again.
            for begin in range(0, len(new), BEGUN_MAX):
                part = new[begin : begin + BEGUN_MAX]
                decided.add(await deps.first(part))
                self._started.update(part)
                for data in part:
                    tasks.create_task(self._of(data).run())
            await asyncio.sleep(LOOK_S)

    async def _measure(self) -> None:
        """Counts the records that groups would read again, one group after the other."""
        while True:
            for served in self.served.values():
                for group in shown_groups(served.groups):
                    with suppress(ConnectorError):
                        await served.measure(group)
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


class GroupsOwner:
    """The controllers of one partition, for as long as it is assigned to this worker.

    Args:
        partition: number of the partition of replication-markers, replication-positions and
            group-requests.
        deps: dependencies shared with other owners.
    """

    def __init__(self, partition: int, deps: GroupsOwnerDeps) -> None:
        self.owned: GroupsOwnership | None = None
        self._partition = partition
        self._deps = deps
        self._work: dict[tuple[bytes, int], asyncio.Task[None]] = {}
        self._answers: OrderedDict[tuple[bytes, int], GroupAnswer] = OrderedDict()

    @property
    def serving(self) -> bool:
        """Whether it has read the signals and buckets that existed at the start."""
        return self.owned is not None and self.owned.serving

    def stats(self) -> dict[TopicPartition, ControllerStats]:
        """The figures of the data partitions whose controllers run; empty until it serves."""
        if self.owned is None or not self.owned.serving:
            return {}
        now_ms = self._deps.connector.clock.monotonic_ms()
        served = self.owned.served.items()
        return {data: controller_stats(partition, now_ms) for data, partition in served}

    def requests_received(self, value: bytes | None, *, operator: bool = False) -> None:
        """Takes one value of group-requests, to which only operators may write (C15).

        Raises:
            DecodeError: the value, or a part of it, is no request; the other parts were taken.
        """
        del operator
        for request in decode_each(value, group_requests.decode_request):
            self._received(request)

    def refuse(self, value: bytes | None, end: OwnerEnd) -> None:
        """Refuses the requests of a value that change nothing; raises `DecodeError`.

        The client of a reset, which may have been carried out, is told of the end (B8).
        """
        reason = end.text(asyncio.get_running_loop().time())
        for request in decode_each(value, group_requests.decode_request):
            ask = request.body.ask
            if isinstance(ask, Unreadable):
                self._answer(request, ask.refusal)
            elif not isinstance(ask, ResetGroup) or ask.generation is None:
                self._answer(request, Refused(reason))
            else:
                self._deps.replies.tell([request], end.notice(self._partition))

    async def run(self) -> None:
        """Serves until an error ends the ownership; raises as `GroupsOwnership.run`."""
        self.owned = GroupsOwnership(self._partition, self._deps)
        try:
            await self.owned.run()
        finally:
            work, self._work = self._work, {}
            for task in work.values():
                task.cancel()  # the requests get no answer, and come again

    def passes(self, error: StilltideError) -> bool:
        """Whether a read, a question or a write has failed, and no topic is wrong."""
        if isinstance(error, FatalError):
            return isinstance(error, OffsetOutOfRangeError | RecordRefusedError)
        return isinstance(error, ConnectorError | PipelineError)

    def _received(self, request: GroupRequest) -> None:
        key = request.client_id, request.number
        data, count = request.body.data, self._deps.partition_count
        if isinstance(request.body.ask, Unreadable):
            self._answer(request, request.body.ask.refusal)
        elif (owner := system_partition(data, count)) != self._partition:
            reason = f"owner {owner} of {count} has the controller of {data}"
            self._answer(request, Refused(f"{reason}, and this is owner {self._partition}"))
        elif (known := self._answers.get(key)) is not None:
            self._answer(request, known)
        elif key not in self._work and self.owned is not None and self.owned.serving:
            if len(self._work) >= IN_WORK_MAX:
                log.warning("group_request_dropped", partition=self._partition)
                return
            controlled = self.owned.served.get(data)
            if controlled is None and data.topic in self._deps.replicated.topics():
                return  # its controller begins within a moment
            task = asyncio.create_task(self._serve(request, controlled), name="group-request")
            self._work[key] = task
            task.add_done_callback(partial(self._ended, key))

    def _ended(self, key: tuple[bytes, int], task: "asyncio.Task[None]") -> None:
        if self._work.get(key) is task:
            del self._work[key]

    async def _serve(self, request: GroupRequest, controlled: ControlledPartition | None) -> None:
        try:
            async with asyncio.timeout(WORK_S_MAX):
                answer = await self._answer_to(request, controlled)
        except (StilltideError, TimeoutError) as error:  # the client repeats the request
            log.warning("group_request_failed", partition=self._partition, error=str(error))
            return
        self._answers[request.client_id, request.number] = answer
        if len(self._answers) > ANSWERS_MAX:
            self._answers.popitem(last=False)
        self._answer(request, answer)

    def _answer(self, request: GroupRequest, answer: GroupAnswer) -> None:
        response = Response(request.number, self._partition, answer)
        data = group_requests.encode_response(response)
        self._deps.replies.add(request.client_id, request.reply_partition, data)

    async def _answer_to(
        self, request: GroupRequest, controlled: ControlledPartition | None
    ) -> GroupAnswer:
        data, group, ask = request.body
        assert not isinstance(ask, Unreadable), "refused on arrival"
        if controlled is None:
            return Refused(
                f"no group of topic {data.topic} is replicated on this cluster: "
                f"`stilltide group enable {data.topic} GROUP`"
            )
        if isinstance(ask, TakePositions):
            return await taken_positions(controlled)
        if group not in controlled.groups:
            return Refused(
                f"group {group} of topic {data.topic} is not replicated: "
                f"`stilltide group enable {data.topic} {group}`"
            )
        if isinstance(ask, SyncGroup):
            return await synced(controlled, group)
        if self._deps.mode is SyncMode.SNAPSHOT:
            reason = "with sync=snapshot no generation says that a group is to read again"
            return Refused(reason, RefusalCode.UNSUPPORTED)
        return await reset_group(controlled, group, ask)
