"""`stilltide txn history`: the transactions that ended last, from their markers.

*Source*: docs/protocols E9. Needs no running worker.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import click

from stilltide.pipeline.cli.common.asking import EXIT_INCOMPLETE, cluster_options, target
from stilltide.pipeline.cli.common.output import Row, output_option, print_error, print_rows, say
from stilltide.pipeline.cli.common.times import utc
from stilltide.pipeline.core.coordinator.history import EndedTransaction
from stilltide.pipeline.drivers.coordinator.history import ended_transactions

LAST_MAX = 100_000


@click.command(
    "history",
    epilog="""\b
Exit codes:
  0  done
  1  the command failed; the error names the next step
  4  fewer than --last transactions are known; the error names the markers that are kept

\b
Examples:
  stilltide txn history
  stilltide txn history --last 20 --state aborted
  stilltide txn history -o json | jq '.[] | select(.records > 1000)'
""",
)
@click.option(
    "--last",
    type=click.IntRange(1, LAST_MAX),
    default=100,
    show_default=True,
    help="Most transactions.",
)
@click.option(
    "--state",
    type=click.Choice(["committed", "aborted", "mixed"]),
    help="Only transactions that ended like that; mixed is damage: both outcomes.",
)
@cluster_options
@output_option
@click.pass_context
def history_command(
    ctx: click.Context, last: int, state: str | None, output: str, **cluster: Any
) -> None:
    """List the transactions that ended last, the newest first.

    Workers keep the outcome of each transaction for a day (`marker_retention_ms`). `records` is the
    number of records that a committed transaction promised; an abort names none.
    """
    connector, _ = target(**cluster)
    found = asyncio.run(ended_transactions(connector, last, state, say))
    print_rows(history_rows(found.transactions, details=output == "json"), output)
    if found.cut is not None:
        print_error(found.cut)
        ctx.exit(EXIT_INCOMPLETE)


def history_rows(transactions: Sequence[EndedTransaction], *, details: bool) -> list[Row]:
    """A row for each transaction; with `details` each partition is an object."""
    return [
        {
            "txn": str(one.txn),
            "outcome": one.outcome,
            "ended_at": utc(one.ended_ms),
            "records": one.record_count,
            "partitions": [
                {
                    "topic": data.topic,
                    "partition": data.partition,
                    "outcome": "committed" if marker.committed else "aborted",
                    "start_offset": marker.start_offset,
                    "end_offset": marker.end_offset if marker.committed else None,
                    "records": marker.record_count if marker.committed else None,
                }
                if details
                else str(data)
                for data, marker in sorted(one.markers.items())
            ],
        }
        for one in transactions
    ]
