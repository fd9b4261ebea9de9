"""Takes messages of a subscription for threads, one thread at a time.

*Invariants*: no message is lost when a thread is interrupted while it waits: what was taken for
that thread is kept for the next one, and the group's position does not pass it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from stilltide.pipeline.client.batches import Message, MessageBatch
from stilltide.pipeline.client.subscription import Subscription
from stilltide.pipeline.client.sync.loop_thread import LoopCalls
from stilltide.pipeline.errors import NotAssignedError
from stilltide.schemas.values import Offset, TopicPartition

if TYPE_CHECKING:
    from stilltide.pipeline.tracing.spans import Tracing

T = TypeVar("T", Message, MessageBatch)
Taken = Message | MessageBatch
Hand = list[Taken]
"""What was taken for one call, until the call returns it."""


class Taking:
    """The messages of one subscription, handed to threads.

    Args:
        subscription: the subscription, open while messages are taken.
        positions: whether `commit` commits positions, and not acknowledgements.

    Attributes:
        tracing: traces of what the threads process; None: the application has none.
    """

    def __init__(self, subscription: Subscription, *, positions: bool) -> None:
        self._subscription = subscription
        self._positions = positions
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[object] | None] = set()
        self._kept: deque[Taken] = deque()
        self.tracing: Tracing | None = None

    def next(self, calls: LoopCalls) -> Message | None:
        """The next message; None: the subscription was closed meanwhile."""
        return self.take(calls, self._one)

    def each(self, calls: LoopCalls, generator: AsyncGenerator[Message, None]) -> Iterator[Message]:
        """The messages that a generator of the event loop yields, until its end or until `stop`."""
        return _Each(self, calls, generator, self._kept_message)

    def batches(
        self, calls: LoopCalls, generator: AsyncGenerator[MessageBatch, None]
    ) -> Iterator[MessageBatch]:
        """As `each`, for batches."""
        return _Each(self, calls, generator, self._kept_batch)

    def loop(self, messages: Iterator[Message]) -> Iterator[Message]:
        """The same messages; the last one is done when the loop over them is left."""
        try:
            yield from messages
        finally:
            self.left()

    def left(self) -> int:
        """The thread has done what it was given, and waits; returns the time, nanoseconds."""
        return 0 if self.tracing is None else self.tracing.left()

    async def commit(self) -> None:
        """Commits; the position of a message that is kept is where the group goes on."""
        first: dict[TopicPartition, Offset] = {}
        while self._positions and (message := self._kept_message()) is not None:
            first[message.data] = min(message.offset, first.get(message.data, message.offset))
        for data, offset in first.items():
            with suppress(NotAssignedError):  # another member has the partition
                await self._subscription.seek(data, offset)
        await self._subscription.commit()

    def stop(self) -> None:
        """Ends the calls that wait for messages."""
        for task in self._tasks:
            if task is not None:
                task.cancel()

    def take(self, calls: LoopCalls, take: Callable[[Hand], Awaitable[T | None]]) -> T | None:
        """What a call on the event loop takes for this thread; None: nothing comes any more."""
        began_ns, hand = self.left(), Hand()
        try:
            item = calls.run(self._in_turn(take, hand))
        except CancelledError:
            return None
        except BaseException:
            calls.later(self._put_back, hand)
            raise
        if self.tracing is not None and item is not None:
            self.tracing.taken(item, began_ns)
        return item

    async def _in_turn(self, take: Callable[[Hand], Awaitable[T | None]], hand: Hand) -> T | None:
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            async with self._turn:
                return await take(hand)
        finally:
            self._tasks.discard(task)

    async def _one(self, hand: Hand) -> Message | None:
        message = self._kept_message() or await anext(self._subscription)
        hand.append(message)
        return message

    def _put_back(self, hand: Hand) -> None:
        self._kept.extend(hand)

    def _kept_message(self) -> Message | None:
        item = self._kept.popleft() if self._kept else None
        if not isinstance(item, MessageBatch):
            return item
        message, *others = item
        self._kept.extendleft(reversed(others))
        return message

    def _kept_batch(self) -> MessageBatch | None:
        item = self._kept.popleft() if self._kept else None
        return item if item is None or isinstance(item, MessageBatch) else MessageBatch.of([item])


class _Each(Iterator[T]):
    """What was kept, then what a generator of the event loop yields.

    The iterator goes on after an error if the generator does.
    """

    def __init__(
        self,
        taking: Taking,
        calls: LoopCalls,
        generator: AsyncGenerator[T, None],
        kept: Callable[[], T | None],
    ) -> None:
        self._taking = taking
        self._calls = calls
        self._generator = generator
        self._kept = kept

    def __next__(self) -> T:
        """The next of them."""
        item = self._taking.take(self._calls, self._next)
        if item is None:
            raise StopIteration
        return item

    async def _next(self, hand: Hand) -> T | None:
        item = self._kept()
        if item is None:
            item = await anext(self._generator, None)
        if item is not None:
            hand.append(item)
        return item

    def __del__(self) -> None:
        """The loop over them was left."""
        self._taking.left()
        generator = self._generator
        with suppress(RuntimeError):  # the event loop has ended, and the generator with it
            self._calls.later(lambda: asyncio.ensure_future(generator.aclose()))
