"""`stilltide offset`: offsets of one cluster or topic in terms of another."""

import asyncio

import click

from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.cli.common.asking import (
    bootstrap_option,
    clusters_option,
    command_settings,
    connected,
    timeout_option,
)
from stilltide.pipeline.cli.common.output import output_option, print_rows
from stilltide.pipeline.config.clusters import unknown_cluster
from stilltide.pipeline.drivers.links.offset_translation import Translated, translate
from stilltide.pipeline.drivers.links.publish.translation import translate_published
from stilltide.schemas.values import ClusterName, Offset, TopicPartition


@click.group()
def offset() -> None:
    """Translate offsets between clusters, and between the topics of a publish."""


@offset.command(
    "translate",
    epilog="""\b
Examples:
  stilltide offset translate orders 0 123456 --from a --to b
  stilltide offset translate orders 0 123456 --to-topic orders.committed
  stilltide offset translate orders.committed 0 98765 --to-topic orders
""",
)
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@click.argument("offset", type=click.IntRange(0))
@click.option("--from", "source", help="Cluster of OFFSET.")
@click.option("--to", "target", help="Cluster of the copy.")
@click.option(
    "--to-topic", help="The topic that TOPIC is published to on one cluster, or published from."
)
@bootstrap_option
@clusters_option
@timeout_option
@output_option
def translate_command(
    topic: str,
    partition: int,
    offset: int,
    *,
    source: str | None,
    target: str | None,
    to_topic: str | None,
    bootstrap_servers: str | None,
    clusters: str | None,
    timeout_s: float,
    output: str,
) -> None:
    """Find the record at or above OFFSET, and its offset on another cluster or in another topic.

    With --from and --to: the first copy on one cluster of a record at or above OFFSET on another.
    Only records that were written on the source itself are copied from there. With --to-topic: the
    first copy of a record of a published topic; or, if TOPIC holds the copies, the record that the
    first copy was made of.

    The answer is exact, no matter how long ago the record was copied. A copy that has left the log
    is an error. `record` is the offset of the record that was found, in TOPIC.
    """
    data, at = TopicPartition(topic, partition), Offset(offset)
    if to_topic is not None:
        if source or target:
            raise click.UsageError("give --from and --to, or --to-topic")
        settings = command_settings(bootstrap_servers=bootstrap_servers)
        source = target = settings.cluster
        here = KafkaConnector(settings.kafka), ClusterName(settings.cluster)
        asked = translate_published(*here, data, to_topic, at, timeout_s=timeout_s)
        found, more = asyncio.run(asked), {"to_topic": to_topic}
    elif source and target:
        found, more = _between(clusters, (source, target), data, at, timeout_s), {}
    else:
        raise click.UsageError("give --from and --to, or --to-topic")
    row = {
        "topic": topic,
        "partition": partition,
        "from": source,
        "offset": offset,
        "to": target,
        **more,
        "translated": found.offset,
        "record": found.record,
    }
    print_rows([row], output)


def _between(
    clusters: str | None,
    names: tuple[str, str],
    data: TopicPartition,
    offset: Offset,
    timeout_s: float,
) -> Translated:
    """The translation from cluster to cluster."""
    connectors = connected(clusters)
    for name in names:
        if name not in connectors:
            raise unknown_cluster(name, dict.fromkeys(map(str, connectors)))
    source, target = map(ClusterName, names)
    ends = connectors[source], connectors[target]
    return asyncio.run(translate(*ends, (source, target), data, offset, timeout_s=timeout_s))
