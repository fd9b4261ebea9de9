"""The wall clock: its interface, and the machine's clock."""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall clock."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        ...


class SystemClock:
    """`Clock` of real processes."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000
