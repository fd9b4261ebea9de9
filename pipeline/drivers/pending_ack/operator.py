"""Asks the pending-ack stores of a cluster for their figures, as an operator does.

*Source*: protocols.md G, C1; PIP-160 (seed 003), API changes.
*Invariants*: a store that does not answer is named as such, never left out in silence.
"""

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.drivers.service.operator import OwnerLine
from stilltide.pipeline.drivers.service.requests import PENDING_ACK_SERVICE
from stilltide.schemas.pending_ack.acknowledgements import (
    AckAnswer,
    AckQuestion,
    AckRequest,
    DescribeStore,
    StoreStats,
)
from stilltide.schemas.topics import PENDING_ACK_LOG


class PendingAckStores(OwnerLine[AckQuestion, AckRequest, AckAnswer]):
    """Asks from entry to exit; see `OwnerLine`.

    Args:
        connector: the cluster.
        request_timeout_s: how long one answer may take.
    """

    def __init__(self, connector: Connector, *, request_timeout_s: float) -> None:
        super().__init__(
            PENDING_ACK_SERVICE, PENDING_ACK_LOG, connector, request_timeout_s=request_timeout_s
        )

    async def stats(self, *, topic: str = "", group: str = "") -> dict[int, StoreStats | None]:
        """Every store's figures, by partition; None of one that did not answer in time.

        Args:
            topic: subscriptions of this topic only; "" for any.
            group: subscriptions of this consumer group only; "" for any.
        """
        question = AckQuestion(None, DescribeStore(topic, group))

        async def figures(partition: int) -> StoreStats:
            answer = await self.ask(partition, question)
            assert isinstance(answer, StoreStats)
            return answer

        return await self.each(figures)
