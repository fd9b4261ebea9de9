"""The verb `downgrade-check` of the nouns whose records share log entries.

*Source*: PIP-160. A program from before batching cannot read a batch, so every batch must have left
the log before such a program is run again.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import click

from stilltide.pipeline.cli.common.asking import cluster_options, target
from stilltide.pipeline.cli.common.output import Row, output_option, print_rows, say
from stilltide.pipeline.cli.logs.batching import Batched
from stilltide.pipeline.drivers.buffered_log.batch_scan import BatchScan, scan_for_batches

EXIT_NOT_SAFE = 3
RANGES_SHOWN = 5


def downgrade_command(log: Batched, topic: str) -> click.Command:
    """The command `downgrade-check` of a noun."""

    @click.command(
        "downgrade-check",
        help=f"Show whether a program from before batching could read {topic} now.\n\n"
        "Reads the whole log, from its start to its end as of the call. Prints `safe`, or the "
        "offsets of the entries that hold batches, as ranges [first, end).",
        epilog=f"""\b
Exit codes:
  0  safe: no entry holds a batch
  1  the command failed; the error names the next step
  3  not safe: some entries hold batches

\b
Examples:
  stilltide {log.noun} downgrade-check
  stilltide {log.noun} downgrade-check -o json
""",
    )
    @cluster_options
    @output_option
    @click.pass_context
    def check(ctx: click.Context, output: str, **cluster: Any) -> None:
        connector = target(**cluster).connector
        scans = asyncio.run(scan_for_batches(connector, topic))
        safe = not any(scan.batch_count for scan in scans)
        _print(topic, scans, output, safe=safe)
        if safe:
            say(f"safe as of now; to prevent new batches: stilltide {log.noun} batching disable")
        else:
            say(
                f"next: stilltide {log.noun} batching disable, then wait until the log has been "
                "trimmed past these offsets, and check again"
            )
        ctx.exit(0 if safe else EXIT_NOT_SAFE)

    return check


def _print(topic: str, scans: Sequence[BatchScan], output: str, *, safe: bool) -> None:
    rows = [scan_row(scan) for scan in scans]
    if output == "json":
        print(json.dumps({"topic": topic, "safe": safe, "logs": rows}, indent=2))
        return
    print_rows([{**row, "batches_at": _short(row["batches_at"])} for row in rows], output)
    print("safe" if safe else "not safe")


def scan_row(scan: BatchScan) -> Row:
    """The result for one log."""
    return {
        "partition": scan.log.partition,
        "start_offset": scan.start_offset,
        "end_offset": scan.end_offset,
        "entries": scan.end_offset - scan.start_offset,
        "batches": scan.batch_count,
        "batches_at": [list(it) for it in scan.ranges],
    }


def _short(ranges: Sequence[Sequence[int]]) -> str:
    shown = [f"[{first}, {end})" for first, end in ranges[:RANGES_SHOWN]]
    more = ["..."] if len(ranges) > RANGES_SHOWN else []
    return " ".join(shown + more) or "-"
