"""Asks the pending-ack stores of a cluster for their figures, and for resets, for an operator.

*Source*: docs/protocols G, C1, C15; PIP-160, API changes.
*Invariants*: the result names a store that did not answer, and never leaves it out.
"""

from collections.abc import Mapping

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.drivers.service.kinds.pending_ack import PENDING_ACK_OPERATOR_SERVICE
from stilltide.pipeline.drivers.service.operator import OwnerLine
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.pending_ack.acknowledgements import (
    AckAnswer,
    AckQuestion,
    AckRefused,
    AckRequest,
    Attach,
    DescribeStore,
    StoreStats,
)
from stilltide.schemas.topics import PENDING_ACK_LOG, system_partition
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition


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

    async def reset(self, group: str, offsets: Mapping[TopicPartition, Offset], by: bytes) -> None:
        """Has the stores forget what a group has acknowledged; its cursors become these offsets.

        A store that knows nothing of the group changes nothing (G4). `by` are 16 random bytes: a
        repetition with the same ones has no second effect.

        Raises:
            RefusedError: a store of version 0.2.0 does not know the request.
            RequestTimeoutError: a store did not answer in time.
        """
        for data, offset in sorted(offsets.items()):
            owner = system_partition(data, self.count)
            body = Attach(by, EndOffset(offset), (), reset=True)
            answer = await self.ask(owner, AckQuestion(SubscriptionId(data, group), body))
            if isinstance(answer, AckRefused):
                raise RefusedError(
                    "the pending-ack store refused to forget what the group has acknowledged",
                    detail=answer.reason,
                    hint="upgrade the workers; for a group that acknowledges no single messages,"
                    " --positions-only leaves the stores out",
                    topic=data.topic,
                    partition=data.partition,
                )
