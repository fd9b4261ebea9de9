"""The two clusters of a link, and the system topics that they need before the link copies.

*Source*: docs/protocols H, Layout; `schemas.topics`.

*Refuses*: a link to itself, also under two names.
"""

from dataclasses import dataclass, replace

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.copying import LinkConnector
from stilltide.pipeline.core.replicas import WantedReplicas
from stilltide.pipeline.drivers.shared.topic_findings import ensure_replicated
from stilltide.pipeline.errors import LinkError
from stilltide.schemas.replication.origins import PublishRoute
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
    found = await admin.describe_topics(_NEEDED)
    specs = [
        replace(spec, partition_count=found[spec.name].partition_count)
        if spec.name in found
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
