"""Commits the positions of one member of a group.

*Invariants*: a record that was not taken is never part of a committed position; a commit that was
begun before a rebalance is never sent after it.
"""

from collections.abc import Callable, Iterable, Mapping

from stilltide.connectors.errors import FencedError
from stilltide.connectors.ports.readers import NO_METADATA, GroupReader
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.subscription.deliveries import Deliveries
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class GroupCommits:
    """Commits positions through the group's reader.

    Args:
        reader: the member of the group.
        outages: repeats a commit while the cluster is away.
        deliveries: the records that the application takes; their positions are committed.
        rebalance_count: returns how often partitions were assigned or revoked.
    """

    def __init__(
        self,
        reader: GroupReader,
        outages: OutageGuard,
        deliveries: Deliveries,
        rebalance_count: Callable[[], int],
    ) -> None:
        self._reader = reader
        self._outages = outages
        self._deliveries = deliveries
        self._rebalance_count = rebalance_count
        self._committed: dict[TopicPartition, EndOffset] = {}

    def open(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Begins these partitions at positions that need no commit."""
        for data, position in positions.items():
            self._committed[data] = EndOffset(position)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets these partitions."""
        for data in partitions:
            self._committed.pop(data, None)

    async def commit(self) -> None:
        """Commits the position of each partition where the position has moved.

        Raises:
            FencedError: the group has moved a partition to another member.
            UnavailableError: the cluster stayed away.
        """
        positions = {
            data: Offset(position)
            for data, position in self._deliveries.buffer.positions().items()
            if self._committed.get(data) != position
        }
        await self.commit_cursors(positions)
        for data, position in positions.items():
            if data in self._committed:
                self._committed[data] = EndOffset(position)

    async def commit_cursors(
        self,
        cursors: Mapping[TopicPartition, Offset],
        metadata: Mapping[TopicPartition, str] = NO_METADATA,
    ) -> None:
        """Commits these offsets, with metadata; raises as `commit`."""
        if not cursors:
            return
        count = self._rebalance_count()

        async def attempt() -> None:
            if count != self._rebalance_count():  # another member may have committed more since
                raise FencedError("a rebalance came before the commit", hint="commit again")
            await self._reader.commit(cursors, self._deliveries.metadata(cursors, metadata))

        await self._outages.call(attempt)
