"""Tries of one thing on the event loop."""

import asyncio

from stilltide.connectors.chance import SystemChance
from stilltide.pipeline.drivers.shared.outages import Tries
from stilltide.schemas.retry import OWNERSHIP, Retry


def waited_s(tries: Tries) -> float:
    """The wait after a failure that comes now."""
    tries.failed()
    return tries.due_s - asyncio.get_running_loop().time()


async def test_a_row_of_failures_has_growing_waits_and_one_beginning():
    """The beginning is told to operators; a success ends the row."""
    tries = Tries(Retry(100, 2, 300))
    waits: list[float] = []
    began: set[float] = set()
    for _ in range(3):
        waits.append(waited_s(tries))
        began.add(tries.failing_since_s)
    assert [round(wait) for wait in waits] == [100, 200, 300]
    assert len(began) == 1
    tries.succeeded()
    assert round(waited_s(tries)) == 100


async def test_a_try_that_lasted_begins_a_new_row():
    """An owner that has run for long ends for the first time, not once more."""
    tries = Tries(Retry(100, 2, 300, sound_s=0))
    await asyncio.sleep(0)
    assert round(waited_s(tries)) == 100
    assert round(waited_s(tries)) == 100


async def test_a_row_that_lasts_too_long_is_final():
    """Counted from the beginning of its first try."""
    assert Tries(Retry(1, give_up_s=0)).failed()
    assert not Tries(Retry(1, give_up_s=100)).failed()


async def test_a_thing_that_is_woken_does_not_wait_longer_next_time():
    """An assignment ends the wait of an owner; the next wait is no longer."""
    tries, woken = Tries(Retry(100, 2, 300)), asyncio.Event()
    tries.failed()
    woken.set()
    await tries.pause(woken)
    assert round(waited_s(tries)) == 100


async def test_a_pause_ends_when_the_next_try_is_due():
    """Without anybody's help."""
    tries = Tries(Retry(0.001))
    tries.failed()
    await tries.pause(asyncio.Event())
    assert asyncio.get_running_loop().time() >= tries.due_s


async def test_chance_chooses_when_an_owner_begins_again():
    """B4: within a second, so that two owners do not fence each other in step."""
    tries = Tries(OWNERSHIP, SystemChance())
    waits = {waited_s(tries) for _ in range(100)}
    assert len(waits) > 1
    assert all(wait <= 1 for wait in waits)
