"""An application under fault: messages acknowledged in every way, each told on stdout at once.

`python -m tests.chaos.pending_ack.acknowledger BOOTSTRAP NAME SUFFIX`.

The process is a member of three groups:

- `each`: copies messages in transactions that acknowledge them one by one;
- `upto`: copies runs of messages in transactions that acknowledge cumulatively;
- `plain`: acknowledges without transactions, one by one, cumulatively, and negatively.

A line says way, what, partition, offset. Of `each` and `upto`: `committed`, `dropped` (aborted on
purpose), `aborted`, `refused` or `unknown`. Of `plain`: `one` or `through` before it is made,
`done` after it, and `assigned` with the first message after a rebalance. SIGTERM lets what is under
way end; then `tasks` says how many there were, and how many are left.
"""

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client import Message, Subscription, TransactionClient
from stilltide.pipeline.errors import AcknowledgementError, OutcomeUnknownError
from stilltide.pipeline.logging import configure_logging
from stilltide.schemas.errors import StilltideError

WAYS = ("each", "upto", "plain")
COPYING = ("each", "upto")
CONCURRENCY = 8
TRANSACTION_S = 8.0
"""What a killed application leaves open ends soon."""
SESSION_S = 6.0
REQUEST_S = 60.0
REDELIVERY_S = 0.2
AGAIN_S = 10.0
WAIT_S = 0.1


class Taken(NamedTuple):
    """A message, and the assignment it was delivered in."""

    message: Message
    assignment: int  # rebalances before it

    @property
    def place(self) -> tuple[int, int]:
        """Partition and offset."""
        return self.message.partition, self.message.offset


@dataclass
class Reading:
    """A subscription, and its messages as they come."""

    subscription: Subscription
    messages: asyncio.Queue[Taken]

    async def some(self, count: int) -> list[Taken]:
        """What is there, `count` at most; nothing when nothing comes for a while."""
        try:
            async with asyncio.timeout(WAIT_S):
                found = [await self.messages.get()]
        except TimeoutError:
            return []
        while len(found) < count and not self.messages.empty():
            found.append(self.messages.get_nowait())
        return found


async def some_of(subscription: Subscription, count: int) -> list[Taken]:
    """What has come by now, `count` at most: nothing waits between it and the subscription."""
    found: list[Taken] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S):
            while len(found) < count:
                message = await anext(subscription)
                found.append(Taken(message, subscription.rebalance_count))
    return found


class Held:
    """Messages of one assignment, not yet acknowledged.

    Attributes:
        messages: by partition and offset.
        missing: aborted, to come again before what follows them; with the time when it is too late.
    """

    def __init__(self) -> None:
        self.messages: dict[tuple[int, int], Taken] = {}
        self.missing: dict[tuple[int, int], float] = {}
        self.assignment = 0
        self.now = asyncio.get_running_loop().time

    def take(self, some: Sequence[Taken], assignment: int) -> None:
        """More of them; after a rebalance all that is not acknowledged comes again."""
        if assignment != self.assignment:
            self.assignment = assignment
            self.messages.clear()
            self.missing.clear()
        for one in some:
            if one.assignment == assignment:
                self.missing.pop(one.place, None)
                self.messages[one.place] = one

    def whole(self) -> set[int]:
        """Partitions of which all up to the last is held."""
        return {it for it, _ in self.messages} - {it for it, _ in self.missing}

    def told(self, places: Sequence[tuple[int, int]], fate: str) -> None:
        """What became of these."""
        if fate == "refused":  # nothing was changed
            return
        for place in places:
            del self.messages[place]
        if fate != "committed":
            self.missing |= dict.fromkeys(places, self.now() + AGAIN_S)


@dataclass
class Application:
    """What its three ways share."""

    client: TransactionClient
    connector: KafkaConnector
    suffix: str
    stop: asyncio.Event
    random: random.Random

    def subscription(self, way: str) -> Subscription:
        """A member of the way's group."""
        topic = f"{way}-{self.suffix}"
        return Subscription(
            [topic],
            group=topic,
            connector=self.connector,
            acknowledgements=True,
            redelivery_delay_s=REDELIVERY_S,
            redelivery_delay_s_max=REDELIVERY_S,
        )

    @asynccontextmanager
    async def reading(self, way: str) -> AsyncIterator[Reading]:
        """A member whose messages are taken while others are worked on."""
        async with self.subscription(way) as subscription, asyncio.TaskGroup() as tasks:
            reading = Reading(subscription, asyncio.Queue(CONCURRENCY * 4))

            async def read() -> None:
                async for message in subscription:
                    await reading.messages.put(Taken(message, subscription.rebalance_count))

            task = tasks.create_task(read())
            yield reading
            task.cancel()

    async def each(self) -> None:
        """Transactions of a few messages, many at once."""
        async with self.reading("each") as reading:

            async def work() -> None:
                while not self.stop.is_set():
                    if taken := await reading.some(3):
                        await self._copy_or_return(reading.subscription, taken)

            await asyncio.gather(*(work() for _ in range(CONCURRENCY)))

    async def _copy_or_return(self, subscription: Subscription, taken: Sequence[Taken]) -> None:
        if await self._copy("each", subscription, taken) != "committed":
            for message, _ in taken:  # what was not claimed would else stay with us for ever
                with suppress(AcknowledgementError):
                    subscription.negative_acknowledge(message)

    async def upto(self) -> None:
        """One transaction after the other; starts over when aborted messages stay away."""
        while not self.stop.is_set():
            async with self.subscription("upto") as subscription:
                await self._runs(subscription)

    async def _runs(self, subscription: Subscription) -> None:
        held = Held()
        while not self.stop.is_set():
            held.take(await some_of(subscription, 20), subscription.rebalance_count)
            if held.missing and min(held.missing.values()) < held.now():
                return
            for partition in held.whole():
                places = sorted(it for it in held.messages if it[0] == partition)
                taken = [held.messages[it] for it in places]
                held.told(places, await self._copy("upto", subscription, taken))
                if subscription.rebalance_count != held.assignment:
                    break

    async def _copy(self, way: str, subscription: Subscription, taken: Sequence[Taken]) -> str:
        """One transaction, and what became of it; refused, nothing was changed."""
        fate = "dropped" if self.random.random() < 0.1 else "committed"
        claimed = False
        try:
            async with self.client.transaction() as txn:
                if way == "upto":
                    message = taken[-1].message
                    await txn.acknowledge_cumulative(subscription, message)
                for message, _ in taken:
                    if way == "each":
                        await txn.acknowledge(subscription, message)
                    claimed = True
                    key = f"{message.partition} {message.offset}".encode()
                    await txn.send(f"{way}-out-{self.suffix}", message.value, key=key)
                if fate == "dropped":
                    await txn.abort()
        except OutcomeUnknownError:
            fate = "unknown"
        except StilltideError as error:
            sys.stderr.write(f"{way} {taken[0].place}: {error}\n")
            fate = "aborted" if claimed else "refused"
        for one in taken:
            say(way, fate, *one.place)
        return fate

    async def plain(self) -> None:
        """Acknowledges outside of transactions."""
        async with self.reading("plain") as reading:
            assignment = 0
            while not self.stop.is_set():
                for message, its_assignment in await reading.some(5):
                    if its_assignment != assignment:
                        assignment = its_assignment
                        say("plain", "assigned", message.partition, message.offset)
                    self._acknowledge(reading.subscription, message)

    def _acknowledge(self, subscription: Subscription, message: Message) -> None:
        place = message.partition, message.offset
        drawn = self.random.random()
        try:
            if drawn < 0.2:
                subscription.negative_acknowledge(message)
                return
            if drawn < 0.3:
                say("plain", "through", *place)
                subscription.acknowledge_cumulative(message)
            else:
                say("plain", "one", *place)
                subscription.acknowledge(message)
        except AcknowledgementError as error:
            sys.stderr.write(f"plain {place}: {error}\n")
        else:
            say("plain", "done", *place)


async def run(bootstrap: str, name: str, suffix: str) -> None:
    """Works until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    say("tasks", "begun", 0, 0)
    connector = KafkaConnector(KafkaConfig(bootstrap, session_timeout_s=SESSION_S))
    async with TransactionClient(
        bootstrap,
        name=name,
        resend_s=0.5,
        transaction_timeout_s=TRANSACTION_S,
        request_timeout_s=REQUEST_S,
    ) as client:
        seeded = random.Random(f"{name}-{suffix}")
        application = Application(client, connector, suffix, stop, seeded)
        async with asyncio.TaskGroup() as tasks:
            for way in (application.each, application.upto, application.plain):
                tasks.create_task(way())
            await stop.wait()
            running = len(asyncio.all_tasks())
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        sys.stderr.write(f"left: {task}\n")
    say("tasks", "ended", running, len(asyncio.all_tasks()))


def say(way: str, what: str, partition: int, offset: int) -> None:
    """One line, at once: what was said before a SIGKILL is known."""
    sys.stdout.write(f"{way} {what} {partition} {offset}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    configure_logging()
    asyncio.run(run(*sys.argv[1:]))
