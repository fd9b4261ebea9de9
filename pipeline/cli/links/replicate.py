"""`stilltide replicate`: one link between two clusters, until stopped."""

import asyncio

import click

from stilltide.connectors.clock import SystemClock
from stilltide.pipeline.cli.common.asking import clusters_option, connector_of
from stilltide.pipeline.cli.links.options import EXIT_CODES, copying_options, of_settings
from stilltide.pipeline.cli.links.running import RunningLink
from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.drivers.links.configs.following import ConfigOptions
from stilltide.pipeline.drivers.links.link import Replication, ReplicationOptions
from stilltide.pipeline.drivers.links.topics import TopicChoice
from stilltide.schemas.values import ClusterName


@click.command(
    epilog=f"""\b
Examples:
  export STILLTIDE_CLUSTERS="a=127.0.0.1:9092 b=127.0.0.1:9192"
  stilltide replicate --from a --to b
  stilltide replicate --from a --to b --topics orders --topics 'payments-*'
  stilltide replicate --from b --to a --merge
  stilltide replicate --from a --to b --throttle-bytes-per-s 10000000
  stilltide replicate --from a --to b --configs-from a --configs-except 'logs-*:retention.ms'

{EXIT_CODES}"""
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
    "--configs-from",
    metavar="CLUSTER",
    help="Cluster whose topic configs all others follow; the same for all links.  "
    "[default: carry the changes that the link sees, unless topics are copied both ways]",
)
@click.option(
    "--configs-except",
    multiple=True,
    metavar="[TOPIC:]CONFIG",
    help="A config that is left alone on the target, such as retention.ms; may be repeated.",
)
@copying_options
@clusters_option
def replicate(
    *,
    source: str,
    target: str,
    topics: tuple[str, ...],
    merge: bool,
    configs_from: str | None,
    configs_except: tuple[str, ...],
    throttle_bytes_per_s: float | None,
    progress_s: float,
    keyless: str | None,
    replication_factor: str | None,
    min_insync_replicas: str | None,
    web_port: int | None,
    clusters: str | None,
) -> None:
    """Copy committed records of topics from one cluster to another, until stopped.

    Records are copied exactly once, in order, from partition n to partition n. Missing topics are
    created and partitions added; changed configs, such as retention.ms, are followed. Run one link
    for each direction: records are never copied back. Prints one JSON line when it serves.
    """
    settings = load_settings(
        clusters=clusters,
        replicate_configs_from=configs_from,
        replicate_configs_except=" ".join(configs_except) or None,
        copy_keyless=keyless,
        replication_factor=replication_factor,
        min_insync_replicas=min_insync_replicas,
    )
    connectors = {name: connector_of(settings, name) for name in (source, target)}
    options = ReplicationOptions(
        TopicChoice(topics or ("*",), merge=merge),
        throttle_bytes_per_s=throttle_bytes_per_s,
        **of_settings(settings),
        configs=ConfigOptions(settings.replicate_configs_from, settings.left_alone),
    )
    named = {
        name: (name, settings.address_of(name).bootstrap_servers, connector)
        for name, connector in connectors.items()
    }
    ends = [(ClusterName(name), connectors[name]) for name in (source, target)]
    running = RunningLink(
        settings,
        Replication(ends[0], ends[1], SystemClock(), options),
        (source, target),
        named,
        lambda found: {"event": "replicating", "from": source, "to": target, "topics": found},
    )
    asyncio.run(running.run(web_port, progress_s))
