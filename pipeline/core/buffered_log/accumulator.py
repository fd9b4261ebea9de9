"""Packs many small records into few entries.

*Source*: PIP-160; docs/protocols A1, A2, A3, A6, A7.
*Invariants*: A1 entries are written in append order and hold every record once; A2 a record of
`bytes_max` or more is an entry of its own; A3 no batch exceeds a threshold; A6 `close` writes every
buffered record; A7 with batching off every record is its own entry.

The accumulator only packs: offsets and failures are reported by the log's owner (`owner.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class FlushTrigger(Enum):
    """Why an entry was written; the value is a label of PIP-160's metric.

    LARGE is an entry that left because a record of `bytes_max` or more followed. UNBATCHED is a
    record that never was in the buffer: that large record, or any record while batching is off.
    """

    RECORDS = "records"
    BYTES = "bytes"
    DELAY = "delay"
    IDLE = "idle"
    LARGE = "large"
    CLOSE = "close"
    UNBATCHED = "unbatched"

    @property
    def of_buffer(self) -> bool:
        """Whether the entry held buffered records; PIP-160's histograms count only those."""
        return self is not FlushTrigger.UNBATCHED


@dataclass(frozen=True)
class BatchLimits:
    """Batch thresholds of one log; `pipeline.config.settings` gives their bounds and reasons.

    Attributes:
        records_max: most records of one batch.
        bytes_max: most bytes of one batch's records together.
        delay_ms_max: longest wait of the oldest buffered record, in milliseconds.
        eager: also flush when no write is in flight (A3); False is PIP-160's timer mode.
        batching: False writes every record as its own entry (A7).
    """

    records_max: int = 512
    bytes_max: int = 4 * 1024 * 1024
    delay_ms_max: float = 1.0
    eager: bool = True
    batching: bool = True


@dataclass(frozen=True, slots=True)
class WriteEntry:
    """Effect: write one entry, after every entry with a lower number (A1).

    Attributes:
        number: 1, 2, ... in the order of writing.
        records: the entry's records in append order; a single record is written bare (A4).
        trigger: why the entry is written now.
        waited_ms: how long the oldest record waited.
    """

    number: int
    records: Sequence[bytes]
    trigger: FlushTrigger
    waited_ms: float


class ClosedError(Exception):
    """An append after `close`: a fault of the program."""


class Accumulator:
    """Collects appended records and decides when they are written as an entry (A).

    The driver calls `append`, carries out each `WriteEntry` and reports its end by `write_ended`,
    in any order, and calls `tick` at `deadline_ms`.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self._records: list[bytes] = []
        self._bytes = 0
        self._oldest_ms = 0.0
        self._number = 0
        self._in_flight = 0
        self._closed = False

    @property
    def buffered(self) -> int:
        """How many records no entry holds yet."""
        return len(self._records)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the records that no entry holds yet."""
        return self._bytes

    @property
    def deadline_ms(self) -> float | None:
        """When `tick` is due: at once if an eager flush is due, None with nothing buffered."""
        if not self._records:
            return None
        if self.limits.eager and not self._in_flight:
            return self._oldest_ms
        return self._oldest_ms + self.limits.delay_ms_max

    def append(self, record: bytes, now_ms: float) -> list[WriteEntry]:
        """Takes one serialised record; returns the entries that are full now (A2, A3, A7)."""
        if self._closed:
            raise ClosedError
        limits = self.limits
        size = len(record)
        if not limits.batching or limits.records_max == 1 or size >= limits.bytes_max:
            return self._alone(record, now_ms)
        written: list[WriteEntry] = []
        if self._bytes + size > limits.bytes_max:
            written += self._flush(FlushTrigger.BYTES, now_ms)
        if not self._records:
            self._oldest_ms = now_ms
        self._records.append(record)
        self._bytes += size
        if len(self._records) >= limits.records_max:
            written += self._flush(FlushTrigger.RECORDS, now_ms)
        elif self._bytes >= limits.bytes_max:
            written += self._flush(FlushTrigger.BYTES, now_ms)
        return written

    def write_ended(self, now_ms: float) -> list[WriteEntry]:
        """A write was acknowledged or given up; in eager mode, buffered records follow (A3)."""
        assert self._in_flight > 0, "more writes ended than began"
        self._in_flight -= 1
        if self.limits.eager and not self._in_flight:
            return self._flush(FlushTrigger.IDLE, now_ms)
        return []

    def tick(self, now_ms: float) -> list[WriteEntry]:
        """Flushes if `deadline_ms` has come."""
        deadline_ms = self.deadline_ms
        if deadline_ms is None or now_ms < deadline_ms:
            return []
        idle = self.limits.eager and not self._in_flight
        return self._flush(FlushTrigger.IDLE if idle else FlushTrigger.DELAY, now_ms)

    def limits_changed(self, limits: BatchLimits, now_ms: float) -> list[WriteEntry]:
        """Uses other thresholds from now on; records that are buffered already are written."""
        written = self._flush(FlushTrigger.CLOSE, now_ms)
        self.limits = limits
        return written

    def close(self, now_ms: float) -> list[WriteEntry]:
        """Writes the buffered records (A6); no append may follow. A second call does nothing."""
        self._closed = True
        return self._flush(FlushTrigger.CLOSE, now_ms)

    def _alone(self, record: bytes, now_ms: float) -> list[WriteEntry]:
        buffered = self._flush(FlushTrigger.LARGE, now_ms)  # with batching off there are none
        return [*buffered, self._entry([record], FlushTrigger.UNBATCHED, 0.0)]

    def _flush(self, trigger: FlushTrigger, now_ms: float) -> list[WriteEntry]:
        if not self._records:
            return []
        records, self._records, self._bytes = self._records, [], 0
        return [self._entry(records, trigger, now_ms - self._oldest_ms)]

    def _entry(self, records: list[bytes], trigger: FlushTrigger, waited_ms: float) -> WriteEntry:
        self._number += 1
        self._in_flight += 1
        return WriteEntry(self._number, records, trigger, waited_ms)
