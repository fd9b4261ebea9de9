"""Asks the pending-ack stores of a cluster for their figures, for an operator.

*Source*: docs/protocols G, C1, C15; PIP-160, API changes.
*Invariants*: the result names a store that did not answer, and never leaves it out.
"""

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.drivers.service.operator import OwnerLine
from stilltide.pipeline.drivers.service.requests import PENDING_ACK_OPERATOR_SERVICE
from stilltide.schemas.pending_ack.acknowledgements import (
    AckAnswer,
    AckQuestion,
    AckRequest,
    DescribeStore,
    StoreStats,
)
from stilltide.schemas.topics import PENDING_ACK_LOG


class PendingAckStores(OwnerLine[AckQuestion, AckRequest, AckAnswer]):
    """An asynchronous context manager that asks pending-ack stores; see `OwnerLine`.

    Args:
        connector: the cluster.
        request_timeout_s: the longest wait for one answer.
    """

    def __init__(self, connector: Connector, *, request_timeout_s: float) -> None:
        super().__init__(
            PENDING_ACK_OPERATOR_SERVICE,
            PENDING_ACK_LOG,
            connector,
            request_timeout_s=request_timeout_s,
        )

    async def stats(self, *, topic: str = "", group: str = "") -> dict[int, StoreStats | None]:
        """Every store's figures, by partition; None: no answer in time.

        Args:
            topic: topic whose acknowledgements are described; "" for any topic.
            group: consumer group whose acknowledgements are described; "" for any group.
        """
        question = AckQuestion(None, DescribeStore(topic, group))

        async def figures(partition: int) -> StoreStats:
            answer = await self.ask(partition, question)
            assert isinstance(answer, StoreStats)
            return answer

        return await self.each(figures)
