"""The links into a worker's cluster: one worker of the cluster runs all of them.

*Source*: docs/protocols B4, H2. Faust's assignment decides which worker runs the links; the fenced
transactional id keeps two workers from writing at once.
"""

import math
from contextlib import AbstractAsyncContextManager

import faust
from prometheus_client import CollectorRegistry

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.copying import LinkConnector
from stilltide.pipeline.agents.partition_owner import PartitionOwners
from stilltide.pipeline.agents.placement import LINKS, LINKS_PARTITION
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.core.links.progress import LinkProgress
from stilltide.pipeline.drivers.links.link import Replication, ReplicationOptions
from stilltide.pipeline.drivers.links.owner import LinksDriver
from stilltide.pipeline.drivers.links.topics import TopicChoice
from stilltide.pipeline.drivers.shared.cluster_watch import ClusterWatch, ClusterWatches
from stilltide.pipeline.metrics.links import LinkMetrics
from stilltide.schemas.values import ClusterName


def links_agent(
    app: faust.App,
    settings: Settings,
    target: LinkConnector,
    registry: CollectorRegistry,
    watches: ClusterWatches,
) -> PartitionOwners[LinksDriver]:
    """Runs the links that the settings name, see `placement.LINKS`.

    The links' metrics are added to `registry`, and their source clusters to `watches`.
    """
    options = ReplicationOptions(
        TopicChoice(settings.replicate_topics.split()),
        partition_count=settings.partitions,
        replicas=settings.replicas,
        patience_s=math.inf,  # the watches tell of a cluster that is away
    )

    def watching(source: str) -> AbstractAsyncContextManager[ClusterWatch]:
        address = settings.address_of(source).bootstrap_servers
        return watches.watching(source, address, KafkaConnector(settings.kafka_of(source)))

    def link(source: str) -> Replication:
        return Replication(
            (ClusterName(source), KafkaConnector(settings.kafka_of(source))),
            (ClusterName(settings.cluster), target),
            SystemClock(),
            options,
        )

    sources = settings.replicate_from.split()

    def make(partition: int) -> LinksDriver:
        return LinksDriver(sources if partition == LINKS_PARTITION else [], link, watching)

    owners = PartitionOwners(app, LINKS, make, lambda: None, within=lambda it: it.ends)

    def progress() -> dict[str, LinkProgress]:
        running = (driver.links for driver in owners.drivers.values())
        return {source: link.progress for links in running for source, link in links.items()}

    registry.register(LinkMetrics(settings.cluster, progress, SystemClock()))
    return owners
