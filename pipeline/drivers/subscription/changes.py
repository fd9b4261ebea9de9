"""Wakes the application's call, and keeps the error that ended its subscription."""

import asyncio
from contextlib import suppress


class Changes:
    """Shared by all tasks of one subscription; keeps the first failure."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()
        self._failure: Exception | None = None

    def check(self) -> None:
        """Raises the failure, if there is one."""
        if self._failure is not None:
            raise self._failure

    def wake(self) -> None:
        """Ends the wait of the application's call, which then checks for records again."""
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """Ends the subscription: the application's next call raises `error`."""
        if self._failure is None:
            self._failure = error
        self._changed.set()

    async def wait(self, timeout_s: float | None) -> None:
        """Returns once `wake` or `fail` was called since the last wait, or after the time-out.

        For the application's call, which has taken all records that there are.
        """
        self._wanted.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self._changed.clear()

    async def wanted(self) -> None:
        """Returns once the application has taken all records, and waits for more."""
        self._wanted.clear()
        await self._wanted.wait()
