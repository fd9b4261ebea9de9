"""The links into a worker's cluster, which one of its workers runs, and the publishes within it.

*Source*: docs/protocols B4, H2, H7. Faust's assignment decides which worker runs the links;
the fenced transactional id keeps two workers from writing at once.
"""

import asyncio
import math
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import faust

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.copying import LinkConnector
from stilltide.pipeline.agents.partition_owner import PartitionOwners
from stilltide.pipeline.agents.placement import LINKS, LINKS_PARTITION, PUBLISHES
from stilltide.pipeline.agents.probes import ProbeResult
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.core.links.progress import LinkProgress
from stilltide.pipeline.drivers.links.configs import ConfigOptions
from stilltide.pipeline.drivers.links.link import PUBLISH_LIMITS, LinkRun, LinkRunOptions
from stilltide.pipeline.drivers.links.owner import LinksDriver
from stilltide.pipeline.drivers.links.topics import TopicChoice
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.shared.cluster_watch import ClusterWatch, ClusterWatches
from stilltide.pipeline.metrics.links import LinkMetrics
from stilltide.schemas.placement import system_partition
from stilltide.schemas.values import ClusterName, TopicPartition


def links_agent(
    app: faust.App,
    settings: Settings,
    target: LinkConnector,
    watches: ClusterWatches,
    hindrances: Hindrances,
) -> PartitionOwners[LinksDriver]:
    """Runs the links that the settings name, see `placement.LINKS`.

    Their source clusters are added to `watches`.
    """
    options = LinkRunOptions(
        TopicChoice(settings.replicate_topics.split()),
        partition_count=settings.partitions,
        replicas=settings.replicas,
        skips_keyless=settings.copy_keyless == "skip",
        patience_s=math.inf,  # the watches tell of a cluster that is away
        configs=ConfigOptions(settings.replicate_configs_from, settings.left_alone),
    )

    def watching(source: str) -> AbstractAsyncContextManager[ClusterWatch]:
        address = settings.address_of(source).bootstrap_servers
        return watches.watching(source, address, KafkaConnector(settings.kafka_of(source)))

    def link(source: str) -> LinkRun:
        return LinkRun(
            (ClusterName(source), KafkaConnector(settings.kafka_of(source))),
            (ClusterName(settings.cluster), target),
            target.clock,
            options,
            hindrances,
        )

    sources = settings.replicate_from.split()

    def make(partition: int) -> LinksDriver:
        return LinksDriver(
            sources if partition == LINKS_PARTITION else [], link, watching, chance=target.chance
        )

    return PartitionOwners(app, LINKS, make, lambda: None, within=lambda it: it.ends)


def publishes_agent(
    app: faust.App, settings: Settings, connector: LinkConnector, hindrances: Hindrances
) -> PartitionOwners[LinksDriver]:
    """Runs the publishes that the settings name, see `placement.PUBLISHES`."""
    end = ClusterName(settings.cluster), connector
    publishes = {str(one.link): one for one in settings.publishes}

    def publish(link: str) -> LinkRun:
        options = LinkRunOptions(
            publish=publishes[link],
            awaits_source=True,
            partition_count=settings.partitions,
            replicas=settings.replicas,
            skips_keyless=settings.copy_keyless == "skip",
            patience_s=math.inf,
            limits=PUBLISH_LIMITS,
        )
        return LinkRun(end, end, connector.clock, options, hindrances)

    def make(partition: int) -> LinksDriver:
        own = [
            link
            for link, one in publishes.items()
            if system_partition(TopicPartition(one.target, 0), settings.partitions) == partition
        ]
        return LinksDriver(own, publish, chance=connector.chance)

    return PartitionOwners(app, PUBLISHES, make, lambda: None, within=lambda it: it.ends)


def link_metrics(settings: Settings, agents: Sequence[PartitionOwners[LinksDriver]]) -> LinkMetrics:
    """The metrics of the links and publishes that this worker runs."""

    def progress() -> dict[str, LinkProgress]:
        running = (driver.links for agent in agents for driver in agent.drivers.values())
        return {source: link.progress for links in running for source, link in links.items()}

    return LinkMetrics(settings.cluster, progress, SystemClock())


def ended_finding(agent: PartitionOwners[LinksDriver] | None, kind: str) -> ProbeResult | None:
    """The finding about the first link that has ended by an error; None: none has."""
    now_s = asyncio.get_running_loop().time()
    for name, end in ({} if agent is None else agent.ends).items():
        return ProbeResult(passed=False, text=f"{kind}{name} has ended: {end.text(now_s)}")
    return None


def refusals(agent: PartitionOwners[LinksDriver] | None) -> str:
    """What clusters refuse of links' configs and records, for people; empty: nothing."""
    drivers = () if agent is None else agent.drivers.values()
    return "".join(link.progress.refusals for driver in drivers for link in driver.links.values())


async def publishes_finding(agent: PartitionOwners[LinksDriver] | None) -> ProbeResult:
    """Whether no publish of this worker has ended by an error."""
    drivers = () if agent is None else agent.drivers.values()
    running = sorted(name for driver in drivers for name in driver.links)
    text = f"copies {', '.join(running) or 'none here'}{refusals(agent)}"
    return ended_finding(agent, "") or ProbeResult(passed=True, text=text)
