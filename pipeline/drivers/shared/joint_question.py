"""Questions of many callers about single keys, asked together.

*Source*: docs/protocols I16. A request for one partition costs nearly as much as one for a hundred.
*Invariant*: an answer is that of a request which began after the caller had asked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

from stilltide.connectors.errors import FatalError
from stilltide.pipeline.drivers.shared.tasks import cancelled

K = TypeVar("K")
V = TypeVar("V")


class JointQuestion(Generic[K, V]):
    """Asks for all keys that are wanted while a request is under way in the next request.

    Used on one event loop.

    Args:
        ask: the request; its answer lacks the keys that do not exist.
    """

    def __init__(self, ask: Callable[[Sequence[K]], Awaitable[Mapping[K, V]]]) -> None:
        self._ask = ask
        self._wanted: list[tuple[K, asyncio.Future[V | None]]] = []
        self._running: asyncio.Task[None] | None = None

    async def about(self, key: K) -> V | None:
        """The answer about one key; None: it does not exist. Raises what the request raises."""
        answer: asyncio.Future[V | None] = asyncio.get_running_loop().create_future()
        self._wanted.append((key, answer))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await answer

    async def close(self) -> None:
        """Ends a request that is under way; who waits for an answer gets a `FatalError`."""
        await cancelled(self._running)
        self._fail(self._wanted, FatalError("the question was closed"))

    async def _run(self) -> None:
        """Asks until nobody waits."""
        while self._wanted:
            wanted, self._wanted = self._wanted, []
            try:
                answers = await self._ask([*dict.fromkeys(key for key, _ in wanted)])
            except asyncio.CancelledError:
                self._wanted += wanted
                raise
            except Exception as error:  # noqa: BLE001 - whoever asked has to know
                self._fail(wanted, error)
            else:
                for key, answer in wanted:
                    if not answer.done():
                        answer.set_result(answers.get(key))

    def _fail(self, wanted: Sequence[tuple[K, asyncio.Future[V | None]]], error: Exception) -> None:
        for _, answer in wanted:
            if not answer.done():
                answer.set_exception(error)
