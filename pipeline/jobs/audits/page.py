"""Renders a report as one HTML page: verdicts, evidence, figures and plots.

*Invariants*: the page loads no other resource, and its Content-Security-Policy forbids that; text
from the cluster is shown as text: no HTML, no control characters, no marks of direction.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape as html_escape

from stilltide.pipeline.jobs.audits.follow.history import HistoryRow, render_history
from stilltide.pipeline.jobs.audits.plots import ROWS_MAX, plots
from stilltide.pipeline.jobs.audits.report import AuditReport, CheckResult
from stilltide.schemas.printable import printable

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #1f2933; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; width: 100%; font-size: 13px; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #d9e2ec;
         overflow-wrap: anywhere; vertical-align: top; }
td { unicode-bidi: isolate; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.valid { color: #1b7f4b; } .invalid { color: #c23b22; } .unknown { color: #b06f00; }
.empty { color: #616e7c; }
.verdict { font-weight: 600; }
svg { max-width: 100%; height: auto; }
"""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_FINDING_COLUMNS = ("kind", "topic", "partition", "offset", "txn", "expected", "found", "detail")
_PARTITION_COLUMNS = (
    "topic", "partition", "start_offset", "end_offset", "written", "visible", "hidden", "aborted",
    "markers", "unexplained", "high_watermark",
)  # fmt: skip


def render_page(report: AuditReport, history: Sequence[HistoryRow] = ()) -> str:
    """The page, as UTF-8 text; with a table of `history`, for audits that go on."""
    began = datetime.fromtimestamp(report.began_ms / 1000, UTC)
    told = report.to_dict()
    topics = ", ".join(report.topics)
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>Audit of {escape(topics)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Audit of {escape(topics)}: {_verdict(report.verdict.value)}</h1>",
        f"<p>{began:%Y-%m-%d %H:%M:%S} UTC, {report.elapsed_s:.1f} s</p>",
        "<h2>Checks</h2>",
        _table(("check", "verdict", "looked at", "findings"), map(_check_row, report.checks)),
        *(_findings(one) for one in report.checks if one.findings),
        *(f"<h2>{escape(title)}</h2>{svg}" for title, svg in plots(report).items()),
        *_cut(report),
        "<h2>Partitions</h2>",
        _table(
            _PARTITION_COLUMNS,
            ([_cell(row[name]) for name in _PARTITION_COLUMNS] for row in told["partitions"]),
        ),
        *render_history(history),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text as HTML that shows this text."""
    return html_escape(printable(text))


def _check_row(one: CheckResult) -> list[str]:
    looked = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in one.figures.items())
    found = ", ".join(f"{kind.value} {count}" for kind, count in one.finding_counts.items())
    return [_cell(one.check.value), f"<td>{_verdict(one.verdict.value)}</td>", _cell(looked),
            _cell(found or "none")]  # fmt: skip


def _findings(one: CheckResult) -> str:
    rows = (finding.to_dict() for finding in one.findings)
    total = sum(one.finding_counts.values())
    shown = f"{len(one.findings)} of {total}" if total > len(one.findings) else str(total)
    return f"<h3>{escape(one.check.value)}: {shown} findings</h3>" + _table(
        _FINDING_COLUMNS, ([_cell(row[name]) for name in _FINDING_COLUMNS] for row in rows)
    )


def _cut(report: AuditReport) -> list[str]:
    """A sentence about partitions that the plots leave out, if there are any."""
    if len(report.partitions) <= ROWS_MAX:
        return []
    return [f"<p>The plots show the first {ROWS_MAX} of {len(report.partitions)} partitions.</p>"]


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in columns)
    body = "\n".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td class="n">{value}</td>'
    return f"<td>{'-' if value is None else escape(str(value))}</td>"


def _verdict(name: str) -> str:
    return f'<span class="verdict {name}">{name}</span>'
