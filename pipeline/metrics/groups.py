"""Prometheus families of replicated groups, read from the figures of their controllers.

*Source*: docs/protocols/i-replicated-groups.md.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stilltide.pipeline.core.groups.group import GroupLag, Standing
from stilltide.pipeline.metrics.families import collected, histograms, sections
from stilltide.schemas.values import TopicPartition

GROUPS_MAX = 1000
"""Groups of a data partition whose figures are shown."""


class ControllerStats(NamedTuple):
    """Figures of the controller of one data partition.

    Attributes:
        pending: position snapshots asked for and not complete, 0 or 1.
        completed: position snapshots taken.
        timed_out: position snapshots given up.
        connected: for each other cluster, whether its links run (I13).
        standings: number of groups by why they are where they are.
        lags: of groups by name, those that are shown and were looked at.
        read_again: records that a group would read again at most, of shown groups by name.
    """

    pending: int
    completed: int
    timed_out: int
    connected: Mapping[str, bool]
    standings: Counter[Standing]
    lags: Mapping[str, GroupLag]
    read_again: Mapping[str, int]


class GroupMetrics(Collector):
    """The families of all controllers of a worker.

    Args:
        cluster: value of the label on each sample.
        stats: figures of the controllers that serve, by data partition.

    Attributes:
        snapshot_taken: takes how long a position snapshot took, in seconds.
    """

    def __init__(
        self, cluster: str, stats: Callable[[], Mapping[TopicPartition, ControllerStats]]
    ) -> None:
        self._cluster = cluster
        self._stats = stats
        self._tables = sections()["groups"].tables
        (self._snapshot_s,) = histograms(self._tables["times"], None).values()
        self.snapshot_taken = self._snapshot_s.labels(cluster).observe

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        cluster = self._cluster
        figures = [
            ((cluster, data.topic, str(data.partition)), stats)
            for data, stats in self._stats().items()
        ]
        counts = Counter[Standing]()
        for _, stats in figures:
            counts.update(stats.standings)
        standings = {standing.name.lower(): counts[standing] for standing in Standing}
        lags = [((*of, group), lag) for of, one in figures for group, lag in one.lags.items()]
        again = [((*of, group), n) for of, one in figures for group, n in one.read_again.items()]
        tables = self._tables
        yield from collected(tables["controllers"], figures)
        yield from collected(tables["links"], [(of, one.connected) for of, one in figures])
        yield from self._snapshot_s.collect()
        yield from collected(tables["standings"], [((cluster,), standings)])
        yield from collected(tables["lags"], lags)
        yield from collected(tables["read_again"], again)
