"""Passes visible records on to the application: skips them, holds them back, or buffers them.

*Source*: docs/protocols D7, I11 (rules in `elsewhere`).

*Invariants*: no record of a partition is handed out after `drop`; a position never passes a record
that was not taken.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from stilltide.connectors.ports.readers import Committed
from stilltide.connectors.ports.records import Record
from stilltide.pipeline.core.read_committed.effects import Deliver, Reason, Statistics, Withheld
from stilltide.pipeline.drivers.subscription.buffer import DeliveredBuffer
from stilltide.pipeline.drivers.subscription.changes import Changes
from stilltide.pipeline.drivers.subscription.elsewhere import ElsewhereFilter, Opened
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

_log = get_logger(__name__)


class Deliveries:
    """Takes the records that the machines deliver.

    Args:
        changes: wakes the application's call when there are more records to take.

    Attributes:
        buffer: the records that are ready to be taken.
        elsewhere: skips records that the group has read on other clusters; None: no group is
            replicated.
    """

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self.buffer = DeliveredBuffer()
        self.elsewhere: ElsewhereFilter | None = None
        self._reported: set[tuple[TopicPartition, Reason]] = set()

    def open(
        self,
        positions: Mapping[TopicPartition, Offset],
        committed: Mapping[TopicPartition, Committed | None],
    ) -> Opened:
        """Begins these partitions; call `learn` with the result.

        Args:
            positions: positions at which reading begins.
            committed: the group's commits for the same partitions.
        """
        for data, position in positions.items():
            self.buffer.open(data, EndOffset(position))
        return {} if self.elsewhere is None else self.elsewhere.open(committed)

    def drop(self, data: TopicPartition) -> None:
        """Forgets a partition with all its records."""
        self.buffer.drop(data)
        self._reported -= {(data, reason) for reason in Reason}
        if self.elsewhere is not None:
            self.elsewhere.drop(data)

    async def learn(self, opened: Opened) -> None:
        """Finds out which records the group has read elsewhere; raises as `ElsewhereFilter.learn`.

        Safe to call again. `release` passes on the records that were held back meanwhile.
        """
        if self.elsewhere is not None:
            await self.elsewhere.learn(opened)

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Passes on the records that were held back until `learn` had returned."""
        if self.elsewhere is None:
            return
        for data in partitions:
            for passed in self.elsewhere.release(data):
                self.buffer.put(data, passed.payloads, passed.position)

    def delivered(self, data: TopicPartition, found: Deliver[Record]) -> None:
        """Takes visible records of a partition."""
        passed = self.elsewhere.passed(data, found) if self.elsewhere else found
        if passed is not None:
            self.buffer.put(data, passed.payloads, passed.position)
            self._changes.wake()

    def withheld(self, data: TopicPartition, withheld: Withheld) -> None:
        """Logs the first record withheld from a partition for each reason; statistics count all."""
        if (data, withheld.reason) in self._reported:
            return
        self._reported.add((data, withheld.reason))
        _log.warning(
            "a record is withheld; more like it of this partition are counted, not logged",
            topic=data.topic,
            partition=data.partition,
            offset=withheld.offset,
            reason=withheld.reason.value,
            txn=str(withheld.txn) if withheld.txn else None,
        )

    @property
    def holding(self) -> set[TopicPartition]:
        """The partitions with records that are held back."""
        return set() if self.elsewhere is None else self.elsewhere.holding

    def metadata(
        self, cursors: Iterable[TopicPartition], metadata: Mapping[TopicPartition, str]
    ) -> Mapping[TopicPartition, str]:
        """Metadata of a commit, with the group's generation where the group is replicated."""
        return metadata if self.elsewhere is None else self.elsewhere.metadata(cursors, metadata)

    def statistics(self, data: TopicPartition, read: Statistics) -> Statistics:
        """The counts of an open partition; `delivered` counts what the application has taken."""
        position = self.buffer.position(data)
        assert position is not None
        skipped, held = self.elsewhere.counts(data) if self.elsewhere else (0, 0)
        delivered = read.delivered - len(self.buffer.queue(data)) - skipped - held
        return replace(read, delivered=delivered, skipped=skipped, position=position)
