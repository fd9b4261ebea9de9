"""`stilltide txn-log`: the log of the transaction coordinators."""

import click

from stilltide.pipeline.cli.common.asking import COORDINATORS, Target, ask
from stilltide.pipeline.cli.logs.batching import (
    Batched,
    BatchingState,
    States,
    batching_group,
)
from stilltide.pipeline.cli.logs.downgrade import downgrade_command
from stilltide.schemas.coordinator.transactions import CoordinatorStats
from stilltide.schemas.settings import TXN_LOG_BATCHING_ENABLED
from stilltide.schemas.topics import TXN_LOG


def _states(asked: Target) -> States:
    answers = ask(asked, lambda coordinators: coordinators.stats())
    return {
        number: _state(number, one) if isinstance(one, CoordinatorStats) else None
        for number, one in answers.items()
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
