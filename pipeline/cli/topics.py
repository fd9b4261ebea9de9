"""`stilltide topics`: whether the topics of a cluster are as the settings want them.

*Source*: docs/protocols C18, E10. No worker needs to run; only `--apply` alters, and only configs.

*Invariants*: nothing is altered before everything that would be altered was shown.

The rows that `stilltide topics check` prints.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import click

from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.connector import GroupConnector, TopicConnector, closing
from stilltide.pipeline.cli.common.asking import (
    bootstrap_option,
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
from stilltide.pipeline.drivers.shared.topic_findings import TopicFinding, find, planned
from stilltide.pipeline.drivers.status.compacted_topics import compacted_topics
from stilltide.schemas.topics import MIN_INSYNC_REPLICAS, Broker, system_topics

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


class ClusterConnector(GroupConnector, TopicConnector, Protocol):
    """A connector with admins of topics and of groups."""


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
    """Check and mend the topics that Stilltide needs."""


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
