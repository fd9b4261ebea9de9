"""The links into a worker's cluster: one worker of the cluster runs all of them.

*Source*: system.md, Process shapes 3; protocols.md B4, H2 (ownership is Faust's assignment, safety
is the transactional id's).
"""

from collections.abc import Callable

import faust
from prometheus_client import CollectorRegistry

from connectors.clock import SystemClock
from connectors.copying import LinkConnector
from connectors.kafka.config import KafkaConfig
from connectors.kafka.connector import KafkaConnector
from pipeline.agents.partition_owner import PartitionOwners
from pipeline.config import Settings
from pipeline.drivers.owned_links import LinksDriver
from pipeline.drivers.replication import Replication, ReplicationOptions
from pipeline.drivers.replication_progress import LinkProgress
from pipeline.drivers.replication_topics import TopicChoice
from pipeline.replication_metrics import LinkMetrics
from schemas.topics import SNAPSHOT_REQUESTS
from schemas.values import ClusterName


def links_agent(
    app: faust.App,
    settings: Settings,
    target: LinkConnector,
    registry: CollectorRegistry,
    failed: Callable[[BaseException], None],
) -> PartitionOwners[LinksDriver]:
    """What runs the links that the settings name, where the first partition is assigned.

    Their figures are shown in `registry`.
    """
    options = ReplicationOptions(
        TopicChoice(settings.replicate_topics.split()),
        partition_count=settings.partitions,
        replicas=settings.replicas,
        patience_s=settings.broker_away_s_max,
    )

    def link(source: str) -> Replication:
        address = settings.address_of(source)
        config = KafkaConfig(
            address.bootstrap_servers,
            extra=address.options,
            request_timeout_s=settings.request_timeout_s,
        )
        return Replication(
            (ClusterName(source), KafkaConnector(config)),
            (ClusterName(settings.cluster), target),
            SystemClock(),
            options,
        )

    sources = settings.replicate_from.split()

    def make(partition: int) -> LinksDriver:
        return LinksDriver(sources if partition == 0 else [], link)

    owners = PartitionOwners(app, "links", SNAPSHOT_REQUESTS, make, failed)

    def progress() -> dict[str, LinkProgress]:
        running = (driver.links for driver in owners.drivers.values())
        return {source: link.progress for links in running for source, link in links.items()}

    registry.register(LinkMetrics(settings.cluster, progress, SystemClock()))
    return owners
