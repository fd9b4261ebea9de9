"""Consume, transform, produce without end: a transaction copies and acknowledges each message."""

import asyncio
import itertools

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.client import Message, Subscription, TransactionClient
from stilltide.schemas.errors import StilltideError
from tests.support.brokers.group import AWAY_S
from tests.support.brokers.progress import Progress
from tests.support.brokers.transactions import ABORTED_EACH, TIMEOUT_S

CALLERS = 8


class Copying:
    """Copies messages from a topic to another until `stop`; a copy's key says of which message.

    Args:
        connector: of the cluster.
        source: topic of the messages.
        target: topic of the copies.
        group: name of the acknowledging group.
    """

    def __init__(self, connector: Connector, source: str, target: str, group: str) -> None:
        self.progress = Progress(f"copying to {target}")
        self.committed: set[tuple[int, int]] = set()
        """Messages, by partition and offset, whose transaction was reported as committed."""
        self.errors: list[str] = []
        self._connector = connector
        self._source, self._target, self._group = source, target, group
        self._stopped = asyncio.Event()
        self._messages: asyncio.Queue[Message] = asyncio.Queue(CALLERS)
        self._numbers = itertools.count()

    def stop(self) -> None:
        """Copies no further message; `run` returns."""
        self._stopped.set()

    async def run(self) -> None:
        """Copies messages until `stop`."""
        async with (
            TransactionClient(
                connector=self._connector,
                name="copying",
                transaction_timeout_s=TIMEOUT_S,
                resend_s=0.5,
            ) as client,
            Subscription(
                [self._source],
                group=self._group,
                connector=self._connector,
                acknowledgements=True,
                unavailable_timeout_s=AWAY_S,
            ) as subscription,
            asyncio.TaskGroup() as tasks,
        ):
            working = [tasks.create_task(self._feed(subscription))]
            working += [
                tasks.create_task(self._work(client, subscription, caller))
                for caller in range(CALLERS)
            ]
            await self._stopped.wait()
            for task in working:
                task.cancel()

    async def _feed(self, subscription: Subscription) -> None:
        async for message in subscription:
            await self._messages.put(message)

    async def _work(
        self, client: TransactionClient, subscription: Subscription, caller: int
    ) -> None:
        while True:
            message = await self._messages.get()
            aborts = next(self._numbers) % ABORTED_EACH == 0
            try:
                async with client.transaction() as txn:
                    await txn.acknowledge(subscription, message)
                    key = b"%d %d" % (message.partition, message.offset)
                    await txn.send(self._target, message.value, key=key)
                    if aborts:
                        await txn.abort()
            except StilltideError as error:
                self.errors.append(str(error))
            else:
                if not aborts:
                    self.committed.add((message.partition, message.offset))
                    self.progress.step(caller)
