"""Follows what links have told their target: the end of what each has copied, and their beats.

*Source*: docs/protocols H3, H5, H9, I13. Read from the topic, so that no link need be
reachable; each look reads on where the last one ended.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stilltide.connectors.clock import Clock
from stilltide.connectors.errors import OffsetOutOfRangeError
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.core.link_liveness import CONNECTED_MS, LinkLiveness
from stilltide.pipeline.core.status.values import LinkPartition, LinkStatus
from stilltide.pipeline.drivers.shared.dynamic_settings import settings_now, write_setting
from stilltide.pipeline.drivers.shared.feed import TopicFeed
from stilltide.pipeline.drivers.shared.named_partitions import all_partitions, require_topics
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.replication.origins import publish_of, topic_incarnation
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
from stilltide.schemas.settings import forgotten_link_setting
from stilltide.schemas.topics import REPLICATION_POSITIONS
from stilltide.schemas.values import ClusterName, EndOffset, TopicPartition

Copied = Mapping[TopicPartition, Bucket]
"""The newest bucket of each data partition."""


RATE_MS = 10_000
"""Time over which the rate of a link is measured."""

_RATE_MS_MIN = 1000


class PassedOffsets:
    """How many offsets a link passes in a second, over the last `RATE_MS`."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int]] = deque()

    def rate(self, total: int, now_ms: int) -> float | None:
        """Takes the sum of the offsets that are passed now; None: not known for a second yet."""
        seen = self._seen
        if seen and total < seen[-1][1]:  # a topic was created again, or is copied no more
            seen.clear()
        seen.append((now_ms, total))
        while len(seen) > 2 and now_ms - seen[1][0] >= RATE_MS:  # noqa: PLR2004 - both ends
            seen.popleft()
        first_ms, first = seen[0]
        duration_ms = now_ms - first_ms
        return None if duration_ms < _RATE_MS_MIN else (total - first) * 1000 / duration_ms


class _Newest(NamedTuple):
    """The bucket with the highest number."""

    number: int
    bucket: Bucket


class LinksTail:
    """The links into one cluster; each call of `read_on` reads further.

    Args:
        target: name of the cluster.
        connector: the cluster.
        admin: admin client of the same cluster; the caller closes it.
        clock: tells the age of beats.
    """

    def __init__(
        self, target: ClusterName, connector: Connector, admin: LogAdmin, clock: Clock
    ) -> None:
        self._target = target
        self._connector = connector
        self._admin = admin
        self._clock = clock
        self._feed: TopicFeed[PositionsItem] | None = None
        self._newest: dict[ClusterName, dict[TopicPartition, _Newest]] = {}
        self._liveness = LinkLiveness()
        self._errors: dict[ClusterName, LastError | None] = {}
        self._passed: dict[ClusterName, PassedOffsets] = {}

    async def read_on(self) -> None:
        """Reads up to the last stable offsets as of now.

        Raises:
            FatalError: the system topic does not exist.
            OffsetOutOfRangeError: the topic was created again; the next call begins at its start.
            RetriableError: the broker is away.
        """
        if self._feed is None:
            topics = await self._admin.describe_topics([REPLICATION_POSITIONS])
            require_topics([REPLICATION_POSITIONS], topics)
            logs = all_partitions(topics.values())
            self._feed = TopicFeed(self._connector, self._admin, "status-links", logs, self._decode)
        try:
            async for items in self._feed.to_now():
                for key, value in items:
                    self._take(key, value)
        except OffsetOutOfRangeError:
            self._newest.clear()
            self._errors.clear()
            raise

    def sources(self) -> dict[ClusterName, Copied]:
        """What each link has copied, by the name of its source."""
        return {
            source: {data: it.bucket for data, it in newest.items()}
            for source, newest in self._newest.items()
        }

    def back_ms(self, source: ClusterName, now_ms: int) -> int | None:
        """When `source` has heard of the link from here last (I13); None: no link has told."""
        age_ms = self._liveness.back_age_ms(source, self._clock.monotonic_ms())
        return None if age_ms is None else now_ms - age_ms

    def status(
        self, source: ClusterName, partitions: Sequence[LinkPartition], now_ms: int
    ) -> LinkStatus:
        """The link from a source, with its partitions."""
        age_ms = self._liveness.age_ms(source, self._clock.monotonic_ms())
        error = self._errors.get(source)
        passed = self._passed.setdefault(source, PassedOffsets())
        return LinkStatus(
            source,
            self._target,
            None if age_ms is None else now_ms - age_ms,
            bool(self._newest.get(source)) if age_ms is None else age_ms < CONNECTED_MS,
            tuple(partitions),
            rate=passed.rate(sum(it.source_to for it in partitions), now_ms),
            last_error="" if error is None else error.cause,
            last_error_ms=None if error is None else error.happened_ms,
            last_error_hint="" if error is None else error.hint,
        )

    async def close(self) -> None:
        """Releases the reader."""
        if self._feed is not None:
            await self._feed.close()

    def _decode(self, record: Record) -> PositionsItem | None:
        key = key_of(record.key)
        return (key, value_of(key, record.value)) if key.target == self._target else None

    def _take(self, key: PositionsKey, value: PositionsValue) -> None:
        newest = self._newest.setdefault(key.source, {})
        if isinstance(value, Beat):
            now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
            self._liveness.beat_read(key.source, value, None, now_ms, wall_ms)
        elif isinstance(key, LastErrorKey):
            assert value is None or isinstance(value, LastError)
            self._errors[key.source] = value
        elif isinstance(key, BucketKey) and isinstance(value, Bucket):
            known = newest.get(key.data)
            if known is None or key.number >= known.number:
                newest[key.data] = _Newest(key.number, value)


async def link_partitions(
    source: ClusterName, copied: Copied, admin: LogAdmin | None
) -> list[LinkPartition]:
    """The data partitions of a link, with what is left to copy.

    Args:
        source: name of the link's source, or of the publish.
        copied: the newest bucket of each data partition.
        admin: admin client of the source; None: the source is away.

    Raises:
        RetriableError: the source is away.
    """
    there = {data: _on_source(source, data) for data in copied}
    topics: Mapping[str, TopicDescription] = {}
    ends: Mapping[TopicPartition, EndOffset] = {}
    if admin is not None and there:
        topics = await admin.describe_topics(sorted({it.topic for it in there.values()}))
        known = [it for it in there.values() if it.topic in topics]
        ends = await admin.end_offsets(known, committed=True)
    return [
        LinkPartition(
            data,
            bucket.source_to,
            _lag(bucket, topics.get(there[data].topic), ends.get(there[data])),
        )
        for data, bucket in sorted(copied.items())
    ]


def _on_source(source: ClusterName, data: TopicPartition) -> TopicPartition:
    publish = publish_of(source)
    return data if publish is None else TopicPartition(publish.source, data.partition)


def _lag(bucket: Bucket, topic: TopicDescription | None, end: EndOffset | None) -> int | None:
    if topic is None or end is None:
        return None
    if topic_incarnation(topic.topic_id) != bucket.source_incarnation:
        return None
    return max(0, end - bucket.source_to)


PATIENCE_S = 30.0
"""Longest absence of the cluster."""


def is_retired(link: LinkStatus, forgotten: Mapping[ClusterName, int]) -> bool:
    """Whether a link was forgotten, and has given no sign of life since."""
    at_ms = forgotten.get(ClusterName(link.source))
    return at_ms is not None and not link.running and (link.sign_ms or 0) <= at_ms


async def forgotten_links(connector: Connector) -> dict[ClusterName, int]:
    """Links into a cluster that were forgotten; none where no worker has ever run.

    Raises:
        UnavailableError: the cluster stayed away.
    """
    return (await settings_now(connector, patience_s=PATIENCE_S)).forgotten_links()


async def forget_link(
    target: ClusterName, connector: Connector, source: ClusterName, clock: Clock, *, sure: bool
) -> LinkStatus:
    """Forgets a link that does not run; unless `sure` it only looks for the link.

    Args:
        target: name of the cluster into which the link copied.
        connector: that cluster.
        source: name of the link's source, or of the publish.
        clock: tells the age of beats.
        sure: whether to write.

    Raises:
        RefusedError: no such link is known, or it runs; nothing was changed.
        FatalError: a system topic does not exist.
        RetriableError: the cluster is away.
    """
    async with (
        closing(connector.admin()) as admin,
        closing(LinksTail(target, connector, admin, clock)) as tail,
    ):
        await tail.read_on()
        known = tail.sources()
        link = tail.status(source, (), clock.now_ms())
    if source not in known:
        raise RefusedError(
            f"no link from {source} copies to {target}",
            detail=f"known are those from {', '.join(sorted(known)) or 'nowhere'}",
            hint="`stilltide status` shows the links with their sources",
            topic=REPLICATION_POSITIONS,
        )
    if link.running or link.sign_ms is None:
        raise RefusedError(
            f"the link from {source} to {target} may run",
            detail="it was heard of lately, or has not given a sign of life yet",
            hint="stop the link first, and wait 15 s",
            topic=REPLICATION_POSITIONS,
        )
    if sure:
        name, now_ms = forgotten_link_setting(source), clock.now_ms()
        await write_setting(connector, name, link.sign_ms, at_ms=now_ms)
    return link
