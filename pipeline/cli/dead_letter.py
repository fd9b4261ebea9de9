"""`stilltide dead-letter`: messages that failed too often, in their dead-letter topic.

*Source*: docs/protocols G2. A worker must run for `--apply`; `list` and dry runs only read.

*Invariants*: nothing is moved without `--apply`, and before it was shown what would be moved.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import click

from stilltide.pipeline.cli.common.asking import Target, cluster_options, options, target
from stilltide.pipeline.cli.common.output import (
    Row,
    confirmed,
    output_option,
    print_rows,
    say,
)
from stilltide.pipeline.client.dead_letters.moving import (
    Letter,
    MovePlan,
    Selection,
    letters_of,
    move,
    plan,
)

EXIT_NOT_MOVED = 3

EXIT_CODES = """\b
Exit codes:
  0  done, or there is nothing to move
  1  the command failed; the error names the next step
  3  there are dead letters, and none was moved: give --apply
"""


@click.group("dead-letter")
def dead_letter() -> None:
    """See, replay and drop messages that failed too often.

    A subscription with `deliveries_max` moves such messages to a dead-letter topic. What was
    replayed or dropped stays in that topic until its retention deletes it, and is not listed again.
    """


_place_options = options(
    click.option("--offset", type=click.IntRange(0), help="Only the dead letter there."),
    click.option("--partition", type=click.IntRange(0), help="Only this partition of TOPIC."),
)


@dead_letter.command(
    "list",
    epilog="""\b
Examples:
  stilltide dead-letter list orders-billing-DLQ
  stilltide dead-letter list orders-billing-DLQ --partition 2 --limit 10 -o json
""",
)
@click.argument("topic")
@_place_options
@click.option(
    "--limit", type=click.IntRange(1), default=1000, show_default=True, help="At most so many."
)
@cluster_options
@output_option
def list_command(
    topic: str,
    output: str,
    *,
    partition: int | None,
    offset: int | None,
    limit: int,
    **cluster: Any,
) -> None:
    """List the dead letters of TOPIC that were neither replayed nor dropped.

    Values are not shown: read TOPIC with any consumer, such as kafka-console-consumer.
    """
    selection = _selection(partition, offset, limit)
    rows = asyncio.run(_listed(target(**cluster), topic, selection))
    print_rows(rows, output, empty="no dead letters")
    if len(rows) == limit:
        say(f"the list ends after {limit}; --limit lists more")


async def _listed(asked: Target, topic: str, selection: Selection) -> list[Row]:
    reading = letters_of(asked.connector, topic, selection, timeout_s=asked.timeout_s)
    async with aclosing(reading) as letters:
        return [_row(letter) async for letter in letters]


def _row(letter: Letter) -> Row:
    record, headers = letter.record, letter.headers
    return {
        "partition": record.partition,
        "offset": record.offset,
        "from_topic": headers.data.topic if headers else None,
        "from_partition": headers.data.partition if headers else None,
        "from_offset": headers.offset if headers else None,
        "from_timestamp_ms": headers.timestamp_ms if headers else None,
        "group": headers.group if headers else None,
        "deliveries": headers.deliveries if headers else None,
        "error": headers.error if headers else letter.damage,
    }


def _say_moved(count: int, done: int) -> None:
    say(f"{done} of {count}")


def _mover(name: str, *, replay: bool, example: str) -> Callable[[Callable[..., None]], None]:
    """Makes a command that moves dead letters; the function gives its help."""

    def made(described: Callable[..., None]) -> None:
        @dead_letter.command(name, help=described.__doc__, epilog=f"{EXIT_CODES}\n{example}")
        @click.argument("topic")
        @click.option("--all", "everything", is_flag=True, help="All dead letters of TOPIC.")
        @_place_options
        @click.option("--limit", type=click.IntRange(1), help="At most so many.")
        @click.option("--apply", "applied", is_flag=True, help=f"Really {name}.")
        @click.option("--yes", is_flag=True, help="Do not ask; needed without a terminal.")
        @cluster_options
        @output_option
        def command(
            topic: str,
            output: str,
            *,
            everything: bool,
            partition: int | None,
            offset: int | None,
            limit: int | None,
            applied: bool,
            yes: bool,
            **cluster: Any,
        ) -> int:
            selection = _selection(partition, offset, limit)
            if everything == (selection != Selection()):
                raise click.UsageError("give either --all, or some of --partition and --limit")
            connector, timeout_s = target(**cluster)
            planned = asyncio.run(plan(connector, topic, selection, timeout_s=timeout_s))
            rows = _planned_rows(planned)
            if output == "table":
                print_rows(rows, output)
            moved, count = 0, planned.count
            if count and applied and (yes or confirmed(f"{name} {count} dead letters?")):
                report = partial(_say_moved, count)
                moving = move(connector, planned, replay=replay, progress=report)
                moved = asyncio.run(moving)
            if output == "json":
                print(json.dumps({"planned": rows, "moved": moved}, indent=2))
            if not count:
                say(f"there is no such dead letter in {topic}")
                return 0
            say(f"{moved} of {count} moved" if moved else "nothing was moved: --apply does it")
            return 0 if applied and moved else EXIT_NOT_MOVED

    return made


@_mover(
    "replay",
    replay=True,
    example="""\b
Examples:
  stilltide dead-letter replay orders-billing-DLQ --all
  stilltide dead-letter replay orders-billing-DLQ --partition 0 --offset 17 --apply
  stilltide dead-letter replay orders-billing-DLQ --all --apply --yes -o json
""",
)
def _replay() -> None:
    """Send dead letters of TOPIC back to the partitions that they came from.

    Without --apply the command shows what it would send. Each message is sent in the transaction
    that acknowledges its dead letter, so none is sent twice, even if the command is killed and run
    again. The message comes at the end of its partition, with its key, value and headers.
    """


@_mover(
    "drop",
    replay=False,
    example="""\b
Examples:
  stilltide dead-letter drop orders-billing-DLQ --limit 10
  stilltide dead-letter drop orders-billing-DLQ --partition 0 --offset 17 --apply
""",
)
def _drop() -> None:
    """Acknowledge dead letters of TOPIC without sending their messages again.

    Without --apply the command shows what it would drop. The records stay in TOPIC until its
    retention deletes them.
    """


def _planned_rows(planned: MovePlan) -> list[Row]:
    return [
        {
            "partition": partition,
            "from_topic": origin,
            "dead_letters": count,
            "end_offset": max(
                end for data, end in planned.ends.items() if data.partition == partition
            ),
        }
        for (partition, origin), count in sorted(
            planned.counts.items(), key=lambda it: (it[0][0], it[0][1] or "")
        )
    ]


def _selection(partition: int | None, offset: int | None, limit: int | None) -> Selection:
    if offset is not None and partition is None:
        raise click.UsageError("--offset needs --partition")
    return Selection(partition, offset, limit)
