"""Between two rounds there is as much time as the first one took, up to a limit."""

import asyncio

import pytest

from stilltide.pipeline.drivers.groups.rounds import GATHER_S_MAX, gather_requests


@pytest.mark.parametrize(("took_s", "least_s"), [(0.03, 0.03), (60.0, GATHER_S_MAX)])
async def test_a_pause_is_as_long_as_the_round(took_s: float, least_s: float):
    """A round of a minute delays the next one by the limit alone."""
    now_s = asyncio.get_running_loop().time
    before_s = now_s()
    async with asyncio.timeout(30):
        await gather_requests(before_s - took_s)
    assert now_s() - before_s >= least_s
