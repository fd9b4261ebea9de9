"""What one ownership of a log has done since it began.

*Source*: facts, pulsar.md 7 (internals of both logs).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stilltide.schemas.coordinator.transactions import Request, TxnLogRecord
from stilltide.schemas.pending_ack.acknowledgements import AckRequest, PendingAckRecord


@dataclass(slots=True)
class Ownership:
    """Made anew with each fence.

    Attributes:
        began_s: by the loop's clock.
        recovery_ms: until it served.
        has_served: it has applied a client's request that it appended.
        entries_written: entries that it has read back; `records_written` are in them.
    """

    began_s: float
    recovery_ms: int = 0
    has_served: bool = False
    entries_written: int = 0
    records_written: int = 0

    def wrote(self, records: Sequence[TxnLogRecord] | Sequence[PendingAckRecord]) -> None:
        """An entry of its own was read back."""
        self.entries_written += 1
        self.records_written += len(records)
        if not self.has_served:
            self.has_served = any(isinstance(it.body, Request | AckRequest) for it in records)
