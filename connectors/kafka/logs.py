"""Passes librdkafka's log lines on to the standard `logging`, at a limited rate.

While a broker is down, each client logs an error every 50 ms, and a process has many clients.

*Invariants*: the first line of a kind is logged at once; lines held back are counted, and the next
line of that kind carries the count.
"""

import logging
import re
import threading
import time
from collections.abc import Callable

LOGGER = logging.getLogger("stilltide.kafka")

PERIOD_S = 10.0
"""Period in which at most one line of a kind is logged for all clients of a cluster."""

_FACILITY = 0


class LineLimit:
    """The limit that the clients of one cluster share; called on the clients' threads.

    Lines are of one kind when librdkafka gives them the same facility, such as `FAIL`.

    Args:
        target: the logger of the lines.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        *,
        target: logging.Logger = LOGGER,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._now_s = now_s
        self._lock = threading.Lock()
        self._next_s: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}

    def __reduce__(self) -> tuple[type["LineLimit"], tuple[()]]:
        """Another process has another limit: configs travel to the executors of Spark."""
        return LineLimit, ()

    def log(self, level: int, facility: str, text: str) -> None:
        """Logs a line, or counts it."""
        with self._lock:
            now_s = self._now_s()
            if now_s < self._next_s.get(facility, now_s):
                self._suppressed[facility] = self._suppressed.get(facility, 0) + 1
                return
            self._next_s[facility] = now_s + PERIOD_S
            suppressed = self._suppressed.pop(facility, 0)
        more = f" ({suppressed} more like it since)" if suppressed else ""
        self._target.log(level, "%s%s", text, more)


_REFUSED_PARTITION = re.compile(
    r'Failed to add partition "(?P<topic>[^"]+)" .*Topic authorization failed'
)


class ClientLog:
    """The `logger=` of one client.

    Args:
        client_id: the client's name in its lines.
        limit: the limit of the client's cluster.
    """

    def __init__(self, client_id: str, limit: LineLimit) -> None:
        self._client_id = client_id
        self._limit = limit

    def _seen(self, facility: str, text: str) -> None:
        """Called with each line, also with those that are not logged."""

    def log(self, level: int, _template: str, *args: object) -> None:
        """Logs one line of librdkafka: facility, instance and text."""
        facility, text = str(args[_FACILITY]), str(args[-1])
        self._seen(facility, text)
        line, kind = f"{self._client_id}: {facility}: {text}", facility
        if facility == "GETPID" and text.endswith("retrying"):
            # Each producer meets that on a broker that has just started.
            level, kind = logging.INFO, "retry"
        self._limit.log(level, kind, line)


class TransactionLog(ClientLog):
    """The `logger=` of a producer of native transactions.

    Attributes:
        refused_topic: the topic that the last transaction could not take part in; the client's
            errors do not name it, and call its records purged (C17).
    """

    def __init__(self, client_id: str, limit: LineLimit) -> None:
        super().__init__(client_id, limit)
        self.refused_topic: str | None = None

    def _seen(self, facility: str, text: str) -> None:
        if facility == "ADDPARTS" and (match := _REFUSED_PARTITION.search(text)):
            self.refused_topic = match["topic"]
