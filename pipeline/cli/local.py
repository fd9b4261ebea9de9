"""`stilltide local`: Kafka clusters on this machine that outlive the command."""

from pathlib import Path

import click

from stilltide.connectors.local import detached
from stilltide.pipeline.cli.common.output import output_option, print_rows, say

_data_dir_option = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".stilltide"),
    show_default=True,
    help="Directory of the clusters' data and logs, with one directory for each cluster.",
)


@click.group()
def local() -> None:
    """Run Kafka clusters a, b and c on this machine, one broker each."""


@local.command(
    epilog="\b\nExamples:\n  stilltide local up\n  stilltide local up --clusters 3 --port 19092"
)
@click.option(
    "--clusters",
    type=click.IntRange(1, len(detached.NAMES)),
    default=1,
    show_default=True,
    help="Number of clusters: a, then b, then c.",
)
@click.option(
    "--port",
    type=click.IntRange(1024, 65_535 - len(detached.NAMES)),
    help="Port of cluster a; b and c take the next ones.  [default: the former one, or a free one]",
)
@click.option("--heap", default="256m", show_default=True, help="Heap of each broker.")
@_data_dir_option
@output_option
def up(clusters: int, port: int | None, heap: str, data_dir: Path, output: str) -> None:
    """Start the clusters that do not run yet, and leave them running."""
    names = detached.NAMES[:clusters]
    for index, name in enumerate(names):
        own_port = None if port is None else port + index
        started = detached.up(name, data_dir, port=own_port, heap=heap)
        say(f"cluster {name} " + ("started" if started else "is already running"))
    _print([each for each in detached.status(data_dir) if each.name in names], output)


@local.command()
@_data_dir_option
@output_option
def status(data_dir: Path, output: str) -> None:
    """Print the clusters with their addresses and logs."""
    found = detached.status(data_dir)
    if not found:
        say(f"no clusters in {data_dir}; start one: stilltide local up")
    _print(found, output)


@local.command()
@click.option("--wipe", is_flag=True, help="Also delete the clusters' data and logs.")
@_data_dir_option
def down(data_dir: Path, *, wipe: bool) -> None:
    """Stop the clusters; without --wipe they keep their data and ports."""
    stopped = detached.down(data_dir, wipe=wipe)
    for name in stopped:
        say(f"cluster {name} stopped")
    if not stopped:
        say("no cluster was running")


def _print(clusters: list[detached.ClusterStatus], output: str) -> None:
    print_rows([each._asdict() for each in clusters], output)
