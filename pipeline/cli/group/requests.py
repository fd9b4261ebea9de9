"""`stilltide group sync-now` and `snapshot-now`: ask the controllers of a cluster.

*Source*: docs/protocols I14.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from stilltide.pipeline.cli.common.asking import (
    answered,
    cluster_connector,
    cluster_options,
    exit_code,
    exit_codes,
)
from stilltide.pipeline.cli.common.output import Row, output_option, print_rows
from stilltide.pipeline.cli.common.times import utc
from stilltide.pipeline.drivers.groups.requests.client import GroupLine, connect_groups
from stilltide.pipeline.drivers.shared.named_partitions import named_partitions
from stilltide.pipeline.errors import RequestTimeoutError
from stilltide.schemas.values import TopicPartition

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
    admin = connector.admin()
    try:
        partitions = await named_partitions(admin, topic, given["partitions"])
    finally:
        await admin.close()
    async with connect_groups(connector, "admin", timeout_s=given["timeout_s"]) as line:
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
@click.pass_context
def sync_now_command(ctx: click.Context, topic: str, group: str, **given: Any) -> None:
    """Look at GROUP on TOPIC now, publish what it has read, and show its position.

    `unpublished` is the number of offsets that the group has passed on this cluster and that no
    update names; `standing` says why.
    """

    async def work(line: GroupLine, partitions: Sequence[TopicPartition]) -> Any:
        return await each(partitions, lambda data: line.sync(data, group))

    done = asyncio.run(asked(topic, given, work))
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
        return await each(partitions, line.take_positions)

    done = asyncio.run(asked(topic, given, work))
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
