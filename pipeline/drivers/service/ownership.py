"""Figures of one ownership of a log since its fence.

*Source*: Pulsar's internal stats of coordinators and pending-ack stores.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits, FlushTrigger, WriteEntry
from stilltide.pipeline.drivers.buffered_log.owned_log import OwnedLog
from stilltide.schemas.coordinator.transactions import Request, TxnLogRecord
from stilltide.schemas.log_frames import FlushFigures, LogFigures
from stilltide.schemas.pending_ack.acknowledgements import AckRequest, PendingAckRecord


@dataclass(slots=True)
class Ownership:
    """Figures of one ownership; each fence makes a new object.

    Attributes:
        began_s: start of the ownership, by the event loop's clock.
        recovery_ms: time from the start until the owner served.
        has_served: whether the owner has applied a client's request that it appended itself.
        entries_written: entries that the owner has written and read back.
        records_written: records in those entries.
        flushes: what made entries leave the buffer, by trigger.
    """

    began_s: float
    recovery_ms: int = 0
    has_served: bool = False
    entries_written: int = 0
    records_written: int = 0
    flushes: dict[FlushTrigger, FlushFigures] = field(
        default_factory=dict[FlushTrigger, FlushFigures]
    )

    def entry_made(self, entry: WriteEntry, size_bytes: int) -> None:
        """An entry is on its way; its value has `size_bytes`."""
        known = self.flushes.get(entry.trigger)
        waited_us = round(entry.waited_ms * 1000)
        if known is None:
            known = FlushFigures(entry.trigger.value, 0, 0, 0, 0, 0)
        self.flushes[entry.trigger] = FlushFigures(
            known.trigger,
            known.entries + 1,
            known.records + len(entry.records),
            known.bytes + size_bytes,
            known.waited_us + waited_us,
            max(known.waited_us_max, waited_us),
        )

    def wrote(self, records: Sequence[TxnLogRecord] | Sequence[PendingAckRecord]) -> None:
        """The owner has read back an entry that it wrote."""
        self.entries_written += 1
        self.records_written += len(records)
        if not self.has_served:
            self.has_served = any(isinstance(it.body, Request | AckRequest) for it in records)


def log_figures(owned_log: OwnedLog, limits: BatchLimits, ownership: Ownership) -> LogFigures:
    """The thresholds of a serving owner, and the figures of what the owner has written."""
    assert owned_log.epoch is not None, "asked of an owner that does not serve"
    return LogFigures(
        epoch=owned_log.epoch,
        batching_enabled=limits.batching,
        batch_records_max=limits.records_max,
        batch_bytes_max=limits.bytes_max,
        batch_delay_us_max=round(limits.delay_ms_max * 1000),
        flush_eager=limits.eager,
        entries_written=ownership.entries_written,
        records_written=ownership.records_written,
        appends_in_flight=owned_log.in_flight,
        recovery_ms=ownership.recovery_ms,
        flushes=tuple(ownership.flushes.values()),
    )
