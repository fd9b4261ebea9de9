"""Prometheus families of a worker's direct lines.

*Source*: docs/protocols J.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stilltide.pipeline.metrics.families import Family, Kind, Section, collected


class Lines(Protocol):
    """The direct lines of a worker."""

    @property
    def line_count(self) -> int:
        """How many lines there are."""
        ...


class _Count(NamedTuple):
    number: int


LINES: tuple[Family[_Count], ...] = (
    Family(
        "stilltide_direct_lines",
        Kind.GAUGE,
        "lines",
        ("cluster",),
        "Direct lines of clients to this worker's coordinators.",
        "Clients without a line ask by topic.",
        read=lambda one: one.number,
    ),
)

SECTION = Section(
    "Direct lines", "Of a worker whose setting `line_host` is not empty.", tuple(LINES)
)


class LineMetrics(Collector):
    """The families of one worker.

    Args:
        cluster: name of the worker's cluster.
        lines: its direct lines.
    """

    def __init__(self, cluster: str, lines: Lines) -> None:
        self._cluster = cluster
        self._lines = lines

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        yield from collected(LINES, [((self._cluster,), _Count(self._lines.line_count))])
