"""Tasks that end together, and whose failure reaches the object that started them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, Exception)
            self.failed(error)
