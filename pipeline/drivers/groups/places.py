"""Reads groups of a topic on one cluster, once: offsets, log, offset index and signals.

*Source*: docs/protocols I. For operators: all is read from topics and groups, so that no worker
needs to run.
"""

import asyncio
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from stilltide.connectors.errors import ConnectorError, FatalError, RetriableError
from stilltide.connectors.ports.admin import TopicDescription
from stilltide.connectors.ports.connector import GroupConnector, closing
from stilltide.connectors.ports.readers import Committed, Record
from stilltide.pipeline.core.groups.frontier import LogRead, LogView, ReadLog, claims_below
from stilltide.pipeline.core.groups.group import GroupSeen, ReplicatedGroup, Standing
from stilltide.pipeline.core.link_liveness import LinkLiveness
from stilltide.pipeline.core.offset_index.index import OffsetIndex
from stilltide.pipeline.drivers.groups.read_elsewhere import GroupSignals
from stilltide.pipeline.drivers.groups.rounds import group_seen
from stilltide.pipeline.drivers.read_committed.decided_log import DecidedLog, answered
from stilltide.pipeline.drivers.read_committed.outcome_tails import OutcomeLogs
from stilltide.pipeline.drivers.shared.feed import TopicFeed
from stilltide.pipeline.drivers.shared.named_partitions import require_topics
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.pipeline.drivers.snapshots.logs import SnapshotLogs
from stilltide.schemas.replication import positions, signals
from stilltide.schemas.replication.origins import (
    Claims,
    Incarnation,
    publish_of,
    topic_incarnation,
)
from stilltide.schemas.replication.positions import (
    Beat,
    BeatKey,
    Bucket,
    BucketKey,
    LastErrorKey,
    PositionsItem,
    PositionsKey,
    PositionsValue,
)
from stilltide.schemas.replication.signals import (
    Applied,
    AppliedKey,
    PositionSnapshots,
    SignalKey,
    SignalValue,
    SnapshotsKey,
    Update,
    UpdateKey,
)
from stilltide.schemas.topics import (
    REPLICATION_MARKERS,
    REPLICATION_POSITIONS,
    TXN_MARKERS,
    TXN_SNAPSHOTS,
    system_partition,
)
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition

T = TypeVar("T")


TOLD_EVERY_S = 2.0
"""Seconds between two lines about the progress of a long read."""

Told = Callable[[str], None]


class ReadingProgress:
    """Reports the progress of a long read every `TOLD_EVERY_S`; a short read is not reported.

    A line is said when it differs from the last one: a read that stands still is silent.

    Args:
        say: called with each line.
    """

    def __init__(self, say: Told) -> None:
        self._say = say
        self._next_s: float | None = None  # of the loop
        self._last = ""

    def at(self, cluster: ClusterName, data: TopicPartition, offset: int, end: int) -> None:
        """The read is at `offset` of `end`."""
        if offset < end:
            self._tell(f"reading {data} on cluster {cluster}: at {offset} of {end}")

    def counted(self, data: TopicPartition, count: int) -> None:
        """So many records were counted in a partition so far."""
        self._tell(f"counting {data}: {count} so far")

    def _tell(self, line: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._next_s is None:
            self._next_s = now_s + TOLD_EVERY_S
        if now_s < self._next_s or line == self._last:
            return
        self._next_s = now_s + TOLD_EVERY_S
        self._last = line
        self._say(line)


class LinkSigns(NamedTuple):
    """What the links to a cluster tell.

    Attributes:
        stopped: clusters of which a link, from or to them, does not run (I13). A beat's age is as
            exact as the clocks of the link and of this process agree.
        heard_ms: for each cluster that has a link to this one, the age of the last sign of it that
            has come here: a beat of the link back; None: there was none.
        open_at: where a link's open transaction holds up the controller; None: nowhere.
    """

    stopped: Collection[ClusterName]
    heard_ms: Mapping[ClusterName, int | None]
    open_at: tuple[TopicPartition, EndOffset] | None


@dataclass
class GroupPlace:
    """A group on one data partition of one cluster, as it was read.

    Attributes:
        cluster: name of the cluster.
        group: name of the group.
        data: the data partition.
        topic_id: Kafka's id of the topic on the cluster.
        view: log of the data partition.
        indexes: offset indexes of the links to this cluster, by source.
        signals: the group's signals.
        signals_before: those that were read before the commit: a later one may tell of a later
            commit, beside which this one would look reset by hand.
        snapshots: position snapshots of the data partition.
        copied: newest bucket of each link, read before the log; None: the link has no bucket.
        links: what the links to this cluster tell.
        committed: the group's commit; None: the group has no commit.
        seen: state of the group.
        decided: reads the log.
        progress: reports the progress of reading the log.
    """

    cluster: ClusterName
    group: str
    data: TopicPartition
    topic_id: bytes
    view: LogView
    indexes: dict[ClusterName, OffsetIndex]
    signals: GroupSignals
    signals_before: GroupSignals
    snapshots: PositionSnapshots | None
    copied: Mapping[ClusterName, Bucket | None]
    links: LinkSigns
    committed: Committed | None
    seen: GroupSeen
    decided: DecidedLog
    progress: ReadingProgress

    async def run(self, reading: Generator[ReadLog, LogRead, T]) -> T:
        """Carries out the reads of a computation, and returns its result."""
        return await answered(reading, self._visible)

    async def _visible(self, wanted: ReadLog) -> LogRead:
        self.progress.at(self.cluster, self.data, wanted.first, self.view.decided_end)
        return await self.decided.visible(self.data, wanted)

    async def read_here(self) -> Claims:
        """The claims that the group's offset means."""
        if self.seen.offset is None or self.seen.offset > self.view.end:
            return {}
        return await self.run(claims_below(self.view, self.index_list, self.seen.offset))

    async def standing(self) -> Standing:
        """The decision of a controller about the group, which is not carried out."""
        state = ReplicatedGroup(self.cluster)
        for source, update in self.signals_before.updates.items():
            state.update_read(source, update)
        state.applied_read(self.signals_before.applied.get(self.cluster))
        evaluation = state.evaluate(self.view, self.index_list, self.seen, may_publish=True)
        return (await self.run(evaluation)).standing

    @property
    def index_list(self) -> list[OffsetIndex]:
        """The offset indexes of all links."""
        return list(self.indexes.values())


@dataclass
class _Known:
    """The contents of signals and buckets about a data partition; the signals are by group."""

    indexes: dict[ClusterName, OffsetIndex]
    signals: dict[str, GroupSignals]
    snapshots: PositionSnapshots | None = None


class GroupPlaces:
    """Reads the places of some groups on one cluster.

    Args:
        cluster: name of the cluster.
        connector: the cluster.
        sources: names of the other clusters; any other cluster whose link has copied to this one
            is found in its buckets.
        timeout_s: longest absence of the cluster before a read fails.
        progress: reports the progress of reading.

    Attributes:
        cluster: as above.
    """

    def __init__(
        self,
        cluster: ClusterName,
        connector: GroupConnector,
        sources: Collection[ClusterName],
        timeout_s: float,
        progress: ReadingProgress,
    ) -> None:
        self._progress = progress
        self.cluster = cluster
        self._connector = connector
        self._sources = sources
        self._admin = connector.admin()
        self._groups = connector.group_admin()
        self._outages = OutageGuard(self._admin, timeout_s=timeout_s)
        self._liveness = LinkLiveness()
        self._decided: DecidedLog | None = None
        self._reading: asyncio.Task[None] | None = None

    async def read(self, topic: str, groups: Collection[str]) -> list[GroupPlace]:
        """A place for each group and partition of the topic, usable until `close`; call it once.

        Raises:
            FatalError: the topic, or a system topic, does not exist on the cluster.
            UnavailableError, RetriableError: the cluster is away.
            DecodeError: a signal, bucket or commit cannot be decoded.
        """
        admin = self._admin
        names = [TXN_MARKERS, TXN_SNAPSHOTS, REPLICATION_MARKERS, REPLICATION_POSITIONS]
        described = await self._outages.call(admin.describe_topics, [topic, *names])
        if topic not in described:
            raise _absent(topic, self.cluster)
        require_topics(names, described)
        numbers = range(described[topic].partition_count)
        partitions = [TopicPartition(topic, number) for number in numbers]
        count = described[REPLICATION_MARKERS].partition_count
        logs = _signal_logs(partitions, count)
        ends = await admin.end_offsets(logs)
        # Index, log and index again, in this order: a copy that becomes visible in between is
        # counted twice rather than not at all.
        before, _ = await self._known(partitions, logs, groups)
        committed = await self._groups.committed(groups, partitions)
        active = await self._groups.active(groups)
        views = await self._views(described[topic], partitions, list(committed.values()), described)
        after, read_to = await self._known(partitions, logs, groups)
        open_at = {log: EndOffset(read_to[log]) for log in logs if read_to[log] < ends.get(log, 0)}
        links = {data: self._signs(after[data], open_at, data, count) for data in partitions}
        return [
            GroupPlace(
                self.cluster,
                group,
                data,
                described[topic].topic_id,
                views[data],
                after[data].indexes,
                after[data].signals[group],
                before[data].signals[group],
                after[data].snapshots,
                {name: one.newest for name, one in before[data].indexes.items()},
                links[data],
                commit_of.get(data),
                group_seen(commit_of.get(data), group in active, bool(commit_of)),
                self._log,
                self._progress,
            )
            for group, commit_of in committed.items()
            for data in partitions
        ]

    def _signs(
        self,
        known: _Known,
        open_at: Mapping[TopicPartition, EndOffset],
        data: TopicPartition,
        count: int,
    ) -> LinkSigns:
        # A controller waits for what it has written to be read back, and for every bucket below the
        # end. A transaction that was open from before all reads until after them holds it up.
        logs, sources = _signal_logs([data], count), known.indexes
        now_ms, liveness = self._connector.clock.monotonic_ms(), self._liveness
        return LinkSigns(
            [source for source in sources if not liveness.connected(source, now_ms)],
            {source: liveness.back_age_ms(source, now_ms) for source in sources},
            next(((log, open_at[log]) for log in logs if log in open_at), None),
        )

    async def has_workers(self) -> bool | None:
        """Whether a worker runs on the cluster; None: that cannot be asked."""
        workers = self._connector.own_id(f"workers-{self.cluster}")
        try:
            return bool(await self._groups.active([workers]))
        except ConnectorError:
            return None

    async def close(self) -> None:
        """Releases connections."""
        await cancelled(self._reading)
        if self._decided is not None:
            await self._decided.close()
        await self._groups.close()
        await self._admin.close()

    @property
    def _log(self) -> DecidedLog:
        assert self._decided is not None
        return self._decided

    async def _views(
        self,
        topic: TopicDescription,
        partitions: Sequence[TopicPartition],
        committed: Sequence[Mapping[TopicPartition, Committed]],
        system: Mapping[str, TopicDescription],
    ) -> dict[TopicPartition, LogView]:
        """The logs, read from the lowest offset of a group, or a higher one with all decided."""
        starts = await self._admin.start_offsets(partitions)
        stable = await self._admin.end_offsets(partitions, committed=True)
        if any(data not in starts or data not in stable for data in partitions):
            raise RetriableError("a partition has no offsets yet", topic=topic.name)

        decided = await self._decided_below(topic, partitions, system)

        logs = OutcomeLogs.of(
            self._connector, self._admin, self._outages, "subscription-report", topics=system
        )
        self._decided = DecidedLog(logs)
        begin: dict[TopicPartition, Offset] = {}
        for data in partitions:
            read_to = [of[data].offset if data in of else 0 for of in committed]
            low = max(starts[data], min(read_to, default=0), decided[data])
            begin[data] = Offset(min(low, stable[data]))
        self._log.add(begin)
        self._reading = asyncio.create_task(self._log.run())
        incarnation = Incarnation(self.cluster, topic_incarnation(topic.topic_id))
        views: dict[TopicPartition, LogView] = {}
        for data in partitions:
            decided_end = await self._while_reading(data, stable[data])
            end = max((await self._admin.end_offsets([data])).get(data, 0), decided_end)
            views[data] = LogView(incarnation, starts[data], EndOffset(end), decided_end)
        return views

    async def _decided_below(
        self,
        topic: TopicDescription,
        partitions: Sequence[TopicPartition],
        system: Mapping[str, TopicDescription],
    ) -> dict[TopicPartition, EndOffset]:
        """The max read position of each partition's newest snapshot; all below is decided (E1)."""
        count = system[TXN_SNAPSHOTS].partition_count
        numbers = {data: system_partition(data, count) for data in partitions}
        async with closing(
            SnapshotLogs(self._connector, self._admin, sorted(set(numbers.values())))
        ) as logs:
            await logs.read_on()
        ends = {data: logs.tables[number].ends.get(data) for data, number in numbers.items()}
        return {
            data: end.max_read_position
            if end is not None and end.topic_id == topic.topic_id
            else EndOffset(0)
            for data, end in ends.items()
        }

    async def _while_reading(self, data: TopicPartition, stable: EndOffset) -> EndOffset:
        """The decided end as of now; raises the error of the reading task if that fails first."""
        assert self._reading is not None
        wanted = asyncio.create_task(self._log.decided_end_now(data))
        works = (self._reading, wanted)
        while not any(work.done() for work in works):
            self._progress.at(self.cluster, data, self._log.decided_end(data), stable)
            await asyncio.wait(works, timeout=TOLD_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
        if not wanted.done():
            wanted.cancel()
            self._reading.result()
        return await wanted

    async def _known(
        self,
        partitions: Sequence[TopicPartition],
        logs: Sequence[TopicPartition],
        groups: Collection[str],
    ) -> tuple[dict[TopicPartition, _Known], Mapping[TopicPartition, Offset]]:
        """The contents of signals and buckets, up to the last stable offsets as of now."""
        sources = self._sources
        places = {
            data: _Known(
                {it: OffsetIndex(it) for it in sources}, {it: GroupSignals() for it in groups}
            )
            for data in partitions
        }
        feed = TopicFeed(
            self._connector, self._admin, "subscription-report", logs, partial(self._decode, places)
        )
        for key, value in await feed.once():
            self._take(places, key, value)
        return places, feed.positions

    def _decode(
        self, places: Mapping[TopicPartition, _Known], record: Record
    ) -> PositionsItem | tuple[SignalKey, SignalValue | None] | None:
        if record.topic == REPLICATION_MARKERS:
            signal = signals.decode_key(record.key)
            known = signal.data in places
            return signals.decode(record.key, record.value) if known else None
        key = positions.key_of(record.key)
        if key.target != self.cluster or isinstance(key, LastErrorKey):
            return None
        if isinstance(key, BucketKey) and key.data not in places:
            return None
        return key, positions.value_of(key, record.value)

    def _take(
        self,
        places: Mapping[TopicPartition, _Known],
        key: PositionsKey | SignalKey,
        value: PositionsValue | SignalValue,
    ) -> None:
        match key, value:
            case UpdateKey() | AppliedKey(), Update() | Applied() | None:
                group_signals = places[key.data].signals.get(key.group)
                if group_signals is not None:
                    group_signals.read(key, value)
            case SnapshotsKey(), PositionSnapshots() | None:
                if key.source == self.cluster:
                    places[key.data].snapshots = value
            case BucketKey(), Bucket() | None:
                if publish_of(key.source) is None:
                    indexes = places[key.data].indexes
                    index = indexes.setdefault(key.source, OffsetIndex(key.source))
                    index.bucket_read(key.number, value)
            case BeatKey(), Beat():
                clock = self._connector.clock
                now_ms, wall_ms = clock.monotonic_ms(), clock.now_ms()
                self._liveness.beat_read(key.source, value, None, now_ms, wall_ms)
            case _:
                pass  # requests and responses of position snapshots


def _signal_logs(partitions: Collection[TopicPartition], count: int) -> list[TopicPartition]:
    """The partitions of system topics that hold signals and buckets of these data partitions."""
    numbers = sorted({system_partition(data, count) for data in partitions})
    topics = (REPLICATION_MARKERS, REPLICATION_POSITIONS)
    return [TopicPartition(topic, number) for topic in topics for number in numbers]


def _absent(topic: str, cluster: ClusterName) -> FatalError:
    return FatalError(
        f"the topic does not exist on cluster {cluster}",
        hint="correct the name, or wait until a link has made the topic there",
        topic=topic,
    )
