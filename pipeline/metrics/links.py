"""Prometheus families of links, read from the progress of each link.

*Source*: docs/protocols/h-links.md.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stilltide.connectors.clock import Clock
from stilltide.pipeline.core.links.progress import LinkProgress, PartitionProgress
from stilltide.pipeline.metrics.families import collected, sections


class _Figures(NamedTuple):
    """One data partition of a link, at the time of a scrape."""

    progress: PartitionProgress
    now_ms: int

    @property
    def lag_s(self) -> float:
        """Age of the last copied record, if others wait behind it."""
        return self.progress.lag_s(self.now_ms)


class LinkMetrics(Collector):
    """The families of the links into one cluster that this process runs.

    Args:
        target: name of the cluster.
        progress: of each link, by the name of the cluster that it copies from.
        clock: wall clock.
    """

    def __init__(
        self, target: str, progress: Callable[[], Mapping[str, LinkProgress]], clock: Clock
    ) -> None:
        self._target = target
        self._progress = progress
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        now_ms = self._clock.now_ms()
        links = sorted(self._progress().items())
        figures = [
            ((source, self._target, data.topic, str(data.partition)), _Figures(progress, now_ms))
            for source, link in links
            for data, progress in sorted(link.partitions.items())
        ]
        configs = [
            ((source, self._target, topic), config)
            for source, link in links
            for topic, config in sorted(link.configs.items())
        ]
        tables = sections()["links"].tables
        yield from collected(tables["partitions"], figures)
        yield from collected(tables["configs"], configs)
