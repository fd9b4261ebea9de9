"""The two clusters of a link, and the system topics that they need before the link copies.

*Source*: docs/protocols H1, H2, H7, I13; `schemas.topics`.

*Refuses*: a link to itself, also under two names.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import TypeVar

from stilltide.connectors.clock import Clock
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.connectors.ports.copying import LinkConnector
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.core.link_liveness import LinkLiveness
from stilltide.pipeline.core.replicas import WantedReplicas
from stilltide.pipeline.drivers.shared.feed import TopicFeed
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.pipeline.drivers.shared.topic_findings import ensure_replicated
from stilltide.pipeline.errors import LinkError
from stilltide.schemas.replication.origins import (
    Incarnation,
    PublishRoute,
    publish_of,
    topic_incarnation,
)
from stilltide.schemas.replication.positions import (
    Beat,
    Bucket,
    BucketKey,
    LastError,
    LastErrorKey,
    PositionsItem,
    PositionsKey,
    PositionsValue,
    key_of,
    value_of,
)
from stilltide.schemas.topics import (
    REPLICATION_MARKERS,
    REPLICATION_POSITIONS,
    TXN_MARKERS,
    TXN_SNAPSHOTS,
    system_partition,
    system_topics,
)
from stilltide.schemas.values import ClusterName, TopicPartition

_NEEDED = (REPLICATION_MARKERS, REPLICATION_POSITIONS, TXN_MARKERS, TXN_SNAPSHOTS)


@dataclass(frozen=True, slots=True)
class Side:
    """One cluster of a link.

    Attributes:
        name: name by which other clusters know the cluster.
        connector: connector of the cluster.
        admin: admin client of the cluster; its maker closes it.
        counts: number of partitions of each system topic that a link needs.
    """

    name: ClusterName
    connector: LinkConnector
    admin: LogAdmin
    counts: dict[str, int]

    def system(self, topic: str, data: TopicPartition) -> TopicPartition:
        """The partition of a system topic that serves a data partition."""
        return TopicPartition(topic, system_partition(data, self.counts[topic]))

    def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a system topic."""
        return [TopicPartition(topic, number) for number in range(self.counts[topic])]


class TopicNames:
    """Translates between both names.

    Args:
        publish: the topics of a publish; None: names are the same on both sides.
    """

    def __init__(self, publish: PublishRoute | None = None) -> None:
        self.publish = publish

    def on_source(self, data: TopicPartition) -> TopicPartition:
        """The name of a data partition on the source."""
        publish = self.publish
        return data if publish is None else TopicPartition(publish.source, data.partition)

    def on_target(self, data: TopicPartition) -> TopicPartition:
        """The name of a data partition on the target."""
        publish = self.publish
        return data if publish is None else TopicPartition(publish.target, data.partition)


async def opened(
    name: ClusterName,
    connector: LinkConnector,
    admin: LogAdmin,
    *,
    partition_count: int,
    replicas: WantedReplicas,
) -> Side:
    """A side whose system topics exist; missing ones are created with `partition_count` partitions.

    Raises:
        ConfigError: the cluster has too few brokers for `replicas` to be written to.
        FatalError: a system topic has another policy.
        RetriableError: the cluster is away.
    """
    described = await admin.describe_topics(_NEEDED)
    specs = [
        replace(spec, partition_count=described[spec.name].partition_count)
        if spec.name in described
        else spec
        for spec in system_topics(coordinators=1, partitions=partition_count)
        if spec.name in _NEEDED
    ]
    await ensure_replicated(admin, specs, replicas)
    return Side(name, connector, admin, {spec.name: spec.partition_count for spec in specs})


async def check_distinct(source: Side, target: Side) -> None:
    """Checks that the two sides are different clusters.

    Raises:
        LinkError: both sides are the same cluster.
        RetriableError: a cluster is away.
    """
    source_id, target_id = await source.admin.cluster_id(), await target.admin.cluster_id()
    if source_id == target_id:
        raise LinkError(
            f"{source.name} and {target.name} are the same cluster",
            detail=f"both have the id {source_id}",
            hint="correct the address of one of them",
        )


class PositionsView:
    """The replication-positions of one cluster, as of the last `catch_up`.

    Attributes:
        links: (source, target, topic) of each topic that a link has copied to the cluster.
        publishes: the publishes of the cluster, each with all pairs of incarnations of its source
            and target topic; what a publish has copied counts as written here (H7).
        liveness: which links to the cluster run, as of the last `catch_up`.
        last_errors: the last errors of links to the cluster, by source (H9).
        newest: the newest bucket of each link to the cluster and data partition, with its number:
            the position of the link, whichever process copies (H12).
    """

    def __init__(self, side: Side, client_id: str, clock: Clock) -> None:
        self._side = side
        self._clock = clock
        self._read_ms: int | None = None  # when everything that was there then had been read
        self.liveness = LinkLiveness()
        logs = side.partitions(REPLICATION_POSITIONS)
        self._feed = TopicFeed(side.connector, side.admin, client_id, logs, self._decode)
        self._origins: defaultdict[TopicPartition, set[Incarnation]] = defaultdict(set)
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None  # reads next, for all who have asked
        self._readings: set[asyncio.Task[None]] = set()
        self.last_errors: dict[ClusterName, LastError | None] = {}
        self.links: set[tuple[ClusterName, ClusterName, str]] = set()
        self.newest: dict[tuple[ClusterName, TopicPartition], tuple[int, Bucket]] = {}
        self.publishes: defaultdict[PublishRoute, set[tuple[bytes, bytes]]] = defaultdict(set)

    def origins(self, data: TopicPartition) -> set[Incarnation]:
        """The incarnations that links have ever copied to a data partition of this cluster."""
        return self._origins[data]

    def is_published(self, topic: TopicDescription) -> bool:
        """Whether a publish has written to a topic of this cluster."""
        incarnation = topic_incarnation(topic.topic_id)
        return any(
            publish.target == topic.name and incarnation in {there for _, there in ids}
            for publish, ids in self.publishes.items()
        )

    async def catch_up(self) -> None:
        """Reads up to the ends as of the call or later; raises as `TopicFeed.to_now`.

        All who call while others read have one reading together: a link meets its partitions at
        once, and asks for each.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._read())
            self._readings.add(self._next)
            self._next.add_done_callback(self._has_read)
        await asyncio.shield(self._next)

    async def _read(self) -> None:
        async with self._turn:
            self._next = None  # who calls from now on may need what comes from now on
            began_ms = self._clock.monotonic_ms()
            async for items in self._feed.to_now(open_too=True):
                for key, value in items:
                    self._take(key, value)
            self._read_ms = began_ms

    def _has_read(self, reading: asyncio.Task[None]) -> None:
        self._readings.discard(reading)
        if not reading.cancelled():
            reading.exception()  # seen, also if all who waited for it were cancelled

    async def close(self) -> None:
        """Releases the connection; a later `catch_up` reads on."""
        self._next = None
        await cancelled(*self._readings)
        await self._feed.close()

    def _decode(self, record: Record) -> PositionsItem | None:
        key = key_of(record.key)
        concerns = isinstance(key, BucketKey) or key.target == self._side.name
        return (key, value_of(key, record.value)) if concerns else None

    def _take(self, key: PositionsKey, value: PositionsValue) -> None:
        if isinstance(value, Beat):
            now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
            self.liveness.beat_read(key.source, value, self._read_ms, now_ms, wall_ms)
        elif isinstance(key, LastErrorKey):
            assert value is None or isinstance(value, LastError)
            self.last_errors[key.source] = value
        elif isinstance(key, BucketKey) and isinstance(value, Bucket):
            self._bucket_read(key, value)

    def _bucket_read(self, key: BucketKey, bucket: Bucket) -> None:
        publish = publish_of(key.source)
        if publish is not None:
            ids = bucket.source_incarnation, bucket.target_incarnation
            self.publishes[publish].add(ids)
            return
        self._origins[key.data].add(Incarnation(key.source, bucket.source_incarnation))
        self.links.add((key.source, key.target, key.data.topic))
        if key.target == self._side.name:
            place = key.source, key.data
            number, _ = self.newest.get(place, (-1, None))
            if key.number >= number:
                self.newest[place] = key.number, bucket


T = TypeVar("T")

TICK_S = 0.5


async def within_awake(answer: Awaitable[T], seconds: float) -> T:
    """The answer; raises `TimeoutError` if it does not come while the process is awake so long.

    A process that was frozen reads the answers that came meanwhile before the time is over.
    """
    asked = asyncio.ensure_future(answer)
    try:
        for _ in range(max(1, round(seconds / TICK_S))):
            done, _waiting = await asyncio.wait([asked], timeout=TICK_S)
            if done:
                return await asked
    finally:
        asked.cancel()
    raise TimeoutError


BUSY_S = 2.0
"""A tick that comes up to so late is that of a busy machine; a later one, that of a freeze."""


class AwakeTime:
    """Counts seconds from `begin` to `end`; a longer freeze of the process counts as one tick."""

    def __init__(self) -> None:
        self._counted_s = self._ticked_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        """Seconds awake since `begin`; 0 after `end`."""
        return 0.0 if self._timer is None else self._counted_s + self._since_tick_s()

    def begin(self) -> None:
        """Counts from 0."""
        self.end()
        self._counted_s = 0.0
        self._wait()

    def end(self) -> None:
        """Counts no more. Safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._ticked_s = loop.time()
        self._timer = loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._counted_s += self._since_tick_s()
        self._wait()

    def _since_tick_s(self) -> float:
        passed_s = asyncio.get_running_loop().time() - self._ticked_s
        return passed_s if passed_s <= TICK_S + BUSY_S else TICK_S
