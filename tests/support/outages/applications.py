"""Applications of one cluster: one that writes, three that read, in the process of the test."""

import asyncio
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Self

from stilltide.connectors.errors import ConnectorError
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.errors import OutcomeUnknownError, PipelineError
from stilltide.schemas.errors import StilltideError


class Applications:
    """Writes numbers to `orders` in transactions, and reads them, from entry to exit.

    Args:
        bootstrap: the cluster.

    Attributes:
        committed: numbers whose commit returned.
        unknown: numbers whose outcome is unknown.
        failures: errors of transactions.
        seen: numbers that each subscription returned, in order.
    """

    def __init__(self, bootstrap: str) -> None:
        self.committed: set[int] = set()
        self.unknown: set[int] = set()
        self.failures: Counter[str] = Counter()
        self.seen: dict[str, list[int]] = {"plain": [], "group": [], "acknowledging": []}
        self._bootstrap = bootstrap
        self._changed = asyncio.Condition()
        self._writing = True
        self._writer: asyncio.Task[None] | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._broken: BaseException | None = None

    @property
    def writing(self) -> "asyncio.Task[None]":
        """The writing application, which ends by `stop` only."""
        assert self._writer is not None
        return self._writer

    async def __aenter__(self) -> Self:
        self._writer = self._task(self._write())
        self._readers = [
            self._task(work) for work in (self._plain(), self._group(), self._acknowledging())
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._writer is not None
        for task in [self._writer, *self._readers]:
            task.cancel()
        await asyncio.gather(self._writer, *self._readers, return_exceptions=True)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits until something holds; raises the error of an application that has ended."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._broken is not None or holds())
        if self._broken is not None:
            raise self._broken

    async def stop(self) -> None:
        """Ends the writing application after its present transaction."""
        self._writing = False
        assert self._writer is not None
        await self._writer

    def all_seen(self) -> bool:
        """Whether every subscription has returned every committed number."""
        return all(self.committed <= set(seen) for seen in self.seen.values())

    def check(self) -> None:
        """No subscription has returned the record of a transaction that did not commit."""
        for name, seen in self.seen.items():
            assert set(seen) <= self.committed | self.unknown, name

    def _task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - raised by `until`
                traceback.print_exc()
                self._broken = error
                await self._notify()

        return asyncio.create_task(guarded())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _write(self) -> None:
        number = 0
        async with TransactionClient(
            self._bootstrap, transaction_timeout_s=5, request_timeout_s=10
        ) as client:
            while self._writing:
                number += 1
                try:
                    async with client.transaction() as txn:
                        await txn.send("orders", b"%d" % number)
                except OutcomeUnknownError:
                    self.unknown.add(number)
                except (PipelineError, ConnectorError) as error:
                    self._failed(error)
                else:
                    self.committed.add(number)
                await self._notify()

    def _failed(self, error: StilltideError) -> None:
        self.failures[error.primary] += 1

    async def _seen(self, name: str, number: int) -> None:
        self.seen[name].append(number)
        await self._notify()

    async def _plain(self) -> None:
        async with self._subscription("plain") as subscription:
            async for message in subscription:
                await self._seen("plain", int(message.value or b""))

    async def _group(self) -> None:
        async with self._subscription("group") as subscription:
            async for batch in subscription.batches():
                for message in batch:
                    await self._seen("group", int(message.value or b""))
                try:
                    await subscription.commit()
                except ConnectorError as error:  # the group has moved: the batch comes again
                    self.failures[f"commit: {error.primary}"] += 1

    async def _acknowledging(self) -> None:
        """Consume, transform, produce."""
        async with (
            TransactionClient(
                self._bootstrap, transaction_timeout_s=5, request_timeout_s=10
            ) as client,
            self._subscription("acknowledging", acknowledgements=True) as subscription,
        ):
            async for message in subscription:
                number = int(message.value or b"")
                try:
                    async with client.transaction() as txn:
                        await txn.acknowledge(subscription, message)
                        await txn.send("bills", message.value)
                except (PipelineError, ConnectorError) as error:
                    self._failed(error)
                await self._seen("acknowledging", number)

    def _subscription(self, group: str, *, acknowledgements: bool = False) -> Subscription:
        return Subscription(
            ["orders"],
            bootstrap_servers=self._bootstrap,
            group=group,
            acknowledgements=acknowledgements,
        )
