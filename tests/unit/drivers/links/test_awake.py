"""Time limits that a freeze of the process does not use up (H2)."""

import asyncio
import time

import pytest

from stilltide.pipeline.drivers.links.awake import TICK_S, within_awake


async def test_a_freeze_does_not_use_up_the_time():
    """An answer that came during the freeze counts."""
    answer = asyncio.get_running_loop().create_future()

    def freeze() -> None:
        until_s = time.monotonic() + 3 * TICK_S
        while time.monotonic() < until_s:  # stands for SIGSTOP: nothing else of the process runs
            pass
        answer.set_result("here")

    asyncio.get_running_loop().call_soon(freeze)
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
