"""Connects a subscription to the pending-ack stores.

*Source*: docs/protocols G; `schemas.topics`: requests in `ack-requests`, answers in
`txn-responses`.
"""

from collections.abc import Mapping
from dataclasses import replace

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.drivers.service.ask.requests import (
    CHECK_WORKER,
    OwnerLine,
    Service,
)
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.pending_ack.acknowledgements import (
    AckAnswer,
    AckBody,
    AckQuestion,
    Attach,
    DescribeAcks,
    DescribeStore,
    StoreStats,
)
from stilltide.schemas.pending_ack.codec import decode_response, encode_request
from stilltide.schemas.service.envelopes import Refused
from stilltide.schemas.topics import (
    ACK_REQUESTS,
    OPERATOR_ACK_REQUESTS,
    PENDING_ACK_LOG,
    system_partition,
)
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition

PENDING_ACK_SERVICE: Service[AckQuestion, AckAnswer] = Service(
    ACK_REQUESTS,
    "pending-ack owner",
    encode_request,
    decode_response,
    silent_check=CHECK_WORKER,
)
PENDING_ACK_OPERATOR_SERVICE = replace(
    PENDING_ACK_SERVICE,
    topic=OPERATOR_ACK_REQUESTS,
    for_operators=True,
    silent_check=None,
    looks=lambda question: isinstance(question.ask, DescribeStore | DescribeAcks),
)
"""The pending-ack stores, asked by operators, and told of outcomes by coordinators."""


class AckLine(OwnerLine[AckQuestion, AckAnswer]):
    """An `AckStore` that asks through the system topics; see `OwnerLine`.

    Args:
        connector: the cluster.
        name: the program's name in client ids and logs.
        timeout_s: the longest wait for one answer.
    """

    def __init__(self, connector: Connector, name: str, *, timeout_s: float) -> None:
        super().__init__(
            PENDING_ACK_SERVICE,
            None,
            connector,
            name=f"{name}-acks",
            request_timeout_s=timeout_s,
            patient=True,
        )

    async def ask_about(self, subscription: SubscriptionId, body: AckBody) -> AckAnswer:
        """See `AckStore.ask_about`."""
        owner = system_partition(subscription.data, self.count)
        return await self.ask(owner, AckQuestion(subscription, body))


class PendingAckStores(OwnerLine[AckQuestion, AckAnswer]):
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
            if isinstance(answer, Refused):
                raise RefusedError(
                    "the pending-ack store refused to forget what the group has acknowledged",
                    detail=answer.reason,
                    hint="upgrade the workers; for a group that acknowledges no single messages,"
                    " --positions-only leaves the stores out",
                    data=data,
                )
