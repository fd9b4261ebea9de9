"""Checks a new position of a subscription before anything is changed."""

from collections.abc import Container, Sequence

from stilltide.connectors.errors import OffsetOutOfRangeError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.errors import NotAssignedError
from stilltide.schemas.values import Offset, TopicPartition


def require_assigned(data: TopicPartition, assigned: Container[TopicPartition]) -> None:
    """Raises `NotAssignedError` for a partition that this member does not read."""
    if data not in assigned:
        raise NotAssignedError(
            "the partition is not assigned to this member",
            detail="only the member that reads a partition can move in it",
            hint="wait until `position` of the partition is not None, or ask another member",
            topic=data.topic,
            partition=data.partition,
        )


class Seeking:
    """Looks offsets up in the logs of a cluster.

    Args:
        admin: admin client of the cluster; the caller closes it.
        outages: repeats calls while the cluster is away.
    """

    def __init__(self, admin: LogAdmin, outages: OutageGuard) -> None:
        self._admin = admin
        self._outages = outages

    async def require_in_log(self, data: TopicPartition, offset: Offset) -> None:
        """Checks that an offset lies from the log start to the log end, both included.

        Raises:
            OffsetOutOfRangeError: it does not, or the partition is gone.
            UnavailableError: the cluster stayed away.
        """
        starts = await self._outages.call(lambda: self._admin.start_offsets([data]))
        ends = await self._outages.call(lambda: self._admin.end_offsets([data]))
        start, end = starts.get(data, Offset(0)), ends.get(data, -1)
        if not start <= offset <= end:
            raise OffsetOutOfRangeError(
                f"the log holds offsets {start} to {end}",
                hint="seek to one of these offsets",
                topic=data.topic,
                partition=data.partition,
                offset=offset,
            )

    async def offsets_since(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, Offset]:
        """The first offsets of records that are not older than a time, else the log ends.

        Raises:
            UnavailableError: the cluster stayed away.
        """
        return await self._outages.call(
            lambda: self._admin.start_offsets(partitions, since_ms=timestamp_ms)
        )
