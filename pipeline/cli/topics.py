"""`stilltide topics`: creates, shows and deletes topics of applications, and checks all topics.

*Source*: docs/protocols C18, E10. No worker needs to run; of `check` only `--apply` alters, and
only configs.

*Invariants*: nothing is altered or deleted before all that would be was shown. Topics of Stilltide
and of Kafka itself are neither created nor deleted here.

The rows that the commands print.
"""

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import click

from stilltide.connectors.errors import FatalError, InvalidTextError
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.names import check_topic_name
from stilltide.connectors.ports.admin import PARTITIONS_MAX
from stilltide.connectors.ports.connector import ClusterConnector, closing
from stilltide.pipeline.cli.common.asking import (
    bootstrap_option,
    cluster_connector,
    command_settings,
    replicas_options,
)
from stilltide.pipeline.cli.common.output import Row, confirmed, output_option, print_rows, say
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.core.replicas import complete, reassignment
from stilltide.pipeline.core.topic_shortfalls import (
    PARTITIONS,
    REPLICATION_FACTOR,
    Remedy,
    Shortfall,
)
from stilltide.pipeline.drivers.links.topics import TopicChoice
from stilltide.pipeline.drivers.shared.named_partitions import all_partitions, named_topics
from stilltide.pipeline.drivers.shared.topic_findings import TopicFinding, find, planned
from stilltide.pipeline.drivers.status.compacted_topics import compacted_topics
from stilltide.schemas.topics import (
    MIN_INSYNC_REPLICAS,
    Broker,
    PartitionReplicas,
    TopicSpec,
    compacts,
    is_system_topic,
    system_topics,
)
from stilltide.schemas.values import TopicPartition

_COLUMNS = (PARTITIONS, REPLICATION_FACTOR, MIN_INSYNC_REPLICAS)
_STEPS = {
    Remedy.ALTER: "stilltide topics check --apply",
    Remedy.REASSIGN: "stilltide topics check --apply plans it for kafka-reassign-partitions.sh",
}
_CREATED_BY_WORKERS = "a worker creates the topic: stilltide worker"
_CREATED_BY_KAFKA = "Kafka creates the topic at its first use"


def change_rows(
    changes: Mapping[str, Mapping[str, str]], findings: Sequence[TopicFinding]
) -> list[Row]:
    """A row for each config that is to be altered."""
    actual = {(one.spec.name, it.what): it.actual for one in findings for it in one.shortfalls}
    return [
        {"topic": topic, "config": name, "from": actual[topic, name], "to": value}
        for topic, configs in changes.items()
        for name, value in configs.items()
    ]


def json_row(finding: TopicFinding) -> Row:
    """A topic with everything that is expected and found."""
    expected, actual = _figures(finding)
    row: dict[str, Any] = {"topic": finding.spec.name, "exists": finding.state is not None}
    for name in _COLUMNS:
        key = name.replace(".", "_")
        row |= {key: actual.get(name), f"expected_{key}": expected[name]}
    row["falls_short"] = [
        {
            "what": shortfall.what,
            "expected": shortfall.expected,
            "actual": shortfall.actual,
            "remedy": shortfall.remedy.value,
            "next_step": _step(shortfall),
        }
        for shortfall in finding.shortfalls
    ]
    return row | {"good": finding.good, "next_step": _next_step(finding)}


def table_rows(findings: Sequence[TopicFinding]) -> list[Row]:
    """A row for each topic: figures, then other configs that fall short, and the next step."""
    rows: list[Row] = []
    for finding in findings:
        expected, actual = _figures(finding)
        short = {shortfall.what: shortfall for shortfall in finding.shortfalls}
        row: dict[str, Any] = {"topic": finding.spec.name}
        for name in _COLUMNS:
            figure = str(actual.get(name, "-"))
            row[name] = f"{figure}, not {expected[name]}" if name in short else figure
        others = [it for name, it in short.items() if name not in _COLUMNS]
        lines = [f"{it.what}={it.actual}, not {it.expected}" for it in others]
        row["falls short"] = "\n".join(lines) if finding.state or finding.good else "missing"
        rows.append(row | {"next step": _next_step(finding)})
    return rows


def _figures(finding: TopicFinding) -> tuple[dict[str, int | None], dict[str, int]]:
    """Expected and actual figures of the columns; nothing actual of a topic that is missing."""
    spec, state = finding.spec, finding.state
    assert spec.replicas is not None
    unknown = finding.is_kafkas_own and state is None
    expected: dict[str, int | None] = {
        PARTITIONS: None if unknown else spec.partition_count,
        REPLICATION_FACTOR: spec.replicas.factor,
        MIN_INSYNC_REPLICAS: spec.replicas.min_insync,
    }
    if state is None:
        return expected, {}
    return expected, {
        PARTITIONS: len(state.placements),
        REPLICATION_FACTOR: min(len(placement.replicas) for placement in state.placements),
        MIN_INSYNC_REPLICAS: int(state.configs.get(MIN_INSYNC_REPLICAS) or 1),
    }


def _next_step(finding: TopicFinding) -> str:
    if finding.state is None:
        return _CREATED_BY_KAFKA if finding.is_kafkas_own else _CREATED_BY_WORKERS
    return "\n".join(dict.fromkeys(map(_step, finding.shortfalls)))


def _step(short: Shortfall) -> str:
    return short.step or _STEPS[short.remedy]


EXIT_SHORT = 3


class SeenTopics(NamedTuple):
    """What a cluster says.

    Attributes:
        findings: what was found, topic by topic.
        brokers: the brokers that are up.
        factor: replicas that every partition should have.
    """

    findings: list[TopicFinding]
    brokers: list[Broker]
    factor: int

    @property
    def exit_code(self) -> int:
        """0 if nothing falls short."""
        return 0 if all(one.good for one in self.findings) else EXIT_SHORT

    @property
    def lacks_replicas(self) -> bool:
        """Whether a topic has too few replicas."""
        return any(it.remedy is Remedy.REASSIGN for one in self.findings for it in one.shortfalls)

    @property
    def reassignment(self) -> dict[str, Any]:
        """The input of kafka-reassign-partitions.sh for topics with too few replicas."""
        placements = {one.spec.name: one.state.placements for one in self.findings if one.state}
        return reassignment(placements, self.factor, self.brokers)


@click.group()
def topics() -> None:
    """Create, show and delete topics; check and mend those that Stilltide needs."""


class _NameType(click.ParamType):
    """The name of a topic of applications."""

    name = "topic"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name; a usage error if no topic of applications has it."""
        try:
            check_topic_name(value)
        except InvalidTextError as error:
            self.fail(f"{error.primary}; {error.hint}", param, ctx)
        if is_system_topic(value) or value.startswith(_OF_KAFKA):
            self.fail(f"{value} is no topic of applications", param, ctx)
        return value


_OF_KAFKA = "__"

_names_argument = click.argument(
    "names", nargs=-1, required=True, metavar="TOPIC...", type=_NameType()
)


def _config(_ctx: click.Context, _param: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    configs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE: --config retention.ms=3600000")
        configs[name] = value
    return configs


@topics.command(
    epilog="""\b
Examples:
  stilltide topics create orders payments --partitions 3
  stilltide topics create orders --config retention.ms=604800000
  stilltide topics create orders --partitions 3 --if-missing -o json
"""
)
@_names_argument
@click.option(
    "--partitions",
    type=click.IntRange(1, PARTITIONS_MAX),
    default=1,
    show_default=True,
    help="Partitions of each topic.",
)
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_config,
    help="A config of the topics; repeatable.",
)
@click.option(
    "--if-missing",
    is_flag=True,
    help="Accept topics that exist with these partitions and configs.",
)
@replicas_options
@bootstrap_option
@output_option
def create(
    names: tuple[str, ...],
    output: str,
    *,
    partitions: int,
    configs: dict[str, str],
    if_missing: bool,
    **given: Any,
) -> None:
    """Create TOPICs for applications.

    Replicas follow the settings of Stilltide's own topics: the cluster's default if above 1, else
    three, or as many as there are brokers.
    """
    settings = command_settings(**given)
    connector = KafkaConnector(settings.kafka)
    specs = [TopicSpec(name, partitions, configs) for name in dict.fromkeys(names)]
    existing = asyncio.run(_created(connector, settings, specs, if_missing=if_missing))
    if compacts(configs):
        say("topics that compact take no transactions: stilltide publish writes to them")
    rows = [
        {"topic": spec.name, "partitions": partitions, "created": spec.name not in existing}
        for spec in specs
    ]
    print_rows(rows, output)


async def _created(
    connector: ClusterConnector, settings: Settings, specs: Sequence[TopicSpec], *, if_missing: bool
) -> Collection[str]:
    """Creates topics; returns those that existed. Raises as `LogAdmin.ensure_topics`."""
    async with closing(connector.admin()) as admin:
        existing = await admin.describe_topics([spec.name for spec in specs])
        if existing and not if_missing:
            raise FatalError(
                "the topic exists",
                hint="take another name, or accept the topic with --if-missing",
                topic=min(existing),
            )
        replicas = settings.replicas.on(complete(await admin.broker_figures()))
        await admin.ensure_topics([replace(spec, replicas=replicas) for spec in specs])
        return existing


class _Described(NamedTuple):
    """A topic as the brokers describe it.

    Attributes:
        placements: of each partition.
        configs: those that are set on the topic itself.
        starts: log start of each partition.
        ends: log end of each partition.
    """

    name: str
    placements: Sequence[PartitionReplicas]
    configs: Mapping[str, str]
    starts: Sequence[int | None]
    ends: Sequence[int | None]

    @property
    def offsets(self) -> int:
        """Offsets that the logs hold: records of all transactions, and control records."""
        pairs = zip(self.starts, self.ends, strict=True)
        return sum(end - start for start, end in pairs if None not in (start, end))  # type: ignore[operator]

    def row(self) -> Row:
        """A line of a table."""
        return {
            "topic": self.name,
            "partitions": len(self.placements),
            "replicas": min(len(placement.replicas) for placement in self.placements),
            "in sync": min(len(placement.in_sync) for placement in self.placements),
            "offsets": self.offsets,
            "configs": ", ".join(f"{name}={value}" for name, value in self.configs.items()) or None,
        }

    def document(self) -> Row:
        """Everything, as JSON has it."""
        return {
            "topic": self.name,
            "configs": self.configs,
            "offsets": self.offsets,
            "partitions": [
                {
                    "partition": number,
                    "replicas": placement.replicas,
                    "in_sync": placement.in_sync,
                    "start_offset": self.starts[number],
                    "end_offset": self.ends[number],
                }
                for number, placement in enumerate(self.placements)
            ],
        }


async def _described(connector: ClusterConnector, names: Sequence[str]) -> list[_Described]:
    """Topics, by name; without names all topics of applications.

    Raises:
        FatalError: a topic does not exist.
        ConnectorError: the cluster is away, or refuses an answer.
    """
    async with closing(connector.admin()) as admin, closing(connector.topic_admin()) as topic_admin:
        chosen = list(dict.fromkeys(names)) or [
            name for name in await admin.list_topics() if not is_system_topic(name)
        ]
        described = await named_topics(admin, chosen)
        data = all_partitions(described.values())
        placements = await topic_admin.placements(chosen)
        configs = await admin.topic_overrides(chosen)
        starts, ends = await admin.start_offsets(data), await admin.end_offsets(data)
    return [
        _Described(
            name,
            placements[name],
            dict(sorted(configs[name].items())),
            [starts.get(TopicPartition(name, number)) for number in range(len(placements[name]))],
            [ends.get(TopicPartition(name, number)) for number in range(len(placements[name]))],
        )
        for name in chosen
        if name in placements and name in configs  # it may have been deleted meanwhile
    ]


def _print_described(described: Sequence[_Described], output: str) -> None:
    if output == "table":
        print_rows([topic.row() for topic in described], output)
    else:
        print(json.dumps([topic.document() for topic in described], indent=2))


@topics.command(
    epilog="""\b
Examples:
  stilltide topics describe
  stilltide topics describe orders payments
  stilltide topics describe orders -o json | jq '.[].partitions[].end_offset'
"""
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@bootstrap_option
@output_option
def describe(topics: tuple[str, ...], output: str, bootstrap_servers: str | None) -> None:
    """Show TOPICs, or all topics of applications.

    `offsets` counts the records of all transactions, aborted ones too, and control records.
    """
    described = asyncio.run(_described(cluster_connector(bootstrap_servers), topics))
    _print_described(described, output)
    if not described:
        say("the cluster has no topics of applications; create one: stilltide topics create NAME")


EXIT_NOT_DELETED = 3


@topics.command(
    epilog="""\b
Exit codes:
  0  the topics were deleted
  1  the command failed; the error names the next step
  3  nothing was deleted: nobody said yes

\b
Examples:
  stilltide topics delete orders
  stilltide topics delete orders payments --yes
"""
)
@_names_argument
@click.option("--yes", is_flag=True, help="Delete without asking; needed without a terminal.")
@bootstrap_option
@output_option
def delete(names: tuple[str, ...], output: str, bootstrap_servers: str | None, *, yes: bool) -> int:
    """Delete TOPICs and all their records, for good.

    The command shows the topics, and asks. Groups that read them, and programs that write to them,
    fail from then on.
    """
    connector = cluster_connector(bootstrap_servers)
    described = asyncio.run(_described(connector, names))
    if output == "table":
        _print_described(described, output)
    is_deleted = yes or confirmed("Delete these topics and all their records?")
    if is_deleted:
        asyncio.run(_deleted(connector, [topic.name for topic in described]))
    if output == "json":
        rows = [topic.document() for topic in described]
        print(json.dumps({"topics": rows, "deleted": is_deleted}, indent=2))
    if is_deleted:
        say(f"deleted: {', '.join(topic.name for topic in described)}")
        return 0
    say("nothing was deleted; to delete these topics, add --yes")
    return EXIT_NOT_DELETED


async def _deleted(connector: ClusterConnector, names: Sequence[str]) -> None:
    async with closing(connector.topic_admin()) as topic_admin:
        await topic_admin.delete_topics(names)


@topics.command(
    epilog="""\b
Exit codes:
  0  nothing falls short
  1  the command failed; the error names the next step
  3  something falls short, or a topic is missing

\b
Examples:
  stilltide topics check
  stilltide topics check --topics 'orders*' -o json
  stilltide topics check --apply
  stilltide topics check --apply --yes -o json | jq .reassignment > plan.json
"""
)
@click.option("--coordinators", type=int, help="Coordinators of the cluster.  [default: 4]")
@click.option(
    "--topics",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Also check the replicas of these topics, such as those that links create; repeatable.",
)
@click.option("--apply", "applied", is_flag=True, help="Alter configs that fall short.")
@click.option("--yes", is_flag=True, help="Alter without asking; needed without a terminal.")
@replicas_options
@bootstrap_option
@output_option
def check(
    patterns: tuple[str, ...],
    output: str,
    *,
    applied: bool,
    yes: bool,
    **given: Any,
) -> int:
    """Compare the system topics with the settings of a worker, and show what falls short.

    Give the command the settings of the workers: options, STILLTIDE_*, or the file. Kafka's own
    topics of group offsets and of transactions are listed, too: work stops without them. So are
    topics that compact although they hold records of transactions (setting allow_compacted).

    --apply shows the configs that it would alter and asks; then it prints the plan that gives
    topics more replicas, for kafka-reassign-partitions.sh. It never alters numbers of partitions,
    cleanup policies and Kafka's own topics, and never shortens retention.
    """
    settings = command_settings(**given)
    connector = KafkaConnector(settings.kafka)
    seen = asyncio.run(look(connector, settings, patterns))
    changes = planned(seen.findings) if applied else {}
    if output == "table":
        print_rows(table_rows(seen.findings), output)
        print_rows(change_rows(changes, seen.findings), output, title="alterations")
    shown = change_rows(changes, seen.findings)
    altered = bool(changes) and (yes or confirmed("Alter these configs?"))
    if altered:
        seen = asyncio.run(altered_look(connector, settings, patterns, changes))
    _report(seen, shown, output, applied=applied, altered=altered)
    return seen.exit_code


async def look(
    connector: ClusterConnector, settings: Settings, patterns: Sequence[str] = ()
) -> SeenTopics:
    """Looks at the system topics of a cluster, at topics of these patterns, and at Kafka's own.

    Raises:
        ConfigError: fewer replicas are possible than must be in sync.
        ConnectorError: the cluster is away, or refuses an answer.
    """
    async with closing(connector.admin()) as admin, closing(connector.topic_admin()) as topic_admin:
        replicas = settings.replicas.on(complete(await admin.broker_figures()))
        choice = TopicChoice(patterns)
        others = [one for one in await admin.list_topics() if choice.takes(one)] if patterns else []
        specs = system_topics(coordinators=settings.coordinators, partitions=settings.partitions)
        workers = connector.own_id(f"workers-{settings.cluster}")
        allowed = settings.allow_compacted.split()
        compacted = await compacted_topics(connector, workers, allowed)
        topic_findings = await find(
            admin, topic_admin, specs, replicas, others=others, compacted=compacted
        )
        return SeenTopics(topic_findings, await topic_admin.brokers(), replicas.factor)


async def altered_look(
    connector: ClusterConnector,
    settings: Settings,
    patterns: Sequence[str],
    changes: Mapping[str, Mapping[str, str]],
) -> SeenTopics:
    """Alters configs, then looks again; raises as `look`, and `FatalError` for a refused value."""
    async with closing(connector.topic_admin()) as topic_admin:
        await topic_admin.alter_configs(changes)
    return await look(connector, settings, patterns)


def _report(
    seen: SeenTopics, shown: Sequence[Row], output: str, *, applied: bool, altered: bool
) -> None:
    plan = seen.reassignment if applied else {}
    if output == "json":
        document = {"topics": [json_row(one) for one in seen.findings]}
        if applied:
            document |= {"alterations": shown, "altered": altered, "reassignment": plan}
        print(json.dumps(document, indent=2))
    else:
        if altered:
            print_rows(table_rows(seen.findings), output, title="after the alterations")
        if plan.get("partitions"):
            print(json.dumps(plan))
    if shown and not altered:
        say("nothing is altered yet; to alter these configs, add --yes")
    elif applied and not shown:
        say("there is no config to alter")
    if plan.get("partitions"):
        say(
            "save the reassignment as FILE, then run kafka-reassign-partitions.sh --execute "
            "--reassignment-json-file FILE, and this command again"
        )
    if seen.lacks_replicas and len(seen.brokers) < seen.factor:
        say(f"{len(seen.brokers)} of the {seen.factor} brokers that replicas need are up")
