"""A subscription's own line to the owners of the pending-ack logs.

*Source*: protocols.md G; system.md, Topics: `ack-requests`, answers in `txn-responses`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from connectors.base import Connector
from connectors.errors import FatalError
from pipeline.core.buffered_log.accumulator import BatchLimits
from pipeline.drivers.requests import PENDING_ACK_SERVICE, AckRequests, Requests
from pipeline.drivers.subscription_outage import OutageGuard
from schemas import topics
from schemas.acknowledgements import AckAnswer, AckBody, AckQuestion
from schemas.placement import system_partition
from schemas.values import SubscriptionId

RESEND_S = 1.0
RETRY_DELAY_S = 0.2


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
    """A line that is open for the length of the block.

    Args:
        connector: the cluster.
        name: in client ids and logs.
        timeout_s: how long a request may go unanswered, repeats included.

    Raises:
        FatalError: the system topics do not exist.
        UnavailableError: the cluster cannot be reached.
    """
    admin = connector.admin()
    outages = OutageGuard(admin, timeout_s=timeout_s, retry_delay_s=RETRY_DELAY_S)
    needed = (topics.ACK_REQUESTS, topics.TXN_RESPONSES)
    try:
        found = await outages.call(lambda: admin.describe_topics(needed))
    finally:
        await admin.close()
    for topic in needed:
        if topic not in found:
            raise FatalError(
                "the system topic does not exist",
                hint="start a worker for this cluster: `stilltide worker`",
                topic=topic,
            )
    partition_count = found[topics.ACK_REQUESTS].partition_count
    writer = connector.writer(f"{name}-acks")
    requests = Requests(
        PENDING_ACK_SERVICE,
        connector,
        writer,
        name=name,
        limits=BatchLimits(),
        request_timeout_s=timeout_s,
        resend_s=RESEND_S,
    )
    try:
        await requests.open(
            partition_count=partition_count,
            response_partition_count=found[topics.TXN_RESPONSES].partition_count,
        )
        yield RemoteAckStore(requests, partition_count)
    finally:
        await requests.close()
        await writer.close()
