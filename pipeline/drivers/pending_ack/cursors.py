"""Commits the cursors of all partitions of one member.

*Source*: docs/protocols G.

*Invariants*: the store learns of a cursor only after the group has committed the cursor.
"""

import asyncio
from collections.abc import Callable, Mapping

from stilltide.connectors.errors import FencedError
from stilltide.pipeline.core.pending_ack.cursor import decode, encode
from stilltide.pipeline.drivers.pending_ack.assigned_partition import AssignedPartition
from stilltide.pipeline.drivers.shared.tasks import Tasks
from stilltide.pipeline.drivers.subscription.subscription import SubscriptionDriver
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.values import Offset, TopicPartition

_log = get_logger(__name__)


class CursorCommits:
    """Commits with the group of a `SubscriptionDriver`.

    Args:
        driver: the member of the group.
        partitions: the assigned partitions, which the caller keeps up to date.
        tasks: runs the requests that send committed cursors to the store.
        told: called with each partition after its cursor was sent to the store.
    """

    def __init__(
        self,
        driver: SubscriptionDriver,
        partitions: Mapping[TopicPartition, AssignedPartition],
        tasks: Tasks,
        told: Callable[[AssignedPartition], None],
    ) -> None:
        self._driver = driver
        self._partitions = partitions
        self._tasks = tasks
        self._told = told
        self._committing = asyncio.Lock()

    async def run(self, interval_s: float) -> None:
        """Commits regularly until cancelled; raises as `commit`, except `FencedError`."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.commit()
            except FencedError as error:
                _log.info("a rebalance came before the commit", why=error.primary)

    async def commit(self) -> None:
        """Commits every cursor that has moved; raises as `SubscriptionDriver.commit`."""
        async with self._committing:
            moved: dict[AssignedPartition, tuple[Offset, str]] = {}
            for data, partition in self._partitions.items():
                position = self._driver.position(data)
                if partition.tracker is None or position is None:
                    continue
                cursor = partition.tracker.cursor(position)
                metadata = encode(cursor)
                if (cursor.offset, metadata) != (partition.committed.offset, partition.metadata):
                    moved[partition] = cursor.offset, metadata
            await self._driver.commit_cursors(
                {it.data: offset for it, (offset, _) in moved.items()},
                {it.data: metadata for it, (_, metadata) in moved.items()},
            )
            for partition, (offset, metadata) in moved.items():
                durable = decode(offset, metadata)
                assert durable is not None
                partition.committed, partition.metadata = durable, metadata
                self._tasks.start(self._tell(partition))

    async def _tell(self, partition: AssignedPartition) -> None:
        await partition.tell_cursor()
        self._told(partition)
