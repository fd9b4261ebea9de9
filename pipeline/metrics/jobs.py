"""Prometheus families of `stilltide audit follow` and `stilltide table follow`.

*Source*: docs/auditing.md, continuous audits; docs/tables.md.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stilltide.pipeline.metrics.families import collected, sections
from stilltide.schemas.values import TopicPartition

VERDICTS = ("valid", "invalid", "unknown", "empty")

ALL = "all"
"""The label `check` of the whole audit."""


class CheckFigures(NamedTuple):
    """The figures of one check.

    Attributes:
        verdict: its verdict.
        findings: number of findings of each kind.
    """

    verdict: str
    findings: Mapping[str, int]

    @property
    def verdicts(self) -> Mapping[str, bool]:
        """For each verdict, whether it is the check's."""
        return {verdict: verdict == self.verdict for verdict in VERDICTS}


class AuditFigures(NamedTuple):
    """The figures of the last run.

    Attributes:
        checks: by name; the whole audit is `ALL`.
        checked_until: by partition, the end offset of what was checked for good.
        runs: number of runs in this directory.
        ended_s: end of the last run, seconds since 1970.
    """

    checks: Mapping[str, CheckFigures]
    checked_until: Mapping[TopicPartition, int]
    runs: int
    ended_s: float


class AuditMetrics(Collector):
    """The families of the last run; none before the first run has ended.

    Args:
        figures: of the last run.
    """

    def __init__(self, figures: Callable[[], AuditFigures | None]) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        figures = self._figures()
        if figures is None:
            return
        tables = sections()["audits"].tables
        yield from collected(
            tables["checks"], (((name,), one) for name, one in figures.checks.items())
        )
        yield from collected(tables["partitions"], _by_partition(figures.checked_until))
        yield from collected(tables["runs"], [((), figures)])


class TableFigures(NamedTuple):
    """The figures of a table.

    Attributes:
        batch: number of the table's last batch.
        positions: by partition, the next offset that the table does not hold.
        left: offsets up to the stable ends that the table does not hold.
        waiting: partitions that wait for the outcome of a transaction.
        batches: batches that this process has stored.
        records: records that this process has stored.
        batch_s: time that the last batch took, seconds; 0 without any.
        stored_s: when the last run ended, seconds since 1970.
    """

    batch: int
    positions: Mapping[TopicPartition, int]
    left: int
    waiting: int
    batches: int
    records: int
    batch_s: float
    stored_s: float


class TableMetrics(Collector):
    """The families of the table; none before the first run has ended.

    Args:
        figures: as of now.
    """

    def __init__(self, figures: Callable[[], TableFigures | None]) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        figures = self._figures()
        if figures is None:
            return
        tables = sections()["tables"].tables
        yield from collected(tables["tables"], [((), figures)])
        yield from collected(tables["partitions"], _by_partition(figures.positions))


def _by_partition(offsets: Mapping[TopicPartition, int]) -> list[tuple[tuple[str, str], int]]:
    return [((data.topic, str(data.partition)), offset) for data, offset in offsets.items()]
