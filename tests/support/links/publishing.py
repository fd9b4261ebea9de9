"""A publish that runs in the test's own process, on a real broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.drivers.links.link import PUBLISH_LIMITS, Replication, ReplicationOptions
from stilltide.schemas.replication.publishes import PublishRoute
from stilltide.schemas.values import ClusterName


@asynccontextmanager
async def publishing(
    bootstrap: str, publish: PublishRoute, *, skips_keyless: bool = False
) -> AsyncIterator[Replication]:
    """A publish that looks often, and copies when the block begins; its error is raised."""
    end = ClusterName("a"), KafkaConnector(KafkaConfig(bootstrap))
    options = ReplicationOptions(
        publish=publish,
        limits=PUBLISH_LIMITS,
        look_interval_s=0.2,
        skips_keyless=skips_keyless,
    )
    link, serves = Replication(end, end, SystemClock(), options), asyncio.Event()
    running = asyncio.create_task(link.run(lambda _: serves.set()))
    waiting = asyncio.create_task(serves.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        yield link
    finally:
        link.stop()
        await running
