"""Connects a subscription to the pending-ack stores.

*Source*: docs/protocols G; `schemas.topics`: requests in `ack-requests`, answers in
`txn-responses`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.drivers.service.client import connect_service
from stilltide.pipeline.drivers.service.kinds.pending_ack import PENDING_ACK_SERVICE, AckRequests
from stilltide.schemas.pending_ack.acknowledgements import AckAnswer, AckBody, AckQuestion
from stilltide.schemas.topics import system_partition
from stilltide.schemas.values import SubscriptionId


class RemoteAckStore:
    """An `AckStore` that asks through the system topics."""

    def __init__(self, requests: AckRequests, partition_count: int) -> None:
        self._requests = requests
        self._partition_count = partition_count

    async def ask(self, subscription: SubscriptionId, body: AckBody) -> AckAnswer:
        """See `AckStore.ask`."""
        partition = system_partition(subscription.data, self._partition_count)
        return await self._requests.ask(partition, AckQuestion(subscription, body))


@asynccontextmanager
async def connect_ack_store(
    connector: Connector, name: str, *, timeout_s: float
) -> AsyncIterator[RemoteAckStore]:
    """A `RemoteAckStore` that is open for the length of the block; see `connect_service`."""
    line = connect_service(PENDING_ACK_SERVICE, connector, f"{name}-acks", timeout_s=timeout_s)
    async with line as (requests, partition_count):
        yield RemoteAckStore(requests, partition_count)
