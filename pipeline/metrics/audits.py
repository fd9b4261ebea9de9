"""Prometheus families of `stilltide audit follow`.

*Source*: docs/auditing.md, continuous audits.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from stilltide.pipeline.metrics.families import Family, Kind, Section, collected
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


CHECKS: tuple[Family[CheckFigures], ...] = (
    Family(
        "stilltide_audit_verdict",
        Kind.GAUGE,
        "verdicts",
        ("check", "verdict"),
        "1 for the verdict of each check, 0 for the other verdicts.",
        "`check` is `all` for the whole audit; `verdict` is `valid`, `invalid`, `unknown` or"
        " `empty`.",
        read=lambda one: {verdict: float(verdict == one.verdict) for verdict in VERDICTS},
    ),
    Family(
        "stilltide_audit_findings",
        Kind.GAUGE,
        "findings",
        ("check", "kind"),
        "Findings of each kind, over everything that was checked.",
        read=lambda one: {kind: float(count) for kind, count in one.findings.items()},
    ),
)

PARTITIONS: tuple[Family[int], ...] = (
    Family(
        "stilltide_audit_checked_until",
        Kind.GAUGE,
        "offsets",
        ("topic", "partition"),
        "End offset of what was checked for good.",
        read=float,
    ),
)

RUNS: tuple[Family[AuditFigures], ...] = (
    Family(
        "stilltide_audit_runs",
        Kind.GAUGE,
        "runs",
        (),
        "Runs whose results are in the report's directory.",
        read=lambda one: float(one.runs),
    ),
    Family(
        "stilltide_audit_last_run_seconds",
        Kind.GAUGE,
        "seconds",
        (),
        "When the last run ended, in seconds since 1970.",
        read=lambda one: one.ended_s,
    ),
)

SECTION = Section(
    "Continuous audits",
    """\
`stilltide audit follow` shows these families with `--web-port`, from the end of its first run
on.""",
    (*CHECKS, *PARTITIONS, *RUNS),
)


class AuditMetrics(Collector):
    """The families of the last run; none before the first run has ended.

    Args:
        figures: of the last run.
    """

    def __init__(self, figures: Callable[[], AuditFigures | None]) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        """The families as they are now."""
        found = self._figures()
        if found is None:
            return
        yield from collected(CHECKS, (((name,), one) for name, one in found.checks.items()))
        yield from collected(
            PARTITIONS,
            (((it.topic, str(it.partition)), end) for it, end in found.checked_until.items()),
        )
        yield from collected(RUNS, [((), found)])
