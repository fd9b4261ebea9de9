"""The two topics of a publish: the source found, the target created or checked.

*Source*: docs/protocols C18, H7, H1 (partition n to n), H6.
*Invariants*: a missing target is created with the source's number of partitions and configs;
partitions that the source gains are added. No topic and no partition is removed.

Refuses: system topics, a circle of publishes, a target with another number of partitions, and a
target with records that are not copies of the source. What forbids two publishes to run together is
looked for again after both have written a bucket, before they copy a record: whichever wrote its
bucket later finds that of the other.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from stilltide.connectors.ports.admin import TopicDescription
from stilltide.connectors.ports.connector import closing
from stilltide.connectors.ports.readers import Fetching
from stilltide.pipeline.core.links.copying import Topics
from stilltide.pipeline.core.links.link import Link
from stilltide.pipeline.core.links.publishes import check_publish
from stilltide.pipeline.core.replicas import WantedReplicas
from stilltide.pipeline.drivers.links.sides import PositionsView, Side, TopicNames
from stilltide.pipeline.drivers.links.topics import create_like, described, incarnations
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.pipeline.errors import PublishError
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.replication.origins import PublishRoute
from stilltide.schemas.topics import compacts
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

_log = get_logger(__name__)


class PublishedTopic:
    """Source and target of one publish, as of the last `look`.

    Args:
        sides: the cluster under the link's name, and under its own.
        publish: the topics.
        positions: the buckets of the cluster.
        replicas: replicas of a target that is created.
        awaits_source: whether a first look passes without the source topic.
    """

    def __init__(
        self,
        sides: tuple[Side, Side],
        publish: PublishRoute,
        positions: PositionsView,
        *,
        replicas: WantedReplicas,
        awaits_source: bool,
    ) -> None:
        self._sides = sides
        self._here = sides[1]
        self._publish = publish
        self._positions = positions
        self._replicas = replicas
        self._awaits_source = awaits_source
        self._policy_seen = False

    async def look(self, *, strict: bool) -> dict[TopicPartition, Topics]:
        """The data partitions of the target; none while there is no source topic.

        Args:
            strict: whether the source topic must exist, unless the publish waits for it.

        Raises:
            PublishError: the topics cannot be source and target; names both.
            ConnectorError: a request to the cluster failed.
        """
        await self.check_others()
        publish, admin = self._publish, self._here.admin
        topics = await admin.describe_topics(list(publish))
        source, target = topics.get(publish.source), topics.get(publish.target)
        if source is None:
            if strict and not self._awaits_source:
                raise PublishError(
                    f"topic {publish.source} does not exist on {self._here.name}"
                    f" and cannot be published to {publish.target}",
                    hint="create it, or correct its name",
                )
            return {}
        await self._look_at_policy()
        if target is None:
            await create_like(self._sides, {publish.target: source}, self._replicas)
        else:
            await self._check(source, target)
        topics = await admin.describe_topics([publish.target])
        both = [(source, one) for one in topics.values()]
        return await described(*self._sides, both, TopicNames(publish))

    async def _look_at_policy(self) -> None:
        """Says once that the source compacts, so that committed records may be gone (C18)."""
        if self._policy_seen:
            return
        source = self._publish.source
        configs = await self._here.admin.topic_configs([source])
        self._policy_seen = source in configs
        if compacts(configs.get(source, {})):
            _log.warning(
                "source_compacts",
                cluster=self._here.name,
                topic=source,
                to=self._publish.target,
                why="Kafka's cleaner may have deleted committed records before they were copied",
                hint="let the source delete, and the topic of the copies compact",
            )

    async def check_others(self) -> None:
        """Passes if the publish may run beside those that have copied before this call.

        Raises:
            PublishError: it may not.
        """
        await self._positions.catch_up()
        copied = self._positions.publishes
        names = {topic for publish in copied for topic in publish}
        now = await incarnations(self._here.admin, sorted(names)) if names else {}
        # What was copied between topics that have been deleted since is gone.
        alive = [one for one, ids in copied.items() if tuple(map(now.get, one)) in ids]
        check_publish(self._publish, alive)

    async def _check(self, source: TopicDescription, target: TopicDescription) -> None:
        """Passes a target that may be written to; adds partitions that the source has gained."""
        copied = self._positions.is_published(target)
        here, counts = self._here, (source.partition_count, target.partition_count)
        if not copied:
            if counts[0] != counts[1]:
                raise PublishError(
                    f"topic {source.name} has {counts[0]} partitions and {target.name} has"
                    f" {counts[1]} on {here.name}",
                    detail="partition n is copied to partition n",
                    hint=f"delete {target.name}, which is then created, or name another topic",
                )
            await self._check_empty(source, target)
        elif counts[0] > counts[1]:
            await here.admin.add_partitions(target.name, counts[0])
            _log.info(
                "added partitions", cluster=here.name, topic=target.name, partitions=counts[0]
            )

    async def _check_empty(self, source: TopicDescription, target: TopicDescription) -> None:
        partitions = [
            TopicPartition(target.name, number) for number in range(target.partition_count)
        ]
        starts = await self._here.admin.start_offsets(partitions)
        ends = await self._here.admin.end_offsets(partitions, committed=True)
        written = [data for data, end in ends.items() if end > starts.get(data, 0)]
        if not written:
            return
        await self._positions.catch_up()  # another process of the link may have begun meanwhile
        if not self._positions.is_published(target):
            raise PublishError(
                f"topic {target.name} on {self._here.name} has records that are not copies of"
                f" {source.name}",
                hint="name a topic without records; only the publish may write to it",
                topic=target.name,
                partition=written[0].partition,
            )


async def refuse_foreign_records(
    here: Side, publish: PublishRoute, machine: Link[Any], topics: Mapping[TopicPartition, Topics]
) -> None:
    """Passes targets without records behind the last bucket.

    Args:
        here: the cluster.
        publish: source and target topic.
        machine: the link, which has read its buckets.
        topics: the data partitions to look at, in which nothing of the link's own is open.

    Raises:
        PublishError: somebody else has written a record; names its place.
        RetriableError: the cluster is away.
    """
    ends = await here.admin.end_offsets(list(topics), committed=True)
    unseen = list(_unseen(machine, topics, ends))
    if not unseen:
        return
    async with closing(
        here.connector.reader(f"{publish.link}-check", fetching=Fetching.SCANNING)
    ) as reader:
        async for records in scan(reader, unseen):
            for record in records:
                raise PublishError(
                    f"a record in {publish.target} on {here.name} is no copy of a record of"
                    f" {publish.source}",
                    detail="somebody else has written to the topic since the last copy",
                    hint=f"delete topic {publish.target}: it is made again with all copies; let"
                    " nobody else write to it",
                    data=record.data,
                    offset=record.offset,
                )


def copied_end(machine: Link[Any], data: TopicPartition, now: Topics) -> EndOffset:
    """The end of what the link knows to be copied to the target of a data partition."""
    partition = machine.partitions.get(data)
    return EndOffset(0) if partition is None else partition.index.copied_end(now.target)


def _unseen(
    machine: Link[Any],
    topics: Mapping[TopicPartition, Topics],
    ends: Mapping[TopicPartition, EndOffset],
) -> Iterator[OffsetRange]:
    """The offsets behind the last bucket of each data partition."""
    for data, now in topics.items():
        first = max(copied_end(machine, data, now), now.target_log_start)
        end = ends.get(data, EndOffset(0))
        if first < end:
            yield OffsetRange(data, Offset(first), end)
