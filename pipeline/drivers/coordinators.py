"""Asks the coordinators of a cluster, as an operator does: one, or each of them.

*Source*: protocols.md C1; facts, pulsar.md 7.
*Invariants*: a coordinator that does not answer is named as such, never left out in silence.
"""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from connectors.base import Connector
from pipeline.core.buffered_log.accumulator import BatchLimits
from pipeline.drivers.requests import COORDINATOR_SERVICE, CoordinatorRequests, Requests
from pipeline.drivers.system_topics import require_topics
from pipeline.errors import OutcomeUnknownError, RefusedError, RequestTimeoutError
from schemas import topics
from schemas.transactions import Answer, Refused, RequestBody, Unknown
from schemas.values import EndOffset, Offset, TopicPartition

RESEND_S = 1.0


class Coordinators:
    """Asks from entry to exit.

    Args:
        connector: the cluster.
        request_timeout_s: how long one answer may take.

    Raises:
        FatalError: on entry: the system topics do not exist.
        RetriableError: on entry: the cluster cannot be reached; names its address.
    """

    def __init__(self, connector: Connector, *, request_timeout_s: float) -> None:
        self.count = 0
        self._connector = connector
        self._admin = connector.admin()
        self._writer = connector.writer("admin")
        self._requests: CoordinatorRequests = Requests(
            COORDINATOR_SERVICE,
            connector,
            self._writer,
            name="admin",
            limits=BatchLimits(),
            request_timeout_s=request_timeout_s,
            resend_s=RESEND_S,
        )

    async def __aenter__(self) -> Self:
        needed = (topics.TXN_LOG, topics.TXN_REQUESTS, topics.TXN_RESPONSES)
        try:
            found = await self._admin.describe_topics(needed)
            require_topics(needed, found)
            self.count = found[topics.TXN_REQUESTS].partition_count
            await self._requests.open(
                partition_count=self.count,
                response_partition_count=found[topics.TXN_RESPONSES].partition_count,
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

    async def ask(self, coordinator: int, body: RequestBody) -> Answer:
        """One coordinator's answer.

        Raises:
            RefusedError: there is no such coordinator, or it refused; nothing was changed.
            RequestTimeoutError: no answer in time; it may still be carried out.
            OutcomeUnknownError: it may have been carried out.
        """
        if not 0 <= coordinator < self.count:
            raise RefusedError(
                f"there is no coordinator {coordinator}",
                detail=f"this cluster has {self.count}, counted from 0",
            )
        answer = await self._requests.ask(coordinator, body)
        if isinstance(answer, Refused):
            raise RefusedError("the coordinator refused the request", detail=answer.reason)
        if isinstance(answer, Unknown):
            raise OutcomeUnknownError(
                "the coordinator does not remember whether the request took effect",
                hint="look before you ask again: `stilltide txn list`",
            )
        return answer

    async def ask_each(self, body: RequestBody) -> dict[int, Answer | None]:
        """Every coordinator's answer, by number; None of one that did not answer in time."""

        async def ask(coordinator: int) -> Answer | None:
            try:
                return await self.ask(coordinator, body)
            except RequestTimeoutError:
                return None

        answers = await asyncio.gather(*map(ask, range(self.count)))
        return dict(enumerate(answers))

    async def log_bounds(self) -> Mapping[int, tuple[Offset, EndOffset]]:
        """Start and end offset of each coordinator's log."""
        logs = [TopicPartition(topics.TXN_LOG, number) for number in range(self.count)]
        starts = await self._admin.start_offsets(logs)
        ends = await self._admin.end_offsets(logs)
        return {log.partition: (starts[log], ends[log]) for log in logs}

    async def _close(self) -> None:
        await self._requests.close()
        await self._writer.close()
        await self._admin.close()
