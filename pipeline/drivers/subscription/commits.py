"""Commits the positions of one member of a group.

*Invariants*: a record that was not taken is never part of a committed position; a commit that was
begun before a rebalance is never sent after it. What is committed without a call of the application
passes no record that it was given after its own last commit, and is never the first commit of a
group: so an application that keeps its positions elsewhere has none with the group.
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
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

PASSED_OVER_S = 1.0
"""Seconds between two commits of records that were passed over."""

LEAVE_S = 1.0
"""Longest wait for a commit of who leaves, who does not wait for a cluster."""

MOVED_S = 5.0
"""Seconds until a position is committed that has moved without a message; as long as consumers of
Kafka that commit by themselves wait (`auto.commit.interval.ms`)."""


class GroupCommits:
    """Commits positions through the group's reader.

    Args:
        reader: the member of the group.
        outages: repeats a commit while the cluster is away.
        deliveries: the records that the application takes; their positions are committed.
        topics: the topics that are read.
        alone: whether nobody else commits for the member, as acknowledgements do.

    Attributes:
        rebalance_count: how often partitions were assigned or revoked.
        rebalanced_at: loop time at which they were last assigned or revoked.
        some_passed_over: whether records are passed over that were queued; `returned` then tells
            which messages the application was given, else it is given all.
    """

    def __init__(
        self,
        reader: GroupReader,
        outages: OutageGuard,
        deliveries: Deliveries,
        topics: SubscribedTopics,
        *,
        alone: bool,
    ) -> None:
        self._reader = reader
        self._outages = outages
        self._deliveries = deliveries
        self._topics = topics
        self._alone = alone
        self.some_passed_over = False
        self.rebalance_count = 0
        self.rebalanced_at = asyncio.get_running_loop().time()
        self._committed: dict[TopicPartition, EndOffset] = {}
        self._returned: dict[TopicPartition, int] = {}
        self._stored: set[TopicPartition] = set()  # of which the group has a commit
        self._sought: dict[TopicPartition, int] = {}  # number of the seek that no commit follows
        self._seeks = 0
        self._passed_s = -math.inf  # loop time of the last commit of records passed over
        self._due_s: float | None = None

    def open(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Begins these partitions at positions that need no commit."""
        for data, position in positions.items():
            self._committed[data] = EndOffset(position)
            if self._reader.committed(data) is not None:
                self._stored.add(data)

    def rebalanced(self) -> None:
        """Partitions were assigned or revoked."""
        self.rebalance_count += 1
        self.rebalanced_at = asyncio.get_running_loop().time()

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets these partitions."""
        for data in partitions:
            self._committed.pop(data, None)
            self._returned.pop(data, None)
            self._stored.discard(data)
            self._sought.pop(data, None)

    def sought(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions go on at other positions; the application commits the first one."""
        for data in partitions:
            self.drop([data])
            self._seeks += 1
            self._sought[data] = self._seeks

    def returned(self, data: TopicPartition, end_offset: int) -> None:
        """The application was given messages of an assigned partition below this offset."""
        self._returned[data] = end_offset

    async def commit(self) -> None:
        """Commits the position of each partition where the position has moved.

        Raises:
            FencedError: the group has moved a partition to another member.
            UnavailableError: the cluster stayed away.
        """
        known, assigned = self._committed, self._deliveries.assigned.items()
        positions = {data: it.position for data, it in assigned}
        await self._commit({it: at for it, at in positions.items() if known.get(it) != at})

    def passed_over(self) -> None:
        """A record was taken that the application was not given."""
        now_s = asyncio.get_running_loop().time()
        due_s = max(now_s, self._passed_s + PASSED_OVER_S)
        self._due_s = due_s if self._due_s is None else min(self._due_s, due_s)

    async def commit_due(self) -> float | None:
        """As `commit_passed_over` if that is due, else the seconds until then; None: nothing is."""
        if self._due_s is None:
            if not (self._deliveries.moved and self._alone):
                return None
            self._due_s = asyncio.get_running_loop().time() + MOVED_S
        left_s = self._due_s - asyncio.get_running_loop().time()
        if left_s > 0:
            return left_s
        with suppress(FencedError):  # another assignment follows
            await self.commit_passed_over()
        return None

    async def commit_passed_over(self) -> None:
        """Commits positions that have moved by records alone that the application was not given.

        Of a partition with a message that was given and not committed nothing is committed; raises
        as `commit`.
        """
        if self._due_s is None and not self._deliveries.moved:
            return
        self._due_s, self._passed_s = None, asyncio.get_running_loop().time()
        self._deliveries.moved = False
        known, assigned = self._committed, self._deliveries.assigned.items()
        done = {data: it.position for data, it in assigned if self._is_done(data, it.queued_end)}
        await self._commit({data: at for data, at in done.items() if known[data] != at})

    def _is_done(self, data: TopicPartition, queued_end: int) -> bool:
        """Whether the application has committed all messages that it was given of a partition."""
        position = self._committed.get(data)
        if position is None:
            return False
        if self.some_passed_over:
            return self._returned.get(data, 0) <= position
        return data in self._stored and queued_end <= position

    async def leave(self) -> None:
        """As `commit_passed_over`, if the cluster answers in time."""
        if not self._alone:
            return
        with suppress(StilltideError, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self.commit_passed_over()

    async def _commit(self, moved: Mapping[TopicPartition, EndOffset]) -> None:
        positions = {data: Offset(position) for data, position in moved.items()}
        sought = {data: self._sought.get(data) for data in positions}
        await self.commit_cursors(positions)
        for data, position in positions.items():
            # Not after a seek, or a rebalance, that came meanwhile.
            if data in self._committed or self._sought.get(data, 0) == sought[data]:
                self._sought.pop(data, None)
                self._committed[data] = EndOffset(position)
                self._stored.add(data)

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
