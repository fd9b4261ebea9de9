"""kafka-python's loop on a thread of its own, for what librdkafka cannot ask.

*Source*: kafka.md 4.
*Invariants*: its coroutines are driven by its own loop and await its own futures, never asyncio's.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

T = TypeVar("T")


class RawLine:
    """Connections to one cluster.

    Args:
        options: as `raw_options` makes them.
        timeout_s: how long finding the cluster may take.

    Attributes:
        manager: sends requests; used on the line only.
    """

    def __init__(self, options: dict[str, Any], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        # Any: the stubs that pyright brings along are of kafka-python 2.
        self._net: Any = NetworkSelector(client_id=options["client_id"])
        self.manager: Any = KafkaConnectionManager(self._net, **options)
        # Asking about a topic must not make it.
        self.manager.cluster.config["allow_auto_create_topics"] = False
        self._net.start()

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """What `work`, run on the line, returns or raises; called on an asyncio loop."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(result)  # pyright: ignore[reportArgumentType] - there is a result
            else:
                done.set_exception(error)

        def post(result: T | None, error: BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:
                # The loop ended without closing its reader; nobody is left to tell.
                self._net.stop(timeout_ms=0)

        future = self.manager.call_soon(work)
        future.add_callback(lambda result: post(result, None))
        future.add_errback(lambda error: post(None, error))
        return await done

    async def bootstrap(self) -> None:
        """Finds the cluster, unless it has been found; on the line."""
        if not self.manager.bootstrapped:
            await self.manager.bootstrap_async(timeout_ms=math.ceil(self._timeout_s * 1000))

    async def sleep(self, seconds: float) -> None:
        """On the line."""
        await self._net.sleep(seconds)

    def close(self) -> None:
        """Ends connections and thread; called on a thread that may wait."""
        self._net.run(self.manager.close)
        self._net.close()
