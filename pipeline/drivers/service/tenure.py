"""Owns a partition, and owns it again after a failure, for as long as it is assigned.

*Source*: protocols.md B4: the fence that ended an ownership may be the late one of a dead process,
so the owner tries again after a random delay. *Invariants*: a partition that is not assigned is not
owned again; an error that nobody has declared passing is raised.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from stilltide.schemas.errors import StilltideError

RESTART_DELAY_S_MAX = 1.0


class Assignable(Protocol):
    """The driver of one partition.

    Attributes:
        assigned: whether the partition is this worker's.
    """

    assigned: bool


class Retry(NamedTuple):
    """How a tenure goes on after a failure.

    Attributes:
        delay_s: from the failure to the next ownership.
        needs_assignment: whether the tenure ends where the partition is not assigned any more.
    """

    delay_s: float
    needs_assignment: bool = True


def retry_soon() -> Retry:
    """After a random delay, so that two owners do not fence each other in step (B4)."""
    return Retry(random.uniform(0, RESTART_DELAY_S_MAX))  # noqa: S311 - no secret


async def hold(
    driver: Assignable,
    own: Callable[[], Awaitable[None]],
    failed: Callable[[StilltideError], Retry | None],
) -> None:
    """Owns until cancelled, or until an ownership ends and the partition is not assigned.

    Args:
        driver: says whether the partition is assigned.
        own: one ownership, from its fence to its end; the next one follows a return at once.
        failed: counts and logs what an ownership failed with; None: the tenure fails with it.

    Raises:
        StilltideError: that `failed` answered with None.
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
