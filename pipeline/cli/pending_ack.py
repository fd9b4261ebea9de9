"""`stilltide pending-ack`: the log of acknowledgements in transactions."""

import click

from pipeline.cli.batching import Batched, States, batching_group
from pipeline.cli.downgrade import downgrade_command
from pipeline.drivers.coordinators import Coordinators
from schemas.settings import PENDING_ACK_BATCHING_ENABLED
from schemas.topics import PENDING_ACK_LOG


async def _states(_coordinators: Coordinators) -> States:
    """Owners of pending acknowledgements cannot be asked for their state yet."""
    return {}


_LOG = Batched("pending-ack", PENDING_ACK_BATCHING_ENABLED, "subscriptions", _states)


@click.group("pending-ack")
def pending_ack() -> None:
    """Switch and check how acknowledgements in transactions are logged."""


pending_ack.add_command(batching_group(_LOG))
pending_ack.add_command(downgrade_command(_LOG, PENDING_ACK_LOG))
