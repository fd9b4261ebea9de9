"""Asks for snapshots of data partitions.

*Source*: docs/protocols E7, D2: readers at an undecided record, audits and operators ask.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.drivers.service.ask.requests import Requests, Service, connect_service
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas import topics
from stilltide.schemas.coordinator.transactions import Refused
from stilltide.schemas.snapshots import requests
from stilltide.schemas.snapshots.requests import (
    SnapshotAnswer,
    SnapshotRequest,
    SnapshotSummary,
    snapshot_request,
)
from stilltide.schemas.topics import system_partition
from stilltide.schemas.values import TopicPartition

SNAPSHOT_SERVICE: Service[TopicPartition, SnapshotRequest, SnapshotAnswer] = Service(
    topics.SNAPSHOT_REQUESTS,
    "snapshot writer",
    snapshot_request,
    requests.encode_request,
    requests.decode_response,
)
SnapshotRequests = Requests[TopicPartition, SnapshotRequest, SnapshotAnswer]


class SnapshotLine:
    """A client of the snapshot writers; made by `connect_snapshots`."""

    def __init__(self, requests: SnapshotRequests, partition_count: int) -> None:
        self._requests = requests
        self._partition_count = partition_count

    async def take(self, data: TopicPartition) -> SnapshotSummary:
        """Requests a snapshot as of now or later; returns once the snapshot is durable.

        Concurrent requests for one data partition share a snapshot. Safe to call again.

        Raises:
            RefusedError: there is no such data partition.
            RequestTimeoutError: no answer in time; the snapshot may still be taken.
        """
        partition = system_partition(data, self._partition_count)
        answer = await self._requests.ask(partition, data)
        if isinstance(answer, Refused):
            raise RefusedError(
                f"no snapshot was taken: {answer.reason}",
                topic=data.topic,
                partition=data.partition,
            )
        return answer


@asynccontextmanager
async def connect_snapshots(
    connector: Connector, name: str, *, timeout_s: float
) -> AsyncIterator[SnapshotLine]:
    """A `SnapshotLine` that is open for the length of the block; see `connect_service`."""
    line = connect_service(SNAPSHOT_SERVICE, connector, name, timeout_s=timeout_s)
    async with line as (requests, partition_count):
        yield SnapshotLine(requests, partition_count)
