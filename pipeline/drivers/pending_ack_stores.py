"""Asks the pending-ack stores of a cluster for their figures, as an operator does.

*Source*: protocols.md G, C1; PIP-160 (seed 003), API changes.
*Invariants*: a store that does not answer is named as such, never left out in silence.
"""

from types import TracebackType
from typing import Self

from connectors.base import Connector
from pipeline.drivers.owner_line import LogBounds, OwnerLine
from pipeline.drivers.requests import PENDING_ACK_SERVICE
from schemas.acknowledgements import (
    AckAnswer,
    AckQuestion,
    AckRequest,
    DescribeStore,
    StoreStats,
)
from schemas.topics import PENDING_ACK_LOG


class PendingAckStores:
    """Asks from entry to exit.

    Args:
        connector: the cluster.
        request_timeout_s: how long one answer may take.

    Raises:
        FatalError: on entry: the system topics do not exist.
        RetriableError: on entry: the cluster cannot be reached; names its address.
    """

    def __init__(self, connector: Connector, *, request_timeout_s: float) -> None:
        self._line: OwnerLine[AckQuestion, AckRequest, AckAnswer] = OwnerLine(
            PENDING_ACK_SERVICE, PENDING_ACK_LOG, connector, request_timeout_s=request_timeout_s
        )

    async def __aenter__(self) -> Self:
        await self._line.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._line.__aexit__(kind, error, trace)

    async def stats(self, *, topic: str = "", group: str = "") -> dict[int, StoreStats | None]:
        """Every store's figures, by partition; None of one that did not answer in time.

        Args:
            topic: subscriptions of this topic only; "" for any.
            group: subscriptions of this consumer group only; "" for any.
        """
        question = AckQuestion(None, DescribeStore(topic, group))

        async def ask(partition: int) -> StoreStats:
            answer = await self._line.ask(partition, question)
            assert isinstance(answer, StoreStats)
            return answer

        return await self._line.each(ask)

    async def log_bounds(self) -> LogBounds:
        """Start and end offset of each store's log."""
        return await self._line.log_bounds()
