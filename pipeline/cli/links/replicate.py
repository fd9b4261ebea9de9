"""`stilltide replicate`: one link between two clusters, until stopped."""

import asyncio
import json
import signal
from collections.abc import Mapping

import click
from prometheus_client import CollectorRegistry

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline import interpreter
from stilltide.pipeline.agents.probes import ProbeResult
from stilltide.pipeline.cli.common.asking import (
    clusters_option,
    connector_of,
    replicas_options,
    web_port_option,
)
from stilltide.pipeline.cli.common.site import serving_site
from stilltide.pipeline.config.settings import Settings, load_settings
from stilltide.pipeline.drivers.links.link import Replication, ReplicationOptions
from stilltide.pipeline.drivers.links.topics import TopicChoice
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.metrics.links import LinkMetrics
from stilltide.schemas.values import ClusterName

_log = get_logger(__name__)


@click.command(
    epilog="""\b
Examples:
  export STILLTIDE_CLUSTERS="a=127.0.0.1:9092 b=127.0.0.1:9192"
  stilltide replicate --from a --to b
  stilltide replicate --from a --to b --topics orders --topics 'payments-*'
  stilltide replicate --from b --to a --merge
  stilltide replicate --from a --to b --throttle-bytes-per-s 10000000

\b
Exit codes:
  0  stopped by SIGINT or SIGTERM; all copies made are committed
  1  the command failed; the error names the next step
"""
)
@click.option("--from", "source", required=True, help="Name of the cluster to copy from.")
@click.option("--to", "target", required=True, help="Name of the cluster to copy to.")
@click.option(
    "--topics",
    multiple=True,
    help="A topic, or a pattern such as 'orders-*'; may be repeated.  [default: all]",
)
@click.option(
    "--merge",
    is_flag=True,
    help="Also copy into topics that held records before the first copy.",
)
@click.option(
    "--throttle-bytes-per-s",
    type=click.FloatRange(min=1),
    help="Most bytes of keys and values copied in a second.  [default: no limit]",
)
@click.option(
    "--progress-s",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="Seconds between two progress lines on stderr.",
)
@replicas_options
@web_port_option
@clusters_option
def replicate(
    *,
    source: str,
    target: str,
    topics: tuple[str, ...],
    merge: bool,
    throttle_bytes_per_s: float | None,
    progress_s: float,
    replication_factor: str | None,
    min_insync_replicas: str | None,
    web_port: int | None,
    clusters: str | None,
) -> None:
    """Copy committed records of topics from one cluster to another, until stopped.

    Records are copied exactly once, in order, from partition n to partition n; missing topics are
    created and partitions added. Run one link for each direction: records are never copied back.
    Prints one JSON line when it serves.
    """
    settings = load_settings(
        clusters=clusters,
        replication_factor=replication_factor,
        min_insync_replicas=min_insync_replicas,
    )
    connectors = {name: connector_of(settings, name) for name in (source, target)}
    options = ReplicationOptions(
        TopicChoice(topics or ("*",), merge=merge),
        throttle_bytes_per_s=throttle_bytes_per_s,
        partition_count=settings.partitions,
        replicas=settings.replicas,
        patience_s=settings.broker_away_s_max,
    )
    asyncio.run(_Link(settings, connectors, source, target, options).run(web_port, progress_s))


class _Link:
    """A link with its web site and its lines on stdout and stderr.

    Args:
        settings: the process's settings.
        connectors: connectors to both clusters, by name.
        source: name of the cluster to copy from.
        target: name of the cluster to copy to.
        options: options of the link.
    """

    def __init__(
        self,
        settings: Settings,
        connectors: Mapping[str, KafkaConnector],
        source: str,
        target: str,
        options: ReplicationOptions,
    ) -> None:
        self._settings = settings
        self._connectors = connectors
        self._names = source, target
        self._replication = Replication(
            (ClusterName(source), connectors[source]),
            (ClusterName(target), connectors[target]),
            SystemClock(),
            options,
        )
        self._topics: list[str] | None = None
        self._web: str | None = None

    async def run(self, web_port: int | None, progress_s: float) -> None:
        """Copies until SIGTERM or SIGINT; raises as `Replication.run`, and if a port is taken."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._replication.stop)
        registry = CollectorRegistry()
        source, target = self._names
        shown = {source: self._replication.progress}
        registry.register(LinkMetrics(target, lambda: shown, SystemClock()))
        # `/readyz` names both clusters, so that a container that is not ready says which is away.
        clusters = {
            name: (name, self._settings.address_of(name).bootstrap_servers, connector)
            for name, connector in self._connectors.items()
        }
        site = serving_site(self._settings, web_port, registry, clusters, {"link": self._ready})
        async with site as self._web:
            telling = asyncio.create_task(_tell(self._replication, progress_s))
            try:
                await self._replication.run(self._serving)
            finally:
                telling.cancel()

    def _serving(self, topics: list[str]) -> None:
        self._topics = topics
        source, target = self._names
        line = {"event": "replicating", "from": source, "to": target, "topics": topics}
        print(json.dumps({**line, "web": self._web}), flush=True)
        interpreter.tune()

    async def _ready(self) -> ProbeResult:
        if self._topics is None:
            return ProbeResult(passed=False, text="has not begun")
        progress = self._replication.progress
        return ProbeResult(passed=True, text=f"copies; {progress.lag} offsets behind")


async def _tell(replication: Replication, progress_s: float) -> None:
    """Logs progress, except while there is nothing new."""
    told = -1
    while True:
        await asyncio.sleep(progress_s)
        progress = replication.progress
        if (progress.records, progress.lag) == (told, 0):
            continue
        now_ms = SystemClock().now_ms()
        lag_s = max((one.lag_s(now_ms) for one in progress.partitions.values()), default=0.0)
        _log.info(
            "progress",
            copied=progress.records,
            lag_records=progress.lag,
            lag_s=round(lag_s, 3),
        )
        told = progress.records
