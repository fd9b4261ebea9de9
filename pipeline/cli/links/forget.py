"""`stilltide link forget`: a link that was retired is no finding of `stilltide status` any more."""

import asyncio

import click

from stilltide.connectors.clock import SystemClock
from stilltide.pipeline.cli.common.asking import clusters_option, connector_of
from stilltide.pipeline.cli.common.output import output_option, print_rows, say
from stilltide.pipeline.cli.common.times import utc
from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.drivers.status.retired import forget_link
from stilltide.schemas.values import ClusterName


@click.group()
def link() -> None:
    """Forget links that were retired; `stilltide replicate` runs a link."""


@link.command(
    epilog="""\b
Exit codes:
  0  done, or shown without --yes
  1  the command failed, or was refused; the error names the next step

\b
Examples:
  stilltide link forget b --to a          show which link would be forgotten
  stilltide link forget b --to a --yes    forget the link
  stilltide link forget publish:orders:orders.committed --to a --yes
"""
)
@click.argument("source")
@click.option("--to", "target", required=True, help="Name of the cluster into which it copied.")
@click.option("--yes", is_flag=True, help="Do it; without it only shows what would be done.")
@clusters_option
@output_option
def forget(source: str, target: str, *, yes: bool, clusters: str | None, output: str) -> None:
    """Forget the link from SOURCE, which was retired for good.

    `stilltide status` and the console show the link no more, until it gives a sign of life again.
    Nothing else changes: copies, positions and groups stay as they are. Refused while the link
    runs.
    """
    settings = load_settings(clusters=clusters)
    connector, clock = connector_of(settings, target), SystemClock()
    forgetting = forget_link(ClusterName(target), connector, ClusterName(source), clock, sure=yes)
    found = asyncio.run(forgetting)
    heard = None if found.beat_ms is None else utc(found.beat_ms)
    print_rows([{"source": source, "target": target, "heard_of": heard}], output)
    say("forgotten" if yes else "not forgotten yet; to forget the link, add --yes")
