"""Asks the owners of one kind of log for an operator: one owner, or all of them.

*Source*: docs/protocols C1; Pulsar's admin API of transactions.
*Invariants*: the result names an owner that did not answer, and never leaves it out.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Generic, Self, TypeVar

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.core.service.session import Numbered
from stilltide.pipeline.drivers.service.ask.requests import Requests, Service
from stilltide.pipeline.drivers.shared.named_partitions import require_topics
from stilltide.pipeline.errors import RequestTimeoutError
from stilltide.schemas.topics import TXN_RESPONSES
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

B = TypeVar("B")
R = TypeVar("R", bound=Numbered)
A = TypeVar("A")
T = TypeVar("T")

LogBounds = Mapping[int, tuple[Offset, EndOffset]]
"""Start offset and end offset of each log, by partition."""


class OwnerLine(Generic[B, R, A]):
    """An asynchronous context manager: the connection is open from entry to exit.

    Args:
        service: the service to ask.
        log_topic: topic of the owners' logs, with as many partitions as the topic of requests.
        connector: the cluster.
        request_timeout_s: the longest wait for one answer.

    Attributes:
        count: number of owners; known after entry.

    Raises:
        FatalError: on entry: the system topics do not exist.
        RetriableError: on entry: the cluster cannot be reached; names its address.
    """

    def __init__(
        self,
        service: Service[B, R, A],
        log_topic: str,
        connector: Connector,
        *,
        request_timeout_s: float,
    ) -> None:
        self.count = 0
        self._topics = (log_topic, service.topic, TXN_RESPONSES)
        self._admin = connector.admin()
        self._writer = connector.writer("admin")
        self._requests: Requests[B, R, A] = Requests(
            service,
            connector,
            self._writer,
            name="admin",
            request_timeout_s=request_timeout_s,
        )

    async def __aenter__(self) -> Self:
        _, asked_at, answered_at = self._topics
        try:
            found = await self._admin.describe_topics(self._topics)
            require_topics(self._topics, found)
            self.count = found[asked_at].partition_count
            await self._requests.open(
                partition_count=self.count,
                response_partition_count=found[answered_at].partition_count,
            )
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close()

    async def ask(self, owner: int, body: B) -> A:
        """One owner's answer.

        Raises:
            RequestTimeoutError: no answer in time; the owner may still carry out the request.
        """
        return await self._requests.ask(owner, body)

    async def each(self, ask: Callable[[int], Awaitable[T]]) -> dict[int, T | None]:
        """The result of `ask` for every owner, by number; None: no answer in time."""

        async def answer(owner: int) -> T | None:
            try:
                return await ask(owner)
            except RequestTimeoutError:
                return None

        answers = await asyncio.gather(*map(answer, range(self.count)))
        return dict(enumerate(answers))

    async def log_bounds(self) -> LogBounds:
        """Start offset and end offset of each log."""
        logs = [TopicPartition(self._topics[0], number) for number in range(self.count)]
        starts = await self._admin.start_offsets(logs)
        ends = await self._admin.end_offsets(logs)
        return {log.partition: (starts[log], ends[log]) for log in logs}

    async def _close(self) -> None:
        await self._requests.close()
        await self._writer.close()
        await self._admin.close()
