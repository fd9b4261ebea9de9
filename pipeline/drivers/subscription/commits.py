"""Commits the positions of one member of a group.

*Invariants*: a record that was not taken is never part of a committed position; a commit that was
begun before a rebalance is never sent after it.
"""

import asyncio
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress

from stilltide.connectors.errors import FatalError, FencedError
from stilltide.connectors.ports.readers import NO_METADATA, GroupReader
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.subscription.deliveries import Deliveries
from stilltide.pipeline.drivers.subscription.topics import SubscribedTopics
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

PASSED_OVER_S = 1.0
"""Seconds between two commits of records that were passed over."""


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
        self._returned: dict[TopicPartition, int] = {}
        self._passed_s = -math.inf  # loop time of the last commit of records passed over
        self._due_s: float | None = None

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
            self._returned.pop(data, None)

    def returned(self, data: TopicPartition, end_offset: int) -> None:
        """The application was given messages of an assigned partition below this offset."""
        self._returned[data] = end_offset

    async def commit(self) -> None:
        """Commits the position of each partition where the position has moved.

        Raises:
            FencedError: the group has moved a partition to another member.
            UnavailableError: the cluster stayed away.
        """
        moved = self._deliveries.positions().items()
        await self._commit({it: at for it, at in moved if self._committed.get(it) != at})

    def passed_over(self) -> None:
        """A record was taken that the application was not given."""
        if self._due_s is None:
            now_s = asyncio.get_running_loop().time()
            self._due_s = max(now_s, self._passed_s + PASSED_OVER_S)

    async def commit_due(self) -> float | None:
        """As `commit_passed_over` if that is due, else the seconds until then; None: nothing is."""
        if self._due_s is None:
            return None
        left_s = self._due_s - asyncio.get_running_loop().time()
        if left_s > 0:
            return left_s
        with suppress(FencedError):  # another assignment follows
            await self.commit_passed_over()
        return None

    async def commit_passed_over(self) -> None:
        """Commits positions that have moved by records alone that the application was not given.

        Of a partition with a message that was returned and not committed nothing is committed.
        Only for a caller that reports all messages by `returned`; raises as `commit`.
        """
        self._due_s, self._passed_s = None, asyncio.get_running_loop().time()
        known, returned = self._committed, self._returned
        moved = self._deliveries.positions().items()
        done = {data for data, position in known.items() if returned.get(data, 0) <= position}
        await self._commit({data: at for data, at in moved if data in done and known[data] != at})

    async def _commit(self, moved: Mapping[TopicPartition, EndOffset]) -> None:
        positions = {data: Offset(position) for data, position in moved.items()}
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
