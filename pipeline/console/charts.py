"""The last half hour as small charts: lines of a drawing, and the same in words; pure.

*Invariants*: the length of a drawing does not grow with the number of samples; what was not known
is a gap. Whatever a chart shows by its lines is said by its label, too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from stilltide.pipeline.core.status.findings import shown_age
from stilltide.pipeline.core.status.samples import OLD_MS, SPAN_MS, ClusterSample, Sample
from stilltide.schemas.values import ClusterName

WIDTH, HEIGHT = 360, 48
"""Size of a chart in its own units: a sample each ten seconds is two units wide."""

_TOP = 3
SLICES = 10
"""Parts of a chart that say their figures when a pointer rests on them."""

_SLICE_MS = SPAN_MS // SLICES
Point = tuple[int, float]
"""A time, milliseconds since 1970, and a value."""


@dataclass(frozen=True)
class ChartLine:
    """A line of a chart.

    Attributes:
        name: what it shows; empty: what the chart's title says.
        kind: how to draw it, a class of the style sheet.
        path: what an SVG path takes.
        now: the newest value.
    """

    name: str
    kind: str
    path: str
    now: str


@dataclass(frozen=True)
class ChartSlice:
    """A part of a chart, and what it says when a pointer rests on it."""

    x: int
    width: int
    title: str


@dataclass(frozen=True)
class TimeChart:
    """Values over the last half hour.

    Attributes:
        title: what is shown.
        label: the figures in words, for people who do not see the drawing.
        lines: what is drawn.
        slices: parts of the time with their figures.
        most: the value at the upper edge.
        since: where the time begins, in words.
    """

    title: str
    label: str
    lines: tuple[ChartLine, ...]
    slices: tuple[ChartSlice, ...]
    most: str
    since: str


@dataclass(frozen=True)
class TimeSeries:
    """What a chart is about.

    Attributes:
        title: what is shown.
        lines: name, kind and value of each line.
        shown: a value in words.
    """

    title: str
    lines: tuple[tuple[str, str, Callable[[ClusterSample], float | None]], ...]
    shown: Callable[[float], str]


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"  # noqa: PLR2004


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _age(value: float) -> str:
    return shown_age(int(value)) if value else "none"


TRANSACTIONS = (
    TimeSeries(
        "Transactions ended, a second",
        (
            ("commits", "first", lambda it: it.commits_s),
            ("aborts", "second", lambda it: it.aborts_s),
        ),
        _rate,
    ),
    TimeSeries("Open transactions", (("", "first", lambda it: it.open),), _count),
    TimeSeries("Age of the oldest transaction", (("", "first", lambda it: it.oldest_ms),), _age),
)
CLUSTER = (
    *TRANSACTIONS,
    TimeSeries("Lag of links into it, offsets", (("", "first", lambda it: it.lag),), _count),
    TimeSeries(
        "Read again by a fail-over to it",
        (("", "first", lambda it: it.read_again),),
        _count,
    ),
)


def charts(
    about: Sequence[TimeSeries], cluster: ClusterName, samples: Sequence[Sample], now_ms: int
) -> tuple[TimeChart, ...]:
    """A chart of each series of which something is known."""
    seen = [(it.at_ms, it.clusters[cluster]) for it in samples if cluster in it.clusters]
    drawn = [_chart(series, seen, now_ms) for series in about]
    return tuple(chart for chart in drawn if chart is not None)


def _chart(
    series: TimeSeries, seen: Sequence[tuple[int, ClusterSample]], now_ms: int
) -> TimeChart | None:
    lines: list[tuple[str, str, list[Point]]] = []
    for name, kind, value_of in series.lines:
        values = ((at_ms, value_of(figures)) for at_ms, figures in seen)
        lines.append((name, kind, [(at, value) for at, value in values if value is not None]))
    all_values = [value for _, _, points in lines for _, value in points]
    if not all_values:
        return None
    most, start_ms = max(all_values), now_ms - SPAN_MS
    first_ms = min(points[0][0] for _, _, points in lines if points)
    is_whole = first_ms - start_ms <= OLD_MS
    since = "30 min ago" if is_whole else f"no sample before {_clock(first_ms)}"
    words = [f"{name or 'it'}: {_words(points, series.shown, now_ms)}" for name, _, points in lines]
    over = "over the last 30 minutes" if is_whole else f"since {_clock(first_ms)}"
    return TimeChart(
        series.title,
        f"{series.title}, {over}. {'. '.join(words)}.".replace(". it: ", ": "),
        tuple(
            ChartLine(name, kind, _path(points, start_ms, most), _now(points, series.shown, now_ms))
            for name, kind, points in lines
        ),
        _slices(lines, series.shown, start_ms),
        series.shown(most),
        since,
    )


def _now(points: Sequence[Point], shown: Callable[[float], str], now_ms: int) -> str:
    """The newest value, if it is one of now."""
    return shown(points[-1][1]) if points and now_ms - points[-1][0] <= OLD_MS else "?"


def _words(points: Sequence[Point], shown: Callable[[float], str], now_ms: int) -> str:
    if not points:
        return "not known"
    values = [value for _, value in points]
    return (
        f"now {_now(points, shown, now_ms)}, least {shown(min(values))}, most {shown(max(values))}"
    )


def _path(points: Sequence[Point], start_ms: int, most: float) -> str:
    """Moves and lines in whole units; a gap in time is not bridged."""
    path: list[str] = []
    last_ms = None
    for at_ms, value in points:
        x = round((at_ms - start_ms) * WIDTH / SPAN_MS)
        y = HEIGHT - 1 - round(value * (HEIGHT - 1 - _TOP) / most) if most else HEIGHT - 1
        is_joined = last_ms is not None and at_ms - last_ms <= OLD_MS
        path.append(f"{'L' if is_joined else 'M'}{x} {y}")
        last_ms = at_ms
    # A point without neighbours is drawn as a line of one unit.
    return " ".join(
        f"{step} h1" if step[0] == "M" and (not after or after[0] == "M") else step
        for step, after in zip(path, [*path[1:], ""], strict=True)
    )


def _slices(
    lines: Sequence[tuple[str, str, Sequence[Point]]], shown: Callable[[float], str], start_ms: int
) -> tuple[ChartSlice, ...]:
    slices: list[ChartSlice] = []
    for number in range(SLICES):
        first_ms = start_ms + number * _SLICE_MS
        texts: list[str] = []
        for name, _, points in lines:
            values = [value for at, value in points if first_ms <= at < first_ms + _SLICE_MS]
            if values:
                least, most = shown(min(values)), shown(max(values))
                span = least if least == most else f"{least} to {most}"
                texts.append(f"{name} {span}".strip())
        figures = ", ".join(texts) or "no sample"
        title = f"{_clock(first_ms)[:5]} to {_clock(first_ms + _SLICE_MS)[:5]} UTC: {figures}"
        width = WIDTH // SLICES
        slices.append(ChartSlice(number * width, width, title))
    return tuple(slices)


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S UTC")
