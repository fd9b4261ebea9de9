"""Prometheus families of the clusters that a process uses: whether each answers.

*Source*: docs/protocols B9.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stilltide.pipeline.metrics.families import Family, Kind, Section, collected


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


TABLE: tuple[Family[Watched], ...] = (
    Family(
        "stilltide_cluster_away_seconds",
        Kind.GAUGE,
        "seconds",
        ("cluster",),
        "How long the process has waited for the cluster, in seconds; 0 while the cluster answers.",
        read=lambda one: one.away_s,
    ),
    Family(
        "stilltide_cluster_outages_total",
        Kind.COUNTER,
        "times",
        ("cluster",),
        "Times that the cluster did not answer any more.",
        read=lambda one: one.outages,
    ),
)

SECTION = Section(
    "Clusters",
    "`cluster` is the name of a cluster that the process uses: its own, or the source or target of "
    "a link. A worker shows the sources of links while it runs the links.",
    TABLE,
)


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
        return collected(TABLE, figures)
