"""Tasks that end together, and whose failure reaches the object that started them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def cancelled(*tasks: "asyncio.Future[Any] | None") -> None:
    """Cancels tasks, and waits until each has ended; None is no task, and errors are dropped."""
    ending = [task for task in tasks if task is not None]
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


class Tasks:
    """Runs tasks from now until `close`.

    Args:
        failed: called with the error of each task that fails; a cancelled task has not failed.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self.failed = failed
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        """The number of tasks that have not ended yet, cancelled ones included."""
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T] | None:
        """Runs `work` as a task; None: closed, and `work` is dropped."""
        if self._closed:
            work.close()
            return None
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancels every task and waits for their ends; no task starts afterwards."""
        self._closed = True
        await cancelled(*self._running)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, Exception)
            self.failed(error)
