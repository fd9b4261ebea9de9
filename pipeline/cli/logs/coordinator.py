"""`stilltide coordinator`: figures of the transaction coordinators, as their owners report them.

*Source*: Pulsar's coordinator stats and internal stats; PIP-160 (batch index of live records).
"""

from collections.abc import Mapping
from typing import Any, cast

import click

from stilltide.pipeline.cli.common.asking import (
    EXIT_CODES,
    answered,
    ask,
    cluster_options,
    exit_code,
    target,
)
from stilltide.pipeline.cli.common.output import Row, output_option, print_columns, print_rows
from stilltide.pipeline.cli.logs.columns import bounds_columns, writing_columns
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.service.operator import LogBounds
from stilltide.schemas.coordinator.transactions import (
    Answer,
    CoordinatorStats,
    DescribeCoordinator,
    LogLiveness,
)


@click.group()
def coordinator() -> None:
    """See figures of the transaction coordinators of a cluster."""


@coordinator.command(
    epilog=EXIT_CODES
    + """
\b
Examples:
  stilltide coordinator stats
  stilltide coordinator stats -o json | jq '.[] | select(.open > 1000)'
"""
)
@cluster_options
@output_option
@click.pass_context
def stats(ctx: click.Context, output: str, **cluster: Any) -> None:
    """Show every coordinator's open transactions and the length of its log."""
    answers, bounds = ask(target(**cluster), _stats)
    rows = stats_rows(cast(dict[int, CoordinatorStats], answered(answers)), bounds)
    print_rows(rows, output)
    ctx.exit(exit_code(answers))


@coordinator.command(
    "internal-stats",
    epilog=EXIT_CODES
    + """
\b
Examples:
  stilltide coordinator internal-stats
  stilltide coordinator internal-stats -o json | jq '.[].records_per_entry'
""",
)
@cluster_options
@output_option
@click.pass_context
def internal_stats(ctx: click.Context, output: str, **cluster: Any) -> None:
    """Show the columns of `stats`, and every coordinator's batching, entries and live records.

    Written entries and records are those of the present owner. A live record belongs to a
    transaction that has not ended; `live_entries` has the batch index of each.
    """
    answers, bounds = ask(target(**cluster), _stats)
    found = cast(dict[int, CoordinatorStats], answered(answers))
    print_columns(internal_rows(found, bounds), output)
    ctx.exit(exit_code(answers))


async def _stats(coordinators: Coordinators) -> tuple[dict[int, Answer | None], LogBounds]:
    answers = await coordinators.ask_each(DescribeCoordinator())
    return answers, await coordinators.log_bounds()


def stats_rows(found: Mapping[int, CoordinatorStats], bounds: LogBounds) -> list[Row]:
    """A row for each coordinator: its open transactions and the length of its log."""
    return [
        {
            "coordinator": number,
            "epoch": one.log.epoch,
            "next_sequence": one.next_sequence,
            "low_watermark": one.low_watermark,
            "open": one.open_count,
            "committing": one.committing_count,
            "aborting": one.aborting_count,
            **bounds_columns(bounds[number]),
        }
        for number, one in found.items()
    ]


def internal_rows(found: Mapping[int, CoordinatorStats], bounds: LogBounds) -> list[Row]:
    """The rows of `stats_rows`, with batching, written entries and live records."""
    return [
        {**row, **_internals(one)}
        for row, one in zip(stats_rows(found, bounds), found.values(), strict=True)
    ]


def _internals(one: CoordinatorStats) -> Row:
    return {
        **writing_columns(one.log),
        "markers_pending": one.markers_pending,
        "recovery_s": one.log.recovery_ms / 1000,
        "clients": one.client_count,
        "answers": one.answer_count,
        **_live(one.liveness),
    }


def _live(liveness: LogLiveness | None) -> Row:
    if liveness is None:
        return dict.fromkeys(("live_records", "dead_records", "first_live_offset", "live_entries"))
    return {
        "live_records": liveness.live_records,
        "dead_records": liveness.dead_records,
        "first_live_offset": liveness.first_live_offset,
        "live_entries": [
            {"offset": offset, "live": [it for it in range(bits.bit_length()) if bits >> it & 1]}
            for offset, bits in liveness.entries
        ],
    }
