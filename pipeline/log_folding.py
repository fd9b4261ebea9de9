"""Holds back the lines that every client writes while a cluster is away, and counts them.

A worker has some twenty clients of each of its clusters, in three libraries, and each says again
and again that it cannot connect. `pipeline.drivers.shared.cluster_watch` says once that the cluster
is away and once that it is back (B9).

*Invariants*:
- a line is *about* a watched cluster if it names the address of the cluster, or if it comes from
  the code of a client library. No other line is touched, nor one that says that an owner ended;
- such a line waits until the cluster has answered a question that was asked after the line was
  written, and is logged then; or the cluster turns out to be away, and the line is counted;
- no line is lost without a count, and a line that waits at the end of the process is logged.

To be called on any thread: librdkafka logs on threads of its own.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

CLIENTS = frozenset({"aiokafka", "faust", "kafka", "mode"})
"""Packages whose lines are about the clusters that the process uses."""

LIBRDKAFKA = "stilltide.kafka"
"""The logger of librdkafka's lines, see `connectors.kafka.logs`."""

WATCH = "stilltide.pipeline.drivers.shared.cluster_watch"
"""The logger of the lines that say that a cluster is away, or back."""

OWNERS = "stilltide.pipeline.drivers.worker.runtime"
"""The logger of the lines that say that an owner has ended, which the cluster's return does not
mend at once."""

WAITING_MAX = 5000
"""Lines that wait for an answer; further ones are logged without waiting. A worker's clients write
a hundred a second when a broker dies, and six seconds later it is known to be away."""


@dataclass
class _Watched:
    away: bool = False
    folded: Counter[str] = field(default_factory=Counter[str])


@dataclass
class _Waiting:
    record: logging.LogRecord
    written_s: float
    clusters: set[str]  # that have not answered since


class LineFold(logging.Filter):
    """The filter of a handler, told by watches of clusters what their clusters do.

    Args:
        release: logs a line that has waited.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        release: Callable[[logging.LogRecord], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._release = release
        self._now_s = now_s
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._waiting: list[_Waiting] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log the line now."""
        if not self._watched or record.name in (WATCH, OWNERS):
            return True
        with self._lock:
            about = self._about(record)
            away = [it for it in about if self._watched[it].away]
            if away:
                self._watched[min(away)].folded[_kind(record)] += 1
                return False
            if not about or len(self._waiting) >= WAITING_MAX:
                return True
            self._waiting.append(_Waiting(record, self._now_s(), about))
            return False

    def watch(self, address: str) -> None:
        """Begins to hold lines about the cluster at this address."""
        with self._lock:
            self._watched.setdefault(address, _Watched())

    def unwatch(self, address: str) -> None:
        """Ends `watch`; lines that wait for this cluster are logged."""
        with self._lock:
            self._watched.pop(address, None)
            ready = self._answered(address, self._now_s())
        self._log(ready)

    def answered(self, address: str, asked_s: float) -> None:
        """The cluster has answered a question that was asked at this time of the clock."""
        with self._lock:
            ready = self._answered(address, asked_s)
        self._log(ready)

    def away(self, address: str) -> None:
        """The cluster is away: lines about it, also those that wait, are counted only."""
        with self._lock:
            watched = self._watched[address]
            watched.away = True
            for line in self._waiting:
                if address in line.clusters:
                    watched.folded[_kind(line.record)] += 1
            self._waiting = [it for it in self._waiting if address not in it.clusters]

    def back(self, address: str) -> Counter[str]:
        """The cluster is back, and its clients have connected again.

        Returns:
            The number of lines that were held, by what wrote them.
        """
        with self._lock:
            watched = self._watched[address]
            watched.away = False
            folded, watched.folded = watched.folded, Counter[str]()
        return folded

    def flush(self) -> None:
        """Logs every line that waits."""
        with self._lock:
            ready = [it.record for it in self._waiting]
            self._waiting.clear()
        self._log(ready)

    def _about(self, record: logging.LogRecord) -> set[str]:
        text = record.getMessage()
        named = {it for it in self._watched if any(one in text for one in it.split(","))}
        if named or not (record.name == LIBRDKAFKA or record.name.partition(".")[0] in CLIENTS):
            return named
        return set(self._watched)

    def _answered(self, address: str, asked_s: float) -> list[logging.LogRecord]:
        for line in self._waiting:
            if line.written_s <= asked_s:
                line.clusters.discard(address)
        ready = [it.record for it in self._waiting if not it.clusters]
        self._waiting = [it for it in self._waiting if it.clusters]
        return ready

    def _log(self, records: list[logging.LogRecord]) -> None:
        for record in records:  # without the lock: a handler may log
            self._release(record)


def _kind(record: logging.LogRecord) -> str:
    """What wrote a line: the event of our own code, or the package of a library."""
    if isinstance(record.msg, dict):
        return str(record.msg.get("event", record.name))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return "librdkafka" if record.name == LIBRDKAFKA else record.name.partition(".")[0]
