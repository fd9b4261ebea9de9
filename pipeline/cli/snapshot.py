"""`stilltide snapshot`: snapshots of aborted transactions.

*Source*: docs/protocols E7: an operator may request a snapshot. Only `take` needs a running worker;
the other commands read the topics.

`stilltide snapshot list` and `show`: the contents of the snapshot topic.

`stilltide snapshot verify`: checks snapshots against data and markers.

*Source*: docs/protocols D4, E.

*Invariants*: the exit code is the verdict; records that could not be checked are reported, never
counted as right.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.pipeline.cli.common.asking import (
    answered,
    bootstrap_option,
    cluster_options,
    exit_code,
    exit_codes,
    target,
)
from stilltide.pipeline.cli.common.output import (
    Row,
    output_option,
    print_columns,
    print_rows,
    say,
)
from stilltide.pipeline.core.snapshots.verify import Difference
from stilltide.pipeline.drivers.shared.named_partitions import named_partitions, named_topics
from stilltide.pipeline.drivers.snapshots.client import SnapshotLine
from stilltide.pipeline.drivers.snapshots.listing import ListedSnapshot, list_snapshots
from stilltide.pipeline.drivers.snapshots.verify import CheckedSnapshot, VerifiedTopic, verify_topic
from stilltide.pipeline.errors import RefusedError, RequestTimeoutError
from stilltide.schemas.snapshots.requests import SnapshotSummary
from stilltide.schemas.snapshots.snapshots import Floors
from stilltide.schemas.values import EndOffset, TopicPartition


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
    snapshots = asyncio.run(_listed(target(bootstrap_servers).connector, topics))
    wanted = [shown for shown in snapshots if not topics or shown.data.topic in topics]
    rows = listed_rows(wanted, SystemClock().now_ms())
    print_rows(
        rows, output, empty="no snapshots: a worker takes them where transactions have ended"
    )


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
    snapshots = asyncio.run(_listed(target(bootstrap_servers).connector, [topic]))
    wanted = [shown for shown in snapshots if shown.data == (topic, partition)]
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
    snapshots = await list_snapshots(connector)
    # A deleted topic keeps its own.
    unseen = set(topics) - {snapshot.data.topic for snapshot in snapshots}
    if unseen:
        async with closing(connector.admin()) as admin:
            await named_topics(admin, sorted(unseen))
    return snapshots


def listed_rows(snapshots: Iterable[ListedSnapshot], now_ms: int) -> list[Row]:
    """A row for each snapshot."""
    return [
        {
            **listed.data._asdict(),
            "bytes": listed.bytes,
            "parts": len(listed.parts),
            "age_s": _age_s(listed, now_ms),
            "max_read_position": listed.end.max_read_position if listed.end else None,
            "behind": listed.behind,
            "aborted": listed.aborted_count,
            "problem": listed.problem,
        }
        for listed in snapshots
    ]


def shown_row(shown: ListedSnapshot, now_ms: int) -> Row:
    """The row of everything in a snapshot."""
    end = shown.end
    if end is None or shown.record is None:
        return {
            "partition": str(shown.data),
            "end_offset": shown.end_offset,
            "snapshot_partition": shown.partition,
            "bytes": shown.bytes,
            "parts": _parts(shown),
            "problem": shown.problem,
        }
    written = datetime.fromtimestamp(shown.record.timestamp_ms / 1000, UTC)
    return {
        "partition": str(shown.data),
        "topic_id": end.topic_id.hex(),
        "max_read_position": end.max_read_position,
        "end_offset": shown.end_offset,
        "behind": shown.behind,
        "aborted": shown.aborted_count,
        "unsealed": sum(map(len, end.unsealed.values())),
        "floors": _floors(end.floors),
        "floors_valid_from": end.floors_valid_from,
        "pairs": [
            {"end_offset": pair.end_offset, "floors": _floors(pair.floors)} for pair in end.pairs
        ],
        "markers_covered_to": end.markers_covered_to,
        "markers_covered_to_by_all": shown.star_covered_to,
        "snapshot_partition": shown.partition,
        "end_record_offset": shown.record.offset,
        "end_record_bytes": shown.record.bytes,
        "written": written.isoformat(timespec="milliseconds"),
        "age_s": _age_s(shown, now_ms),
        "bytes": shown.bytes,
        "parts": _parts(shown),
        "problem": shown.problem,
    }


def _parts(shown: ListedSnapshot) -> list[Row]:
    return [
        {"number": part.number, "checksum": f"{part.checksum:08x}", "bytes": part.bytes}
        for part in shown.parts
    ]


def _age_s(shown: ListedSnapshot, now_ms: int) -> float | None:
    if shown.record is None:
        return None
    return round(max(0, now_ms - shown.record.timestamp_ms) / 1000, 1)


def _floors(floors: Floors) -> list[Row]:
    return [{"coordinator": one, "sequence": floor} for one, floor in sorted(floors.items())]


EXIT_DIFFERENT = 3
EVIDENCE_MAX = 20


@click.command(
    "verify",
    epilog="""\b
Exit codes:
  0  no difference was found in the part that can still be recomputed
  1  the verification failed
  3  a snapshot is wrong, or cannot be used; see the differences

\b
Examples:
  stilltide snapshot verify
  stilltide snapshot verify orders -o json | jq '.differences[]'
""",
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option(
    "--evidence",
    "evidence_max",
    type=click.IntRange(0, 10_000),
    default=EVIDENCE_MAX,
    show_default=True,
    help="Most differences listed of each kind and partition; all are counted.",
)
@bootstrap_option
@output_option
def verify_command(
    topics: tuple[str, ...],
    evidence_max: int,
    output: str,
    bootstrap_servers: str | None,
) -> int:
    """Recompute snapshots of all topics or some from data and markers, and compare.

    Reads the records below each snapshot's max read position. A marker that is still in its topic
    decides whether the snapshot must show or hide a record, or hold an id. Markers that all
    snapshots have absorbed are trimmed: records that they decided are counted as unchecked.
    """
    verified = asyncio.run(_verify(target(bootstrap_servers).connector, topics, evidence_max))
    checked = [one for topic in verified for one in topic.checked]
    differences = [difference for topic in verified for difference in topic.differences]
    rows, evidence = checked_rows(checked), difference_rows(differences)
    if output == "json":
        print(json.dumps({"snapshots": rows, "differences": evidence}, indent=2))
    else:
        print_rows(rows, output)
        print_rows(evidence, output, title="differences")
    return EXIT_DIFFERENT if differences or any(check.difference_count for check in checked) else 0


async def _verify(
    connector: Connector, topics: Sequence[str], evidence_max: int
) -> list[VerifiedTopic]:
    if not topics:
        listed = await list_snapshots(connector)
        topics = [one.data.topic for one in listed if one.end_offset is not None]
        gone = {one.data.topic for one in listed} - set(topics)
        if gone:
            say(f"topics left out because they do not exist any more: {', '.join(sorted(gone))}")
    return [
        await verify_topic(connector, topic, evidence_max=evidence_max, progress=say)
        for topic in sorted(set(topics))
    ]


def checked_rows(checked: Sequence[CheckedSnapshot]) -> list[Row]:
    """A row for each snapshot."""
    return [
        {
            **snapshot.data._asdict(),
            "max_read_position": snapshot.max_read_position,
            "markers": snapshot.markers,
            "records_checked": snapshot.records_checked,
            "records_unchecked": snapshot.records_unchecked,
            "ids_unchecked": snapshot.ids_unchecked,
            "differences": snapshot.difference_count,
        }
        for snapshot in checked
    ]


def difference_rows(differences: Sequence[Difference]) -> list[Row]:
    """A row for each difference."""
    return [
        {
            "kind": difference.kind.value,
            **difference.data._asdict(),
            "offset": difference.offset,
            "txn": None if difference.txn is None else str(difference.txn),
            "detail": difference.detail,
        }
        for difference in differences
    ]


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
def take(topic: str, partitions: tuple[int, ...], output: str, **cluster: Any) -> int:
    """Take a snapshot of each partition of TOPIC now, and show it.

    Every transaction with a record below `max_read_position` has ended; `behind` is the number of
    records from there to the end of the partition.
    """
    connector, timeout_s = target(**cluster)
    taken, ends = asyncio.run(take_all(connector, topic, partitions, timeout_s))
    print_rows(taken_rows(topic, answered(taken, WRITERS), ends), output)
    return exit_code(taken)


async def take_all(
    connector: Connector, topic: str, partitions: Sequence[int], timeout_s: float
) -> tuple[dict[int, SnapshotSummary | None], dict[TopicPartition, EndOffset]]:
    """Snapshots by partition, None where no answer came, and end offsets read before them.

    Raises:
        FatalError: the topic, or the system topics, do not exist.
        RefusedError: the partition does not exist.
    """
    async with closing(connector.admin()) as admin:
        asked = await named_partitions(admin, topic, partitions)
        ends = await admin.end_offsets(asked)
    async with SnapshotLine(connector, "admin", timeout_s=timeout_s) as line:
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
            "max_read_position": snapshot.max_read_position,
            "behind": max(0, ends[TopicPartition(topic, partition)] - snapshot.max_read_position),
            "aborted": snapshot.aborted_count,
        }
        for partition, snapshot in taken.items()
    ]


for command in (list_command, show_command, verify_command):
    snapshot.add_command(command)
