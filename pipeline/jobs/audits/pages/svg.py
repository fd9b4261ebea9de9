"""Charts of rows as HTML with plain SVG: each row has a label, a figure and a drawing.

*Invariants*: a drawing stretches with the page, and text does not: labels, figures and the axis are
HTML, so they stay readable on a narrow screen and on paper. Colours are classes of the page's style
sheet, which a dark page changes. The size of a row is bounded by its number of windows.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from stilltide.pipeline.jobs.audits.pages.text import escape

_WIDTH = 1000
"""Units of a drawing from its left to its right end."""

_HEIGHT = 100
_TICKS = 4
"""Intervals of an axis; five labels fit on a narrow screen."""


class Bar(NamedTuple):
    """A row with one bar that begins at 0.

    Attributes:
        label: name of the row.
        figure: the value as text.
        value: length of the bar, >= 0.
    """

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


def bars(rows: Sequence[Bar], style: str, unit: str) -> str:
    """A chart of bars.

    Args:
        rows: at least one.
        style: class of the bars.
        unit: name of the axis.
    """
    end = nice(max(row.value for row in rows))
    drawn = [
        _row(row.label, row.figure, "bar", _rect(style, 0, row.value / end * _WIDTH))
        for row in rows
    ]
    return _chart(drawn, 0, end, unit)


def steps(rows: Sequence[Steps], style: str, unit: str, share_max: float) -> str:
    """A chart of shares along one axis for all rows.

    Args:
        rows: at least one.
        style: class of the shares.
        unit: name of the axis.
        share_max: the share that fills the height of a row.
    """
    first, end = min(row.first for row in rows), max(row.end for row in rows)
    width = max(1, end - first)

    def x(offset: int) -> float:
        return (offset - first) / width * _WIDTH

    drawn = [
        _row(
            row.label,
            row.figure,
            "steps",
            _rect("track", x(row.first), x(row.end))
            + f'<path class="{style}" d="{_path(row, x, share_max)}"/>',
        )
        for row in rows
    ]
    return _chart(drawn, first, max(end, first + 1), unit)


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


def _path(row: Steps, x: Callable[[int], float], share_max: float) -> str:
    """The outline of the shares, closed at the bottom wherever they pause."""
    parts: list[str] = []
    at: int | None = None
    for step in row.steps:
        # A share that is not 0 is never too low to be seen.
        top = _HEIGHT - max(4.0, min(1.0, step.share / share_max) * _HEIGHT)
        if step.first != at:
            parts.append(f"{f'V{_HEIGHT}Z' if parts else ''}M{x(step.first):.4g} {_HEIGHT}")
        parts.append(f"V{top:.3g}H{x(step.end):.4g}")
        at = step.end
    return "".join(parts) + (f"V{_HEIGHT}Z" if parts else "")


def _rect(style: str, left: float, right: float) -> str:
    width = max(2.0, right - left)
    return f'<rect class="{style}" x="{left:.4g}" width="{width:.4g}" height="{_HEIGHT}"/>'


def _row(label: str, figure: str, style: str, drawing: str) -> str:
    return (
        f'<div class="row"><span class="label">{escape(label)}</span>'
        f'<span class="figure">{escape(figure)}</span>'
        f'<svg class="{style}" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none"'
        f' role="img" aria-label="{escape(f"{label}: {figure}")}">{drawing}</svg></div>'
    )


def _chart(rows: Sequence[str], first: float, end: float, unit: str) -> str:
    ticks = (first + (end - first) * tick / _TICKS for tick in range(_TICKS + 1))
    axis = "".join(f"<span>{short(tick)}</span>" for tick in ticks)
    return (
        f'<div class="chart">{"".join(rows)}<div class="axis" aria-hidden="true">{axis}</div>'
        f'<p class="unit">{escape(unit)}</p></div>'
    )
