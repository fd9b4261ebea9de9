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
    def failures(self) -> Mapping[tuple[str, str], int]:
        """Number of failures, by kind of work and reason."""
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
        ("cluster", "work", "reason"),
        "Work that was not done.",
        "`work` is `entries` (of the logs of coordinators and stores), `markers`, `answers` (to "
        "clients), `requests` (to other owners), `group updates`, `snapshots`, `index`, `links`, "
        "`end offsets` (not read for commits) or `rights` (missing at a look). `reason` is the "
        "cluster's name of the cause, such as `INVALID_TIMESTAMP`; `NO_REPORT`: nothing was heard "
        "for ten seconds.",
        read=lambda one: one.number,
    ),
)

SECTION = Section(
    "What hinders a worker",
    "While one of these grows for a few seconds, `/readyz` fails and names cause and next step.",
    (*MISSING, *FAILURES),
)

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
        counted = {**{(work, ""): 0 for work in _WORK}, **failures}
        counts = [((self._cluster, *key), _Count(number)) for key, number in counted.items()]
        yield from collected(MISSING, missing)
        yield from collected(FAILURES, counts)
