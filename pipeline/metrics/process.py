"""Prometheus families of a process: its clusters, its lines, what has ended, and what hinders it.

*Source*: docs/protocols B8 (owners that have ended), B9 (clusters that are away), C17 (what hinders
a worker), J (direct lines).
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stilltide.pipeline.metrics.families import collected, sections


class Watched(Protocol):
    """The watch of one cluster.

    Attributes:
        outages: how often the cluster went away.
    """

    outages: int

    @property
    def away_s(self) -> float:
        """Seconds since the cluster went away; 0 while it is there."""
        ...


class ClusterMetrics(Collector):
    """The families of the clusters that are watched.

    Args:
        watches: the watches of now, by name of cluster.
    """

    def __init__(self, watches: Callable[[], Mapping[str, Watched]]) -> None:
        self._watches = watches

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        figures = [((name,), one) for name, one in sorted(self._watches().items())]
        return collected(sections()["clusters"].table, figures)


class Lines(Protocol):
    """The direct lines of a worker."""

    @property
    def line_count(self) -> int:
        """How many lines there are."""
        ...


class LineMetrics(Collector):
    """The families of one worker's direct lines.

    Args:
        cluster: name of the worker's cluster.
        lines: its direct lines.
    """

    def __init__(self, cluster: str, lines: Lines) -> None:
        self._cluster = cluster
        self._lines = lines

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        return collected(sections()["lines"].table, [((self._cluster,), self._lines.line_count)])


class EndedOwner(Protocol):
    """An owner that has ended by an error."""

    @property
    def place(self) -> tuple[str, str, str]:
        """Topic, partition and offset, each empty if the error does not name it."""
        ...

    @property
    def ended_s(self) -> float:
        """Time of the end, of a monotonic clock."""
        ...


class EndedMetrics(Collector):
    """The owners of a worker that have ended by an error.

    Args:
        cluster: name of the worker's cluster.
        ends: the owners, by number or name, by kind; the clock of their times is `now_s`.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        cluster: str,
        ends: Callable[[], Mapping[str, Mapping[str, EndedOwner]]],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._ends = ends
        self._now_s = now_s

    def collect(self) -> Iterable[Metric]:
        """The family as it is now."""
        now_s = self._now_s()
        figures = [
            ((self._cluster, owner, number, *end.place), now_s - end.ended_s)
            for owner, ends in sorted(self._ends().items())
            for number, end in ends.items()
        ]
        return collected(sections()["owners"].table, figures)


class MissingRight(Protocol):
    """A right that a cluster does not give."""

    operation: str
    resource: str


class Hindered(Protocol):
    """What hinders a worker."""

    @property
    def failures(self) -> Mapping[tuple[str, str], int]:
        """Number of failures, by kind of work and reason."""
        ...

    @property
    def missing(self) -> Sequence[MissingRight]:
        """The rights that are missing now."""
        ...


_WORK = (
    "entries",
    "markers",
    "answers",
    "requests",
    "group updates",
    "snapshots",
    "index",
    "links",
    "end offsets",
    "rights",
)
"""Each has a sample before it first fails, without a reason."""


class HindranceMetrics(Collector):
    """The families of what hinders one worker.

    Args:
        cluster: name of the worker's cluster.
        hindered: what hinders the worker.
    """

    def __init__(self, cluster: str, hindered: Hindered) -> None:
        self._cluster = cluster
        self._hindered = hindered

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        tables = sections()["rights"].tables
        missing = [
            ((self._cluster, right.operation, right.resource), 1)
            for right in self._hindered.missing
        ]
        counted = {**{(work, ""): 0 for work in _WORK}, **self._hindered.failures}
        counts = [((self._cluster, *key), number) for key, number in counted.items()]
        yield from collected(tables["missing"], missing)
        yield from collected(tables["failures"], counts)
