"""Tasks that end together, and whose failure reaches the object that started them."""

import asyncio

from stilltide.pipeline.drivers.shared.tasks import Tasks


async def forever() -> None:
    """Never ends by itself."""
    await asyncio.Event().wait()


async def fails() -> None:
    """Ends with an error."""
    raise LookupError("gone")


async def test_a_failure_is_passed_on():
    """The callback gets the error of a task; the others go on."""
    failures: list[Exception] = []
    tasks = Tasks(failures.append)
    tasks.start(forever())
    failing = tasks.start(fails())
    assert failing is not None
    await asyncio.wait([failing])
    await asyncio.sleep(0)
    assert [type(it) for it in failures] == [LookupError]
    assert len(tasks) == 1
    await tasks.close()


async def test_nothing_runs_after_close():
    """Closing ends every task, which is no failure, and nothing starts afterwards."""
    failures: list[Exception] = []
    tasks = Tasks(failures.append)
    running = tasks.start(forever())
    await tasks.close()
    assert running is not None
    assert running.cancelled()
    assert tasks.start(forever()) is None
    assert not tasks
    assert not failures
