"""Delivers records again when they are due, and asks the store about records that are held back.

*Source*: protocols.md G (rules in `core.pending_ack.tracker`).
"""

import asyncio
from collections.abc import Callable, Mapping

from stilltide.pipeline.core.pending_ack.questions import Ask
from stilltide.pipeline.drivers.pending_ack.assigned_partition import AssignedPartition
from stilltide.pipeline.drivers.shared.tasks import Tasks
from stilltide.schemas.values import TopicPartition


class Redelivery:
    """One timer for the trackers of all assigned partitions.

    Args:
        partitions: the assigned ones, kept by the caller.
        tasks: in which the store is asked.
        changed: called when there may be more to deliver.
    """

    def __init__(
        self,
        partitions: Mapping[TopicPartition, AssignedPartition],
        tasks: Tasks,
        changed: Callable[[], None],
    ) -> None:
        self._partitions = partitions
        self._tasks = tasks
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def now_ms(self) -> float:
        """The time of the trackers."""
        return self._loop.time() * 1000

    def arm(self) -> None:
        """Looks again at the earliest deadline; to be called when a deadline may have changed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        trackers = (it.tracker for it in self._partitions.values())
        dues = [it.deadline_ms for it in trackers if it is not None and it.deadline_ms is not None]
        if dues and not self._closed:
            self._timer = self._loop.call_at(min(dues) / 1000, self._due)

    def close(self) -> None:
        """Nothing is due any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        now_ms = self.now_ms()
        for partition in self._partitions.values():
            if partition.tracker is None:
                continue
            if again := partition.tracker.redelivered(now_ms):
                partition.prepare(again)
                self._changed()
            for ask in partition.tracker.tick(now_ms):
                self._tasks.start(self._describe(partition, ask))
        self.arm()

    async def _describe(self, partition: AssignedPartition, ask: Ask) -> None:
        await partition.describe(ask, self.now_ms)
        self.arm()
        self._changed()
