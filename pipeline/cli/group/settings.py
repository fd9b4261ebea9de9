"""`stilltide group enable`, `disable` and `list`: which groups are replicated, by name or pattern.

*Source*: docs/protocols I15. *Invariants*: a pattern that takes no group of any cluster is not set
unless the operator says that it may.
"""

import asyncio
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.connector import GroupConnector, closing
from stilltide.pipeline.cli.common.asking import (
    clusters_option,
    connected,
    say_outside,
    timeout_option,
)
from stilltide.pipeline.cli.common.output import Row, output_option, print_rows, say
from stilltide.pipeline.core.group_choice import GroupChoice, GroupSetting, Pair
from stilltide.pipeline.core.outside_log import OutsideLog
from stilltide.pipeline.drivers.groups.outside import outside_logs
from stilltide.pipeline.drivers.shared.dynamic_settings import DynamicSettings, write_setting
from stilltide.pipeline.errors import ConfigError, UnknownGroupError
from stilltide.schemas.settings import subscription_of, subscription_setting
from stilltide.schemas.values import ClusterName

EXIT_CODES = """\b
Exit codes:
  0  done
  1  the command failed; the error names the next step
  4  not everything is carried over; the output shows what is left
"""

SHOWN_MAX = 10
"""Groups that a line of text names at most."""

Clusters = Mapping[ClusterName, GroupConnector]


@click.command("list", epilog=EXIT_CODES)
@clusters_option
@timeout_option
@output_option
def list_command(clusters: str | None, timeout_s: float, output: str) -> None:
    """List the groups that were enabled or disabled, and what each pattern takes now.

    A setting by names wins over every pattern; of patterns that fit, the longer one wins. `takes`
    has the topics and groups of that cluster for which a pattern is the setting that counts.
    `outside` is the number of partitions in which the committed offset of a replicated group lies
    beyond the end or below the start of the log on that cluster.
    """
    connectors = connected(clusters)
    outside: dict[ClusterName, list[OutsideLog]] = {}

    async def rows() -> list[Row]:
        by_cluster = await settings_of(connectors, timeout_s)
        listed: list[Row] = []
        for cluster, settings in by_cluster.items():
            taken = await _taken(connectors[cluster], settings)
            outside[cluster] = await _outside(connectors[cluster], settings, taken)
            listed += _rows(cluster, settings, taken, outside[cluster])
        return listed

    listed = sorted(asyncio.run(rows()), key=lambda row: (row["topic"], row["group"]))
    if output != "json":
        listed = [{**row, "takes": _shown(row["takes"])} for row in listed]
    none = "no group is replicated: `stilltide group enable TOPIC GROUP` begins"
    print_rows(listed, output, empty=none)
    for cluster, positions in outside.items():
        say_outside(positions, f"--cluster {shlex.quote(cluster)}")


@click.command(
    "enable",
    epilog="""\b
Examples:
  stilltide group enable orders billing
  stilltide group enable 'orders-*' 'billing*'
""",
)
@click.argument("topic")
@click.argument("group")
@click.option("--allow-none", is_flag=True, help="Set it also if no topic or group fits yet.")
@clusters_option
def enable_command(topic: str, group: str, *, allow_none: bool, clusters: str | None) -> None:
    """Carry the position of GROUP on TOPIC over between clusters.

    TOPIC and GROUP may be patterns such as 'orders-*'. A group that fits is taken up within 5 s
    once it has committed an offset of a topic that fits; a setting by names wins over a pattern.
    A topic that no cluster has is refused: its name may be mistyped. The command writes to every
    cluster; workers follow within a moment.
    """
    setting, connectors = _setting(topic, group, enabled=True), connected(clusters)

    async def enable() -> None:
        if setting.is_pattern:
            takes = {it: await _taken(one, [setting]) for it, one in connectors.items()}
            if not allow_none:
                _require_any(setting, takes)
            for name, taken in takes.items():
                say(f"cluster {name}: {_shown(list(map(_named, taken.get(setting, ()))))}")
        elif not allow_none:
            await _require_topic(topic, connectors)
        await _write(connectors, setting)

    asyncio.run(enable())


@click.command(
    "disable",
    epilog="""\b
Examples:
  stilltide group disable orders billing
  stilltide group disable 'orders-*' 'billing-test*'
""",
)
@click.argument("topic")
@click.argument("group")
@clusters_option
def disable_command(topic: str, group: str, clusters: str | None) -> None:
    """Stop carrying over the position of GROUP on TOPIC; each may be a pattern.

    The command writes to every cluster; workers follow within a moment.
    """
    setting = _setting(topic, group, enabled=False)
    asyncio.run(_write(connected(clusters), setting))


def _setting(topic: str, group: str, *, enabled: bool) -> GroupSetting:
    if subscription_of(subscription_setting(topic, group)) is None:
        raise ConfigError(
            f"no topic can have the name or fit the pattern {topic!r}",
            hint="names have letters, digits, '.', '_', '-'; patterns also '*', '?', '[...]'",
        )
    return GroupSetting(topic, group, enabled)


async def _write(connectors: Clusters, setting: GroupSetting) -> None:
    name, at_ms = subscription_setting(setting.topic, setting.group), SystemClock().now_ms()
    for connector in connectors.values():
        await write_setting(connector, name, setting.enabled, at_ms=at_ms)
    state = "replicated" if setting.enabled else "not replicated"
    say(f"{setting.group} on {setting.topic}: {state}")


async def _require_topic(topic: str, connectors: Clusters) -> None:
    """Raises `FatalError` unless one of the clusters has the topic."""
    for connector in connectors.values():
        async with closing(connector.admin()) as admin:
            if await admin.describe_topics([topic]):
                return
    raise FatalError(
        "the topic does not exist",
        detail=f"looked on clusters {', '.join(sorted(connectors))}; nothing was set",
        hint="correct the name; --allow-none sets it for a topic that comes later",
        topic=topic,
    )


def _require_any(setting: GroupSetting, takes: Mapping[ClusterName, Mapping[Any, Any]]) -> None:
    if any(takes.values()):
        return
    raise UnknownGroupError(
        f"no group that fits {setting.group} has committed an offset of a topic that fits"
        f" {setting.topic}",
        detail=f"looked on clusters {', '.join(sorted(takes))}; nothing was set",
        hint="correct the patterns; --allow-none sets them for groups that come later",
    )


async def settings_of(
    connectors: Clusters, timeout_s: float
) -> dict[ClusterName, list[GroupSetting]]:
    """The settings about groups on each cluster.

    Raises:
        FatalError: a cluster has no topic of settings.
        UnavailableError: a cluster is away for longer than `timeout_s`.
    """
    by_cluster: dict[ClusterName, list[GroupSetting]] = {}
    for cluster, connector in connectors.items():
        async with closing(DynamicSettings(connector, patience_s=timeout_s)) as settings:
            await settings.open()
            by_cluster[cluster] = [GroupSetting(*one) for one in settings.subscriptions()]
    return by_cluster


def _rows(
    cluster: ClusterName,
    settings: Sequence[GroupSetting],
    taken: Mapping[GroupSetting, Sequence[Pair]],
    outside: Sequence[OutsideLog],
) -> list[Row]:
    counts = Counter((it.data.topic, it.group) for it in outside)
    return [
        {
            "topic": setting.topic,
            "group": setting.group,
            "cluster": cluster,
            "replicated": setting.enabled,
            "takes": list(map(_named, taken.get(setting, ()))) if setting.is_pattern else None,
            "outside": sum(counts[pair] for pair in _pairs(setting, taken)),
        }
        for setting in settings
    ]


def _pairs(setting: GroupSetting, taken: Mapping[GroupSetting, Sequence[Pair]]) -> Sequence[Pair]:
    """The topics and groups that a setting is about."""
    return taken.get(setting, ()) if setting.is_pattern else [(setting.topic, setting.group)]


async def _outside(
    connector: GroupConnector,
    settings: Sequence[GroupSetting],
    taken: Mapping[GroupSetting, Sequence[Pair]],
) -> list[OutsideLog]:
    """The positions of replicated groups of a cluster that no log holds."""
    pairs = {pair for setting in settings if setting.enabled for pair in _pairs(setting, taken)}
    async with closing(connector.group_admin()) as groups, closing(connector.admin()) as admin:
        commits = await groups.commits_of({group for _, group in pairs})
        of_pairs = {
            group: {data: it for data, it in positions.items() if (data.topic, group) in pairs}
            for group, positions in commits.items()
        }
        return await outside_logs(admin, of_pairs)


async def _taken(
    connector: GroupConnector, settings: Sequence[GroupSetting]
) -> dict[GroupSetting, list[Pair]]:
    """The topics and groups of a cluster that each pattern enables."""
    choice = GroupChoice(settings)
    if not choice.has_patterns:
        return {}
    async with closing(connector.group_admin()) as groups:
        return choice.taken(await groups.topics_of(filter(choice.may_take, await groups.listed())))


def _named(pair: Pair) -> str:
    return "/".join(pair)


def _shown(pairs: Sequence[str] | None) -> str | None:
    if pairs is None:
        return None
    more = f" and {len(pairs) - SHOWN_MAX} more" if len(pairs) > SHOWN_MAX else ""
    return (", ".join(pairs[:SHOWN_MAX]) or "no group yet") + more
