"""The two clusters of a link, and what they must hold before anything is copied.

*Source*: protocols.md H, Layout; system.md, Topics.

*Refuses*: a link to itself, also under two names.
"""

from dataclasses import dataclass, replace

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.copying import LinkConnector
from stilltide.pipeline.core.replicas import WantedReplicas
from stilltide.pipeline.drivers.shared.topic_replicas import ensure_replicated
from stilltide.pipeline.errors import LinkError
from stilltide.schemas.placement import system_partition
from stilltide.schemas.topics import (
    REPLICATION_MARKERS,
    REPLICATION_POSITIONS,
    TXN_MARKERS,
    TXN_SNAPSHOTS,
    system_topics,
)
from stilltide.schemas.values import ClusterName, TopicPartition

_NEEDED = (REPLICATION_MARKERS, REPLICATION_POSITIONS, TXN_MARKERS, TXN_SNAPSHOTS)


@dataclass(frozen=True, slots=True)
class Side:
    """One cluster of a link.

    Attributes:
        name: what other clusters know it by.
        connector: to it.
        admin: closed by whoever made it.
        counts: partitions of the system topics that a link needs, by topic.
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


async def opened(
    name: ClusterName,
    connector: LinkConnector,
    admin: LogAdmin,
    *,
    partition_count: int,
    replicas: WantedReplicas,
) -> Side:
    """A side whose system topics exist; those that are missing get `partition_count` partitions.

    Raises:
        ConfigError: the cluster has too few brokers for `replicas` to be written to.
        FatalError: one is there with another policy.
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
    """Passes when they are two clusters.

    Raises:
        LinkError: they are one.
        RetriableError: one of them is away.
    """
    source_id, target_id = await source.admin.cluster_id(), await target.admin.cluster_id()
    if source_id == target_id:
        raise LinkError(
            f"{source.name} and {target.name} are the same cluster",
            detail=f"both have the id {source_id}",
            hint="correct the address of one of them",
        )
