"""`stilltide local`: Kafka clusters on this machine that outlive the command."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from stilltide.connectors.local import detached
from stilltide.connectors.local.jars import KAFKA_VERSIONS, PINNED_VERSION, VERSION_VARIABLE
from stilltide.pipeline.cli.common.output import output_option, print_rows, say

BROKERS_MAX = 5
"""Brokers of a local cluster; each takes some 400 MB of memory."""

_data_dir_option = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".stilltide"),
    show_default=True,
    help="Directory of the clusters' data and logs, with one directory for each cluster.",
)


@click.group()
def local() -> None:
    """Run Kafka clusters a, b and c on this machine, of one broker or several each."""


_broker_option = click.option(
    "--broker",
    type=click.IntRange(1, BROKERS_MAX),
    help="Only this broker of the cluster, by its number.",
)
_cluster_option = click.option(
    "--cluster",
    type=click.Choice(detached.NAMES),
    help="The cluster of --broker.  [default: a]",
)


@local.command(
    epilog="\b\nExamples:\n"
    "  stilltide local up\n"
    "  stilltide local up --clusters 3 --port 19092\n"
    "  stilltide local up --brokers 3 --clusters 2\n"
    "  stilltide local up --broker 2 --cluster a\n"
    "  stilltide local up --kafka-version 3.9 --data-dir .stilltide-3.9"
)
@click.option(
    "--clusters",
    type=click.IntRange(1, len(detached.NAMES)),
    help="Number of clusters: a, then b, then c.  [default: 1]",
)
@click.option(
    "--brokers",
    type=click.IntRange(1, BROKERS_MAX),
    help="Number of brokers of each cluster.  [default: as many as it has, 1 for a new one]",
)
@_broker_option
@_cluster_option
@click.option(
    "--port",
    type=click.IntRange(1024, 65_535 - len(detached.NAMES) * BROKERS_MAX),
    help="Port of broker 1 of cluster a; the others take the next ones.  "
    "[default: the former one, or a free one]",
)
@click.option(
    "--kafka-version",
    type=click.Choice(KAFKA_VERSIONS),
    envvar=VERSION_VARIABLE,
    show_envvar=True,
    help=f"Version of Kafka.  [default: the cluster's former one, {PINNED_VERSION} for a new one]",
)
@click.option("--heap", default="256m", show_default=True, help="Heap of each broker.")
@_data_dir_option
@output_option
def up(
    *,
    clusters: int | None,
    brokers: int | None,
    broker: int | None,
    cluster: str | None,
    port: int | None,
    kafka_version: str | None,
    heap: str,
    data_dir: Path,
    output: str,
) -> None:
    """Start the brokers that do not run yet, and leave them running."""
    if broker is not None and (clusters or brokers or port):
        raise click.UsageError("--broker goes with --cluster only; it starts what is there")
    names = _named(broker, cluster) or detached.NAMES[: clusters or 1]
    for name in names:
        started = detached.up(
            name,
            data_dir,
            brokers=brokers,
            broker=broker,
            port=port,
            heap=heap,
            kafka_version=kafka_version,
        )
        of_cluster = [each for each in detached.status(data_dir) if each.name == name]
        _say_started(name, started, of_cluster)
        port = port and port + len(of_cluster)
    _print([each for each in detached.status(data_dir) if each.name in names], output)


@local.command()
@_data_dir_option
@output_option
def status(data_dir: Path, output: str) -> None:
    """Print the brokers of the clusters with their addresses and logs."""
    brokers = detached.status(data_dir)
    if not brokers:
        say(_none_in(data_dir))
    _print(brokers, output)


@local.command(
    epilog="\b\nExamples:\n"
    "  stilltide local down\n"
    "  stilltide local down --wipe\n"
    "  stilltide local down --broker 2 --cluster a"
)
@click.option("--wipe", is_flag=True, help="Also delete the clusters' data and logs.")
@_broker_option
@_cluster_option
@_data_dir_option
def down(data_dir: Path, *, wipe: bool, broker: int | None, cluster: str | None) -> None:
    """Stop the clusters; without --wipe they keep their data and ports."""
    if broker is not None and wipe:
        raise click.UsageError("--wipe deletes whole clusters; leave out --broker")
    names = _named(broker, cluster) or detached.NAMES
    brokers = Counter(each.name for each in detached.status(data_dir))
    stopped = detached.down(data_dir, names=names, broker=broker, wipe=wipe)
    for name, count in Counter(name for name, _ in stopped).items():
        if count == brokers[name] or broker is None:
            say(f"cluster {name} stopped")
        else:
            say(f"broker {broker} of cluster {name} stopped")
    if not stopped and not brokers:
        say(_none_in(data_dir))
    elif not stopped:
        say("no cluster was running" if broker is None else "the broker was not running")


def _none_in(data_dir: Path) -> str:
    return (
        f"no clusters in {data_dir.absolute()}\n"
        "  hint: clusters are in the folder in which `stilltide local up` was run: go there, or "
        "name its .stilltide with --data-dir; here, `stilltide local up` starts one"
    )


def _named(broker: int | None, cluster: str | None) -> tuple[str, ...] | None:
    """The cluster of --broker."""
    if broker is None and cluster is not None:
        raise click.UsageError("--cluster names the cluster of --broker, which is missing")
    return None if broker is None else (cluster or detached.NAMES[0],)


def _say_started(
    name: str, started: Sequence[int], brokers: Sequence[detached.ClusterStatus]
) -> None:
    if not started:
        say(f"cluster {name} is already running")
    elif len(started) == len(brokers):
        say(f"cluster {name} started")
    else:
        for node in started:
            say(f"broker {node} of cluster {name} started")
    if len(brokers) > 1:
        say(f"bootstrap servers of cluster {name}: {','.join(it.bootstrap for it in brokers)}")
    running = sum(each.state == "running" for each in brokers)
    if running * 2 <= len(brokers):
        say(f"cluster {name} answers once {len(brokers) // 2 + 1} of {len(brokers)} brokers run")


def _print(clusters: list[detached.ClusterStatus], output: str) -> None:
    print_rows([each._asdict() for each in clusters], output)
