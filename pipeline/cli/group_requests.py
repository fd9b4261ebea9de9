"""`stilltide group reset`, `sync-now` and `snapshot-now`: ask the controllers of a cluster.

*Source*: docs/protocols I14. *Invariants*: `reset` changes nothing without `--apply`, and nothing
if one partition refuses to show the result.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from stilltide.pipeline.cli.common.asking import (
    EXIT_INCOMPLETE,
    answered,
    cluster_connector,
    cluster_options,
    exit_code,
    exit_codes,
)
from stilltide.pipeline.cli.common.output import Row, output_option, print_rows, say
from stilltide.pipeline.cli.common.times import utc
from stilltide.pipeline.drivers.groups.requests.client import GroupLine, connect_groups
from stilltide.pipeline.drivers.shared.named_partitions import named_partitions
from stilltide.pipeline.errors import RefusedError, RequestTimeoutError
from stilltide.schemas.replication.requests import (
    AtOffset,
    AtTime,
    Edge,
    ResetAnswer,
    ResetTarget,
)
from stilltide.schemas.values import Offset, TopicPartition

CONTROLLERS = "controllers of partitions"

T = TypeVar("T")

partition_option = click.option(
    "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only this partition."
)


async def _each(
    partitions: Sequence[TopicPartition], ask: Callable[[TopicPartition], Awaitable[T]]
) -> dict[int, T | None]:
    """The answer for each partition; None: no answer in time. A refusal is raised."""

    async def answer(data: TopicPartition) -> T | None:
        try:
            return await ask(data)
        except RequestTimeoutError:
            return None

    answers = await asyncio.gather(*map(answer, partitions))
    return {data.partition: one for data, one in zip(partitions, answers, strict=True)}


async def _asked(
    topic: str,
    given: dict[str, Any],
    work: Callable[[GroupLine, Sequence[TopicPartition]], Awaitable[T]],
) -> T:
    connector = cluster_connector(given["bootstrap_servers"])
    admin = connector.admin()
    try:
        partitions = await named_partitions(admin, topic, given["partitions"])
    finally:
        await admin.close()
    async with connect_groups(connector, "admin", timeout_s=given["timeout_s"]) as line:
        return await work(line, partitions)


def _target(given: dict[str, Any]) -> ResetTarget:
    at: datetime | None = given["to_datetime"]
    named: list[ResetTarget] = []
    if given["to_offset"] is not None:
        named.append(AtOffset(Offset(given["to_offset"])))
    if at is not None:
        at_ms = round(at.replace(tzinfo=at.tzinfo or UTC).timestamp() * 1000)
        named.append(AtTime(at_ms))
    named += [edge for edge in Edge if given[f"to_{edge.value}"]]
    if len(named) != 1:
        raise click.UsageError(
            "name one of --to-offset, --to-datetime, --to-earliest and --to-latest"
        )
    return named[0]


@click.command(
    "reset",
    epilog="""\b
Exit codes:
  0  done: the reset was shown, or the group was moved on this cluster
  1  the command failed, or a partition refused; the error names the next step
  4  some controllers did not answer, or have not moved the group on this cluster yet
\b
Examples:
  stilltide group reset orders billing --to-earliest
  stilltide group reset orders billing --to-datetime 2026-03-01T06:00:00 --apply
  stilltide group reset orders billing --partition 0 --to-offset 1200 --apply
  stilltide group reset orders billing --to-latest --stop --apply
""",
)
@click.argument("topic")
@click.argument("group")
@click.option("--to-offset", type=click.IntRange(0, 2**63 - 1), help="An offset on this cluster.")
@click.option(
    "--to-datetime",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f"]),
    help="The first record that is not older, in UTC.",
)
@click.option("--to-earliest", is_flag=True, help="The log start on this cluster.")
@click.option("--to-latest", is_flag=True, help="The end of the log on this cluster.")
@click.option("--stop", is_flag=True, help="Remove the group's members on this cluster first.")
@click.option("--apply", is_flag=True, help="Reset; without it the reset is only shown.")
@partition_option
@cluster_options
@output_option
@click.pass_context
def reset_command(ctx: click.Context, topic: str, group: str, **given: Any) -> None:
    """Reset GROUP on TOPIC on all clusters, to a place that is named on this one.

    Every cluster, this one too, moves the group to the records that this place means there, as soon
    as the group has no members on it. Stop the group's consumers first: a reset is refused while
    the group has members on this cluster. With --stop they are removed from the group instead; a
    consumer that still runs joins again by itself and goes on behind the reset, and what it has
    read and not committed is read again. Members on other clusters stay. Without --apply nothing
    is changed.
    """
    target, stop = _target(given), given["stop"]
    refused: list[RefusedError] = []

    async def work(line: GroupLine, partitions: Sequence[TopicPartition]) -> Any:
        shown = await _each(
            partitions, lambda data: line.reset_shown(data, group, target, stop=stop)
        )
        if not given["apply"] or None in shown.values():
            return shown, False
        by_partition = answered(shown, CONTROLLERS)

        async def reset(data: TopicPartition) -> ResetAnswer | RefusedError:
            try:
                return await line.reset(data, group, by_partition[data.partition], stop=stop)
            except RefusedError as error:
                refused.append(error)
                return error

        return await _each(partitions, reset), True

    done, is_applied = asyncio.run(_asked(topic, given, work))
    done = {number: one for number, one in done.items() if not isinstance(one, RefusedError)}
    _print_resets(topic, group, done, given["output"], is_applied=is_applied)
    for error in refused:
        say(str(error))
    if not is_applied:
        say("nothing was changed" + ("" if given["apply"] else "; --apply resets the group"))
    ctx.exit(1 if refused else _reset_exit_code(done, is_applied=is_applied))


def _reset_exit_code(done: Mapping[int, ResetAnswer | None], *, is_applied: bool) -> int:
    waiting = sorted(number for number, one in done.items() if one is not None and not one.moved)
    if not is_applied or not waiting:
        return exit_code(done)
    say(
        f"reset, but not moved on this cluster yet: partitions {', '.join(map(str, waiting))}\n"
        "  hint: stop the group's consumers; the group is moved as soon as it has no members"
    )
    return EXIT_INCOMPLETE


def _print_resets(
    topic: str,
    group: str,
    done: Mapping[int, ResetAnswer | None],
    output: str,
    *,
    is_applied: bool,
) -> None:
    rows: list[Row] = [
        {
            "topic": topic,
            "group": group,
            "partition": number,
            "from_offset": one.from_offset,
            "to_offset": one.to_offset,
            "generation": one.generation,
            "applied": is_applied,
            "moved": one.moved,
        }
        for number, one in answered(done, CONTROLLERS).items()
    ]
    print_rows(rows, output)


@click.command(
    "sync-now",
    epilog=exit_codes("controllers")
    + """
\b
Examples:
  stilltide group sync-now orders billing
  stilltide group sync-now orders billing --partition 0 -o json
""",
)
@click.argument("topic")
@click.argument("group")
@partition_option
@cluster_options
@output_option
@click.pass_context
def sync_now_command(ctx: click.Context, topic: str, group: str, **given: Any) -> None:
    """Look at GROUP on TOPIC now, publish what it has read, and show its position.

    `unpublished` is the number of offsets that the group has passed on this cluster and that no
    update names; `standing` says why.
    """

    async def work(line: GroupLine, partitions: Sequence[TopicPartition]) -> Any:
        return await _each(partitions, lambda data: line.sync(data, group))

    done = asyncio.run(_asked(topic, given, work))
    rows: list[Row] = [
        {"topic": topic, "group": group, "partition": number, **one._asdict()}
        for number, one in answered(done, CONTROLLERS).items()
    ]
    print_rows(rows, given["output"])
    ctx.exit(exit_code(done))


@click.command(
    "snapshot-now",
    epilog=exit_codes("controllers")
    + """
\b
Examples:
  stilltide group snapshot-now orders
  stilltide group snapshot-now orders --timeout-s 60 -o json
""",
)
@click.argument("topic")
@partition_option
@cluster_options
@output_option
@click.pass_context
def snapshot_now_command(ctx: click.Context, topic: str, **given: Any) -> None:
    """Take a position snapshot of each partition of TOPIC now, and show it.

    It needs answers of all other clusters: an answer that comes back shows that links in both
    directions and the controllers of the other clusters work.
    """

    async def work(line: GroupLine, partitions: Sequence[TopicPartition]) -> Any:
        return await _each(partitions, line.take_positions)

    done = asyncio.run(_asked(topic, given, work))
    rows: list[Row] = [
        {
            "topic": topic,
            "partition": number,
            "local_end": one.local_end,
            "completed": utc(one.completed_ms),
            "round_trip_ms": one.completed_ms - one.started_ms,
        }
        for number, one in answered(done, CONTROLLERS).items()
    ]
    print_rows(rows, given["output"])
    ctx.exit(exit_code(done))
