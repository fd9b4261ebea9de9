"""Drives the position snapshots and the replicated groups of one data partition.

*Source*: docs/protocols I1, I12, I15, I16 (rules in `core.groups`; I15 in `core.group_choice`).
*Invariants*: effects of a machine are carried out one after the other, in order; moves of different
groups that follow each other, together, and so are signals of different groups. What concerns one
group is durable before the next effect about that group begins.

Any failure ends the ownership; the next ownership begins by reading the signals.
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import chain
from typing import TypeVar

from stilltide.connectors.clock import Clock
from stilltide.connectors.errors import RetriableError
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.connectors.ports.connector import GroupAdmin, GroupConnector
from stilltide.connectors.ports.writers import LogWriter, append
from stilltide.pipeline.core.group_choice import GroupChoice
from stilltide.pipeline.core.groups.controller import (
    ReplicationController,
    SyncMode,
    is_about_groups,
)
from stilltide.pipeline.core.groups.frontier import LogRead, ReadLog
from stilltide.pipeline.core.groups.group import ControllerEffect, MoveGroup, Poll, ReadRecords
from stilltide.pipeline.core.groups.pace import ControllerLimits
from stilltide.pipeline.core.groups.position_snapshots import (
    PositionSnapshotBuilder,
    PositionSnapshotLimits,
    ReadDecidedEnd,
    ReadEnd,
    SnapshotEffect,
    WriteSignal,
)
from stilltide.pipeline.core.link_liveness import LinkLiveness
from stilltide.pipeline.core.machine import Machine
from stilltide.pipeline.drivers.groups.rounds import GroupMoves, GroupPolls, Polled
from stilltide.pipeline.drivers.read_committed.decided_log import DecidedLog, answered
from stilltide.pipeline.drivers.service.own.replies import Replies
from stilltide.pipeline.drivers.shared.alarm import Alarm
from stilltide.pipeline.drivers.shared.joint_question import JointQuestion
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.metrics.groups import GROUPS_MAX, ControllerStats
from stilltide.schemas.replication.origins import topic_incarnation
from stilltide.schemas.replication.positions import Bucket, BucketKey
from stilltide.schemas.replication.signals import (
    AppliedKey,
    SignalKey,
    SignalValue,
    UpdateKey,
    encode_key,
    encode_value,
)
from stilltide.schemas.retry import ABSENT_TOPIC
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition

log = get_logger(__name__)

REST_MS = 10
"""Milliseconds from a tick without effects to the next tick."""

SIGNALS_MAX = 16
"""Most signals of a partition that are written together: all partitions share a queue."""

STUCK_S = 120.0
"""A step that takes longer has lost its answer; new clients may find the brokers
(docs/internals/kafka-clients.md). The longest honest step waits for a cluster that is away."""

T = TypeVar("T")

Effects = Sequence[ControllerEffect] | Sequence[SnapshotEffect]


LIST_MS = 2000
"""Time between two lists of the cluster's groups, while a pattern enables groups."""


class Replicated:
    """Selects the replicated groups: by an operator's settings, and by other clusters' signals.

    Args:
        named: the settings: topic, group, and whether the group is replicated.
        clock: measures the time between two lists of the cluster's groups.
    """

    def __init__(
        self, named: Callable[[], Collection[tuple[str, str, bool]]], clock: Clock
    ) -> None:
        self._named = named
        self._clock = clock
        self._read: tuple[tuple[str, str, bool], ...] = ()
        self._choice = GroupChoice(())
        self._taken: dict[str, set[str]] = {}
        self._listing = asyncio.Lock()
        self._listed_ms: int | None = None

    @property
    def choice(self) -> GroupChoice:
        """What the settings say now."""
        named = tuple(self._named())
        if named != self._read:
            self._read, self._choice = named, GroupChoice(named)
            self._listed_ms = None
        return self._choice

    async def look(self, groups: GroupAdmin) -> None:
        """Looks which groups patterns take (I15), if that has not been done lately.

        All owners of a worker share the answer. While brokers are away, the last one counts.
        """
        async with self._listing:
            choice, now_ms = self.choice, self._clock.monotonic_ms()
            if self._listed_ms is not None and now_ms - self._listed_ms < LIST_MS:
                return
            committed: Mapping[str, Collection[str]] = {}
            if choice.has_patterns:
                try:
                    listed = await groups.listed()
                    committed = await groups.topics_of(filter(choice.may_take, listed))
                except RetriableError as error:
                    log.warning("groups_not_listed", why=str(error))
                    return
            taken: defaultdict[str, set[str]] = defaultdict(set)
            for topic, group in chain.from_iterable(choice.taken(committed).values()):
                taken[topic].add(group)
            self._taken = dict(taken)
            self._listed_ms = now_ms

    def topics(self) -> set[str]:
        """The topics of which an operator has enabled a group."""
        return self.choice.topics() | self._taken.keys()

    def groups(self, topic: str, known: Collection[str]) -> set[str]:
        """The replicated groups of a topic; `known` are the groups in any cluster's signals."""
        return self.choice.groups(topic, {*known, *self._taken.get(topic, ())})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsOwnerDeps:
    """Dependencies that the replication owners of one worker share.

    Attributes:
        connector: the cluster.
        admin: admin client of the cluster.
        writer: writes signals.
        replies: sends answers.
        here: name of the cluster.
        remotes: names of the other clusters.
        replicated: selects the replicated groups.
        first: finds, for each of some data partitions, an offset below which everything is decided;
            reading begins there.
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
    here: ClusterName
    remotes: Sequence[ClusterName]
    replicated: Replicated
    first: Callable[[Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, Offset]]]
    partition_count: int
    mode: SyncMode
    snapshot_limits: PositionSnapshotLimits = field(default_factory=PositionSnapshotLimits)
    controller_limits: ControllerLimits = field(default_factory=ControllerLimits)
    snapshot_taken: Callable[[float], None] = lambda _s: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Controllers:
    """What the controllers of one ownership share.

    Attributes:
        deps: dependencies shared with other owners.
        groups: admin client of the cluster for groups.
        topics: asks for the topics as they are now, by name.
        signals: the ownership's partition of replication-markers.
        decided: finds decided ends and visible records.
        polls: looks at groups and logs.
        moves: moves groups.
    """

    deps: GroupsOwnerDeps
    groups: GroupAdmin
    topics: JointQuestion[str, TopicDescription]
    signals: TopicPartition
    decided: DecidedLog
    polls: GroupPolls
    moves: GroupMoves


class MachineChanges:
    """Wakes those who wait for a state of a machine."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def tell(self) -> None:
        """A machine may have changed."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, ready: Callable[[], T | None]) -> T:
        """The first result of `ready` that is not None."""
        while (result := ready()) is None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future
        return result


class ControlledPartition:
    """Both machines of one data partition, fed from the start of an ownership.

    Attributes:
        builder: machine of position snapshots.
        machine: machine of groups.
        liveness: which links run.
        read_again: by group, the most records that its consumers would read again if they began
            here now, as of the last `measure`.
        changes: tells when a machine may have changed.
        data: the data partition.
        shared: what the controllers of the ownership share.
        clock: the clocks.
        group_lane, snapshot_lane: carry out the effects of the machines.
    """

    def __init__(
        self,
        data: TopicPartition,
        shared: Controllers,
        builder: PositionSnapshotBuilder,
        machine: ReplicationController,
        liveness: LinkLiveness,
    ) -> None:
        self.builder = builder
        self.machine = machine
        self.changes = MachineChanges()
        self.read_again: dict[str, int] = {}
        self.data = data
        self.shared = shared
        self.clock = shared.deps.connector.clock
        self.liveness = liveness
        self.snapshot_lane = Lane(self, builder)
        self.group_lane = Lane(self, machine)
        self._topic = b""  # incarnation of the topic at the last look
        self._polled_last: Polled | None = None
        self._counted: dict[str, Hashable] = {}  # inputs of `read_again`

    @property
    def is_wanted(self) -> bool:
        """Whether there is a group to replicate, or another cluster's request to answer."""
        return bool(self.machine.groups) or self.builder.is_asked

    @property
    def groups(self) -> Collection[str]:
        """The groups that are replicated."""
        return self.shared.deps.replicated.groups(self.data.topic, self.machine.groups)

    def wake_groups(self) -> None:
        """Looks at the groups now: somebody waits for what is found."""
        self.shared.polls.look_soon(self.data)
        self.group_lane.wake()

    def signal_read(self, key: SignalKey, value: SignalValue | None) -> None:
        """Takes a signal of this cluster, in log order."""
        self.machine.signal_read(key, value)
        if value is not None:
            self._snapshot_signal_read(key, value)
        if is_about_groups(key):
            self.wake_groups()
        self.changes.tell()

    def _snapshot_signal_read(self, key: SignalKey, value: SignalValue) -> None:
        builder, now_ms = self.builder, self._now_ms()
        pending, completed = builder.pending, builder.counts.completed
        self.snapshot_lane.add(builder.signal_read(key, value, now_ms))
        if pending is not None and builder.counts.completed > completed:
            self.shared.deps.snapshot_taken((now_ms - pending[1]) / 1000)

    def bucket_read(self, key: BucketKey, bucket: Bucket | None) -> None:
        """Takes a record of the positions partition, in log order."""
        self.machine.bucket_read(key, bucket)
        self.shared.polls.look_soon(self.data)

    def positions_read(self, stable_offset: EndOffset) -> None:
        """Every bucket below this last stable offset was passed to `bucket_read`."""
        self.group_lane.add(self.machine.positions_read(stable_offset, self._now_ms()))
        self.changes.tell()

    async def run(self) -> None:
        """Serves until it fails; call it after the signals that existed at the start were read.

        Raises:
            ConnectorError: a question, or the write of a signal, failed.
        """
        self.snapshot_lane.add(self.builder.caught_up(self._now_ms()))
        self.group_lane.add(self.machine.caught_up(self._now_ms()))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.snapshot_lane.run())
            tasks.create_task(self.group_lane.run())

    async def measure(self, group: str) -> None:
        """Counts the records that a group would read again here; reads a bounded part of the log.

        Does nothing if nothing has changed since the last count.

        Raises:
            ConnectorError: the log cannot be read.
        """
        reread, known = self.machine.read_again(group), self._counted.pop(group, None)
        if reread is None or reread[0] != known:
            self.read_again.pop(group, None)
        if reread is not None:
            inputs, reading = reread
            if inputs != known:
                self.read_again[group] = await answered(reading, self._visible)
            self._counted[group] = inputs

    def _now_ms(self) -> int:
        return self.clock.monotonic_ms()

    async def carry_out(self, effect: ControllerEffect | SnapshotEffect) -> Effects:
        """Carries out an effect of a machine; returns the effects of what came of it."""
        match effect:
            case WriteSignal(key, value):
                writer, signals = self.shared.deps.writer, self.shared.signals
                await append(writer, signals, encode_value(value), key=encode_key(key))
                return []
            case ReadDecidedEnd():
                return await self._read_decided_end(effect)
            case ReadEnd():
                return await self._read_end(effect)
            case Poll():
                return await self._poll(effect)
            case ReadRecords(number, first, until):
                read = await self._visible(ReadLog(first, until))
                return self.machine.log_read(number, read, self._now_ms())
            case MoveGroup(group):
                done = await self.shared.moves.move(effect)
                return self.machine.moved(group, self._now_ms(), done=done)

    async def _topic_now(self) -> bytes | None:
        topic = await self.shared.topics.about(self.data.topic)
        return None if topic is None else topic_incarnation(topic.topic_id)

    async def _read_decided_end(self, asked: ReadDecidedEnd) -> Effects:
        before = await self._topic_now()
        end = await self.shared.decided.decided_end_now(self.data)
        if before is None or before != await self._topic_now():
            raise RetriableError("the topic was created anew", topic=self.data.topic)
        now_ms = self._now_ms()
        return self.builder.decided_end_read(asked.asker, asked.request, before, end, now_ms)

    async def _read_end(self, asked: ReadEnd) -> Effects:
        end = (await self.shared.deps.admin.end_offsets([self.data])).get(self.data)
        topic = await self._topic_now()
        if topic is None or end is None:
            return []
        wall_ahead_ms = self.clock.now_ms() - self._now_ms()
        return self.builder.end_read(asked.attempt_id, topic, end, wall_ahead_ms)

    async def _poll(self, asked: Poll) -> Effects:
        while True:
            known = {*asked.groups, *self.machine.groups}
            wanted = self.shared.deps.replicated.groups(self.data.topic, known)
            pace, now_ms = self.machine.pace, self._now_ms()
            unlike = self._polled_last if pace.is_settled(now_ms) else None
            rests = pace.rests(now_ms)
            groups = self.machine.groups.items()
            unpublished = wanted - {name for name, group in groups if group.state.updates}
            polling = self.shared.polls.poll(
                self.data, wanted, unpublished=unpublished, unlike=unlike, rests=rests
            )
            polled = await ended(polling, self.data, "Poll")
            if polled is not None:
                break
            await asyncio.sleep(ABSENT_TOPIC.wait_s())
        self._polled_last = polled
        return self._polled(asked.number, polled)

    def _polled(self, number: int, polled: Polled) -> Effects:
        view, now_ms = polled.view, self._now_ms()
        if self._topic not in (b"", view.incarnation.topic):
            raise RetriableError("the topic was created anew", topic=self.data.topic)
        self._topic = view.incarnation.topic
        connected = all(connections(self, now_ms).values())
        self.snapshot_lane.add(self.builder.links_changed(now_ms, connected=connected))
        self.snapshot_lane.add(self.builder.log_moved(self._topic, view.decided_end, now_ms))
        return self.machine.polled(number, view, polled.groups, polled.positions_end, now_ms)

    async def _visible(self, wanted: ReadLog) -> LogRead:
        read = await self.shared.decided.visible(self.data, wanted)
        if await self._topic_now() != self._topic:
            return LogRead([], EndOffset(wanted.first))
        return read


def connections(partition: ControlledPartition, now_ms: int) -> dict[str, bool]:
    """For each other cluster, whether its link has met the data partition, and runs (I13)."""
    return {
        source: index.newest is not None and partition.liveness.connected(source, now_ms)
        for source, index in partition.machine.indexes.items()
    }


async def ended(step: Awaitable[T], data: TopicPartition, name: str) -> T:
    """The result of a controller's step, which must end.

    Raises:
        RetriableError: the step has not ended for `STUCK_S`; the ownership begins again.
    """
    limit = asyncio.timeout(STUCK_S)
    try:
        async with limit:
            return await step
    except TimeoutError:
        if not limit.expired():
            raise
        raise RetriableError(
            f"a step of this partition's controller ({name}) has not ended for {STUCK_S:g} s",
            hint="the controller begins again with new clients; check that the brokers answer",
            data=data,
        ) from None


class Lane:
    """Carries out one machine's effects one after the other, and ticks it at its deadline."""

    def __init__(
        self,
        partition: ControlledPartition,
        machine: Machine[int, ControllerEffect | SnapshotEffect],
    ) -> None:
        self._partition = partition
        self._machine = machine
        self._clock = partition.clock
        self._todo: deque[ControllerEffect | SnapshotEffect] = deque()
        self._woken = asyncio.Event()
        self._alarm = Alarm(self._woken.set)
        self._deadline_ms: float | None = None  # as `run` last saw it

    def add(self, effects: Effects) -> None:
        """Carries out these effects of the machine after the others."""
        self._todo.extend(effects)
        if effects or self._machine.deadline_ms != self._deadline_ms:
            self._woken.set()

    def wake(self) -> None:
        """Makes `run` check the machine's deadline again, and end a wait for a change."""
        self._woken.set()

    async def run(self) -> None:
        """Carries out effects until cancelled, or until one fails."""
        try:
            await self._run()
        finally:
            self._alarm.cancel()

    async def _run(self) -> None:
        while True:
            if self._todo:
                together = self._next()
                effects = await asyncio.gather(*map(self._effects_of, together))
                # They come before the other effects: a move is noted before anything else.
                self._todo.extendleft(reversed([*chain.from_iterable(effects)]))
                self._partition.changes.tell()
                continue
            self._woken.clear()
            deadline_ms, now_ms = self._machine.deadline_ms, self._clock.monotonic_ms()
            self._deadline_ms = deadline_ms
            if deadline_ms is not None and now_ms >= deadline_ms:
                effects = self._machine.tick(now_ms)
                self._todo.extend(effects)
                if effects:
                    continue
            if deadline_ms is not None:
                self._alarm.arm(max(deadline_ms, now_ms + REST_MS), now_ms)
            await self._woken.wait()

    def _next(self) -> list[ControllerEffect | SnapshotEffect]:
        """The next effect, and those of other groups that follow and are of the same kind.

        All moves that follow each other are of different groups (I10).
        """
        first = self._todo.popleft()
        together, kind, groups = [first], type(first), {_group_of(first)}
        while self._todo and isinstance(self._todo[0], kind) and None not in groups:
            group = _group_of(self._todo[0])
            if group in groups or (kind is WriteSignal and len(together) == SIGNALS_MAX):
                break
            groups.add(group)
            together.append(self._todo.popleft())
        return together

    async def _effects_of(self, effect: ControllerEffect | SnapshotEffect) -> Effects:
        doing = self._partition.carry_out(effect)
        if isinstance(effect, Poll):
            return await doing  # it may wait for its topic for any time
        return await ended(doing, self._partition.data, type(effect).__name__)


def _group_of(effect: ControllerEffect | SnapshotEffect) -> str | None:
    """The group that an effect moves or signals; None: it does neither."""
    match effect:
        case MoveGroup(group):
            return group
        case WriteSignal(UpdateKey() | AppliedKey() as key):
            return key.group
        case _:
            return None


def shown_groups(groups: Collection[str]) -> list[str]:
    """Up to `GROUPS_MAX` groups whose figures are shown: the first ones by name."""
    return nsmallest(GROUPS_MAX, groups)


def controller_stats(partition: ControlledPartition, now_ms: int) -> ControllerStats:
    """The figures of one data partition and its groups."""
    builder, machine, groups = partition.builder, partition.machine, partition.groups
    shown, read_again = shown_groups(groups), partition.read_again
    lags = ((group, machine.lag(group, now_ms)) for group in shown)
    return ControllerStats(
        pending=int(builder.pending is not None),
        completed=builder.counts.completed,
        timed_out=builder.counts.timed_out,
        connected=connections(partition, now_ms),
        standings=Counter(map(machine.standing, groups)),
        lags={group: lag for group, lag in lags if lag is not None},
        read_again={group: read_again[group] for group in shown if group in read_again},
    )
