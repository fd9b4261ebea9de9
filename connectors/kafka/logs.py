"""Passes librdkafka's log lines on to the standard `logging`, at a limited rate.

While a broker is down, each client logs an error every 50 ms.

*Invariants*: the first line of a kind is logged at once; lines held back are counted, and the next
line of that kind carries the count.
"""

import logging
import time
from collections.abc import Callable

LOGGER = logging.getLogger("stilltide.kafka")

PERIOD_S = 10.0
"""Period in which at most one line of a kind is logged for each client."""

_FACILITY = 0


class ClientLog:
    """The `logger=` of one client; called on that client's threads.

    Lines are of one kind when librdkafka gives them the same facility, such as `FAIL`.
    """

    def __init__(
        self,
        client_id: str,
        *,
        target: logging.Logger = LOGGER,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client_id = client_id
        self._target = target
        self._now_s = now_s
        self._next_s: dict[str, float] = {}
        self._held: dict[str, int] = {}

    def log(self, level: int, _template: str, *args: object) -> None:
        """Logs one line of librdkafka: facility, instance and text."""
        facility, text = str(args[_FACILITY]), str(args[-1])
        now_s = self._now_s()
        if now_s < self._next_s.get(facility, now_s):
            self._held[facility] = self._held.get(facility, 0) + 1
            return
        self._next_s[facility] = now_s + PERIOD_S
        held = self._held.pop(facility, 0)
        more = f" ({held} more like it since)" if held else ""
        self._target.log(level, "%s: %s: %s%s", self._client_id, facility, text, more)
