"""Connects a program to the owners of a service for the length of a block.

*Source*: `schemas.topics`: each service has a topic of requests; answers are in `txn-responses`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.core.service.session import Numbered
from stilltide.pipeline.drivers.service.requests import Requests, Service
from stilltide.pipeline.drivers.shared.named_partitions import require_topics
from stilltide.pipeline.drivers.shared.outages import START_TIMEOUT_S_MAX, OutageGuard
from stilltide.schemas.topics import TXN_RESPONSES

B = TypeVar("B")
R = TypeVar("R", bound=Numbered)
A = TypeVar("A")


@asynccontextmanager
async def connect_service(
    service: Service[B, R, A], connector: Connector, name: str, *, timeout_s: float
) -> AsyncIterator[tuple[Requests[B, R, A], int]]:
    """The service's `Requests`, open for the length of the block, and the number of owners.

    Args:
        service: the service to ask.
        connector: the cluster.
        name: the program's name in client ids and logs.
        timeout_s: the longest wait for an answer, repeats of the request included; for the
            cluster on entry, a minute at most.

    Raises:
        FatalError: the system topics do not exist.
        UnavailableError: the cluster cannot be reached.
    """
    admin = connector.admin()
    start_timeout_s = min(timeout_s, START_TIMEOUT_S_MAX)
    outages = OutageGuard(admin, timeout_s=start_timeout_s)
    needed = (service.topic, TXN_RESPONSES)
    try:
        found = await outages.call(admin.describe_topics, needed)
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
