"""A tenure owns its partition again for as long as the partition is assigned (B4)."""

import asyncio
from collections.abc import Callable

import pytest

from stilltide.connectors.chance import SystemChance
from stilltide.connectors.errors import FatalError, FencedError
from stilltide.pipeline.drivers.service.tenure import (
    RESTART_DELAY_S_MAX,
    Retry,
    hold,
    retry_soon,
)
from stilltide.schemas.errors import StilltideError

FENCED = FencedError("another owner has taken over")
AT_ONCE = Retry(0)


class Driver:
    """Owns a partition; each ownership ends as `ends` says, and the last one lasts.

    Attributes:
        owned: how many ownerships began.
        failures: what ownerships failed with.
    """

    def __init__(self, *ends: Callable[["Driver"], None], retry: Retry | None = AT_ONCE) -> None:
        self.assigned = True
        self.owned = 0
        self.failures: list[StilltideError] = []
        self._ends = list(ends)
        self._retry = retry
        self._lasts = asyncio.Event()

    async def run(self) -> None:
        """Its tenure."""
        await hold(self, self._own, self._failed)

    async def lasting(self) -> None:
        """Waits for the last ownership."""
        await self._lasts.wait()

    async def _own(self) -> None:
        self.owned += 1
        if not self._ends:
            self._lasts.set()
            await asyncio.get_running_loop().create_future()
        self._ends.pop(0)(self)

    def _failed(self, error: StilltideError) -> Retry | None:
        self.failures.append(error)
        return self._retry


async def held(driver: Driver) -> None:
    """Runs a tenure until its last ownership, then cancels it."""
    running = asyncio.create_task(driver.run())
    async with asyncio.timeout(10):
        await driver.lasting()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def fence(_driver: Driver) -> None:
    """An end: another owner fences this one."""
    raise FENCED


def fence_unassigned(driver: Driver) -> None:
    """An end: the same, and the partition is another worker's."""
    driver.assigned = False
    raise FENCED


def leave(driver: Driver) -> None:
    """An end without a failure, and the partition is another worker's."""
    driver.assigned = False


async def test_a_fenced_owner_owns_again_while_it_is_assigned():
    """The fence may be the late one of a dead process (B4); each failure is reported once."""
    driver = Driver(fence, fence)
    await held(driver)
    assert driver.owned == 3
    assert driver.failures == [FENCED, FENCED]


async def test_an_owner_that_is_not_assigned_any_more_ends():
    """Another worker has the partition; nothing is raised."""
    driver = Driver(fence, fence_unassigned)
    await driver.run()
    assert driver.owned == 2


async def test_what_is_taken_away_during_the_delay_is_not_owned_again():
    """The assignment counts when the delay is over."""
    driver = Driver(fence, retry=Retry(0.01))
    running = asyncio.create_task(driver.run())
    await asyncio.sleep(0)
    driver.assigned = False
    await running
    assert driver.owned == 1


async def test_a_return_is_followed_by_the_next_ownership():
    """What an ownership was about has changed; that is no failure."""
    driver = Driver(lambda _: None)
    await held(driver)
    assert driver.owned == 2
    assert driver.failures == []


async def test_a_return_without_assignment_ends_the_tenure():
    """Nobody waits for the next ownership."""
    driver = Driver(leave)
    await driver.run()
    assert driver.owned == 1


async def test_a_failure_that_does_not_pass_is_raised():
    """The worker must hear of it, with the error itself."""
    driver = Driver(fence, retry=None)
    with pytest.raises(FencedError) as caught:
        await driver.run()
    assert caught.value is FENCED
    assert driver.owned == 1


async def test_an_error_of_our_own_is_not_a_failure_of_the_world():
    """It is raised, and the driver is not asked about it."""

    def fail(_driver: Driver) -> None:
        raise AssertionError("our own mistake")

    driver = Driver(fail)
    with pytest.raises(AssertionError, match="our own"):
        await driver.run()
    assert driver.failures == []


async def test_what_needs_no_assignment_goes_on_without_it():
    """As the links of a worker, of which one must not end before the others."""
    driver = Driver(fence_unassigned, retry=Retry(0, needs_assignment=False))
    await held(driver)
    assert driver.owned == 2


def test_the_delay_of_a_retry_is_bounded():
    """B4: random, so that two owners do not fence each other in step."""
    delays = {retry_soon(SystemChance()).delay_s for _ in range(100)}
    assert len(delays) > 1
    assert all(0 <= one <= RESTART_DELAY_S_MAX for one in delays)


async def test_a_fatal_error_is_the_drivers_to_judge():
    """Every error of the world is; an indexer rests after a fatal one."""
    fatal = FatalError("the topic is gone")

    def fail(_driver: Driver) -> None:
        raise fatal

    driver = Driver(fail)
    await held(driver)
    assert driver.failures == [fatal]
