"""Prometheus families of what keeps a worker from doing its work.

*Source*: docs/protocols C17.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stilltide.pipeline.metrics.families import Family, Kind, Section, collected


class MissingRight(Protocol):
    """A right that a cluster does not give."""

    operation: str
    resource: str


class Hindered(Protocol):
    """What hinders a worker."""

    @property
    def failures(self) -> Mapping[str, int]:
        """Number of failures, by kind of work."""
        ...

    @property
    def missing(self) -> Sequence[MissingRight]:
        """The rights that are missing now."""
        ...


class _Count(NamedTuple):
    number: int


MISSING: tuple[Family[_Count], ...] = (
    Family(
        "stilltide_right_missing",
        Kind.GAUGE,
        "1",
        ("cluster", "operation", "resource"),
        "A right that the worker lacks at its last look; a right that is there has no sample.",
        read=lambda one: one.number,
    ),
)

FAILURES: tuple[Family[_Count], ...] = (
    Family(
        "stilltide_work_hindered_total",
        Kind.COUNTER,
        "failures",
        ("cluster", "work"),
        "Work that was not done.",
        "`work` is `answers` (not delivered to clients), `end offsets` (not read for commits) or "
        "`rights` (missing at a look).",
        read=lambda one: one.number,
    ),
)

SECTION = Section(
    "What hinders a worker",
    "While one of these grows, `/readyz` fails and names operation, resource and user.",
    (*MISSING, *FAILURES),
)

_WORK = ("answers", "end offsets", "rights")


class HindranceMetrics(Collector):
    """The families of one worker.

    Args:
        cluster: name of the worker's cluster.
        hindered: what hinders the worker.
    """

    def __init__(self, cluster: str, hindered: Hindered) -> None:
        self._cluster = cluster
        self._hindered = hindered

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        missing = [
            ((self._cluster, one.operation, one.resource), _Count(1))
            for one in self._hindered.missing
        ]
        failures = self._hindered.failures
        counts = [((self._cluster, work), _Count(failures.get(work, 0))) for work in _WORK]
        yield from collected(MISSING, missing)
        yield from collected(FAILURES, counts)
