"""The loop of a simulated world: virtual time, processes that freeze and die, worlds that stand."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.simulation.processes.loop import DeadlockError, SpinError, VirtualLoop
from tests.simulation.processes.process import Process

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs a coroutine on a virtual loop."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    loop.watched()
    yield loop.run_until_complete
    loop.bury()
    asyncio.set_event_loop(None)
    loop.close()


async def _count(ticks: list[float], every_s: float = 1.0) -> None:
    try:
        while True:
            await asyncio.sleep(every_s)
            ticks.append(asyncio.get_running_loop().time())
    finally:
        ticks.append(-1.0)


def test_a_virtual_day_takes_no_time(run: Run):
    """Time moves to the next timer at once."""

    async def day() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    assert run(day()) == pytest.approx(86_400, abs=0.01)


def test_a_frozen_process_goes_on_where_it_was(run: Run):
    """Nothing of a frozen process runs; what was due meanwhile runs when the process thaws."""

    async def scene() -> list[float]:
        ticks: list[float] = []
        process = Process("p")
        process.start(_count(ticks))
        await asyncio.sleep(2.5)
        process.freeze()
        await asyncio.sleep(10)
        frozen = len(ticks)
        process.thaw()
        await asyncio.sleep(0.5)
        assert frozen == 2
        return ticks

    assert [round(it, 1) for it in run(scene())] == [1.0, 2.0, 12.5]


def test_a_killed_process_does_not_clean_up(run: Run):
    """After a kill nothing of the process runs, also no `finally`."""

    async def scene() -> list[float]:
        ticks: list[float] = []
        process = Process("p")
        process.start(_count(ticks))
        await asyncio.sleep(1.5)
        process.kill()
        await asyncio.sleep(10)
        return list(ticks)

    assert [round(it) for it in run(scene())] == [1]


def test_tasks_of_a_process_belong_to_it(run: Run):
    """A task that a process starts dies with the process."""

    async def scene() -> list[float]:
        ticks: list[float] = []

        async def main() -> None:
            inner = asyncio.create_task(_count(ticks))
            await inner

        process = Process("p")
        process.start(main())
        await asyncio.sleep(1.5)
        process.kill()
        await asyncio.sleep(10)
        return list(ticks)

    assert [round(it) for it in run(scene())] == [1]


def test_a_world_in_which_nothing_is_due_is_reported(run: Run):
    """A dead-lock is an error, not a hang."""
    with pytest.raises(DeadlockError):
        run(asyncio.Event().wait())


def test_a_world_that_spins_is_reported(run: Run, monkeypatch: pytest.MonkeyPatch):
    """A loop that only yields is ended, also where the code catches every `Exception`."""
    monkeypatch.setattr("tests.simulation.processes.loop.CALLBACKS_MAX", 1000)

    async def spin() -> None:
        while True:
            with suppress(Exception):
                await asyncio.sleep(0)

    with pytest.raises(SpinError):
        run(spin())


def test_a_callback_that_does_not_yield_is_ended(run: Run, monkeypatch: pytest.MonkeyPatch):
    """A task that takes the processor for too long is ended, with its place."""
    monkeypatch.setattr("tests.simulation.processes.loop.YIELDS_S", 0.2)

    async def hog() -> None:
        for _ in range(300):
            await asyncio.sleep(0)
        while True:
            pass

    with pytest.raises(SpinError, match=r"processor time(?s:.*)in hog"):
        run(hog())


def test_a_callback_that_does_not_yield_ends_the_run(run: Run, monkeypatch: pytest.MonkeyPatch):
    """The run ends by what a task did that nobody waits for, and that swallows every error."""
    monkeypatch.setattr("tests.simulation.processes.loop.YIELDS_S", 0.2)

    async def hog() -> None:
        for _ in range(300):
            await asyncio.sleep(0)
        with suppress(BaseException):
            while True:
                pass

    async def scene() -> None:
        task = asyncio.create_task(hog())
        await asyncio.sleep(86_400)
        await task

    with pytest.raises(SpinError, match="processor"):
        run(scene())
