"""Commits the positions of one member of a group.

*Invariants*: a record that was not taken is never part of a committed position; a commit that was
begun before a rebalance is never sent after it.
"""

import asyncio
from collections.abc import Iterable, Mapping

from stilltide.connectors.errors import FatalError, FencedError
from stilltide.connectors.ports.readers import NO_METADATA, GroupReader
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.subscription.deliveries import Deliveries
from stilltide.pipeline.drivers.subscription.topics import SubscribedTopics
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class GroupCommits:
    """Commits positions through the group's reader.

    Args:
        reader: the member of the group.
        outages: repeats a commit while the cluster is away.
        deliveries: the records that the application takes; their positions are committed.
        topics: the topics that are read.

    Attributes:
        rebalance_count: how often partitions were assigned or revoked.
        rebalanced_at: loop time at which they were last assigned or revoked.
    """

    def __init__(
        self,
        reader: GroupReader,
        outages: OutageGuard,
        deliveries: Deliveries,
        topics: SubscribedTopics,
    ) -> None:
        self._reader = reader
        self._outages = outages
        self._deliveries = deliveries
        self._topics = topics
        self.rebalance_count = 0
        self.rebalanced_at = asyncio.get_running_loop().time()
        self._committed: dict[TopicPartition, EndOffset] = {}

    def open(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Begins these partitions at positions that need no commit."""
        for data, position in positions.items():
            self._committed[data] = EndOffset(position)

    def rebalanced(self) -> None:
        """Partitions were assigned or revoked."""
        self.rebalance_count += 1
        self.rebalanced_at = asyncio.get_running_loop().time()

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
            for data, position in self._deliveries.positions().items()
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
        count = self.rebalance_count

        async def attempt() -> None:
            if count != self.rebalance_count:  # another member may have committed more since
                raise FencedError("a rebalance came before the commit", hint="commit again")
            await self._reader.commit(cursors, self._deliveries.metadata(cursors, metadata))

        try:
            await self._outages.call(attempt)
        except FatalError as error:
            await self._topics.look()
            if self._topics.settled:
                raise
            raise FencedError(
                "a topic of the subscription is gone", detail=str(error), hint="commit again"
            ) from error
