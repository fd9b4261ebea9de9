"""`stilltide snapshot verify`: checks snapshots against data and markers.

*Source*: docs/protocols D4, E.

*Invariants*: the exit code is the verdict; records that could not be checked are reported, never
counted as right.
"""

import asyncio
import json
from collections.abc import Sequence

import click

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.cli.common.asking import bootstrap_option, target
from stilltide.pipeline.cli.common.output import Row, output_option, print_rows, say
from stilltide.pipeline.core.snapshots.verify import Difference
from stilltide.pipeline.drivers.snapshots.listing import list_snapshots
from stilltide.pipeline.drivers.snapshots.verify import CheckedSnapshot, VerifiedTopic, verify_topic

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
@click.pass_context
def verify_command(
    ctx: click.Context,
    topics: tuple[str, ...],
    evidence_max: int,
    output: str,
    bootstrap_servers: str | None,
) -> None:
    """Recompute snapshots of all topics or some from data and markers, and compare.

    Reads the records below each snapshot's max read position. A marker that is still in its topic
    decides whether the snapshot must show or hide a record, or hold an id. Markers that all
    snapshots have absorbed are trimmed: records that they decided are counted as unchecked.
    """
    verified = asyncio.run(_verify(target(bootstrap_servers).connector, topics, evidence_max))
    checked = [one for topic in verified for one in topic.checked]
    differences = [one for topic in verified for one in topic.differences]
    rows, evidence = checked_rows(checked), difference_rows(differences)
    if output == "json":
        print(json.dumps({"snapshots": rows, "differences": evidence}, indent=2))
    else:
        print_rows(rows, output)
        print_rows(evidence, output, title="differences")
    ctx.exit(EXIT_DIFFERENT if differences or any(it.difference_count for it in checked) else 0)


async def _verify(
    connector: Connector, topics: Sequence[str], evidence_max: int
) -> list[VerifiedTopic]:
    if not topics:
        found = await list_snapshots(connector)
        topics = [one.data.topic for one in found if one.end_offset is not None]
        gone = {one.data.topic for one in found} - set(topics)
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
            "topic": one.data.topic,
            "partition": one.data.partition,
            "max_read_position": one.max_read_position,
            "markers": one.markers,
            "records_checked": one.records_checked,
            "records_unchecked": one.records_unchecked,
            "ids_unchecked": one.ids_unchecked,
            "differences": one.difference_count,
        }
        for one in checked
    ]


def difference_rows(differences: Sequence[Difference]) -> list[Row]:
    """A row for each difference."""
    return [
        {
            "kind": one.kind.value,
            "topic": one.data.topic,
            "partition": one.data.partition,
            "offset": one.offset,
            "txn": None if one.txn is None else str(one.txn),
            "detail": one.detail,
        }
        for one in differences
    ]
