"""`stilltide group`: consumer groups, and how their positions are carried over between clusters.

*Source*: docs/protocols I. The commands read topics and groups of every cluster; `enable`,
`disable` and `reset` write, `failover` waits for the workers, and `cli.group.requests` asks them.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import click

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.ports.connector import GroupConnector
from stilltide.pipeline.cli.common.asking import (
    EXIT_INCOMPLETE,
    cluster_connector,
    cluster_options,
    clusters_option,
    connected,
    say_outside,
    timeout_option,
)
from stilltide.pipeline.cli.common.output import Row, output_option, print_rows, say
from stilltide.pipeline.cli.group.reset import reset_command, snapshot_now_command, sync_now_command
from stilltide.pipeline.cli.group.settings import (
    EXIT_CODES,
    disable_command,
    enable_command,
    list_command,
    settings_of,
)
from stilltide.pipeline.core.group_choice import GroupChoice
from stilltide.pipeline.drivers.groups.places import ReadingProgress
from stilltide.pipeline.drivers.groups.report import (
    FailOver,
    Standpoint,
    away_clusters,
    describe_group,
    fail_over,
    reason,
    require_group,
)
from stilltide.pipeline.drivers.groups.unread import Lag, lag_of
from stilltide.pipeline.drivers.subscription.topics import topics_now
from stilltide.schemas.values import ClusterName

_PLACE = ("cluster", "partition")
_SNAPSHOTS = (
    "generation",
    "snapshots",
    "snapshot_age_ms",
    "snapshot_round_trip_ms",
    "links_stopped",
)
"""The columns of `describe`'s second table, in addition to those of the place."""


@click.group("group")
def group_command() -> None:
    """See and reset consumer groups, and control their replication between clusters."""


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
    what keeps the position from advancing there, and the next step. A cluster that does not answer
    within 5 s is left out, and named.
    """
    connectors = connected(clusters)

    async def described() -> list[Row]:
        statuses, away = await _described(connectors, topic, group, timeout_s)
        reached = {name: one for name, one in connectors.items() if name not in away}
        named = await settings_of(reached, timeout_s)
        settings = ((it, GroupChoice(one).setting_of(topic, group)) for it, one in named.items())
        disabled = [cluster for cluster, one in settings if one is not None and not one.enabled]
        rows = described_rows(statuses, SystemClock().now_ms())
        whys = [reason(one, disabled=disabled, away=away) for one in statuses]
        return [{**row, "why": why} for row, why in zip(rows, whys, strict=True)]

    print_described(asyncio.run(described()), output)


async def _described(
    connectors: Mapping[ClusterName, GroupConnector], topic: str, group: str, timeout_s: float
) -> tuple[list[Standpoint], Collection[ClusterName]]:
    """The group on each cluster that answers, and the others, which it says; one must answer."""
    away = await away_clusters(connectors)
    reached = {name: one for name, one in connectors.items() if name not in away} or connectors
    statuses = await describe_group(reached, topic, group, timeout_s=timeout_s, report=say)
    if not away:
        require_group(statuses, topic, group)
    _say_away(away)
    return statuses, away


def _say_away(away: Iterable[ClusterName]) -> None:
    """Says which clusters were left out, and what that means."""
    for cluster in away:
        say(f"cluster {cluster} is away: reads that only it knows of are not carried over")


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
    any consumer group; one that has committed nothing is counted from the log start. `outside` says
    that the committed offset lies beyond the end or below the start of the log, where no member can
    go on.
    """
    connector, progress = cluster_connector(bootstrap_servers), ReadingProgress(say)

    async def lags() -> list[Lag]:
        counts = [
            await lag_of(
                connector,
                name,
                group,
                records_max=records_max,
                timeout_s=timeout_s,
                progress=progress.counted,
            )
            for name in await topics_now(connector, topic)
        ]
        return [lag for count in counts for lag in count]

    lagging = asyncio.run(lags())
    print_rows(list(map(_lag_row, lagging)), output)
    say_outside(lag.outside for lag in lagging if lag.outside is not None)


def _lag_row(lag: Lag) -> Row:
    return {
        **lag.data._asdict(),
        "committed": lag.committed,
        "log_start": lag.log.first,
        "log_end": lag.log.end,
        "decided_end": lag.decided_end,
        "visible": lag.visible,
        "at_least": lag.at_least,
        "outside": lag.outside and lag.outside.where,
    }


def print_described(rows: Sequence[Row], output: str) -> None:
    """Prints a row for each cluster and partition; a table is split in three to fit a screen.

    The third table says why; `why` begins with the standing.
    """
    if output == "json" or not rows:
        print_rows(rows, output)
        return
    elsewhere = {"topic", "standing", "why", *_SNAPSHOTS}
    other = [name for name in rows[0] if name not in elsewhere]
    print_rows(
        [{name: row[name] for name in other} for row in rows], output, title=rows[0]["topic"]
    )
    for names in (_SNAPSHOTS, ("why",)):
        print()
        print_rows([{name: row[name] for name in (*_PLACE, *names)} for row in rows], output)


def described_rows(standpoints: Sequence[Standpoint], now_ms: int) -> list[Row]:
    """A row for each cluster and partition."""
    rows: list[Row] = []
    for point in standpoints:
        snapshots = point.snapshots.snapshots if point.snapshots else ()
        newest = snapshots[-1] if snapshots else None
        rows.append(
            {
                "cluster": point.cluster,
                **point.data._asdict(),
                "offset": point.seen.offset,
                "log_start": point.view.log_start,
                "decided_end": point.view.decided_end,
                "active": point.seen.active,
                "standing": point.standing.value,
                "read_again": point.read_again,
                "read_again_others": point.read_again_foreign,
                "last_update": point.updated,
                "generation": point.seen.generation,
                "snapshots": len(snapshots),
                "snapshot_age_ms": now_ms - newest.completed_ms if newest else None,
                "snapshot_round_trip_ms": newest.completed_ms - newest.started_ms
                if newest
                else None,
                "links_stopped": ", ".join(sorted(point.stopped)) or None,
            }
        )
    return rows


@group_command.command("sync-status", epilog=EXIT_CODES)
@click.argument("topic")
@click.argument("group")
@clusters_option
@timeout_option
@output_option
def sync_status(
    topic: str,
    group: str,
    *,
    clusters: str | None,
    timeout_s: float,
    output: str,
) -> int:
    """Show whether each cluster knows everything that GROUP has read of TOPIC.

    A cluster does if a Subscription that begins there reads no record again. A cluster that does
    not answer within 5 s is left out, and named.
    """
    standpoints, away = asyncio.run(_described(connected(clusters), topic, group, timeout_s))
    rows = [
        {
            "cluster": standpoint.cluster,
            "partition": standpoint.data.partition,
            "in_sync": standpoint.read_again == 0,
            "read_again": standpoint.read_again,
            "standing": standpoint.standing.value,
        }
        for standpoint in standpoints
    ]
    print_rows(rows, output)
    return 0 if not away and all(row["in_sync"] for row in rows) else EXIT_INCOMPLETE


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
def failover_command(topic: str, group: str, **given: Any) -> int:
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
            report=say,
        )
    )
    _say_away(done.away)
    print_rows(_failed_over(done), given["output"])
    return 0 if done.complete else EXIT_INCOMPLETE


def _failed_over(done: FailOver) -> list[Row]:
    return [
        {
            "cluster": standpoint.cluster,
            "partition": standpoint.data.partition,
            "offset": standpoint.seen.offset,
            "read_again": standpoint.read_again,
            "read_again_others": standpoint.read_again_foreign,
            "standing": standpoint.standing.value,
        }
        for standpoint in done.target
    ]


for command in (
    reset_command,
    sync_now_command,
    snapshot_now_command,
    enable_command,
    disable_command,
    list_command,
):
    group_command.add_command(command)
