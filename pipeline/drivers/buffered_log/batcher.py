"""Runs an accumulator on the asyncio loop: one timer, entries written in order.

*Source*: docs/protocols A3. The timer is armed only by the first record of an empty buffer, so a
record that joins a batch costs one list append.
"""

import asyncio
from collections.abc import Callable

from stilltide.pipeline.core.buffered_log.accumulator import Accumulator, BatchLimits, WriteEntry
from stilltide.pipeline.drivers.shared.alarm import Alarm


class Batcher:
    """Takes records by `append` and passes entries to `write`; call `write_ended` for each entry.

    Args:
        limits: thresholds of the accumulator.
        write: called with each entry, on the loop, in order; must not block.
    """

    def __init__(self, limits: BatchLimits, write: Callable[[WriteEntry], None]) -> None:
        self._accumulator = Accumulator(limits)
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self._tick)

    @property
    def buffered(self) -> int:
        """Records that no entry holds yet."""
        return self._accumulator.buffered

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the records that no entry holds yet."""
        return self._accumulator.buffered_bytes

    def append(self, record: bytes) -> None:
        """Takes one serialised record."""
        now_ms = self._loop.time() * 1000
        written = self._accumulator.append(record, now_ms)
        if written:
            self._run(written)
        if self._accumulator.buffered == 1:
            self._alarm.arm(self._accumulator.deadline_ms, now_ms)

    def write_ended(self) -> None:
        """One entry was acknowledged or given up."""
        self._run(self._accumulator.write_ended(self._loop.time() * 1000))

    def limits_changed(self, limits: BatchLimits) -> None:
        """Sets the thresholds for later entries."""
        self._run(self._accumulator.limits_changed(limits, self._loop.time() * 1000))

    def close(self) -> None:
        """Writes the buffered records; no append is allowed afterwards (A6)."""
        self._alarm.cancel()
        self._run(self._accumulator.close(self._loop.time() * 1000))

    def _run(self, written: list[WriteEntry]) -> None:
        for entry in written:
            self._write(entry)

    def _tick(self) -> None:
        now_ms = self._loop.time() * 1000
        self._run(self._accumulator.tick(now_ms))
        self._alarm.arm(self._accumulator.deadline_ms, now_ms)
