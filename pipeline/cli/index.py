"""`stilltide index`: stores the offsets of aborted native transactions, for Spark and audits.

`stilltide index run` as a service: its web site, its line on stdout, its end.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import click
from prometheus_client import CollectorRegistry

from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.connector import closing
from stilltide.pipeline.cli.common.asking import (
    bootstrap_option,
    cluster_connector,
    command_settings,
    on_stop,
    options,
    replicas_options,
    web_port_option,
)
from stilltide.pipeline.cli.common.output import (
    Row,
    output_option,
    print_event,
    print_rows,
    say,
)
from stilltide.pipeline.cli.common.site import serving_site
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.drivers.native.evidence import IndexedPartition, indexed_partitions
from stilltide.pipeline.drivers.native.owner import AbortedIndexing
from stilltide.pipeline.drivers.shared.cluster_watch import ProbeResult
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
        on_stop(running.cancel)
        print_event({"event": "indexing", "topics": topics, "web": web})
        with suppress(asyncio.CancelledError):
            await running


T = TypeVar("T")


_options = options(
    click.option("--partitions", type=int, help="Partitions of aborted-index.  [default: 4]"),
    bootstrap_option,
    click.argument("topics", nargs=-1, required=True, metavar="TOPIC..."),
    replicas_options,
)


def _index(
    topics: tuple[str, ...],
    settings: Settings,
    work: Callable[[AbortedIndexing], Awaitable[T]],
) -> T:
    connector = KafkaConnector(settings.kafka)

    async def run() -> T:
        async with closing(
            AbortedIndexing(
                connector,
                connector.batch_reader("aborted-index"),
                sorted(set(topics)),
                partition_count=settings.partitions,
                patience_s=settings.broker_away_s_max,
                replicas=settings.replicas,
            )
        ) as indexing:
            return await work(indexing)

    return asyncio.run(run())


@click.group()
def index() -> None:
    """Index the offsets of aborted native transactions in topics.

    The index is incremental and survives restarts; one indexer at a time writes to it.
    """


@index.command(
    epilog="""\b
Examples:
  stilltide index once payments orders
  stilltide index once payments -o json
"""
)
@_options
@output_option
def once(topics: tuple[str, ...], output: str, **given: object) -> None:
    """Index TOPICs up to their present last stable offsets, and print these offsets."""
    settings = command_settings(**given)
    positions = _index(topics, settings, lambda indexer: indexer.once())
    rows = [
        {**data._asdict(), "covered_to": position} for data, position in sorted(positions.items())
    ]
    print_rows(rows, output)


@index.command(
    "list",
    epilog="""\b
Examples:
  stilltide index list
  stilltide index list -o json
""",
)
@bootstrap_option
@output_option
def list_(bootstrap_servers: str | None, output: str) -> None:
    """List the covered offsets of each partition; of others the index knows no aborted records.

    `lag` is the number of offsets from the coverage's end to the last stable offset; `problem` says
    why an index cannot be used.
    """
    connector = cluster_connector(bootstrap_servers)

    async def work() -> list[IndexedPartition]:
        async with closing(connector.admin()) as admin:
            return await indexed_partitions(connector, admin)

    rows = [indexed_row(partition) for partition in asyncio.run(work())]
    print_rows(rows, output, empty="no partition is indexed: `stilltide index run TOPIC` begins")


def indexed_row(partition: IndexedPartition) -> Row:
    """The index of a partition."""
    coverage, stable = partition.coverage, partition.last_stable_offset
    return {
        **partition.data._asdict(),
        "covered_from": partition.coverage.covered_from,
        "covered_to": partition.coverage.covered_to,
        "last_stable_offset": stable,
        "lag": None if stable is None else max(0, stable - coverage.covered_to),
        "runs": coverage.run_count,
        "ranges": coverage.range_count,
        "problem": partition.problem or None,
    }


@index.command(
    epilog="""\b
Examples:
  stilltide index run payments orders
  stilltide index run payments --web-port 6066

\b
Exit codes:
  0  stopped by SIGINT or SIGTERM; the next run indexes again what was not written
  1  the command failed; the error names the next step
"""
)
@_options
@web_port_option
def run(topics: tuple[str, ...], web_port: int | None, **given: object) -> None:
    """Index TOPICs until stopped. Prints one JSON line at the beginning."""
    settings = command_settings(**given)
    _index(topics, settings, lambda indexer: run_until_stopped(indexer, topics, settings, web_port))


@index.command(
    epilog="""\b
Examples:
  stilltide index drop payments && stilltide index once payments
"""
)
@_options
def drop(topics: tuple[str, ...], **given: object) -> None:
    """Delete the index of TOPICs, so that they are indexed again from their log starts."""
    settings = command_settings(**given)
    count = _index(topics, settings, lambda indexer: indexer.drop())
    say(f"deleted {count} records of the index")
