"""Runs one link on one positions partition, from its fence until it stops or fails.

*Source*: docs/protocols H1, H2, H4, H5, H6, H7, H10, I13 (rules in `core.links.link`).

*Invariants*:
- One loop feeds the machine and carries out its effects, in order; only `ReadIncarnations` and the
  reading of signals and records run in other tasks.
- Any failure ends this driver; consumers at read_committed never see its open transaction. The next
  driver begins with `FenceTarget`.
- A bounded number of records is held while the machine takes none.

Refuses: to go on with a topic that was deleted and created again (`StartOverError`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stilltide.connectors.clock import Clock
from stilltide.connectors.errors import ConnectorError, FencedError
from stilltide.connectors.ports.connector import closing
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.core.links.copying import Keyless, Topics
from stilltide.pipeline.core.links.link import (
    AwaitPolicy,
    Begin,
    Commit,
    Copy,
    FenceTarget,
    Fetch,
    Finish,
    LeaveOut,
    Link,
    LinkEffect,
    LinkLimits,
    ReadIncarnations,
    ReadLinkPositions,
    ReadPositionsEnd,
    ReportLost,
    ServeLink,
    StartOver,
)
from stilltide.pipeline.core.links.progress import LinkProgress
from stilltide.pipeline.drivers.links.publish import copied_end, refuse_foreign_records
from stilltide.pipeline.drivers.links.sides import PositionsView, Side, TopicNames
from stilltide.pipeline.drivers.links.source import DecidedSource, Payload
from stilltide.pipeline.drivers.links.topics import AnswerTime, topics_now
from stilltide.pipeline.drivers.links.writer import (
    LinkWriter,
    end_hanging_copies,
    end_hanging_positions,
)
from stilltide.pipeline.drivers.service.hindrances import Hindrances, Work
from stilltide.pipeline.drivers.shared.alarm import Alarm
from stilltide.pipeline.drivers.shared.feed import TopicFeed
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.tasks import Tasks
from stilltide.pipeline.errors import KeylessRecordError, PipelineError, PublishError
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.replication import signals
from stilltide.schemas.replication.positions import (
    Beat,
    Bucket,
    BucketKey,
    decode_bucket,
    key_of,
)
from stilltide.schemas.replication.signals import SignalKey, SignalValue
from stilltide.schemas.topics import REPLICATION_MARKERS, REPLICATION_POSITIONS, system_partition
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition


class Throttle:
    """A token bucket that may go below zero by one batch.

    Args:
        bytes_per_s: the limit; None for no limit.
        now_s: a monotonic clock, in seconds.
    """

    def __init__(self, bytes_per_s: float | None, now_s: Callable[[], float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._now_s = now_s
        self._at_s = now_s()
        self._left = bytes_per_s or 0.0

    def spend(self, size_bytes: int) -> None:
        """Counts bytes that were written."""
        if self._bytes_per_s is not None:
            self._earn(self._bytes_per_s)
            self._left -= size_bytes

    def delay_s(self) -> float:
        """The time to wait; 0: more may be written now."""
        if self._bytes_per_s is None:
            return 0.0
        self._earn(self._bytes_per_s)
        return max(0.0, -self._left / self._bytes_per_s)

    def _earn(self, bytes_per_s: float) -> None:
        """Adds the tokens earned since the last call, up to one second's share."""
        now_s = self._now_s()
        gained = (now_s - self._at_s) * bytes_per_s
        self._left, self._at_s = min(self._left + gained, bytes_per_s), now_s


_log = get_logger(__name__)


class StartOverError(PipelineError):
    """A topic was deleted and created again: another driver must begin (H6)."""


def _lacks_key(payload: Payload) -> bool:
    return payload[1] is None


async def _may_run() -> None:
    """A link between two clusters may run beside any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDeps:
    """Dependencies that the drivers of one link share.

    Attributes:
        source: cluster to copy from.
        target: cluster to copy to.
        known: positions of the links that copy to the source.
        clock: the clocks.
        progress: figures of the link.
        throttle: limit of the whole link's bytes per second.
        limits: limits of transactions.
        names: names of the data partitions on both sides.
        answer_time: limits how long a transaction waits for the clusters' topics.
        compacting: topics that are known to compact on the target (H10), as of the last look.
        skips_keyless: whether records without key are left out there; else partitions wait.
        declared: called after the commit of buckets without copies, and before the next record is
            copied; raises if this link may not run beside another one (H7).
        hindrances: what hinders the process that runs the link (C17).
    """

    source: Side
    target: Side
    known: PositionsView
    clock: Clock
    progress: LinkProgress
    throttle: Throttle
    limits: LinkLimits = field(default_factory=LinkLimits)
    names: TopicNames = field(default_factory=TopicNames)
    answer_time: AnswerTime = field(default_factory=AnswerTime)
    compacting: set[str] = field(default_factory=set[str])
    skips_keyless: bool = False
    declared: Callable[[], Awaitable[None]] = _may_run
    hindrances: Hindrances = field(default_factory=Hindrances)

    @property
    def has_signals(self) -> bool:
        """Whether the link carries signals of replicated groups; a publish does not."""
        return self.names.publish is None

    @property
    def origin(self) -> ClusterName:
        """The cluster that the `origin` headers of copies name."""
        return self.source.name if self.names.publish is None else self.target.name


def keyless_record(deps: LinkDeps, data: TopicPartition, offset: Offset) -> KeylessRecordError:
    """The error of a partition that waits; names the place of the record on the source."""
    topic, partition = deps.names.on_source(data)
    return KeylessRecordError(
        f"a record without key cannot be copied to {data}, which compacts",
        detail="the partition waits; others are copied",
        hint=f"take `compact` from the cleanup.policy of {data.topic} on {deps.target.name} until"
        " the record is copied, or have records without key left out: `--keyless skip`, or the"
        " setting copy_keyless=skip of a worker",
        topic=topic,
        partition=partition,
        offset=offset,
    )


class LinkDriver:
    """One life of a link; `run` it once, then `close` it.

    Args:
        deps: dependencies shared with the link's other drivers.
        partition: number of the partition of replication-positions on the target.
        topics: data partitions to copy at first; all belong to the positions partition.
    """

    def __init__(
        self, deps: LinkDeps, partition: int, topics: Mapping[TopicPartition, Topics]
    ) -> None:
        self._deps = deps
        self._partition = partition
        keyless = Keyless(
            frozenset(deps.compacting), skips=deps.skips_keyless, lacks_key=_lacks_key
        )
        self._machine: Link[Payload] = Link(
            deps.source.name, deps.target.name, deps.limits, keyless
        )
        self._writer = LinkWriter(deps.source.name, deps.target, partition, deps.origin)
        self._client_id = f"link-{deps.source.name}-{deps.target.name}-{partition}"
        self._changed = asyncio.Event()
        self._source = DecidedSource(
            deps.source,
            self._client_id,
            OutageGuard(deps.source.admin),
            self._changed,
            deps.names,
            progress=deps.progress,
        )
        self._to_take = dict(topics)  # data partitions that the machine does not know yet
        self._fetches: dict[TopicPartition, EndOffset] = {}
        self._fed: dict[TopicPartition, EndOffset] = {}
        self._asking: set[TopicPartition] = set()
        self._todo: list[LinkEffect[Payload]] = []
        self._tasks = Tasks(self._fail)
        self._failure: BaseException | None = None
        self._stopping = False
        self._handlers: dict[type, Any] = {
            Begin: lambda _: self._writer.begin(),
            Copy: self._copy,
            Finish: self._finish,
            Commit: self._commit,
        }

    def topics_seen(self, topics: Mapping[TopicPartition, Topics]) -> None:
        """Takes the topics as they are now; new ones are copied, too.

        A topic that was created again, or is gone, ends the driver, and so does one that a
        partition waits for and that does not compact any more (H10).
        """
        for data, now in topics.items():
            partition = self._machine.partitions.get(data)
            before = None if partition is None else partition.topics
            if before is None:
                self._to_take.setdefault(data, now)
            elif before[:2] != now[:2]:
                self._fail(StartOverError(f"{data} is another topic by now"))
        for data in self._deps.progress.waiting.keys() & self._fed.keys():
            if data.topic not in self._deps.compacting:
                self._deps.progress.begins(data)
                self._fail(StartOverError(f"{data.topic} does not compact any more"))
        for data in self._fed.keys() - topics.keys():
            self._fail(StartOverError(f"{data} is gone"))
        self._wake()

    def stop(self) -> None:
        """Makes `run` return as soon as the records taken are committed."""
        self._stopping = True
        self._wake()

    async def run(self) -> None:
        """Copies until `stop`.

        Raises:
            StartOverError: topics changed; another driver must begin.
            RetriableError: a cluster is away, or a result is unknown; another driver must begin.
            OffsetOutOfRangeError: the position has left the source's log (H5); another driver must
                begin.
            FencedError: another link has taken over.
            StilltideError: any other error, which is not temporary.
        """
        await self._start()
        self._tasks.start(self._source.run())
        if self._deps.has_signals:
            self._tasks.start(self._read_signals())
        alarm = Alarm(self._changed.set)
        try:
            await self._serve(alarm)
        finally:
            alarm.cancel()

    async def _serve(self, alarm: Alarm) -> None:
        while not (self._stopping and self._is_idle()):
            if self._failure is not None:
                raise self._failure
            if self._todo:
                todo, self._todo = self._todo, []
                for effect in todo:
                    await self._carry_out(effect)
            elif self._fetches:
                await self._assign()
            elif new := self._to_take.keys() - self._writer.cleared:
                topics = {data: self._to_take[data] for data in new}
                await end_hanging_copies(self._deps.target, self._writer, self._machine, topics)
                if self._deps.names.publish is not None:
                    await _refuse_foreign(self._machine, self._deps, self._partition, topics)
            elif not self._next_input():
                await self._wait(alarm)

    async def close(self) -> None:
        """Aborts the open transaction and releases the connections; safe to call twice."""
        _work(self._deps, self._partition).under_way = 0
        await self._tasks.close()
        await self._source.close()
        await self._writer.close()

    # -- the start

    async def _start(self) -> None:
        todo: list[LinkEffect[Any]] = [*self._machine.begin()]
        target = self._deps.target
        while todo:
            match todo.pop(0):
                case FenceTarget():
                    await self._writer.fence()
                    await end_hanging_positions(self._deps.source.name, target)
                    todo += self._machine.fenced()
                case ReadPositionsEnd():
                    if self._deps.has_signals:
                        await _feed_target_signals(self._machine, self._deps, self._partition)
                    place = TopicPartition(REPLICATION_POSITIONS, self._partition)
                    ends = await target.admin.end_offsets([place])
                    todo += self._machine.positions_end_read(ends[place])
                case ReadLinkPositions():
                    todo += await _feed_positions(self._machine, self._deps, self._partition)
                case ServeLink():
                    return
                case effect:
                    raise AssertionError(effect)

    # -- inputs

    def _next_input(self) -> bool:
        """Feeds one input to the machine; False: there is no input, or the machine takes none."""
        machine, now_ms = self._machine, self._deps.clock.monotonic_ms()
        ready, takes = self._source.next_ready(), machine.accepts_records and not self._stopping
        if ready and (ready.data in self._asking or self._deps.throttle.delay_s()):
            ready = None
        # Records that are there come first: they, too, end what is due, and it is not quiet.
        if machine.deadline_ms is not None and (
            (now_ms >= machine.deadline_ms and not (takes and ready))
            or (self._stopping and not self._todo and not machine.is_idle)
        ):
            self._todo += machine.tick(max(now_ms, machine.deadline_ms))
            return True
        if takes and self._to_take:
            data, topics = self._to_take.popitem()
            self._todo += machine.topics_read(data, topics, now_ms)
            return True
        if not takes or ready is None:
            return False
        self._source.take()
        self._fed[ready.data] = ready.until
        self._todo += machine.records_read(ready.data, ready.records, ready.until, now_ms)
        return True

    def _is_idle(self) -> bool:
        return self._machine.is_idle and not self._todo

    async def _wait(self, alarm: Alarm) -> None:
        """Waits until an input arrives or a deadline is due."""
        now_ms = self._deps.clock.monotonic_ms()
        alarm.arm(self._machine.deadline_ms, now_ms)
        delay_s = self._deps.throttle.delay_s() if self._source.next_ready() else 0
        if delay_s:
            alarm.arm(now_ms + delay_s * 1000, now_ms)
        await self._changed.wait()
        self._changed.clear()

    async def _assign(self) -> None:
        """Assigns all partitions: at the machine's fetch positions, else after the records fed."""
        self._fed.update(self._fetches)
        self._asking.difference_update(self._fetches)
        self._fetches.clear()
        await self._source.assign(self._fed)

    # -- effects

    async def _carry_out(self, effect: LinkEffect[Payload]) -> None:
        match effect:
            case Fetch(data, position):
                self._fetches[data] = position
                self._deps.progress.begins(data)
                self._deps.progress.committed(data, position)
            case LeaveOut(data, offsets):
                self._deps.progress.left_out(data, len(offsets))
                _log.warning(
                    "records_without_key_left_out",
                    partition=str(data),
                    first=offsets[0],
                    count=len(offsets),
                )
            case AwaitPolicy(data, offset):
                self._source.hold(data)
                self._deps.progress.waits(data, offset)
                _log.error(
                    "a partition waits", reason=str(keyless_record(self._deps, data, offset))
                )
            case ReportLost(data, (first, end)):
                self._deps.progress.lost(data, end - first)
                _log.error(
                    "records left the source's log before they were copied",
                    source=self._deps.source.name,
                    target=self._deps.target.name,
                    partition=str(data),
                    first=first,
                    end=end,
                )
            case ReadIncarnations(data):
                self._asking.add(data)
                self._tasks.start(self._read_incarnations(data))
            case StartOver(data):
                raise StartOverError(f"{data} is another topic by now")
            case _:
                step = self._handlers[type(effect)](effect)
                await _written(step, self._deps, self._partition, ends=isinstance(effect, Commit))

    async def _copy(self, effect: Copy[Payload]) -> None:
        topics = self._machine.partitions[effect.data].topics
        assert topics is not None
        size_bytes = await self._writer.copy(effect, topics.source)
        self._deps.throttle.spend(size_bytes)

    async def _finish(self, effect: Finish) -> None:
        copies = await self._writer.finish(effect)
        deps = self._deps
        answer = topics_now(
            deps.source.admin, deps.target.admin, list(effect.partitions), deps.names
        )
        topics = await deps.answer_time.of(answer)
        now_ms = deps.clock.monotonic_ms()
        self._todo += self._machine.finished(effect.transaction, copies, topics, now_ms)

    async def _commit(self, effect: Commit) -> None:
        await self._writer.commit(effect, self._beat() if effect.beat else None)
        if not self._writer.has_copies:
            await self._deps.declared()
        self._todo += self._machine.committed(effect.transaction, self._deps.clock.monotonic_ms())
        for data, count in self._writer.copied.items():
            self._deps.progress.copied(data, count)
        for data in effect.buckets:
            self._deps.progress.committed(data, self._machine.partitions[data].position)

    def _beat(self) -> Beat:
        deps, clock = self._deps, self._deps.clock
        heard_age_ms = deps.known.liveness.age_ms(deps.target.name, clock.monotonic_ms())
        return Beat(clock.now_ms(), heard_age_ms)

    async def _read_incarnations(self, data: TopicPartition) -> None:
        known = self._deps.known
        await known.catch_up()
        self._asking.discard(data)
        now_ms = self._deps.clock.monotonic_ms()
        self._take(self._machine.incarnations_read(data, set(known.origins(data)), now_ms))

    # -- signals

    async def _read_signals(self) -> None:
        caught_up = False
        name = f"{self._client_id}-markers"
        async with closing(
            _signals_feed(self._deps, self._deps.source, self._partition, name)
        ) as feed:
            async for items in feed.follow():
                now_ms = self._deps.clock.monotonic_ms()
                if items:
                    self._take(self._machine.signals_read(items, now_ms))
                if feed.caught_up and not caught_up:
                    caught_up = True
                    self._take(self._machine.signals_caught_up(now_ms))

    # -- tasks

    def _take(self, effects: list[LinkEffect[Payload]]) -> None:
        self._todo += effects
        self._wake()

    def _wake(self) -> None:
        self._changed.set()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._wake()


def _work(deps: LinkDeps, partition: int) -> Work:
    """The work of the link at its positions, where several links into the cluster write."""
    publish = deps.names.publish
    doer = f"the link from {deps.source.name}" if publish is None else str(publish.link)
    return deps.hindrances.work("links", f"{REPLICATION_POSITIONS}/{partition}", doer)


async def _written(step: Awaitable[object], deps: LinkDeps, partition: int, *, ends: bool) -> None:
    """Awaits one step of a transaction; a failure hinders until the next commit (C17)."""
    work, now_s = _work(deps, partition), asyncio.get_running_loop().time
    if not work.under_way:
        work.begun(now_s())
    try:
        await step
    except ConnectorError as error:
        work.under_way = 0
        if not isinstance(error, FencedError):
            deps.hindrances.failed_at(work, error)
        raise
    if ends:
        work.succeeded(now_s())


def _signals_feed(
    deps: LinkDeps, side: Side, partition: int, name: str
) -> TopicFeed[tuple[SignalKey, SignalValue | None]]:
    """The signals on a side about the data partitions that a positions partition serves."""
    count = deps.target.counts[REPLICATION_POSITIONS]
    logs = [TopicPartition(REPLICATION_MARKERS, partition)]
    if side.counts[REPLICATION_MARKERS] != count:
        logs = side.partitions(REPLICATION_MARKERS)

    def decode(record: Record) -> tuple[SignalKey, SignalValue | None] | None:
        key = signals.decode_key(record.key)
        if system_partition(key.data, count) != partition:
            return None
        return signals.decode(record.key, record.value)

    return TopicFeed(side.connector, side.admin, name, logs, decode)


async def _feed_target_signals(machine: Link[Any], deps: LinkDeps, partition: int) -> None:
    """Feeds the signals on the target, up to the end as of now; open transactions delay it."""
    async with closing(
        _signals_feed(deps, deps.target, partition, f"link-start-{REPLICATION_MARKERS}")
    ) as feed:
        async for items in feed.to_now(open_too=True):
            for key, value in items:
                if value is not None:
                    machine.target_signal_read(key, value)


def _buckets_feed(deps: LinkDeps, partition: int) -> TopicFeed[tuple[BucketKey, Bucket | None]]:
    """The link's own buckets on the target, of what a positions partition serves."""
    target, place = deps.target, TopicPartition(REPLICATION_POSITIONS, partition)

    def decode(record: Record) -> tuple[BucketKey, Bucket | None] | None:
        key = key_of(record.key)
        if not isinstance(key, BucketKey) or key[:2] != (deps.source.name, target.name):
            return None
        return key, None if record.value is None else decode_bucket(record.value)

    name = f"link-start-{REPLICATION_POSITIONS}"
    return TopicFeed(target.connector, target.admin, name, [place], decode)


async def _feed_positions(
    machine: Link[Any], deps: LinkDeps, partition: int
) -> list[LinkEffect[Any]]:
    """Feeds the link's own buckets; open transactions delay it."""
    place = TopicPartition(REPLICATION_POSITIONS, partition)
    async with closing(_buckets_feed(deps, partition)) as feed:
        async for items in feed.to_now(open_too=True):
            for key, bucket in items:
                machine.bucket_read(key, bucket)
        return machine.positions_read(EndOffset(feed.positions[place]))


async def _refuse_foreign(
    machine: Link[Any], deps: LinkDeps, partition: int, topics: Mapping[TopicPartition, Topics]
) -> None:
    """As `refuse_foreign_records`; raises `FencedError` if another process of the link copies."""
    publish = deps.names.publish
    assert publish is not None, "a publish"
    try:
        await refuse_foreign_records(deps.target, publish, machine, topics)
    except PublishError as error:
        # A fence is noticed only by a write: the successor's copies are no stranger's records.
        if await _copied_by_another(machine, deps, partition, topics):
            raise FencedError("another process of the link has copied since") from error
        raise


async def _copied_by_another(
    machine: Link[Any], deps: LinkDeps, partition: int, topics: Mapping[TopicPartition, Topics]
) -> bool:
    """Whether buckets of these data partitions stand that this process has not written or read."""
    async with closing(_buckets_feed(deps, partition)) as feed:
        async for items in feed.to_now(open_too=True):
            for key, bucket in items:
                now = topics.get(key.data)
                if (
                    now is not None
                    and bucket is not None
                    and bucket.target_incarnation == now.target
                    and bucket.target_to > copied_end(machine, key.data, now)
                ):
                    return True
    return False
