"""`stilltide coordinator`: figures of the transaction coordinators, as their owners report them.

*Source*: Pulsar's coordinator stats and internal stats; PIP-160 (batch index of live records).

`stilltide txn-log`: the log of the transaction coordinators.
"""

from collections.abc import Mapping
from typing import Any

import click

from stilltide.pipeline.cli.common.asking import (
    COORDINATORS,
    EXIT_CODES,
    Target,
    answered,
    ask,
    cluster_options,
    exit_code,
    target,
)
from stilltide.pipeline.cli.common.output import (
    Row,
    output_option,
    print_columns,
    print_rows,
)
from stilltide.pipeline.cli.logs.batching import (
    Batched,
    BatchingState,
    States,
    batching_group,
    bounds_columns,
    downgrade_command,
    writing_columns,
)
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.service.ask.requests import LogBounds
from stilltide.schemas.coordinator.transactions import CoordinatorStats, LogLiveness
from stilltide.schemas.service.envelopes import Refused
from stilltide.schemas.settings import TXN_LOG_BATCHING_ENABLED
from stilltide.schemas.topics import TXN_LOG


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
def stats(output: str, **cluster: Any) -> int:
    """Show every coordinator's open transactions and the length of its log.

    `problem` names place and cause of the error that has ended a coordinator; its worker tries the
    coordinator again.
    """
    answers, bounds = ask(Coordinators, target(**cluster), _stats)
    rows = stats_rows(answers, bounds)
    if output == "table" and not any(row["problem"] for row in rows):
        rows = [{name: value for name, value in row.items() if name != "problem"} for row in rows]
    print_rows(rows, output)
    return _exit_code(answers)


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
def internal_stats(output: str, **cluster: Any) -> int:
    """Show the columns of `stats`, and every coordinator's batching, entries and live records.

    Written entries and records are those of the present owner. A live record belongs to a
    transaction that has not ended; `live_entries` has the batch index of each.
    """
    answers, bounds = ask(Coordinators, target(**cluster), _stats)
    print_columns(internal_rows(answers, bounds), output)
    return _exit_code(answers)


_Found = Mapping[int, CoordinatorStats | Refused | None]


async def _stats(coordinators: Coordinators) -> tuple[_Found, LogBounds]:
    answers = await coordinators.stats()
    answered({number: answer for number, answer in answers.items() if answer is None})
    return answers, await coordinators.log_bounds()


def _exit_code(answers: _Found) -> int:
    served = {n: one if isinstance(one, CoordinatorStats) else None for n, one in answers.items()}
    return exit_code(served)


def stats_rows(answers: _Found, bounds: LogBounds) -> list[Row]:
    """A row for each coordinator that has answered: its open transactions, the length of its log.

    A coordinator that has ended by an error has no figures, and the error under `problem`.
    """
    return [
        {"coordinator": number, **_figures(answer), **bounds_columns(bounds[number])}
        | {"problem": answer.reason if isinstance(answer, Refused) else None}
        for number, answer in answers.items()
        if answer is not None
    ]


def _figures(answer: CoordinatorStats | Refused) -> Row:
    if isinstance(answer, Refused):
        columns = "epoch next_sequence low_watermark open prepared committing aborting"
        return dict.fromkeys(columns.split())
    return {
        "epoch": answer.log.epoch,
        "next_sequence": answer.next_sequence,
        "low_watermark": answer.low_watermark,
        "open": answer.open_count,
        "prepared": answer.prepared_count,
        "committing": answer.committing_count,
        "aborting": answer.aborting_count,
    }


def internal_rows(answers: _Found, bounds: LogBounds) -> list[Row]:
    """The rows of `stats_rows` of coordinators that serve, with batching and live records."""
    serving = {n: stats for n, stats in answers.items() if isinstance(stats, CoordinatorStats)}
    return [
        {**row, **_internals(stats)}
        for row, stats in zip(stats_rows(serving, bounds), serving.values(), strict=True)
    ]


def _internals(stats: CoordinatorStats) -> Row:
    return {
        **writing_columns(stats.log),
        "markers_pending": stats.markers_pending,
        "recovery_s": stats.log.recovery_ms / 1000,
        "clients": stats.client_count,
        "answers": stats.answer_count,
        **_live(stats.liveness),
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


def _states(asked: Target) -> States:
    answers = ask(Coordinators, asked, lambda coordinators: coordinators.stats())
    return {
        number: _state(number, answer) if isinstance(answer, CoordinatorStats) else None
        for number, answer in answers.items()
    }


def _state(coordinator: int, stats: CoordinatorStats) -> list[BatchingState]:
    if not stats.has_served:
        return []
    return [BatchingState(str(coordinator), str(coordinator), stats.log.batching_enabled)]


_LOG = Batched(
    "txn-log",
    TXN_LOG_BATCHING_ENABLED,
    COORDINATORS,
    "coordinators",
    ("txnTcBatchLogEnabled", "coodinatorArray"),
    _states,
)


@click.group("txn-log")
def txn_log() -> None:
    """Switch and check the batching of the transaction log."""


txn_log.add_command(batching_group(_LOG))
txn_log.add_command(downgrade_command(_LOG, TXN_LOG))
