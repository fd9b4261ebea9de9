"""Redelivers records when they are due, and asks the store about records that are held back.

*Source*: docs/protocols G, G2 (rules in `core.pending_ack.tracker`).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from stilltide.connectors.ports.records import Record, RedeliveredRecord
from stilltide.pipeline.core.pending_ack.questions import Ask
from stilltide.pipeline.core.pending_ack.redeliveries import Again, DeadLetter, Redeliver
from stilltide.pipeline.drivers.pending_ack.assigned_partition import AssignedPartition
from stilltide.pipeline.drivers.shared.alarm import Alarm
from stilltide.pipeline.drivers.shared.tasks import Tasks
from stilltide.schemas.values import TopicPartition

SendDeadLetter = Callable[[AssignedPartition, DeadLetter[Record]], None]
"""Takes a message that was delivered too often, and its partition; returns at once."""


class Redelivery:
    """One timer for the trackers of all assigned partitions.

    Args:
        partitions: the assigned partitions, which the caller keeps up to date.
        tasks: runs the questions to the store.
        changed: called when there may be more records to deliver.
        described: called after each question; the store may have refused a member it replaced.
        dead_letters: takes messages that were delivered too often; None: there is no limit.
    """

    def __init__(
        self,
        partitions: Mapping[TopicPartition, AssignedPartition],
        tasks: Tasks,
        changed: Callable[[], None],
        described: Callable[[AssignedPartition], None],
        dead_letters: SendDeadLetter | None,
    ) -> None:
        self._partitions = partitions
        self._tasks = tasks
        self._changed = changed
        self._described = described
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self._due)
        self._closed = False
        self._dead_letters = dead_letters

    def now_ms(self) -> float:
        """The time by the trackers' clock."""
        return self._loop.time() * 1000

    def arm(self) -> None:
        """Arms the alarm for every deadline; call it when a deadline may have changed."""
        if self._closed:
            return
        now_ms = self.now_ms()
        for partition in self._partitions.values():
            if partition.tracker is not None:
                self._alarm.arm(partition.tracker.deadline_ms, now_ms)

    def close(self) -> None:
        """Stops the timer for good."""
        self._closed = True
        self._alarm.cancel()

    def _due(self) -> None:
        now_ms = self.now_ms()
        for partition in self._partitions.values():
            if partition.tracker is None:
                continue
            if again := partition.tracker.redelivered(now_ms):
                self._carry_out(partition, again)
            for ask in partition.tracker.tick(now_ms):
                self._tasks.start(self._describe(partition, ask))
        self.arm()

    def _carry_out(self, partition: AssignedPartition, found: Sequence[Again[Record]]) -> None:
        partition.prepare(
            [
                RedeliveredRecord.of(it.payload, it.deliveries)
                for it in found
                if isinstance(it, Redeliver)
            ]
        )
        for letter in found:
            if isinstance(letter, DeadLetter):
                assert self._dead_letters is not None, "a limit of deliveries needs a sender"
                self._dead_letters(partition, letter)
        self._changed()

    async def _describe(self, partition: AssignedPartition, ask: Ask) -> None:
        await partition.describe(ask, self.now_ms)
        self._described(partition)
        self.arm()
        self._changed()
