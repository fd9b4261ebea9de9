"""The HTML page of a report: what was proved, verdicts, evidence, figures, plots, earlier runs.

*Invariants*: the page loads no other resource and runs no script, and its Content-Security-Policy
forbids both; text from the cluster is shown as text (`pipeline.templates`).
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stilltide.pipeline.jobs.audits.follow.history import HistoryRow
from stilltide.pipeline.jobs.audits.pages.advice import ADVICE, command
from stilltide.pipeline.jobs.audits.pages.charts import HEIGHT, ROWS_MAX, WIDTH, plots
from stilltide.pipeline.jobs.audits.pages.proved import counted, number, proved
from stilltide.pipeline.jobs.audits.report import AuditReport, CheckResult, FindingKind
from stilltide.pipeline.templates import templates

_FINDING_COLUMNS = ("topic", "partition", "offset", "txn", "expected", "found", "detail")
_PARTITION_COLUMNS = (
    "topic", "partition", "start_offset", "end_offset", "written", "visible", "hidden", "aborted",
    "markers", "unexplained", "high_watermark",
)  # fmt: skip
_TEXTS = ("topic", "txn", "detail")
"""The columns of text; numbers are in the others."""


def render_page(report: AuditReport, history: Sequence[HistoryRow] = ()) -> str:
    """The page, as UTF-8 text; with a table of `history`, for audits that go on."""
    drawn = plots(report)
    absent = list(drawn.absent)
    if len(report.partitions) > ROWS_MAX:
        absent.append(f"Plots show the first {ROWS_MAX} of {len(report.partitions)} partitions.")
    page = templates(Path(__file__).parent / "templates").get_template("report.html")
    return page.render(
        report=report,
        topics=", ".join(report.topics),
        proved=proved(report),
        began=_moment(report.began_ms),
        moment=_moment,
        checks=[_check(result) for result in report.checks],
        finding_columns=_FINDING_COLUMNS,
        plots=drawn.shown,
        width=WIDTH,
        height=HEIGHT,
        absent=" ".join(absent),
        partition_columns=_PARTITION_COLUMNS,
        partitions=report.to_dict()["partitions"],
        texts=_TEXTS,
        history=history,
    )


def _moment(wall_ms: int) -> str:
    return f"{datetime.fromtimestamp(wall_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _check(result: CheckResult) -> dict[str, Any]:
    """A check's row, and its kinds of findings."""
    figures = (f"{name.replace('_', ' ')} {number(n)}" for name, n in result.figures.items())
    counts = (f"{kind.value} {number(n)}" for kind, n in result.finding_counts.items())
    return {
        "name": result.check.value,
        "verdict": result.verdict.value,
        "figures": ", ".join(figures),
        "counts": ", ".join(counts) or "no findings",
        "kinds": [_kind(result, kind, count) for kind, count in result.finding_counts.items()],
    }


def _kind(result: CheckResult, kind: FindingKind, count: int) -> dict[str, Any]:
    listed = [finding for finding in result.findings if finding.kind is kind]
    heading = f"{kind.value}: {counted(count, 'finding')}"
    if len(listed) < count:
        heading += f", of which {number(len(listed))} are listed"
    return {
        "heading": heading,
        "advice": ADVICE[kind],
        "command": command(kind, listed[0] if listed else None),
        "rows": [finding.to_dict() for finding in listed],
    }
