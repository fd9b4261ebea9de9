"""Prometheus family of the owners that have ended by an error.

*Source*: docs/protocols B8.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stilltide.pipeline.metrics.families import Family, Kind, Section, collected


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


class _Figures(NamedTuple):
    ended_s: float


TABLE: tuple[Family[_Figures], ...] = (
    Family(
        "stilltide_owner_ended_seconds",
        Kind.GAUGE,
        "seconds",
        ("cluster", "owner", "number", "topic", "partition", "offset"),
        "How long an owner has not served since an error has ended it, in seconds.",
        "`owner` is the kind of the owner, `number` its number or the source of a link. `topic`, "
        "`partition` and `offset` are the place that the error names. An owner that serves has no "
        "sample.",
        read=lambda one: one.ended_s,
    ),
)

SECTION = Section(
    "Owners that have ended",
    "An error ends one owner only; the worker serves the others and tries the owner again.",
    TABLE,
)


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
            ((self._cluster, owner, number, *end.place), _Figures(now_s - end.ended_s))
            for owner, ends in sorted(self._ends().items())
            for number, end in ends.items()
        ]
        return collected(TABLE, figures)
