"""Reads the buckets that links have written on a cluster, further with each call of `catch_up`.

*Source*: docs/protocols H1 (whether an `origin` is that of a copy), H3.

*Invariants*: after `catch_up`, every bucket is known that was committed before the call; `catch_up`
waits while another link's open transaction holds the last stable offset back, at most `STUCK_S`.
"""

import asyncio
from collections import defaultdict

from stilltide.connectors.clock import Clock
from stilltide.connectors.errors import RetriableError
from stilltide.connectors.ports.admin import TopicDescription
from stilltide.connectors.ports.readers import LogReader
from stilltide.connectors.ports.records import Record
from stilltide.pipeline.core.link_liveness import LinkLiveness
from stilltide.pipeline.drivers.links.sides import Side
from stilltide.pipeline.drivers.service.passed_over import pass_over
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import DecodeError, placed_each
from stilltide.schemas.replication.origins import Incarnation, topic_incarnation
from stilltide.schemas.replication.positions import (
    LastError,
    beat_key,
    bucket_head,
    decode_beat,
    decode_bucket,
    decode_key,
    last_error_key,
    told_error,
)
from stilltide.schemas.replication.publishes import PublishRoute, publish_of
from stilltide.schemas.topics import REPLICATION_POSITIONS
from stilltide.schemas.values import ClusterName, Offset, TopicPartition

log = get_logger(__name__)

STUCK_S = 120.0
"""A reader that has not met the ends for so long is replaced, as it may have lost its brokers
(docs/internals/kafka-clients.md). A link's open transaction ends before that."""


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
        self._client_id = client_id
        self._reader: LogReader | None = None
        self._positions: dict[TopicPartition, int] = {}
        self._origins: defaultdict[TopicPartition, set[Incarnation]] = defaultdict(set)
        self._heads: dict[bytes, bytes] = {}
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
        """Reads up to the ends as of the call.

        Raises:
            RetriableError: the cluster is away, or the reader has not met the ends for `STUCK_S`.
            DecodeError: a record is no bucket; names its place.
        """
        async with self._turn:
            await self._open()
            assert self._reader is not None
            began_ms = self._clock.monotonic_ms()
            limit = asyncio.timeout(STUCK_S)
            try:
                async with limit:
                    await self._read_to_ends(self._reader)
            except TimeoutError:
                if not limit.expired():
                    raise
                await self.close()
                raise self._stuck() from None
            self._read_ms = began_ms

    async def close(self) -> None:
        """Releases the connection; a later `catch_up` reads everything again."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    async def _read_to_ends(self, reader: LogReader) -> None:
        ends = await self._side.admin.end_offsets(list(self._positions))
        while any(self._positions[data] < end for data, end in ends.items()):
            with placed_each(await reader.read()) as each:
                for item in each:
                    data = item.data
                    if isinstance(item, Record):
                        try:
                            self._record_read(item)
                        except DecodeError as error:
                            await pass_over(self._side.connector, item, error)
                        self._positions[data] = item.offset + 1
                    else:
                        self._positions[data] = item.end_offset

    def _stuck(self) -> RetriableError:
        """The error of a reader that has not met the ends; also logged, as callers try again."""
        error = RetriableError(
            f"the ends were not met within {STUCK_S:g} s, so that it is not known which links run",
            hint="they are read again from the start; look for an open transaction of a link",
            topic=REPLICATION_POSITIONS,
        )
        log.warning("positions_read_again", cluster=self._side.name, why=str(error))
        return error

    async def _open(self) -> None:
        if self._reader is not None:
            return
        starts = await self._side.admin.start_offsets(self._side.partitions(REPLICATION_POSITIONS))
        reader = self._side.connector.reader(self._client_id)
        await reader.assign({data: Offset(start) for data, start in starts.items()})
        self._reader, self._positions = reader, dict(starts)

    def _record_read(self, record: Record) -> None:
        beat = beat_key(record.key)
        if beat is not None:
            if record.value is not None and beat.target == self._side.name:
                now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
                told = decode_beat(record.value)
                self.liveness.beat_read(beat.source, told, self._read_ms, now_ms, wall_ms)
            return
        failing = last_error_key(record.key)
        if failing is not None:
            if failing.target == self._side.name:
                self.last_errors[failing.source] = told_error(record.value)
            return
        key = decode_key(record.key)
        if record.value is None:
            return  # an incarnation that was copied once stays known
        assert record.key is not None
        topics = bucket_head(record.value)
        if self._heads.get(record.key) == topics:
            return  # a bucket grows, and is written again and again for the same topics
        bucket = decode_bucket(record.value)
        self._heads[record.key] = topics
        publish = publish_of(key.source)
        if publish is not None:
            ids = bucket.source_incarnation, bucket.target_incarnation
            self.publishes[publish].add(ids)
            return
        self._origins[key.data].add(Incarnation(key.source, bucket.source_incarnation))
        self.links.add((key.source, key.target, key.data.topic))
