"""`stilltide txn-log`: the log of the transaction coordinators."""

import click

from pipeline.cli.batching import Batched, States, batching_group
from pipeline.cli.downgrade import downgrade_command
from pipeline.drivers.coordinators import Coordinators
from schemas.settings import TXN_LOG_BATCHING_ENABLED
from schemas.topics import TXN_LOG
from schemas.transactions import CoordinatorStats, DescribeCoordinator


async def _states(coordinators: Coordinators) -> States:
    answers = await coordinators.ask_each(DescribeCoordinator())
    return {
        number: (str(number), answer.batching_enabled)
        if isinstance(answer, CoordinatorStats)
        else None
        for number, answer in answers.items()
        if not isinstance(answer, CoordinatorStats) or answer.has_served
    }


_LOG = Batched("txn-log", TXN_LOG_BATCHING_ENABLED, "coordinators", _states)


@click.group("txn-log")
def txn_log() -> None:
    """Switch and check how transactions are logged."""


txn_log.add_command(batching_group(_LOG))
txn_log.add_command(downgrade_command(_LOG, TXN_LOG))
