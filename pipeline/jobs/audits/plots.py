"""Draws the plots of a report as SVG text for the HTML page.

*Invariants*: the size of a plot is bounded for any number of partitions and transactions, and for
names of any length; labels are text in the browser's font, not paths. Names are never parsed as
formulas, which matplotlib does with text between dollar signs.
"""

import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stilltide.pipeline.jobs.audits.report import AuditReport, PartitionFigures
from stilltide.schemas.printable import shortened

ROWS_MAX = 24
"""Largest number of partitions, or of transactions, in a plot."""

LINES_MAX = 10
"""Largest number of partitions in a plot of lines; more lines cannot be told apart."""

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "stilltide",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_WIDTH_IN = 9.0
_ROW_IN = 0.28
_MARGIN_IN = 0.9
_ABORTED = "#c23b22"
_PLAIN = "#d9e2ec"
_OPEN = "#d98e04"
_LAG = "#2f6690"


class _Bar(NamedTuple):
    name: str
    age_s: float


def plots(report: AuditReport) -> dict[str, str]:
    """The SVG of each plot, by title."""
    shown = report.partitions[:ROWS_MAX]
    native = [
        _Bar(
            f"{shortened(one.topic)}/{one.partition}@{one.first_offset}  "
            f"{shortened(one.transactional_id or f'producer {one.producer_id}')}",
            one.age_ms / 1000,
        )
        for one in report.open_transactions[:ROWS_MAX]
    ]
    undecided = [
        _Bar(
            f"{shortened(one.topic)}/{one.partition}@{one.offset}  {shortened(one.txn)}",
            one.age_ms / 1000,
        )
        for one in report.undecided[:ROWS_MAX]
    ]
    rows = max(1, len(shown))
    return {
        "Aborted native records over offsets": _drawn(rows, lambda on: _ranges(on, shown)),
        "Abort rate over offsets": _drawn(LINES_MAX, lambda on: _rates(on, shown[:LINES_MAX])),
        "Age of open native transactions": _drawn(len(native), lambda on: _ages(on, native)),
        "Age of the coordinated transactions that partitions wait for": _drawn(
            len(undecided), lambda on: _ages(on, undecided)
        ),
        "Lag of the last stable offset": _drawn(rows, lambda on: _lags(on, shown)),
    }


def _drawn(rows: int, draw: Callable[[Axes], None]) -> str:
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_IN, _MARGIN_IN + _ROW_IN * rows), layout="constrained")
        draw(figure.subplots())
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    return text[text.index("<svg") :]


def _ranges(on: Axes, shown: Sequence[PartitionFigures]) -> None:
    """Draws a row for each partition, redder where more records aborted."""
    for row, one in enumerate(shown):
        read = one.records
        on.broken_barh(
            [(read.start_offset, read.end_offset - read.start_offset)],
            (row - 0.35, 0.7),
            facecolors=_PLAIN,
        )
        windows = one.batches.windows if one.batches else ()
        hit = [window for window in windows if window.aborted]
        if hit:
            on.broken_barh(
                [(window.first, window.end - window.first) for window in hit],
                (row - 0.35, 0.7),
                facecolors=[
                    (_ABORTED, max(0.2, _rate(window.aborted, window.visible))) for window in hit
                ],
            )
    _label_rows(on, [_name(one) for one in shown])
    on.set_xlabel("offset")


def _rates(on: Axes, shown: Sequence[PartitionFigures]) -> None:
    lines: list[Any] = []
    names: list[str] = []
    for one in shown:
        if one.batches and (windows := one.batches.windows):
            edges = [window.first for window in windows] + [windows[-1].end]
            values = [100 * _rate(window.aborted, window.visible) for window in windows]
            lines.append(on.stairs(values, edges))
            names.append(_name(one))
    on.set_ylim(bottom=0)
    on.set_xlabel("offset")
    on.set_ylabel("aborted, %")
    if lines:
        empty = [""] * len(lines)
        legend = on.legend(lines, empty, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
        # Set afterwards: a legend parses its names, and leaves out those that begin with "_".
        for text, name in zip(legend.get_texts(), names, strict=True):
            text.set_parse_math(False)
            text.set_text(name)


def _ages(on: Axes, oldest: Sequence[_Bar]) -> None:
    on.barh(range(len(oldest)), [one.age_s for one in oldest], color=_OPEN)
    _label_rows(on, [one.name for one in oldest] or ["none"])
    on.set_xlabel("seconds")


def _lags(on: Axes, shown: Sequence[PartitionFigures]) -> None:
    lags = [one.high_watermark - one.last_stable_offset for one in shown]
    on.barh(range(len(lags)), lags, color=_LAG)
    _label_rows(on, [_name(one) for one in shown])
    on.set_xlabel("offsets from the last stable offset to the high watermark")


def _label_rows(on: Axes, names: Sequence[str]) -> None:
    on.set_yticks(range(len(names)), names, parse_math=False)
    on.set_ylim(max(1, len(names)) - 0.5, -0.5)


def _name(one: PartitionFigures) -> str:
    return f"{shortened(one.records.topic)}/{one.records.partition}"


def _rate(aborted: int, visible: int) -> float:
    return aborted / (aborted + visible) if aborted else 0.0
