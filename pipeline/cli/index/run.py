"""`stilltide index run` as a service: its web site, its line on stdout, its end.

A separate module, so that the other commands need not import a web server's library.
"""

import asyncio
import json
import signal
from collections.abc import Sequence
from contextlib import suppress

from prometheus_client import CollectorRegistry

from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.agents.probes import ProbeResult
from stilltide.pipeline.cli.common.site import serving_site
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.drivers.native.indexing import AbortedIndexing
from stilltide.pipeline.metrics.worker import WorkerMetrics


async def run_until_stopped(
    indexing: AbortedIndexing, topics: Sequence[str], settings: Settings, web_port: int | None
) -> None:
    """Indexes until SIGTERM or SIGINT; raises as `AbortedIndexing.run`, and if a port is taken."""

    async def ready() -> ProbeResult:
        if not indexing.serving:
            return ProbeResult(passed=False, text="has not begun, or begins again")
        stats = indexing.stats().values()
        count, lag = sum(one.data_partitions for one in stats), max(one.lag for one in stats)
        return ProbeResult(passed=True, text=f"indexes {count} partitions; {lag} offsets behind")

    metrics = WorkerMetrics(settings.cluster, CollectorRegistry())
    metrics.watch_indexers(indexing.stats)
    # `/readyz` names the broker, so that a container that is not ready says which end is away.
    own = settings.cluster, settings.bootstrap_servers, KafkaConnector(settings.kafka)
    async with serving_site(
        settings, web_port, metrics.registry, {"broker": own}, {"index": ready}
    ) as web:
        running = asyncio.ensure_future(indexing.run())
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        print(json.dumps({"event": "indexing", "topics": topics, "web": web}), flush=True)
        with suppress(asyncio.CancelledError):
            await running
