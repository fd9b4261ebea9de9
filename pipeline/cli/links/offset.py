"""`stilltide offset`: offsets of one cluster in terms of another."""

import asyncio

import click

from stilltide.pipeline.cli.common.asking import clusters_option
from stilltide.pipeline.cli.common.output import output_option, print_rows
from stilltide.pipeline.cli.group import connected, timeout_option
from stilltide.pipeline.config.clusters import unknown_cluster
from stilltide.pipeline.drivers.links.offset_translation import translate
from stilltide.schemas.values import ClusterName, Offset, TopicPartition


@click.group()
def offset() -> None:
    """Translate offsets between clusters."""


@offset.command(
    "translate",
    epilog="""\b
Examples:
  stilltide offset translate orders 0 123456 --from a --to b
""",
)
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@click.argument("offset", type=click.IntRange(0))
@click.option("--from", "source", required=True, help="Cluster of OFFSET.")
@click.option("--to", "target", required=True, help="Cluster of the copy.")
@clusters_option
@timeout_option
@output_option
def translate_command(
    topic: str,
    partition: int,
    offset: int,
    *,
    source: str,
    target: str,
    clusters: str | None,
    timeout_s: float,
    output: str,
) -> None:
    """Find the first copy on one cluster of a record at or above OFFSET on another.

    The answer is exact, no matter how long ago the record was copied. Only records that were
    written on the source itself are copied from there; a copy that has left the target's log is an
    error.
    """
    connectors = connected(clusters)
    for name in (source, target):
        if name not in connectors:
            raise unknown_cluster(name, dict.fromkeys(map(str, connectors)))
    found = asyncio.run(
        translate(
            connectors[ClusterName(source)],
            connectors[ClusterName(target)],
            (ClusterName(source), ClusterName(target)),
            TopicPartition(topic, partition),
            Offset(offset),
            timeout_s=timeout_s,
        )
    )
    row = {
        "topic": topic,
        "partition": partition,
        "from": source,
        "offset": offset,
        "to": target,
        "translated": found.offset,
        "record": found.origin_offset,
    }
    print_rows([row], output)
