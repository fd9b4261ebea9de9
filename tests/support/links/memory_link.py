"""Memory clusters with links, on a clock that moves on at each look."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from stilltide.connectors.clock import Clock
from stilltide.connectors.memory.broker import ONE_BROKER, MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.readers import NewRecord
from stilltide.pipeline.core.links.link import LinkLimits
from stilltide.pipeline.drivers.links.link import LinkRun, LinkRunOptions
from stilltide.pipeline.drivers.links.topics import TopicChoice
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.schemas.coordinator import markers
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.replication import signals
from stilltide.schemas.replication.origins import Origin, PublishRoute, origin_of, topic_incarnation
from stilltide.schemas.replication.positions import (
    Bucket,
    BucketKey,
    LastError,
    decode_bucket,
    decode_key,
    decode_last_error,
    encode_key,
    is_of_link,
    last_error_key,
)
from stilltide.schemas.replication.signals import SignalKey, SignalValue
from stilltide.schemas.retry import Retry
from stilltide.schemas.topics import (
    REPLICATION_MARKERS,
    REPLICATION_POSITIONS,
    TXN_MARKERS,
    BrokerFigures,
    TopicSpec,
    system_partition,
    system_topics,
)
from stilltide.schemas.values import ClusterName, EndOffset, TopicPartition, TxnId

WAIT_S = 90.0
ORDERS = TopicPartition("orders", 0)
SYSTEM_PARTITIONS = 2

OPTIONS = LinkRunOptions(
    partition_count=SYSTEM_PARTITIONS,
    look_interval_s=0.01,
    retry=Retry(0.01),
    refuse_after_s=0.05,
    limits=LinkLimits(linger_ms=20, records_max=7, position_interval_ms=20),
)

BUCKET = encode_key(BucketKey(ClusterName("a"), ClusterName("b"), TopicPartition("orders", 0), 0))
"""The key of a first bucket of a link from a to b."""


class RestlessClock:
    """A clock on which every look takes 10 ms, so that every deadline comes."""

    def __init__(self) -> None:
        self.at_ms = 1_000_000

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        self.at_ms += 10
        return self.at_ms

    monotonic_ms = now_ms


class MemoryCluster:
    """A broker with a name, the system topics, and topic `orders` of one partition."""

    def __init__(self, name: str, *, orders: int = 1, figures: BrokerFigures = ONE_BROKER) -> None:
        self.name = ClusterName(name)
        self.broker = MemoryBroker(f"id-{name}", figures)
        self.connector = MemoryConnector(self.broker)
        for spec in system_topics(coordinators=1, partitions=SYSTEM_PARTITIONS):
            self.broker.create_topic(spec)
        if orders:
            self.create("orders", orders)

    def create(self, topic: str, partitions: int = 1, **configs: str):
        """Creates a topic; `_` in config names means a dot."""
        wanted = {key.replace("_", "."): value for key, value in configs.items()}
        self.broker.create_topic(TopicSpec(topic, partitions, wanted))

    def write(self, *values: bytes, data: TopicPartition = ORDERS, txn: TxnId | None = None):
        """Writes local records, plain or of a transaction."""
        headers = None if txn is None else [("txn", txn.to_bytes())]
        for value in values:
            self.broker.append(data, b"k", value, headers)

    def end(self, txn: TxnId, *, committed: bool, data: TopicPartition = ORDERS):
        """Writes the marker of a transaction, with the log's end offset."""
        log = self.broker.log(data)
        assert log is not None
        end = EndOffset(log.end)
        marker = Marker(data, txn, committed, EndOffset(0), end, 1, self.topic_id(data))
        encoded = markers.encode_key(data, txn), markers.encode_value(marker)
        self.broker.append(self._place(TXN_MARKERS, data), *encoded, None)

    def mark(self, key: SignalKey, value: SignalValue):
        """Writes a signal."""
        encoded = signals.encode_key(key), signals.encode_value(value)
        self.broker.transactions.append_all(
            [NewRecord(self._place(REPLICATION_MARKERS, key.data), *encoded)]
        )

    def marks(self) -> dict[SignalKey, SignalValue | None]:
        """The newest signals."""
        return dict(
            signals.decode(it.key, it.value)
            for number in range(SYSTEM_PARTITIONS)
            for it in self.broker.records(TopicPartition(REPLICATION_MARKERS, number))
        )

    def buckets(self) -> dict[BucketKey, Bucket | None]:
        """The newest buckets."""
        return {
            decode_key(it.key): None if it.value is None else decode_bucket(it.value)
            for number in range(SYSTEM_PARTITIONS)
            for it in self.broker.records(TopicPartition(REPLICATION_POSITIONS, number))
            if not is_of_link(it.key)
        }

    def last_errors(self) -> dict[str, LastError]:
        """The last errors of links to the cluster, by source, as their records say."""
        return {
            key.source: decode_last_error(it.value)
            for it in self.broker.records(TopicPartition(REPLICATION_POSITIONS, 0))
            if (key := last_error_key(it.key)) and it.value is not None
        }

    def topic_id(self, data: TopicPartition = ORDERS) -> bytes:
        """The topic's id, 16 bytes."""
        found = self.broker.topics[data.topic]
        return found.description.topic_id

    def incarnation(self, data: TopicPartition = ORDERS) -> bytes:
        """The topic's incarnation."""
        return topic_incarnation(self.topic_id(data))

    def values(self, data: TopicPartition = ORDERS) -> list[bytes | None]:
        """The committed values of a topic, which may not exist yet."""
        log = self.broker.log(data)
        if log is None:
            return []
        return [it.value for it in self.broker.records(data) if it.offset < log.stable_end]

    def origins(self, data: TopicPartition = ORDERS) -> list[Origin | None]:
        """The origin of each record."""
        return [origin_of(it.headers) for it in self.broker.records(data)]

    def _place(self, topic: str, data: TopicPartition) -> TopicPartition:
        return TopicPartition(topic, system_partition(data, SYSTEM_PARTITIONS))


def link_of(
    source: MemoryCluster,
    target: MemoryCluster,
    options: LinkRunOptions = OPTIONS,
    clock: Clock | None = None,
    hindrances: Hindrances | None = None,
) -> LinkRun:
    """A link that is not started."""
    ends = (source.name, source.connector), (target.name, target.connector)
    return LinkRun(*ends, clock or RestlessClock(), options, hindrances)


def copying(*topics: str, merge: bool = False) -> LinkRunOptions:
    """Options of a link that copies these topics, or all topics."""
    return replace(OPTIONS, choice=TopicChoice(topics or ("*",), merge=merge))


@asynccontextmanager
async def linked(
    source: MemoryCluster,
    target: MemoryCluster,
    options: LinkRunOptions = OPTIONS,
    clock: Clock | None = None,
) -> AsyncIterator[LinkRun]:
    """Runs a link from entry to exit; raises the link's error at exit."""
    async with _running(link_of(source, target, options, clock)) as replication:
        yield replication


@asynccontextmanager
async def _running(replication: LinkRun) -> AsyncIterator[LinkRun]:
    running = asyncio.create_task(replication.run())
    try:
        yield replication
    finally:
        replication.stop()
        async with asyncio.timeout(WAIT_S):
            await running


async def until(ready: Callable[[], bool]):
    """Returns when `ready()` is true."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if ready():
                return
            await asyncio.sleep(0)


def publishing_of(
    cluster: MemoryCluster, publish: PublishRoute, options: LinkRunOptions = OPTIONS
) -> LinkRun:
    """A publish that is not started."""
    end = cluster.name, cluster.connector
    return LinkRun(end, end, RestlessClock(), replace(options, publish=publish))


@asynccontextmanager
async def published(
    cluster: MemoryCluster, publish: PublishRoute, options: LinkRunOptions = OPTIONS
) -> AsyncIterator[LinkRun]:
    """Runs a publish from entry to exit; raises its error at exit."""
    async with _running(publishing_of(cluster, publish, options)) as replication:
        yield replication
