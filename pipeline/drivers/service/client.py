"""A program's own line to the owners of a service, open as long as it is needed.

*Source*: system.md, Topics: requests in a topic of each service, answers in `txn-responses`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.core.service.session import Numbered
from stilltide.pipeline.drivers.service.requests import Requests, Service
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.system_topics import require_topics
from stilltide.schemas.topics import TXN_RESPONSES

RESEND_S = 1.0
RETRY_DELAY_S = 0.2

B = TypeVar("B")
R = TypeVar("R", bound=Numbered)
A = TypeVar("A")


@asynccontextmanager
async def connect_service(
    service: Service[B, R, A], connector: Connector, name: str, *, timeout_s: float
) -> AsyncIterator[tuple[Requests[B, R, A], int]]:
    """A line that is open for the length of the block, and how many owners there are.

    Args:
        service: who is asked.
        connector: the cluster.
        name: in client ids and logs.
        timeout_s: how long a request may go unanswered, repeats included.

    Raises:
        FatalError: the system topics do not exist.
        UnavailableError: the cluster cannot be reached.
    """
    admin = connector.admin()
    outages = OutageGuard(admin, timeout_s=timeout_s, retry_delay_s=RETRY_DELAY_S)
    needed = (service.topic, TXN_RESPONSES)
    try:
        found = await outages.call(lambda: admin.describe_topics(needed))
    finally:
        await admin.close()
    require_topics(needed, found)
    partition_count = found[service.topic].partition_count
    writer = connector.writer(name)
    requests = Requests(
        service,
        connector,
        writer,
        name=name,
        request_timeout_s=timeout_s,
        resend_s=RESEND_S,
    )
    try:
        await requests.open(
            partition_count=partition_count,
            response_partition_count=found[TXN_RESPONSES].partition_count,
        )
        yield requests, partition_count
    finally:
        await requests.close()
        await writer.close()
