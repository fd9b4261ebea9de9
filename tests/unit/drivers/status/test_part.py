"""A part of the state: read once at a time, with the last value kept."""

import asyncio

import pytest

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.memory.clock import MemoryClock
from stilltide.pipeline.core.status.values import Aged
from stilltide.pipeline.drivers.status.part import Part


class Source:
    """Something to read: each read waits for `ready`, then returns the count or fails."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.ready.set()
        self.failing = False
        self.begun = 0

    async def read(self) -> int:
        """The number of reads so far."""
        self.begun += 1
        await self.ready.wait()
        if self.failing:
            raise RetriableError("no answer", hint="wait", topic="orders")
        return self.begun


async def test_a_read_that_fails_keeps_value_and_time_of_the_last_one():
    """With place, problem and hint; the next success ends the problem."""
    source, clock = Source(), MemoryClock(1000)
    part = Part("p", source.read, clock)
    assert part.aged == Aged()
    await part.renew()
    clock.advance(500)
    source.failing = True
    await part.renew()
    assert part.aged == Aged(1, 1000, "orders: no answer", "wait")
    source.failing = False
    await part.renew()
    assert part.aged == Aged(3, 1500)


async def test_a_read_goes_on_when_its_caller_stops_to_wait_and_is_not_begun_twice():
    """The second caller gets the value of the read that the first one has begun."""
    source = Source()
    source.ready.clear()
    part = Part("p", source.read, MemoryClock())
    first = asyncio.create_task(part.renew())
    while not source.begun:  # noqa: ASYNC110 - the loop runs the read
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = asyncio.create_task(part.renew())
    source.ready.set()
    await second
    assert (part.aged.value, source.begun) == (1, 1)


async def test_a_waiter_takes_its_own_read_and_none_that_began_since():
    """One waiter asks again before the other one runs: both get on, and no read is lost."""
    source = Source()
    source.ready.clear()
    part = Part("p", source.read, MemoryClock())

    async def twice() -> None:
        await part.renew()
        await part.renew()

    waiting = [asyncio.create_task(twice()), asyncio.create_task(part.renew())]
    while not source.begun:  # noqa: ASYNC110 - the loop runs the read
        await asyncio.sleep(0)
    source.ready.set()
    await asyncio.gather(*waiting)
    assert (part.aged.value, source.begun) == (2, 2)


async def test_a_read_without_an_answer_is_given_up():
    """After its time-out, which the problem names."""
    source = Source()
    source.ready.clear()
    part = Part("p", source.read, MemoryClock(), timeout_s=0.01)
    await part.renew()
    assert part.aged.problem == "no answer within 0.01 s"


async def test_a_part_rests_between_reads():
    """A caller who asks too early gets the value that is there."""
    source = Source()
    part = Part("p", source.read, MemoryClock(), rest_s=3600)
    await part.renew()
    await part.renew()
    assert source.begun == 1


async def test_close_ends_the_read_that_is_under_way():
    """Nothing is left running."""
    source = Source()
    source.ready.clear()
    part = Part("p", source.read, MemoryClock())
    waiting = asyncio.create_task(part.renew())
    while not source.begun:  # noqa: ASYNC110 - the loop runs the read
        await asyncio.sleep(0)
    await part.close()
    await waiting
    assert part.aged == Aged()


async def test_a_fault_of_the_program_is_raised():
    """Only errors of the world are part of the state."""

    async def broken() -> int:
        raise KeyError("a")

    with pytest.raises(KeyError):
        await Part("p", broken, MemoryClock()).renew()
