"""Links that run in the test's own process, on real brokers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.drivers.links.link import PUBLISH_LIMITS, LinkRun, LinkRunOptions
from stilltide.pipeline.drivers.links.topics import TopicChoice
from stilltide.schemas.replication.origins import PublishRoute
from stilltide.schemas.values import ClusterName
from tests.support.links.link_process import Clusters

LOOK_S = 0.2


@asynccontextmanager
async def publishing(
    bootstrap: str, publish: PublishRoute, *, skips_keyless: bool = False
) -> AsyncIterator[LinkRun]:
    """A publish that looks often, and copies when the block begins; its error is raised."""
    end = ClusterName("a"), KafkaConnector(KafkaConfig(bootstrap))
    options = LinkRunOptions(
        publish=publish,
        limits=PUBLISH_LIMITS,
        look_interval_s=LOOK_S,
        skips_keyless=skips_keyless,
    )
    async with _running(LinkRun(end, end, SystemClock(), options)) as link:
        yield link


@asynccontextmanager
async def replicating(
    clusters: Clusters, source: str, target: str, *topics: str
) -> AsyncIterator[LinkRun]:
    """A link between two clusters, for these topics, which may hold records; as `publishing`."""
    begin, end = [(ClusterName(it), clusters.connector(it)) for it in (source, target)]
    choice = TopicChoice(topics, merge=True)
    options = LinkRunOptions(choice=choice, look_interval_s=LOOK_S)
    async with _running(LinkRun(begin, end, SystemClock(), options)) as link:
        yield link


@asynccontextmanager
async def _running(link: LinkRun) -> AsyncIterator[LinkRun]:
    serves = asyncio.Event()
    running = asyncio.create_task(link.run(lambda _: serves.set()))
    waiting = asyncio.create_task(serves.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        yield link
    finally:
        link.stop()
        await running
