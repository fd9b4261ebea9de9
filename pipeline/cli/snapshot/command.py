"""`stilltide snapshot`: snapshots of aborted transactions.

*Source*: docs/protocols E7: an operator may request a snapshot. Only `take` needs a running worker;
the other commands read the topics.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import click

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.cli.common.asking import (
    answered,
    cluster_options,
    exit_code,
    exit_codes,
    target,
)
from stilltide.pipeline.cli.common.output import Row, output_option, print_rows
from stilltide.pipeline.cli.snapshot.show import list_command, show_command
from stilltide.pipeline.cli.snapshot.verify import verify_command
from stilltide.pipeline.drivers.shared.named_partitions import named_partitions
from stilltide.pipeline.drivers.snapshots.client import SnapshotLine, connect_snapshots
from stilltide.pipeline.errors import RequestTimeoutError
from stilltide.schemas.snapshots.requests import SnapshotSummary
from stilltide.schemas.values import EndOffset, TopicPartition

WRITERS = "snapshot writers of partitions"


@click.group()
def snapshot() -> None:
    """Take, see and verify snapshots of aborted transactions."""


@snapshot.command(
    epilog=exit_codes("snapshot writers")
    + """
\b
Examples:
  stilltide snapshot take orders
  stilltide snapshot take orders --partition 0 --partition 1 -o json
"""
)
@click.argument("topic")
@click.option(
    "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only this partition."
)
@cluster_options
@output_option
@click.pass_context
def take(
    ctx: click.Context, topic: str, partitions: tuple[int, ...], output: str, **cluster: Any
) -> None:
    """Take a snapshot of each partition of TOPIC now, and show it.

    Every transaction with a record below `max_read_position` has ended; `behind` is the number of
    records from there to the end of the partition.
    """
    connector, timeout_s = target(**cluster)
    taken, ends = asyncio.run(take_all(connector, topic, partitions, timeout_s))
    print_rows(taken_rows(topic, answered(taken, WRITERS), ends), output)
    ctx.exit(exit_code(taken))


async def take_all(
    connector: Connector, topic: str, partitions: Sequence[int], timeout_s: float
) -> tuple[dict[int, SnapshotSummary | None], dict[TopicPartition, EndOffset]]:
    """Snapshots by partition, None where no answer came, and end offsets read before them.

    Raises:
        FatalError: the topic, or the system topics, do not exist.
        RefusedError: the partition does not exist.
    """
    admin = connector.admin()
    try:
        asked = await named_partitions(admin, topic, partitions)
        ends = await admin.end_offsets(asked)
    finally:
        await admin.close()
    async with connect_snapshots(connector, "admin", timeout_s=timeout_s) as line:
        answers = await asyncio.gather(*(_taken(line, data) for data in asked))
    return {data.partition: it for data, it in zip(asked, answers, strict=True)}, ends


async def _taken(line: SnapshotLine, data: TopicPartition) -> SnapshotSummary | None:
    try:
        return await line.take(data)
    except RequestTimeoutError:
        return None


def taken_rows(
    topic: str,
    taken: Mapping[int, SnapshotSummary],
    ends: Mapping[TopicPartition, EndOffset],
) -> list[Row]:
    """A row for each snapshot."""
    return [
        {
            "topic": topic,
            "partition": partition,
            "max_read_position": one.max_read_position,
            "behind": max(0, ends[TopicPartition(topic, partition)] - one.max_read_position),
            "aborted": one.aborted_count,
        }
        for partition, one in taken.items()
    ]


for command in (list_command, show_command, verify_command):
    snapshot.add_command(command)
