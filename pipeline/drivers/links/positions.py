"""Reads the buckets that links have written on a cluster, further with each call of `catch_up`.

*Source*: docs/protocols H1 (whether an `origin` is that of a copy), H3.

*Invariants*: after `catch_up`, every bucket is known that was committed before the call; `catch_up`
waits while another link's open transaction holds the last stable offset back. An incarnation that
was copied once stays known, whatever is deleted from the topic.
"""

import asyncio
from collections import defaultdict

from stilltide.connectors.clock import Clock
from stilltide.connectors.ports.admin import TopicDescription
from stilltide.connectors.ports.records import Record
from stilltide.pipeline.core.link_liveness import LinkLiveness
from stilltide.pipeline.drivers.links.sides import Side
from stilltide.pipeline.drivers.shared.feed import TopicFeed
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
from stilltide.schemas.topics import REPLICATION_POSITIONS
from stilltide.schemas.values import ClusterName, TopicPartition


class PositionsView:
    """The replication-positions of one cluster, as of the last `catch_up`.

    Attributes:
        links: (source, target, topic) of each topic that a link has copied to the cluster.
        publishes: the publishes of the cluster, each with all pairs of incarnations of its source
            and target topic; what a publish has copied counts as written here (H7).
        liveness: which links to the cluster run, as of the last `catch_up`.
        last_errors: the last errors of links to the cluster, by source (H9).
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
        self.last_errors: dict[ClusterName, LastError | None] = {}
        self.links: set[tuple[ClusterName, ClusterName, str]] = set()
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
        """Reads up to the ends as of the call; raises as `TopicFeed.to_now`."""
        async with self._turn:
            began_ms = self._clock.monotonic_ms()
            async for items in self._feed.to_now(open_too=True):
                for key, value in items:
                    self._take(key, value)
            self._read_ms = began_ms

    async def close(self) -> None:
        """Releases the connection; a later `catch_up` reads on."""
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
