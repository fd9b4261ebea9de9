"""Time limits that a freeze of the process does not use up (H2)."""

import asyncio
import time

import pytest

from stilltide.pipeline.drivers.links.sides import BUSY_S, TICK_S, AwakeTime, within_awake
from tests.support.looks import lasting


def freeze(seconds: float) -> None:
    """Stands for SIGSTOP, or for a busy machine: nothing else of the process runs."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass


async def test_awake_time_counts_what_a_busy_machine_takes():
    """Ticks that come late count in full; a freeze counts as one tick."""
    awake, now_s = AwakeTime(), asyncio.get_running_loop().time
    began_s = now_s()
    awake.begin()
    for _ in range(3):
        freeze(TICK_S / 2)
        await lasting(TICK_S)
    assert awake.seconds == pytest.approx(now_s() - began_s, abs=TICK_S / 10)
    before_s = awake.seconds
    freeze(TICK_S + BUSY_S + 0.1)
    assert awake.seconds <= before_s + TICK_S
    await lasting(0)
    assert awake.seconds <= before_s + TICK_S
    awake.end()
    assert awake.seconds == 0


async def test_a_freeze_does_not_use_up_the_time():
    """An answer that came during the freeze counts."""
    answer = asyncio.get_running_loop().create_future()

    def freeze_until_answered() -> None:
        freeze(3 * TICK_S)
        answer.set_result("here")

    asyncio.get_running_loop().call_soon(freeze_until_answered)
    assert await within_awake(answer, 2 * TICK_S) == "here"


async def test_an_answer_that_does_not_come_is_given_up():
    """And what asked for it is cancelled."""
    answer = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError):
        await within_awake(answer, TICK_S)
    assert answer.cancelled()


async def test_an_error_is_the_answer():
    """It reaches the caller as it is."""
    answer = asyncio.get_running_loop().create_future()
    answer.set_exception(ValueError("told"))
    with pytest.raises(ValueError, match="told"):
        await within_awake(answer, TICK_S)
