"""The plots of a report as numbers, which its template draws; says which had nothing to show.

*Invariants*: no plot is empty; the size of a plot is bounded for any number of partitions and
transactions, and for names of any length. A drawing stretches with the page, and text does not:
labels, figures and the axis are HTML, so they stay readable on a narrow screen and on paper.
"""

from collections.abc import Sequence
from typing import NamedTuple

from stilltide.pipeline.core.native.offset_ledger import Window
from stilltide.pipeline.jobs.audits.pages.proved import number
from stilltide.pipeline.jobs.audits.report import AuditReport, Check, PartitionFigures
from stilltide.schemas.printable import shortened

ROWS_MAX = 24
"""Largest number of partitions, or of transactions, in a plot."""

WIDTH, HEIGHT = 1000, 100
"""Units of a drawing."""

_TICKS = 4
"""Intervals of an axis; five labels fit on a narrow screen."""


class ChartRow(NamedTuple):
    """A row of a chart.

    Attributes:
        label: name of the row.
        figure: the value of the row as text.
        left, width: where the bar is, or what was measured, in units of the drawing.
        path: the outline of the shares; empty for a bar.
    """

    label: str
    figure: str
    left: str
    width: str
    path: str = ""


class Chart(NamedTuple):
    """Rows along one axis.

    Attributes:
        kind: `bar` for bars that begin at 0, `steps` for shares of an axis.
        style: class of the bars or shares, whose colour the style sheet sets.
        unit: name of the axis.
        rows: at least one.
        ticks: labels of the axis.
    """

    kind: str
    style: str
    unit: str
    rows: tuple[ChartRow, ...]
    ticks: tuple[str, ...]


class Bar(NamedTuple):
    """A named value >= 0, and its text."""

    label: str
    figure: str
    value: float


class Step(NamedTuple):
    """A share from 0 to 1 in the stretch `[first, end)`."""

    first: int
    end: int
    share: float


class Steps(NamedTuple):
    """A row with a share for each stretch of an axis.

    Attributes:
        label: name of the row.
        figure: the value of the whole row as text.
        first: begin of what was measured.
        end: end of what was measured, exclusive.
        steps: shares above 0, ascending.
    """

    label: str
    figure: str
    first: int
    end: int
    steps: Sequence[Step]


class Plot(NamedTuple):
    """A chart with its heading, and a sentence that says how to read the chart."""

    title: str
    note: str
    chart: Chart


class Plots(NamedTuple):
    """The plots of a report, and sentences about those that had nothing to show."""

    shown: tuple[Plot, ...]
    absent: tuple[str, ...]


def plots(report: AuditReport) -> Plots:
    """The plots that have something to show."""
    parts = report.partitions[:ROWS_MAX]
    walked = [(part, part.batches.windows) for part in parts if part.batches is not None]
    made: list[Plot | str | None] = [
        _shares("native", walked)
        if walked or not parts
        else "Aborted native records are not known: no check has read the headers of batches.",
        _shares("coordinated", [(part, part.windows) for part in parts]),
        _open(report),
        _undecided(report),
        _lags(parts),
    ]
    shown = tuple(plot for plot in made if isinstance(plot, Plot))
    return Plots(shown, tuple(text for text in made if isinstance(text, str)))


def _shares(
    kind: str, rows: Sequence[tuple[PartitionFigures, Sequence[Window]]]
) -> Plot | str | None:
    """The shares of aborted records; a row for each partition that has any."""
    drawn = [
        Steps(
            _name(figures),
            f"{_percent(sum(window.aborted for window in windows) / _held(windows))} aborted",
            figures.records.start_offset,
            figures.records.end_offset,
            [Step(it.first, it.end, it.aborted / _held([it])) for it in windows if it.aborted],
        )
        for figures, windows in rows
        if any(window.aborted for window in windows)
    ]
    if not drawn:
        return f"No record of an aborted {kind} transaction is in the range." if rows else None
    share_max = min(1.0, nice(max(step.share for row in drawn for step in row.steps)))
    note = (
        f"Of the records at these offsets, the share whose {kind} transaction aborted; the height "
        f"of a row is {_percent(share_max)}."
    )
    if len(drawn) < len(rows):
        note += f" {len(rows) - len(drawn)} of {len(rows)} partitions have none."
    title = f"Aborted {kind} records over offsets"
    return Plot(title, note, steps(drawn, kind, "offset", share_max))


def _open(report: AuditReport) -> Plot | str | None:
    if not any(check.check is Check.HANGING for check in report.checks):
        return None
    rows = [
        Bar(
            f"{shortened(transaction.topic)}/{transaction.partition}@{transaction.first_offset}  "
            f"{shortened(transaction.transactional_id or f'producer {transaction.producer_id}')}",
            *_age(transaction.age_ms),
        )
        for transaction in report.open_transactions[:ROWS_MAX]
    ]
    if not rows:
        return "No native transaction was open when the audit began."
    note = "Readers of a partition wait at the first record of its oldest open transaction."
    note += _cut(len(rows), len(report.open_transactions), "transactions")
    return Plot("Age of open native transactions", note, bars(rows, "open", "seconds"))


def _undecided(report: AuditReport) -> Plot | None:
    rows = [
        Bar(
            f"{shortened(head.topic)}/{head.partition}@{head.offset}  {shortened(head.txn)}",
            *_age(head.age_ms),
        )
        for head in report.undecided[:ROWS_MAX]
    ]
    if not rows:
        return None
    note = "The first undecided record of each partition, at which its readers wait."
    note += _cut(len(rows), len(report.undecided), "partitions")
    title = "Age of the coordinated transactions that partitions wait for"
    return Plot(title, note, bars(rows, "open", "seconds"))


def _lags(parts: Sequence[PartitionFigures]) -> Plot | None:
    lags = [(part, part.high_watermark - part.last_stable_offset) for part in parts]
    rows = [Bar(_name(one), number(lag), lag) for one, lag in lags if lag > 0]
    if not rows:
        return None
    note = "Offsets that readers do not see yet, since a native transaction is open in front of "
    return Plot("Lag of the last stable offset", note + "them.", bars(rows, "lag", "offsets"))


def _cut(shown: int, total: int, what: str) -> str:
    return f" The plot shows the first {shown} of {total} {what}." if total > shown else ""


def _age(age_ms: int) -> tuple[str, float]:
    return f"{age_ms / 1000:.1f} s", age_ms / 1000


def _held(windows: Sequence[Window]) -> int:
    """How many records the windows hold, aborted or not; at least 1."""
    return max(1, sum(window.aborted + window.visible for window in windows))


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 1 else "100 %"


def _name(figures: PartitionFigures) -> str:
    return f"{shortened(figures.records.topic)}/{figures.records.partition}"


def bars(rows: Sequence[Bar], style: str, unit: str) -> Chart:
    """A chart of bars; of at least one."""
    end = nice(max(row.value for row in rows))
    drawn = tuple(
        ChartRow(row.label, row.figure, *_stretch(0, row.value / end * WIDTH)) for row in rows
    )
    return Chart("bar", style, unit, drawn, _ticks(0, end))


def steps(rows: Sequence[Steps], style: str, unit: str, share_max: float) -> Chart:
    """A chart of shares along one axis for all rows, of which there is at least one.

    Args:
        rows: the shares.
        style: class of the shares.
        unit: name of the axis.
        share_max: the share that fills the height of a row.
    """
    first, end = min(row.first for row in rows), max(row.end for row in rows)
    scale = WIDTH / max(1, end - first)
    drawn = tuple(
        ChartRow(
            row.label,
            row.figure,
            *_stretch((row.first - first) * scale, (row.end - first) * scale),
            _path(row, first, scale, share_max),
        )
        for row in rows
    )
    return Chart("steps", style, unit, drawn, _ticks(first, max(end, first + 1)))


def nice(value: float) -> float:
    """The lowest of 1, 2, 4, 8 times a power of ten that is not below `value`; 1 for 0."""
    power = 1e-6
    while True:
        for factor in (1, 2, 4, 8):
            if factor * power >= value > 0:
                return factor * power
        if value <= 0:
            return 1
        power *= 10


def short(value: float) -> str:
    """A number in a few characters: 950, 1.5 k, 20 M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value:.3g}"


def _path(row: Steps, origin: int, scale: float, share_max: float) -> str:
    """The outline of the shares, closed at the bottom wherever they pause."""
    parts: list[str] = []
    at: int | None = None
    for step in row.steps:
        # A share that is not 0 is never too low to be seen.
        top = HEIGHT - max(4.0, min(1.0, step.share / share_max) * HEIGHT)
        if step.first != at:
            closing = f"V{HEIGHT}Z" if parts else ""
            parts.append(f"{closing}M{(step.first - origin) * scale:.4g} {HEIGHT}")
        parts.append(f"V{top:.3g}H{(step.end - origin) * scale:.4g}")
        at = step.end
    return "".join(parts) + (f"V{HEIGHT}Z" if parts else "")


def _stretch(left: float, right: float) -> tuple[str, str]:
    """Begin and width of a rectangle; never too narrow to be seen."""
    return f"{left:.4g}", f"{max(2.0, right - left):.4g}"


def _ticks(first: float, end: float) -> tuple[str, ...]:
    return tuple(short(first + (end - first) * tick / _TICKS) for tick in range(_TICKS + 1))
