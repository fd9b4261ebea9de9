"""`stilltide snapshot list` and `show`: the contents of the snapshot topic."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import click

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.cli.common.asking import bootstrap_option, target
from stilltide.pipeline.cli.common.output import Row, output_option, print_columns, print_rows
from stilltide.pipeline.drivers.shared.named_partitions import named_topics
from stilltide.pipeline.drivers.snapshots.listing import ListedSnapshot, list_snapshots
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.snapshots.snapshots import Floors


@click.command(
    "list",
    epilog="""\b
Examples:
  stilltide snapshot list
  stilltide snapshot list orders payments
  stilltide snapshot list -o json | jq '.[] | select(.behind > 100000)'
""",
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@bootstrap_option
@output_option
def list_command(output: str, topics: tuple[str, ...], bootstrap_servers: str | None) -> None:
    """List the snapshot of every data partition, or of those of some topics.

    `bytes` is the size of the snapshot's end and sealed parts. Every transaction with a record
    below `max_read_position` has ended; `behind` is the number of offsets from there to the end of
    the partition. Readers do not use a snapshot with a `problem`.
    """
    found = asyncio.run(_listed(target(bootstrap_servers).connector, topics))
    wanted = [one for one in found if not topics or one.data.topic in topics]
    print_rows(listed_rows(wanted, SystemClock().now_ms()), output)


@click.command(
    "show",
    epilog="""\b
Examples:
  stilltide snapshot show orders 0
  stilltide snapshot show orders 0 -o json | jq '.[].parts'
""",
)
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@bootstrap_option
@output_option
def show_command(topic: str, partition: int, output: str, bootstrap_servers: str | None) -> None:
    """Show everything in the snapshot of one data partition.

    A part without `bytes` is missing, or there is another part in its place.
    """
    found = asyncio.run(_listed(target(bootstrap_servers).connector, [topic]))
    wanted = [one for one in found if one.data == (topic, partition)]
    if not wanted:
        raise RefusedError(
            "the data partition has no snapshot",
            hint="write a transaction to the partition, or run `stilltide snapshot take`",
            topic=topic,
            partition=partition,
        )
    print_columns([shown_row(wanted[0], SystemClock().now_ms())], output)


async def _listed(connector: Connector, topics: Sequence[str]) -> list[ListedSnapshot]:
    """All snapshots; a topic without any has to exist.

    Raises:
        FatalError: a topic, or the system topic, does not exist.
    """
    found = await list_snapshots(connector)
    unseen = set(topics) - {one.data.topic for one in found}  # a deleted topic keeps its own
    if unseen:
        admin = connector.admin()
        try:
            await named_topics(admin, sorted(unseen))
        finally:
            await admin.close()
    return found


def listed_rows(found: Iterable[ListedSnapshot], now_ms: int) -> list[Row]:
    """A row for each snapshot."""
    return [
        {
            "topic": one.data.topic,
            "partition": one.data.partition,
            "bytes": one.bytes,
            "parts": len(one.parts),
            "age_s": _age_s(one, now_ms),
            "max_read_position": one.end.max_read_position if one.end else None,
            "behind": one.behind,
            "aborted": one.aborted_count,
            "problem": one.problem,
        }
        for one in found
    ]


def shown_row(one: ListedSnapshot, now_ms: int) -> Row:
    """The row of everything in a snapshot."""
    end = one.end
    if end is None or one.record is None:
        return {
            "partition": str(one.data),
            "end_offset": one.end_offset,
            "snapshot_partition": one.partition,
            "bytes": one.bytes,
            "parts": _parts(one),
            "problem": one.problem,
        }
    written = datetime.fromtimestamp(one.record.timestamp_ms / 1000, UTC)
    return {
        "partition": str(one.data),
        "topic_id": end.topic_id.hex(),
        "max_read_position": end.max_read_position,
        "end_offset": one.end_offset,
        "behind": one.behind,
        "aborted": one.aborted_count,
        "unsealed": sum(map(len, end.unsealed.values())),
        "floors": _floors(end.floors),
        "floors_valid_from": end.floors_valid_from,
        "pairs": [
            {"end_offset": pair.end_offset, "floors": _floors(pair.floors)} for pair in end.pairs
        ],
        "markers_covered_to": end.markers_covered_to,
        "markers_covered_to_by_all": one.star_covered_to,
        "snapshot_partition": one.partition,
        "end_record_offset": one.record.offset,
        "end_record_bytes": one.record.bytes,
        "written": written.isoformat(timespec="milliseconds"),
        "age_s": _age_s(one, now_ms),
        "bytes": one.bytes,
        "parts": _parts(one),
        "problem": one.problem,
    }


def _parts(one: ListedSnapshot) -> list[Row]:
    return [
        {"number": part.number, "checksum": f"{part.checksum:08x}", "bytes": part.bytes}
        for part in one.parts
    ]


def _age_s(one: ListedSnapshot, now_ms: int) -> float | None:
    if one.record is None:
        return None
    return round(max(0, now_ms - one.record.timestamp_ms) / 1000, 1)


def _floors(floors: Floors) -> list[Row]:
    return [{"coordinator": one, "sequence": floor} for one, floor in sorted(floors.items())]
