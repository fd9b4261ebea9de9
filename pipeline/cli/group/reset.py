"""`stilltide group reset`: moves a group, by its controllers if it is replicated, else in Kafka.

*Source*: docs/protocols I10, I14; docs/failures.md. *Invariants*: nothing is changed without
`--apply`, and nothing if one partition refuses to show the result, or if the group has members.

`stilltide group sync-now` and `snapshot-now`: ask the controllers of a cluster.

*Source*: docs/protocols I14.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.connector import GroupConnector, closing
from stilltide.pipeline.cli.common.asking import (
    EXIT_INCOMPLETE,
    answered,
    cluster_connector,
    cluster_options,
    exit_code,
    exit_codes,
)
from stilltide.pipeline.cli.common.output import Row, output_option, print_rows, say, utc
from stilltide.pipeline.core.group_choice import GroupChoice
from stilltide.pipeline.drivers.groups.client import (
    GroupLine,
    KafkaReset,
    PlannedReset,
)
from stilltide.pipeline.drivers.pending_ack.client import PendingAckStores
from stilltide.pipeline.drivers.shared.dynamic_settings import DynamicSettings
from stilltide.pipeline.drivers.shared.named_partitions import named_partitions
from stilltide.pipeline.errors import RefusedError, RequestTimeoutError
from stilltide.schemas.pending_ack.acknowledgements import MEMBER_BYTES
from stilltide.schemas.replication.requests import (
    AtOffset,
    AtTime,
    Edge,
    ResetAnswer,
    ResetTarget,
)
from stilltide.schemas.topics import PENDING_ACK_LOG, SETTINGS
from stilltide.schemas.values import Offset, TopicPartition

CONTROLLERS = "controllers of partitions"

T = TypeVar("T")

partition_option = click.option(
    "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only this partition."
)


async def each(
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


async def asked(
    topic: str,
    given: Mapping[str, Any],
    work: Callable[[GroupLine, Sequence[TopicPartition]], Awaitable[T]],
) -> T:
    """Runs `work` with the controllers of a topic's partitions, or of those that were named."""
    connector = cluster_connector(given["bootstrap_servers"])
    async with closing(connector.admin()) as admin:
        partitions = await named_partitions(admin, topic, given["partitions"])
    async with GroupLine(connector, "admin", timeout_s=given["timeout_s"]) as line:
        return await work(line, partitions)


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
def sync_now_command(topic: str, group: str, **given: Any) -> int:
    """Look at GROUP on TOPIC now, publish what it has read, and show its position.

    `unpublished` is the number of offsets that the group has passed on this cluster and that no
    update names; `standing` says why.
    """

    async def work(line: GroupLine, partitions: Sequence[TopicPartition]) -> Any:
        return await each(partitions, lambda data: line.sync(data, group))

    done = asyncio.run(asked(topic, given, work))
    rows: list[Row] = [
        {"topic": topic, "group": group, "partition": number, **answer._asdict()}
        for number, answer in answered(done, CONTROLLERS).items()
    ]
    print_rows(rows, given["output"])
    return exit_code(done)


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
def snapshot_now_command(topic: str, **given: Any) -> int:
    """Take a position snapshot of each partition of TOPIC now, and show it.

    It needs answers of all other clusters: an answer that comes back shows that links in both
    directions and the controllers of the other clusters work.
    """

    async def work(line: GroupLine, partitions: Sequence[TopicPartition]) -> Any:
        return await each(partitions, line.take_positions)

    done = asyncio.run(asked(topic, given, work))
    rows: list[Row] = [
        {
            "topic": topic,
            "partition": number,
            "local_end": snapshot.local_end,
            "completed": utc(snapshot.completed_ms),
            "round_trip_ms": snapshot.completed_ms - snapshot.started_ms,
        }
        for number, snapshot in answered(done, CONTROLLERS).items()
    ]
    print_rows(rows, given["output"])
    return exit_code(done)


NOT_APPLIED = "nothing was changed"


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
@click.option(
    "--positions-only",
    is_flag=True,
    help="Leave the pending-ack stores out: of a group that acknowledges no single messages.",
)
@partition_option
@cluster_options
@output_option
def reset_command(topic: str, group: str, **given: Any) -> int:
    """Reset GROUP on TOPIC to a place that is named on this cluster.

    Without --apply nothing is changed. Stop the group's consumers first: a reset is refused while
    the group has members on this cluster. With --stop they are removed from the group instead; a
    consumer that still runs joins again by itself and goes on behind the reset, and what it has
    read and not committed is read again.

    A group that is replicated is reset on all clusters, by its controllers: every cluster, this one
    too, moves the group to the records that this place means there, as soon as the group has no
    members on it. Members on other clusters stay. Any other group is moved on this cluster alone,
    by a commit for it.

    A group that is put back reads everything from there on again: the pending-ack stores of this
    cluster forget what it has acknowledged, for which a worker must run. --positions-only leaves
    the stores out, for a group that acknowledges no single messages.
    """
    target = _target(given)
    connector = cluster_connector(given["bootstrap_servers"])
    if asyncio.run(_is_replicated(connector, topic, group, given["timeout_s"])):
        return _reset_by_controllers(topic, group, target, given)
    plans = asyncio.run(_reset_in_kafka(connector, topic, group, target, given))
    rows = [_planned_row(topic, group, plan, is_applied=given["apply"]) for plan in plans]
    print_rows(rows, given["output"])
    if not given["apply"]:
        say(f"{NOT_APPLIED}; --apply resets the group")
    return 0


def _reset_by_controllers(
    topic: str, group: str, target: ResetTarget, given: Mapping[str, Any]
) -> int:
    """Asks the controllers of a replicated group; the exit code."""
    stop, refused = given["stop"], list[RefusedError]()

    async def work(line: GroupLine, partitions: Sequence[TopicPartition]) -> Any:
        shown = await each(
            partitions, lambda data: line.reset_shown(data, group, target, stop=stop)
        )
        if not given["apply"] or None in shown.values():
            return shown, False
        by_partition = answered(shown, CONTROLLERS)
        back = {
            TopicPartition(topic, number): answer.to_offset
            for number, answer in by_partition.items()
            if answer.from_offset is None or answer.to_offset <= answer.from_offset
        }
        await _forget_acknowledgements(
            cluster_connector(given["bootstrap_servers"]), group, back, given
        )

        async def reset(data: TopicPartition) -> ResetAnswer | RefusedError:
            try:
                return await line.reset(data, group, by_partition[data.partition], stop=stop)
            except RefusedError as error:
                refused.append(error)
                return error

        return await each(partitions, reset), True

    done, is_applied = asyncio.run(asked(topic, given, work))
    done = {number: one for number, one in done.items() if not isinstance(one, RefusedError)}
    _print_resets(topic, group, done, given["output"], is_applied=is_applied)
    for error in refused:
        say(str(error))
    if not is_applied:
        say(NOT_APPLIED + ("" if given["apply"] else "; --apply resets the group"))
    return 1 if refused else _reset_exit_code(done, is_applied=is_applied)


async def _is_replicated(
    connector: GroupConnector, topic: str, group: str, timeout_s: float
) -> bool:
    """Whether an operator has enabled the group on this cluster."""
    settings = DynamicSettings(connector, patience_s=timeout_s)
    try:
        await settings.open()
    except FatalError as error:
        if error.topic == SETTINGS:
            return False  # no worker has ever run
        raise
    finally:
        await settings.close()
    setting = GroupChoice(settings.subscriptions()).setting_of(topic, group)
    return setting is not None and setting.enabled


async def _reset_in_kafka(
    connector: GroupConnector,
    topic: str,
    group: str,
    target: ResetTarget,
    given: Mapping[str, Any],
) -> list[PlannedReset]:
    """Shows a reset, or carries it out."""
    async with closing(connector.admin()) as admin, closing(connector.group_admin()) as groups:
        reset = KafkaReset(admin, groups, group)
        partitions = await named_partitions(admin, topic, given["partitions"])
        plans = await reset.plan(partitions, target)
        if not given["stop"]:
            await reset.require_inactive()
        if given["apply"]:
            back = {plan.data: plan.after.offset for plan in plans if plan.is_back}
            await _forget_acknowledgements(connector, group, back, given)
            await reset.carry_out(plans, stop=given["stop"], timeout_s=given["timeout_s"])
    return plans


async def _forget_acknowledgements(
    connector: GroupConnector,
    group: str,
    back: Mapping[TopicPartition, Offset],
    given: Mapping[str, Any],
) -> None:
    """Has the stores forget what a group that is put back has acknowledged, before it is moved."""
    async with closing(connector.admin()) as admin:
        has_stores = bool(await admin.describe_topics([PENDING_ACK_LOG]))
    if not back or not has_stores or given["positions_only"]:
        return
    try:
        stores = PendingAckStores(connector, request_timeout_s=given["timeout_s"])
        async with stores:
            await stores.reset(group, back, secrets.token_bytes(MEMBER_BYTES))
    except RequestTimeoutError as error:
        raise RefusedError(
            f"a pending-ack store did not answer; group {group} was not moved",
            detail=str(error),
            hint="start a worker with `stilltide worker`; for a group that acknowledges no single"
            " messages, --positions-only leaves the stores out",
        ) from error


def _planned_row(topic: str, group: str, plan: PlannedReset, *, is_applied: bool) -> Row:
    outside = plan.outside(group)
    return {
        "topic": topic,
        "group": group,
        "partition": plan.data.partition,
        "from_offset": None if plan.before is None else plan.before.offset,
        "to_offset": plan.after.offset,
        "generation": None,
        "applied": is_applied,
        "moved": is_applied,
        "log_start": plan.log.first,
        "log_end": plan.log.end,
        "outside": outside and outside.where,
    }


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
            "from_offset": answer.from_offset,
            "to_offset": answer.to_offset,
            "generation": answer.generation,
            "applied": is_applied,
            "moved": answer.moved,
        }
        for number, answer in answered(done, CONTROLLERS).items()
    ]
    print_rows(rows, output)
