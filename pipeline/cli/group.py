"""`stilltide group`: consumer groups whose positions are carried over between clusters.

*Source*: docs/protocols I. The commands read topics and groups of every cluster; only `enable` and
`disable` write, `failover` waits for the workers, and `cli.group_requests` asks them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import click

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.ports.groups import GroupConnector
from stilltide.pipeline.cli.common.asking import (
    EXIT_INCOMPLETE,
    cluster_connector,
    cluster_options,
    clusters_option,
    connector_of,
)
from stilltide.pipeline.cli.common.output import Row, output_option, print_rows, say
from stilltide.pipeline.cli.group_requests import (
    reset_command,
    snapshot_now_command,
    sync_now_command,
)
from stilltide.pipeline.config.settings import load_settings
from stilltide.pipeline.drivers.groups.fail_over import FailOver, fail_over
from stilltide.pipeline.drivers.groups.reason import reason
from stilltide.pipeline.drivers.groups.report import Standpoint, describe_group, require_group
from stilltide.pipeline.drivers.groups.unread import CountingProgress, Lag, lag_of
from stilltide.pipeline.drivers.shared.dynamic_settings import DynamicSettings, write_setting
from stilltide.pipeline.drivers.subscription.topics import topics_now
from stilltide.pipeline.errors import ConfigError
from stilltide.schemas.settings import subscription_setting
from stilltide.schemas.values import ClusterName

EXIT_CODES = """\b
Exit codes:
  0  done
  1  the command failed; the error names the next step
  4  not everything is carried over; the output shows what is left
"""

_PLACE = ("cluster", "partition")
_SECOND = (
    "generation",
    "snapshots",
    "snapshot_age_ms",
    "snapshot_round_trip_ms",
    "links_stopped",
    "why",
)
"""The columns of `describe`'s second table, in addition to those of the place."""

timeout_option = click.option(
    "--timeout-s",
    type=click.FloatRange(0.1, 600),
    default=30.0,
    show_default=True,
    help="Longest time that a cluster may be away, or an answer may take.",
)


@click.group("group")
def group_command() -> None:
    """See and control consumer groups that are replicated between clusters."""


def connected(clusters: str | None) -> dict[ClusterName, GroupConnector]:
    """A connector for each cluster that the settings name.

    Raises:
        ConfigError: the settings name no cluster.
    """
    settings = load_settings(clusters=clusters)
    if not settings.clusters:
        raise ConfigError(
            "no clusters are named",
            hint="set STILLTIDE_CLUSTERS or --clusters, such as 'a=127.0.0.1:9092 b=...'",
        )
    return {ClusterName(name): connector_of(settings, name) for name in settings.clusters}


@group_command.command("list", epilog=EXIT_CODES)
@clusters_option
@timeout_option
@output_option
def list_command(clusters: str | None, timeout_s: float, output: str) -> None:
    """List the groups that were enabled or disabled, and whether each is replicated."""
    connectors = connected(clusters)
    print_rows(asyncio.run(_listed(connectors, timeout_s)), output)


async def _listed(connectors: Mapping[ClusterName, GroupConnector], timeout_s: float) -> list[Row]:
    rows: list[Row] = []
    for cluster, connector in connectors.items():
        settings = DynamicSettings(connector, patience_s=timeout_s)
        try:
            await settings.open()
            rows += [
                {"topic": topic, "group": group, "cluster": cluster, "replicated": enabled}
                for topic, group, enabled in sorted(settings.subscriptions())
            ]
        finally:
            await settings.close()
    return sorted(rows, key=lambda row: (row["topic"], row["group"]))


def _switch(name: str, text: str, *, value: bool) -> click.Command:
    @click.command(
        name,
        help=f"{text}\n\nThe command writes to every cluster; workers follow within a moment.",
        epilog=f"\b\nExamples:\n  stilltide group {name} orders billing\n",
    )
    @click.argument("topic")
    @click.argument("group")
    @clusters_option
    def switch(topic: str, group: str, clusters: str | None) -> None:
        connectors = connected(clusters)
        setting, at_ms = subscription_setting(topic, group), SystemClock().now_ms()

        async def write() -> None:
            for connector in connectors.values():
                await write_setting(connector, setting, value, at_ms=at_ms)

        asyncio.run(write())
        say(f"{group} on {topic}: {'replicated' if value else 'not replicated'}")

    return switch


@group_command.command("describe", epilog=EXIT_CODES)
@click.argument("topic")
@click.argument("group")
@clusters_option
@timeout_option
@output_option
def describe_command(
    topic: str, group: str, clusters: str | None, timeout_s: float, output: str
) -> None:
    """Show the position of GROUP on TOPIC on every cluster, and what holds it back.

    `read_again` is the number of records that a Subscription reads again if it begins on that
    cluster now; `read_again_others` is the largest such number for any other consumer.
    `links_stopped` names the clusters from which, or to which, a link does not run. `why` names
    what keeps the position from advancing there, and the next step.
    """
    connectors = connected(clusters)

    async def described() -> list[Row]:
        named = await _listed(connectors, timeout_s)
        found = await describe_group(connectors, topic, group, timeout_s=timeout_s, told=say)
        require_group(found, topic, group)
        disabled = [
            ClusterName(row["cluster"])
            for row in named
            if (row["topic"], row["group"], row["replicated"]) == (topic, group, False)
        ]
        rows = described_rows(found, SystemClock().now_ms())
        whys = [reason(one, disabled=disabled) for one in found]
        return [{**row, "why": why} for row, why in zip(rows, whys, strict=True)]

    print_described(asyncio.run(described()), output)


@group_command.command(
    "lag",
    epilog="""\b
Examples:
  stilltide group lag orders billing
  stilltide group lag orders billing --records-max 1000000 -o json
  stilltide group lag 'orders-*' billing
""",
)
@click.argument("topic")
@click.argument("group")
@click.option(
    "--records-max",
    type=click.IntRange(1),
    default=100_000,
    show_default=True,
    help="Offsets of a partition that are read at most; beyond them `visible` is `at least`.",
)
@cluster_options
@output_option
def lag_command(
    topic: str,
    group: str,
    bootstrap_servers: str | None,
    timeout_s: float,
    output: str,
    *,
    records_max: int,
) -> None:
    """Count the visible records of TOPIC that GROUP has not read, by partition.

    TOPIC may be a pattern such as 'orders-*', as of a Subscription.

    Offsets also count records of aborted transactions, control records and messages that were
    acknowledged out of order; `visible` counts what a Subscription will return. `decided_end` is
    the offset up to which readers come at present: an open transaction keeps it back. GROUP may be
    any consumer group; one that has committed nothing is counted from the log start.
    """
    connector, progress = cluster_connector(bootstrap_servers), CountingProgress(say)

    async def lags() -> list[Lag]:
        counts = [
            await lag_of(
                connector,
                name,
                group,
                records_max=records_max,
                timeout_s=timeout_s,
                told=progress.counted,
            )
            for name in await topics_now(connector, topic)
        ]
        return [one for count in counts for one in count]

    rows: list[Row] = [
        {
            "topic": one.data.topic,
            "partition": one.data.partition,
            "committed": one.committed,
            "decided_end": one.decided_end,
            "visible": one.visible,
            "at_least": one.at_least,
        }
        for one in asyncio.run(lags())
    ]
    print_rows(rows, output)


def print_described(rows: Sequence[Row], output: str) -> None:
    """Prints a row for each cluster and partition; a table is split in two to fit a screen."""
    if output == "json":
        print_rows(rows, output)
        return
    other = [name for name in rows[0] if name not in _SECOND] if rows else []
    print_rows([{name: row[name] for name in other} for row in rows], output)
    print_rows([{name: row[name] for name in (*_PLACE, *_SECOND)} for row in rows], output)


def described_rows(found: Sequence[Standpoint], now_ms: int) -> list[Row]:
    """A row for each cluster and partition."""
    rows: list[Row] = []
    for one in found:
        snapshots = one.snapshots.snapshots if one.snapshots else ()
        newest = snapshots[-1] if snapshots else None
        rows.append(
            {
                "cluster": one.cluster,
                "topic": one.data.topic,
                "partition": one.data.partition,
                "offset": one.seen.offset,
                "log_start": one.view.log_start,
                "decided_end": one.view.decided_end,
                "active": one.seen.active,
                "standing": one.standing.value,
                "read_again": one.read_again,
                "read_again_others": one.read_again_foreign,
                "last_update": one.updated,
                "generation": one.seen.generation,
                "snapshots": len(snapshots),
                "snapshot_age_ms": now_ms - newest.completed_ms if newest else None,
                "snapshot_round_trip_ms": newest.completed_ms - newest.started_ms
                if newest
                else None,
                "links_stopped": ", ".join(sorted(one.stopped)) or None,
            }
        )
    return rows


@group_command.command("sync-status", epilog=EXIT_CODES)
@click.argument("topic")
@click.argument("group")
@clusters_option
@timeout_option
@output_option
@click.pass_context
def sync_status(
    ctx: click.Context,
    topic: str,
    group: str,
    *,
    clusters: str | None,
    timeout_s: float,
    output: str,
) -> None:
    """Show whether each cluster knows everything that GROUP has read of TOPIC.

    A cluster does if a Subscription that begins there reads no record again.
    """
    found = asyncio.run(
        describe_group(connected(clusters), topic, group, timeout_s=timeout_s, told=say)
    )
    require_group(found, topic, group)
    rows = [
        {
            "cluster": one.cluster,
            "partition": one.data.partition,
            "in_sync": one.read_again == 0,
            "read_again": one.read_again,
            "standing": one.standing.value,
        }
        for one in found
    ]
    print_rows(rows, output)
    ctx.exit(0 if all(row["in_sync"] for row in rows) else EXIT_INCOMPLETE)


@group_command.command(
    "failover",
    epilog=EXIT_CODES
    + """
\b
Examples:
  stilltide group failover orders billing --to b --dry-run
  stilltide group failover orders billing --to b
""",
)
@click.argument("topic")
@click.argument("group")
@click.option("--to", "target", required=True, help="Name of the cluster to fail over to.")
@click.option("--dry-run", is_flag=True, help="Only show the result of a fail-over now.")
@clusters_option
@timeout_option
@output_option
@click.pass_context
def failover_command(ctx: click.Context, topic: str, group: str, **given: Any) -> None:
    """Wait until GROUP can go on at another cluster, and show what it will read again.

    Stop the group's consumers first. Clusters that are away are left out, and with them reads that
    no other cluster knows of: those records are read again.
    """
    connectors = connected(given["clusters"])
    done = asyncio.run(
        fail_over(
            connectors,
            topic,
            group,
            ClusterName(given["target"]),
            dry_run=given["dry_run"],
            timeout_s=given["timeout_s"],
            told=say,
        )
    )
    for cluster in done.away:
        say(f"cluster {cluster} is away: reads that only it knows of are not carried over")
    print_rows(_failed_over(done), given["output"])
    ctx.exit(0 if done.complete else EXIT_INCOMPLETE)


def _failed_over(done: FailOver) -> list[Row]:
    return [
        {
            "cluster": one.cluster,
            "partition": one.data.partition,
            "offset": one.seen.offset,
            "read_again": one.read_again,
            "read_again_others": one.read_again_foreign,
            "standing": one.standing.value,
        }
        for one in done.target
    ]


for command in (
    reset_command,
    sync_now_command,
    snapshot_now_command,
    _switch("enable", "Carry the position of GROUP on TOPIC over between clusters.", value=True),
    _switch("disable", "Stop carrying over the position of GROUP on TOPIC.", value=False),
):
    group_command.add_command(command)
