"""`stilltide publish`: the committed records of a topic in another topic, until stopped."""

import asyncio

import click

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.cli.common.asking import bootstrap_option, command_settings
from stilltide.pipeline.cli.links.options import EXIT_CODES, copying_options, of_settings
from stilltide.pipeline.cli.links.running import RunningLink
from stilltide.pipeline.core.links.publishes import check_publish
from stilltide.pipeline.drivers.links.link import PUBLISH_LIMITS, Replication, ReplicationOptions
from stilltide.schemas.replication.publishes import PublishRoute
from stilltide.schemas.values import ClusterName


@click.command(
    epilog=f"""\b
Examples:
  stilltide publish orders --to orders.committed
  stilltide publish orders --to orders.committed --bootstrap-servers 127.0.0.1:9092
  stilltide publish orders --to orders.committed --throttle-bytes-per-s 10000000
  stilltide publish orders --to orders.committed --web-port 0

{EXIT_CODES}"""
)
@click.argument("topic")
@click.option("--to", "target", required=True, metavar="TOPIC", help="Topic of the copies.")
@copying_options
@bootstrap_option
def publish(
    topic: str,
    *,
    target: str,
    throttle_bytes_per_s: float | None,
    progress_s: float,
    keyless: str | None,
    replication_factor: str | None,
    min_insync_replicas: str | None,
    web_port: int | None,
    bootstrap_servers: str | None,
) -> None:
    """Copy the committed records of TOPIC to another topic of the cluster, until stopped.

    Every Kafka client that reads committed records (isolation.level=read_committed) can read the
    other topic as it is. Records are copied exactly once, in order, from partition n to partition
    n; a missing topic is created. Only the publish may write to the topic of the copies. Prints one
    JSON line when it serves.
    """
    settings = command_settings(
        bootstrap_servers=bootstrap_servers,
        copy_keyless=keyless,
        replication_factor=replication_factor,
        min_insync_replicas=min_insync_replicas,
    )
    settings.check_own_name()
    chosen = PublishRoute(topic, target)
    check_publish(chosen, [])
    connector = KafkaConnector(settings.kafka)
    end = ClusterName(settings.cluster), connector
    options = ReplicationOptions(
        publish=chosen,
        throttle_bytes_per_s=throttle_bytes_per_s,
        **of_settings(settings),
        limits=PUBLISH_LIMITS,
    )
    running = RunningLink(
        settings,
        Replication(end, end, SystemClock(), options),
        (chosen.link, settings.cluster),
        {"broker": (settings.cluster, settings.bootstrap_servers, connector)},
        lambda _: {"event": "publishing", "topic": topic, "to": target},
    )
    asyncio.run(running.run(web_port, progress_s))
