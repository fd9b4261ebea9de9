"""The machine's wall clock."""

import time


class SystemClock:
    """`Clock` of real processes."""

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000
