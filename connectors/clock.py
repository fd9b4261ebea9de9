"""The clocks: their interface, and the machine's clocks.

*Source*: docs/internals/time.md says which deadline follows which clock.

*Invariants*: what is stored, or compared with what another process has stored, is wall time; every
deadline and every distance between two moments of one process is monotonic time.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """The wall clock, which may jump either way, and a clock that never jumps."""

    def now_ms(self) -> int:
        """Wall time: milliseconds since 1970."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment, the same one while the process runs; never goes back.

        Runs as fast as the event loop's own clock.
        """
        ...


class SystemClock:
    """`Clock` of real processes."""

    def now_ms(self) -> int:
        """Wall time: milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds of the machine's monotonic clock."""
        return time.monotonic_ns() // 1_000_000


def monotonic_of(clock: Clock, wall_ms: int) -> int:
    """The monotonic time of a moment that is known by its wall time, as the clocks stand now."""
    return clock.monotonic_ms() - (clock.now_ms() - wall_ms)
