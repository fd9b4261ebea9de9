"""`stilltide native aborted-ranges` and `watch`: aborted ranges, and what readers wait for."""

import asyncio
import json
import sys
from typing import Any

import click
from rich.console import Console

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.ports.admin import LogAdmin, NativeTransactions
from stilltide.pipeline.cli.common.asking import (
    EXIT_INCOMPLETE,
    bootstrap_option,
    cluster_connector,
)
from stilltide.pipeline.cli.common.output import output_option, print_rows, say
from stilltide.pipeline.cli.native.rows import position_row
from stilltide.pipeline.drivers.native.index_scan import FoundRanges, indexed_ranges, ranges_in_log
from stilltide.pipeline.drivers.native.open_transactions import stable_positions
from stilltide.pipeline.drivers.shared.named_partitions import named_partitions


@click.command(
    "aborted-ranges",
    epilog="""\b
Exit codes:
  0  the answer covers the whole range
  1  the command failed; the error names the next step
  4  the answer covers a part: the rest is not indexed, or not stable yet

\b
Examples:
  stilltide native aborted-ranges payments 0
  stilltide native aborted-ranges payments 0 --from 1000 --to 2000 --source log -o json
""",
)
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@click.option("--from", "first", type=click.IntRange(0), help="First offset of the range.")
@click.option("--to", "until", type=click.IntRange(0), help="End of the range, exclusive.")
@click.option(
    "--source",
    type=click.Choice(["index", "log"]),
    default="index",
    show_default=True,
    help="Read the index that `stilltide index` keeps, or the log itself.",
)
@bootstrap_option
@output_option
@click.pass_context
def aborted_ranges(
    ctx: click.Context,
    topic: str,
    partition: int,
    *,
    first: int | None,
    until: int | None,
    source: str,
    bootstrap_servers: str | None,
    output: str,
) -> None:
    """List the offset ranges of a partition in which every record is aborted."""
    found = asyncio.run(_ranges(bootstrap_servers, topic, partition, source))
    if found is None:
        print_rows([], output)
        say("unknown: the range is not indexed; run `stilltide index once`, or use --source log")
        ctx.exit(EXIT_INCOMPLETE)
    begin = found.covered_from if first is None else first
    end = found.covered_to if until is None else until
    rows = [
        {
            "topic": topic,
            "partition": partition,
            "first": max(one.first, begin),
            "end": min(one.end, end),
        }
        for one in found.ranges
        if one.first < end and begin < one.end
    ]
    print_rows(rows, output)
    say(f"known from {found.covered_from} to {found.covered_to}")
    if begin < found.covered_from or end > found.covered_to:
        say("unknown outside of these offsets")
        ctx.exit(EXIT_INCOMPLETE)


async def _ranges(
    bootstrap_servers: str | None, topic: str, partition: int, source: str
) -> FoundRanges | None:
    connector = cluster_connector(bootstrap_servers)
    admin, batches = connector.admin(), connector.batch_reader("stilltide-native")
    try:
        (data,) = await named_partitions(admin, topic, [partition])
        if source == "log":
            return await ranges_in_log(batches, admin, data)
        return await indexed_ranges(connector, admin, data)
    finally:
        await batches.close()
        await admin.close()


@click.command(
    epilog="""\b
Examples:
  stilltide native watch orders payments
  stilltide native watch orders --looks 1
  stilltide native watch orders -o json | jq -c '.[] | select(.state == "hanging")'
"""
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--every-s",
    type=click.FloatRange(0.1),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--looks", type=click.IntRange(1), help="Number of looks.  [default: until Ctrl-C]")
@bootstrap_option
@output_option
def watch(
    topics: tuple[str, ...],
    every_s: float,
    looks: int | None,
    bootstrap_servers: str | None,
    output: str,
) -> None:
    """Watch the positions of committed readers of TOPICs, and the transactions that hold them.

    JSON has a line for each look.
    """
    connector = cluster_connector(bootstrap_servers)

    async def run() -> None:
        native, admin = connector.native_transactions("stilltide-native"), connector.admin()
        try:
            number = 0
            while looks is None or number < looks:
                if number:
                    await asyncio.sleep(every_s)
                number += 1
                _show(await _look(native, admin, topics), output)
        finally:
            await native.close()
            await admin.close()

    asyncio.run(run())


async def _look(
    native: NativeTransactions, admin: LogAdmin, topics: tuple[str, ...]
) -> list[dict[str, Any]]:
    asked = [data for topic in sorted(set(topics)) for data in await named_partitions(admin, topic)]
    now_ms = SystemClock().now_ms()
    return [dict(position_row(one, now_ms)) for one in await stable_positions(native, admin, asked)]


def _show(rows: list[dict[str, Any]], output: str) -> None:
    """Prints a look, on a terminal in place of the last one."""
    if output == "json":
        print(json.dumps(rows), flush=True)
        return
    if sys.stdout.isatty():
        Console().clear()
    print_rows(rows, output)
