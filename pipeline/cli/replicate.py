"""`stilltide replicate`: one link between two clusters, until stopped."""

import asyncio
import json
import signal
from collections.abc import Mapping

import click
import structlog
from prometheus_client import CollectorRegistry

from connectors.clock import SystemClock
from pipeline import interpreter
from pipeline.agents.probes import Finding, Probes
from pipeline.cli.asking import clusters_option, connector_of
from pipeline.config import load_settings
from pipeline.drivers.replication import Replication, ReplicationOptions
from pipeline.drivers.replication_topics import TopicChoice
from pipeline.replication_metrics import LinkMetrics
from schemas.values import ClusterName

_log = structlog.get_logger(__name__)


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
  0  stopped by SIGINT or SIGTERM; what was taken is committed
  1  it failed; the error names the next step
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
    help="Also copy into topics that hold records of their own before anything was copied.",
)
@click.option(
    "--throttle-bytes-per-s",
    type=click.FloatRange(min=1),
    help="Keys and values copied in a second at most.  [default: no limit]",
)
@click.option(
    "--progress-s",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="How often to say on stderr how far it has come.",
)
@click.option(
    "--web-port",
    type=click.IntRange(0, 65_535),
    help="Port of /metrics, /livez and /readyz; 0 takes a free one.  [default: none]",
)
@clusters_option
def replicate(
    *,
    source: str,
    target: str,
    topics: tuple[str, ...],
    merge: bool,
    throttle_bytes_per_s: float | None,
    progress_s: float,
    web_port: int | None,
    clusters: str | None,
) -> None:
    """Copy committed records of topics from one cluster to another, until stopped.

    Exactly once, in order, partition n to partition n; topics are created, partitions added. Run
    one for each direction: records are never copied back. Prints one JSON line when it serves.
    """
    settings = load_settings(clusters=clusters)
    connectors = [connector_of(settings, name) for name in (source, target)]
    replication = Replication(
        (ClusterName(source), connectors[0]),
        (ClusterName(target), connectors[1]),
        SystemClock(),
        ReplicationOptions(
            TopicChoice(topics or ("*",), merge=merge),
            throttle_bytes_per_s=throttle_bytes_per_s,
            partition_count=settings.partitions,
            patience_s=settings.broker_away_s_max,
        ),
    )

    line = {"event": "replicating", "from": source, "to": target}
    site = None
    if web_port is not None:
        registry = CollectorRegistry()
        registry.register(
            LinkMetrics(target, lambda: {source: replication.progress}, SystemClock())
        )
        site = _Site(registry, settings.web_host, web_port)
    asyncio.run(_run(replication, line, site, progress_s))


class _Site:
    """The link's web site."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        self.serves = False
        self._at = host, port
        self._probes = Probes(registry, {"link": self._ready})

    async def start(self) -> str:
        """Its address."""
        return await self._probes.start(*self._at)

    async def close(self) -> None:
        """Listens no more."""
        await self._probes.close()

    async def _ready(self) -> Finding:
        return Finding(self.serves, "copies" if self.serves else "has not begun")


async def _run(
    replication: Replication, line: Mapping[str, object], site: _Site | None, progress_s: float
) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, replication.stop)
    web = None if site is None else await site.start()

    def serving(topics: list[str]) -> None:
        print(json.dumps({**line, "topics": topics, "web": web}), flush=True)
        interpreter.tune()
        if site is not None:
            site.serves = True

    telling = asyncio.create_task(_tell(replication, progress_s))
    try:
        await replication.run(serving)
    finally:
        telling.cancel()
        if site is not None:
            await site.close()


async def _tell(replication: Replication, progress_s: float) -> None:
    """Says how far it has come, while there is something to say."""
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
