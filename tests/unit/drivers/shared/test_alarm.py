"""An alarm calls at the deadline of a machine or before it, never after it."""

import asyncio

import pytest

from stilltide.pipeline.drivers.shared.alarm import Alarm

NOW_MS = 1_000_000.0
WAIT_S = 10.0


class Rings:
    """Counts the calls of an alarm."""

    def __init__(self) -> None:
        self.count = 0
        self.times_s: list[float] = []
        self._changed = asyncio.Event()
        self.alarm = Alarm(self._ring)

    async def until(self, count: int) -> None:
        """Waits for so many calls."""
        async with asyncio.timeout(WAIT_S):
            while self.count < count:
                self._changed.clear()
                await self._changed.wait()

    def _ring(self) -> None:
        self.count += 1
        self.times_s.append(asyncio.get_running_loop().time())
        self._changed.set()


@pytest.fixture
async def rings() -> Rings:
    """An alarm that nothing has armed."""
    return Rings()


async def turn() -> None:
    """Lets the loop make the calls that are due in its next turn."""
    await asyncio.sleep(0)


async def test_a_deadline_that_has_passed_is_due_in_the_next_turn(rings: Rings):
    """Calls of one turn of the loop share it, and none is made within `arm`."""
    for _ in range(3):
        rings.alarm.arm(NOW_MS - 1, NOW_MS)
    assert rings.count == 0
    await turn()
    assert rings.count == 1
    await turn()
    assert rings.count == 1


async def test_no_deadline_arms_nothing(rings: Rings):
    """Nor does it disarm what is armed: a tick that comes too early does no harm."""
    rings.alarm.arm(None, NOW_MS)
    await turn()
    assert rings.count == 0
    rings.alarm.arm(NOW_MS + 1, NOW_MS)
    rings.alarm.arm(None, NOW_MS)
    await rings.until(1)


async def test_a_deadline_to_come_is_kept_by_any_clock(rings: Rings):
    """What counts is how far it is from the time that came with it."""
    began_s = asyncio.get_running_loop().time()
    rings.alarm.arm(NOW_MS + 30, NOW_MS)
    await rings.until(1)
    assert rings.times_s[0] - began_s >= 0.029


async def test_the_earliest_of_several_deadlines_wins(rings: Rings):
    """An alarm keeps the earliest deadline; the tick at that deadline arms the later ones."""
    rings.alarm.arm(NOW_MS + 3_600_000, NOW_MS)
    rings.alarm.arm(NOW_MS + 1, NOW_MS)
    rings.alarm.arm(NOW_MS + 7_200_000, NOW_MS)
    await rings.until(1)
    assert rings.count == 1


async def test_it_is_armed_again_after_it_was_due(rings: Rings):
    """An alarm that has been due takes a deadline later than the one before."""
    rings.alarm.arm(NOW_MS + 1, NOW_MS)
    await rings.until(1)
    rings.alarm.arm(NOW_MS + 2, NOW_MS)
    await rings.until(2)
    assert rings.count == 2


async def test_what_was_cancelled_is_not_due(rings: Rings):
    """Cancelling disarms calls that are due at once and later; the alarm can be armed again."""
    rings.alarm.arm(NOW_MS, NOW_MS)
    rings.alarm.arm(NOW_MS + 1, NOW_MS)
    rings.alarm.cancel()
    rings.alarm.cancel()
    rings.alarm.arm(NOW_MS + 5, NOW_MS)
    await rings.until(1)
    assert rings.count == 1
