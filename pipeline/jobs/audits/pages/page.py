"""Renders a report as one HTML page: what was proved, verdicts, evidence, figures and plots.

*Invariants*: the page loads no other resource and runs no script, and its Content-Security-Policy
forbids both; text from the cluster is shown as text: no HTML, no control characters, no marks of
direction.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from stilltide.pipeline.jobs.audits.follow.history import HistoryRow, render_history
from stilltide.pipeline.jobs.audits.pages.advice import ADVICE, command
from stilltide.pipeline.jobs.audits.pages.plots import ROWS_MAX, plots
from stilltide.pipeline.jobs.audits.pages.proved import proved
from stilltide.pipeline.jobs.audits.pages.style import STYLE
from stilltide.pipeline.jobs.audits.pages.text import counted, escape, number
from stilltide.pipeline.jobs.audits.report import AuditReport, CheckResult
from stilltide.pipeline.jobs.audits.verdicts import FindingKind

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_ICON = "data:,"
"""An empty icon, so that a browser asks no server for one."""

_FINDING_COLUMNS = ("topic", "partition", "offset", "txn", "expected", "found", "detail")
_TEXTS = {"topic", "txn", "detail", "check", "verdict", "looked at", "findings"}
"""The columns of text; numbers are in the others."""

_PARTITION_COLUMNS = (
    "topic", "partition", "start_offset", "end_offset", "written", "visible", "hidden", "aborted",
    "markers", "unexplained", "high_watermark",
)  # fmt: skip


def render_page(report: AuditReport, history: Sequence[HistoryRow] = ()) -> str:
    """The page, as UTF-8 text; with a table of `history`, for audits that go on."""
    topics = ", ".join(report.topics)
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<link rel="icon" href="{_ICON}">',
        f"<title>Audit of {escape(topics)}</title><style>{STYLE}</style></head><body>",
        *_head(report, topics),
        "<h2>Checks</h2>",
        _table(
            ("check", "verdict", "looked at", "findings"),
            map(_check_row, report.checks),
            style="checks",
        ),
        *(_findings(one) for one in report.checks if one.finding_counts),
        *_plots(report),
        "<h2>Partitions</h2>",
        _table(
            _PARTITION_COLUMNS,
            (
                [_cell(row[name]) for name in _PARTITION_COLUMNS]
                for row in report.to_dict()["partitions"]
            ),
            style="wide",
        ),
        *render_history(history),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _head(report: AuditReport, topics: str) -> list[str]:
    began = datetime.fromtimestamp(report.began_ms / 1000, UTC)
    return [
        f"<h1>Audit of {escape(topics)}: {_verdict(report.verdict.value)}</h1>",
        f'<p class="proved">{escape(proved(report))}</p>',
        f'<p class="soft">{began:%Y-%m-%d %H:%M:%S} UTC, took {report.elapsed_s:.1f} s</p>',
    ]


def _check_row(one: CheckResult) -> list[str]:
    looked = ", ".join(
        f"{name.replace('_', ' ')} {number(count)}" for name, count in one.figures.items()
    )
    found = ", ".join(f"{kind.value} {number(it)}" for kind, it in one.finding_counts.items())
    return [
        _cell(one.check.value),
        f"<td>{_verdict(one.verdict.value)}</td>",
        _cell(looked),
        _cell(found or "no findings"),
    ]


def _findings(one: CheckResult) -> str:
    kinds = "".join(_of_kind(one, kind, count) for kind, count in one.finding_counts.items())
    return f"<h2>Findings of {escape(one.check.value)}</h2>{kinds}"


def _of_kind(one: CheckResult, kind: FindingKind, count: int) -> str:
    listed = [finding for finding in one.findings if finding.kind is kind]
    advice = ADVICE[kind]
    heading = f"{kind.value}: {counted(count, 'finding')}"
    if len(listed) < count:
        heading += f", of which {number(len(listed))} are listed"
    rows = (finding.to_dict() for finding in listed)
    return (
        f"<h3>{escape(heading)}</h3>"
        f"<p>{escape(advice.meaning)}</p><p>What to do: {escape(advice.action)}</p>"
        f"<pre>{escape(command(kind, listed[0] if listed else None))}</pre>"
        + _table(
            _FINDING_COLUMNS,
            ([_cell(row[name]) for name in _FINDING_COLUMNS] for row in rows),
            style="wide",
        )
    )


def _plots(report: AuditReport) -> list[str]:
    found = plots(report)
    parts = [
        f'<h2>{escape(one.title)}</h2><p class="soft">{escape(one.note)}</p>{one.html}'
        for one in found.shown
    ]
    absent = list(found.absent)
    if len(report.partitions) > ROWS_MAX:
        absent.append(f"Plots show the first {ROWS_MAX} of {len(report.partitions)} partitions.")
    if absent:
        parts.append(f'<p class="soft">{escape(" ".join(absent))}</p>')
    return parts


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, style: str) -> str:
    head = "".join(map(_heading, columns))
    body = "\n".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"
    return f'<div class="{style}">{table}</div>'


def _heading(name: str) -> str:
    style = "" if name in _TEXTS else ' class="n"'
    return f"<th{style}>{escape(name.replace('_', ' '))}</th>"


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td class="n">{number(value)}</td>'
    return f'<td class="t">{"-" if value is None else escape(str(value))}</td>'


def _verdict(name: str) -> str:
    return f'<span class="verdict {name}">{name}</span>'
