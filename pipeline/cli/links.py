"""`stilltide replicate`: one link between two clusters, until stopped.

Options of the commands that copy topics until they are stopped.

A link that a command runs until it is stopped: its web site, and its lines on both outputs.

`stilltide publish`: the committed records of a topic in another topic, until stopped.

`stilltide offset`: offsets of one cluster or topic in terms of another.

`stilltide link forget`: a link that was retired is no finding of `stilltide status` any more.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import click
from prometheus_client import CollectorRegistry

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline import interpreter
from stilltide.pipeline.cli.common.asking import (
    bootstrap_option,
    clusters_option,
    command_settings,
    connected,
    connector_of,
    on_stop,
    options,
    replicas_options,
    timeout_option,
    web_port_option,
)
from stilltide.pipeline.cli.common.output import output_option, print_event, print_rows, say, utc
from stilltide.pipeline.cli.common.processes import (
    OwnArguments,
    port_of,
    processes_option,
    run_processes,
)
from stilltide.pipeline.cli.common.site import serving_site
from stilltide.pipeline.config.clusters import unknown_cluster
from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.core.links.publishes import check_publish
from stilltide.pipeline.drivers.links.configs import ConfigOptions
from stilltide.pipeline.drivers.links.link import PUBLISH_LIMITS, LinkRun, LinkRunOptions
from stilltide.pipeline.drivers.links.offset_translation import (
    Translated,
    translate,
    translate_published,
)
from stilltide.pipeline.drivers.links.share import LinkShare
from stilltide.pipeline.drivers.links.topics import TopicChoice
from stilltide.pipeline.drivers.shared.cluster_watch import ProbeResult
from stilltide.pipeline.drivers.status.links import forget_link
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.metrics.links import LinkMetrics
from stilltide.schemas.replication.origins import PublishRoute
from stilltide.schemas.values import ClusterName, Offset, TopicPartition

EXIT_CODES = """\b
Exit codes:
  0  stopped by SIGINT or SIGTERM; all copies made are committed
  1  the command failed; the error names the next step
"""


def of_settings(settings: Settings) -> dict[str, Any]:
    """The options of `LinkRunOptions` that the settings hold."""
    return {
        "partition_count": settings.partitions,
        "replicas": settings.replicas,
        "patience_s": settings.broker_away_s_max,
        "skips_keyless": settings.copy_keyless == "skip",
    }


copying_options = options(
    web_port_option,
    replicas_options,
    click.option(
        "--keyless",
        "copy_keyless",
        type=click.Choice(["wait", "skip"]),
        help="A record without key, for a topic that compacts: its partition waits, or the"
        " record is left out.  [default: STILLTIDE_COPY_KEYLESS, or wait]",
    ),
    click.option(
        "--progress-s",
        type=click.FloatRange(min=0.1),
        default=10.0,
        show_default=True,
        help="Seconds between two progress lines on stderr.",
    ),
    click.option(
        "--throttle-bytes-per-s",
        type=click.FloatRange(min=1),
        help="Most bytes of keys and values copied in a second.  [default: no limit]",
    ),
)
"""Adds the options of a link's pace, of what it shows, and of the topics that it creates."""


_YOUNG_OBJECTS_MAX = 50_000
"""A link reads 16 000 records ahead, and each is three objects. With fewer, the garbage collector
visits these records over and over."""

_log = get_logger(__name__)


async def run_link(
    settings: Settings,
    link: LinkRun,
    ends: tuple[str, str],
    clusters: Mapping[str, tuple[str, str, Connector]],
    announced: Callable[[list[str]], dict[str, Any]],
    *,
    web_port: int | None,
    progress_s: float,
) -> None:
    """Copies until SIGTERM or SIGINT, with a web site and lines on stdout and stderr.

    Args:
        settings: the process's settings.
        link: the link.
        ends: names of source and target, as metrics show them.
        clusters: by name of check: name, address and connector of a cluster.
        announced: makes the JSON line on stdout from the names of the topics, once they are copied.
        web_port: port of the site; None for no site.
        progress_s: seconds between two lines of progress.

    Raises:
        ConfigError: the port is taken.
        Others: as `LinkRun.run`.
    """
    on_stop(link.stop)
    registry, shown, copies = CollectorRegistry(), {ends[0]: link.progress}, False
    registry.register(LinkMetrics(ends[1], lambda: shown, SystemClock()))

    async def ready() -> ProbeResult:
        return _readiness(link, copies=copies)

    # `/readyz` names the clusters, so that a container that is not ready says which is away.
    async with serving_site(settings, web_port, registry, clusters, {"link": ready}) as web:

        def serving(topics: list[str]) -> None:
            nonlocal copies
            copies = True
            print_event({**announced(topics), "web": web})
            interpreter.tune(_YOUNG_OBJECTS_MAX)

        telling = asyncio.create_task(_tell(link, progress_s))
        try:
            await link.run(serving)
        finally:
            telling.cancel()


def _readiness(link: LinkRun, *, copies: bool) -> ProbeResult:
    error, last = link.last_error, ""
    if error is not None:
        ago_s = max(0, SystemClock().now_ms() - error.happened_ms) / 1000
        last = f"; last error {ago_s:.0f} s ago: {error.cause}"
    if not copies:
        return ProbeResult(passed=False, text=f"has not begun{last}")
    text = f"copies; {link.progress.lag} offsets behind{link.progress.refusals}{last}"
    return ProbeResult(passed=True, text=text)


async def _tell(replication: LinkRun, progress_s: float) -> None:
    """Logs progress, except while there is nothing new."""
    logged = -1
    while True:
        await asyncio.sleep(progress_s)
        progress = replication.progress
        if (progress.records, progress.lag) == (logged, 0):
            continue
        now_ms = SystemClock().now_ms()
        lag_s = max((one.lag_s(now_ms) for one in progress.partitions.values()), default=0.0)
        _log.info(
            "progress",
            copied=progress.records,
            lag_records=progress.lag,
            lag_s=round(lag_s, 3),
        )
        logged = progress.records


class Share(click.ParamType):
    """One of several equal parts, such as `0/2`."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> LinkShare:
        """The share of a process."""
        number, _, count = str(value).partition("/")
        if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
            self.fail(f"{value!r} is no share; the first of two is 0/2, the second 1/2", param, ctx)
        return LinkShare.of(int(number), int(count))


def _run_shares(processes: int, share: LinkShare | None, web_port: int | None) -> None:
    """Runs all shares of a link on this machine."""
    if share is not None:
        raise click.UsageError("give --processes or --share")
    run_processes([_process(number, processes, web_port) for number in range(processes)])


def _process(number: int, processes: int, web_port: int | None) -> OwnArguments:
    """What one of several processes of a link has of its own."""
    options = ["--processes", "1", "--share", f"{number}/{processes}"]
    port = port_of(web_port, number)
    return OwnArguments([*options, *([] if port is None else ["--web-port", str(port)])], {})


@click.command(
    epilog=f"""\b
Examples:
  export STILLTIDE_CLUSTERS="a=127.0.0.1:9092 b=127.0.0.1:9192"
  stilltide replicate --from a --to b
  stilltide replicate --from a --to b --topics orders --topics 'payments-*'
  stilltide replicate --from b --to a --merge
  stilltide replicate --from a --to b --throttle-bytes-per-s 10000000
  stilltide replicate --from a --to b --processes 4
  stilltide replicate --from a --to b --share 0/2     on one machine
  stilltide replicate --from a --to b --share 1/2     on another one
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
@processes_option
@click.option(
    "--share",
    type=Share(),
    metavar="NUMBER/PROCESSES",
    help="The part of the link that this process copies, such as 0/2; the others run elsewhere."
    "  [default: all]",
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
    processes: int,
    share: LinkShare | None,
    throttle_bytes_per_s: float | None,
    progress_s: float,
    web_port: int | None,
    **given: Any,
) -> None:
    """Copy committed records of topics from one cluster to another, until stopped.

    Records are copied exactly once, in order, from partition n to partition n. Missing topics are
    created and partitions added; changed configs, such as retention.ms, are followed. Run one link
    for each direction: records are never copied back. Prints one JSON line when it serves.

    Several processes may share a link; every share has to run.
    """
    if processes > 1:
        _run_shares(processes, share, web_port)
        return
    settings = load_settings(
        replicate_configs_from=configs_from,
        replicate_configs_except=" ".join(configs_except) or None,
        **given,
    )
    connectors = {name: connector_of(settings, name) for name in (source, target)}
    run_options = LinkRunOptions(
        TopicChoice(topics or ("*",), merge=merge),
        share or LinkShare(),
        throttle_bytes_per_s=throttle_bytes_per_s,
        **of_settings(settings),
        configs=ConfigOptions(settings.replicate_configs_from, settings.left_alone),
    )
    ends = [(ClusterName(name), connectors[name]) for name in (source, target)]
    running = run_link(
        settings,
        LinkRun(ends[0], ends[1], SystemClock(), run_options),
        (source, target),
        {name: (name, settings.address_of(name).bootstrap_servers, it) for name, it in ends},
        lambda found: {"event": "replicating", "from": source, "to": target, "topics": found},
        web_port=web_port,
        progress_s=progress_s,
    )
    asyncio.run(running)


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
    web_port: int | None,
    **given: Any,
) -> None:
    """Copy the committed records of TOPIC to another topic of the cluster, until stopped.

    Every Kafka client that reads committed records (isolation.level=read_committed) can read the
    other topic as it is. Records are copied exactly once, in order, from partition n to partition
    n; a missing topic is created. Only the publish may write to the topic of the copies. Prints one
    JSON line when it serves.
    """
    settings = command_settings(**given)
    settings.check_own_name()
    chosen = PublishRoute(topic, target)
    check_publish(chosen, [])
    connector = KafkaConnector(settings.kafka)
    end = ClusterName(settings.cluster), connector
    run_options = LinkRunOptions(
        publish=chosen,
        throttle_bytes_per_s=throttle_bytes_per_s,
        **of_settings(settings),
        limits=PUBLISH_LIMITS,
    )
    running = run_link(
        settings,
        LinkRun(end, end, SystemClock(), run_options),
        (chosen.link, settings.cluster),
        {"broker": (settings.cluster, settings.bootstrap_servers, connector)},
        lambda _: {"event": "publishing", "topic": topic, "to": target},
        web_port=web_port,
        progress_s=progress_s,
    )
    asyncio.run(running)


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
        translated, more = asyncio.run(asked), {"to_topic": to_topic}
    elif source and target:
        translated, more = _between(clusters, (source, target), data, at, timeout_s), {}
    else:
        raise click.UsageError("give --from and --to, or --to-topic")
    row = {
        "topic": topic,
        "partition": partition,
        "from": source,
        "offset": offset,
        "to": target,
        **more,
        "translated": translated.offset,
        "record": translated.record,
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
    forgotten = asyncio.run(forgetting)
    heard = None if forgotten.beat_ms is None else utc(forgotten.beat_ms)
    print_rows([{"source": source, "target": target, "heard_of": heard}], output)
    say("forgotten" if yes else "not forgotten yet; to forget the link, add --yes")
