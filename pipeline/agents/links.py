"""The links into a worker's cluster, which its workers share, and the publishes within it.

*Source*: docs/protocols B4, H2, H7, H12. Faust's assignment decides which worker copies what; the
fenced transactional ids keep two workers from writing at once.
"""

import asyncio
import math
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.copying import LinkConnector
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.core.links.progress import LinkProgress
from stilltide.pipeline.drivers.links.configs import ConfigOptions
from stilltide.pipeline.drivers.links.link import PUBLISH_LIMITS, LinkOwner, LinkRun, LinkRunOptions
from stilltide.pipeline.drivers.links.share import LinkShare
from stilltide.pipeline.drivers.links.topics import TopicChoice
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.shared.cluster_watch import (
    ClusterWatch,
    ClusterWatches,
    ProbeResult,
)
from stilltide.pipeline.drivers.worker.placement import LINKS, PUBLISHES
from stilltide.pipeline.drivers.worker.runtime import Runtime
from stilltide.pipeline.metrics.links import LinkMetrics
from stilltide.schemas.retry import LINK_ENDED
from stilltide.schemas.topics import system_partition
from stilltide.schemas.values import ClusterName, TopicPartition


def links_runtime(
    settings: Settings,
    target: LinkConnector,
    watches: ClusterWatches,
    hindrances: Hindrances,
) -> Runtime[str, LinkOwner]:
    """Runs this worker's share (H12) of the links that the settings name, see `placement.LINKS`.

    Their source clusters are added to `watches`.
    """
    share = LinkShare((), assigned=True)
    options = LinkRunOptions(
        TopicChoice(settings.replicate_topics.split()),
        share,
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
    return Runtime(
        LINKS,
        lambda source: LinkOwner(partial(link, source)),
        chance=target.chance,
        keys=lambda _: sources,
        shares=share.assign,
        retry=LINK_ENDED,
        around=watching,
    )


def publishes_runtime(
    settings: Settings, connector: LinkConnector, hindrances: Hindrances
) -> Runtime[str, LinkOwner]:
    """Runs the publishes that the settings name, see `placement.PUBLISHES`."""
    end = ClusterName(settings.cluster), connector
    publishes = {str(route.link): route for route in settings.publishes}

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

    def placed(partition: int) -> list[str]:
        return [
            link
            for link, route in publishes.items()
            if system_partition(TopicPartition(route.target, 0), settings.partitions) == partition
        ]

    return Runtime(
        PUBLISHES,
        lambda name: LinkOwner(partial(publish, name)),
        chance=connector.chance,
        keys=placed,
        retry=LINK_ENDED,
    )


def link_metrics(settings: Settings, runtimes: Sequence[Runtime[str, LinkOwner]]) -> LinkMetrics:
    """The metrics of the links and publishes that this worker runs."""

    def progress() -> dict[str, LinkProgress]:
        return {
            name: link.progress for runtime in runtimes for name, link in _running(runtime).items()
        }

    return LinkMetrics(settings.cluster, progress, SystemClock())


def ended_finding(runtime: Runtime[str, LinkOwner] | None, kind: str) -> ProbeResult | None:
    """The finding about the first link that has ended by an error; None: none has."""
    now_s = asyncio.get_running_loop().time()
    for name, end in ({} if runtime is None else runtime.ends).items():
        return ProbeResult(passed=False, text=f"{kind}{name} has ended: {end.text(now_s)}")
    return None


def refusals(runtime: Runtime[str, LinkOwner] | None) -> str:
    """What clusters refuse of links' configs and records, for people; empty: nothing."""
    return "".join(link.progress.refusals for link in _running(runtime).values())


async def publishes_finding(runtime: Runtime[str, LinkOwner] | None) -> ProbeResult:
    """Whether no publish of this worker has ended by an error."""
    text = f"copies {', '.join(sorted(_running(runtime))) or 'none here'}{refusals(runtime)}"
    return ended_finding(runtime, "") or ProbeResult(passed=True, text=text)


def _running(runtime: Runtime[str, LinkOwner] | None) -> dict[str, LinkRun]:
    """The links that run, by name."""
    owners = {} if runtime is None else runtime.owners
    return {name: owner.link for name, owner in owners.items() if owner.link is not None}
