"""Owns a partition, and owns it again after a failure, for as long as it is assigned.

*Source*: docs/protocols B4: the fence that ended an ownership may be a dead process's, written
late, so the owner tries again after a random delay. *Invariants*: a partition that is not assigned
is not owned again; an error that the driver does not retry is raised.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from stilltide.connectors.chance import Chance
from stilltide.schemas.errors import StilltideError

RESTART_DELAY_S_MAX = 1.0


class Assignable(Protocol):
    """The driver of one partition.

    Attributes:
        assigned: whether the partition is assigned to this worker.
    """

    assigned: bool


class Retry(NamedTuple):
    """How a tenure goes on after a failure.

    Attributes:
        delay_s: time from the failure to the next ownership.
        needs_assignment: whether the tenure ends if the partition is not assigned any more.
    """

    delay_s: float
    needs_assignment: bool = True


def retry_soon(chance: Chance) -> Retry:
    """A retry after a random delay, so that two owners do not fence each other in step (B4)."""
    return Retry(chance.between(0, RESTART_DELAY_S_MAX))


async def hold(
    driver: Assignable,
    own: Callable[[], Awaitable[None]],
    failed: Callable[[StilltideError], Retry | None],
) -> None:
    """Owns until cancelled, or until an ownership ends and the partition is not assigned.

    Args:
        driver: the driver of the partition.
        own: runs one ownership from its fence to its end; after a return the next begins at once.
        failed: counts and logs the error of an ownership; None: `hold` raises the error.

    Raises:
        StilltideError: an error for which `failed` returned None.
    """
    while True:
        retry = Retry(0)
        try:
            await own()
        except StilltideError as error:
            found = failed(error)
            if found is None:
                raise
            retry = found
        if driver.assigned or not retry.needs_assignment:
            await asyncio.sleep(retry.delay_s)
        if retry.needs_assignment and not driver.assigned:
            return
