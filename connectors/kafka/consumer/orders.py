"""Orders of the loop to a consumer's thread, and calls of the thread to the loop.

*Invariants*: orders run on the thread, in the order of submission, and each is answered, whatever
it raises; calls run on the loop, in the order in which the thread posted them.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.authorization import Caller
from stilltide.connectors.kafka.errors import translate

Action = Callable[[Consumer], None]


class Orders:
    """Orders to one thread; the loop calls `submit` and `drop`, the thread calls `obey`.

    Attributes:
        ordered: set when the thread has something to do.
        ended: whether the consumer was closed, or its thread has died.
    """

    _loop: asyncio.AbstractEventLoop

    def __init__(self, address: Caller | str, client_id: str) -> None:
        self._address = address
        self._client_id = client_id
        self._waiting: deque[tuple[Action, asyncio.Future[None]]] = deque()
        self.ordered = threading.Event()
        self.ended = False

    def bind(self) -> None:
        """Makes the running loop the loop that the thread calls."""
        self._loop = asyncio.get_running_loop()

    def submit(self, action: Action) -> "asyncio.Future[None]":
        """Has the thread run `action` between two polls; the future is done when it has run."""
        done = self._loop.create_future()
        self._waiting.append((action, done))
        self.ordered.set()
        return done

    def obey(self, consumer: Consumer) -> bool:
        """Runs every waiting order; returns whether there was one."""
        self.ordered.clear()
        obeyed = False
        while self._waiting:
            action, done = self._waiting.popleft()
            obeyed = True
            try:
                action(consumer)
            except KafkaException as error:
                self.post(_resolve, done, translate(error, self._address, "cannot read"))
            except Exception as error:  # noqa: BLE001 - one reader's order must not end the others
                self.post(_resolve, done, self._unexpected(error))
            else:
                self.post(_resolve, done, None)
        return obeyed

    def _unexpected(self, error: Exception) -> FatalError:
        failure = FatalError(
            f"reader {self._client_id} could not carry out an order", detail=repr(error)
        )
        failure.__cause__ = error
        return failure

    def post(self, call: Callable[..., None], *args: object) -> None:
        """Runs `call` on the loop, after all calls posted before."""
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            # The loop ended without closing its reader, so no task waits for the call.
            self.ended = True

    def end(self) -> None:
        """Makes the thread end."""
        self.ended = True
        self.ordered.set()

    def drop(self) -> None:
        """Fails the orders that an ended thread has not run."""
        while self._waiting:
            _, done = self._waiting.popleft()
            _resolve(done, self.closed_error())

    def closed_error(self) -> FatalError:
        """The error that calls of a closed reader raise."""
        return FatalError(f"reader {self._client_id} is closed")


def _resolve(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
        # No caller waits for the outcome of a pause; this marks the error as seen.
        done.exception()
