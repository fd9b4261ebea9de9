"""Asks for snapshots of data partitions.

*Source*: docs/protocols E7, D2: readers at an undecided record, audits and operators ask.
"""

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.drivers.service.ask.requests import OwnerLine, Service
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas import topics
from stilltide.schemas.service.envelopes import Refused
from stilltide.schemas.snapshots import requests
from stilltide.schemas.snapshots.requests import SnapshotAnswer, SnapshotSummary
from stilltide.schemas.topics import system_partition
from stilltide.schemas.values import TopicPartition

SNAPSHOT_SERVICE: Service[TopicPartition, SnapshotAnswer] = Service(
    topics.SNAPSHOT_REQUESTS,
    "snapshot writer",
    requests.encode_request,
    requests.decode_response,
)


class SnapshotLine(OwnerLine[TopicPartition, SnapshotAnswer]):
    """An asynchronous context manager that asks the snapshot writers; see `OwnerLine`.

    Args:
        connector: the cluster.
        name: the program's name in client ids and logs.
        timeout_s: the longest wait for one answer.
    """

    def __init__(self, connector: Connector, name: str, *, timeout_s: float) -> None:
        super().__init__(
            SNAPSHOT_SERVICE, None, connector, name=name, request_timeout_s=timeout_s, patient=True
        )

    async def take(self, data: TopicPartition) -> SnapshotSummary:
        """Requests a snapshot as of now or later; returns once the snapshot is durable.

        Concurrent requests for one data partition share a snapshot. Safe to call again.

        Raises:
            RefusedError: there is no such data partition.
            RequestTimeoutError: no answer in time; the snapshot may still be taken.
        """
        answer = await self.ask(system_partition(data, self.count), data)
        if isinstance(answer, Refused):
            raise RefusedError(
                f"no snapshot was taken: {answer.reason}",
                data=data,
            )
        return answer
