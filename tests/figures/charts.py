"""Charts of what cases of `make bench` have measured, over logarithmic axes.

The files of the cases lie in docs/img/bench. `make bench CASE=transactions` writes such a file to
build/bench; a copy of it to docs/img/bench and `make figures` bring a picture up to date.
"""

import json
from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from pathlib import Path
from typing import Any, NamedTuple

from tests.figures.drawing import GREY, Box, Drawing, Point

LINE, TOPIC, JAVA, LIBRDKAFKA = "#1d4ed8", "#0e7490", "#b45309", "#15803d"

_PLOT = Box(80, 60, 600, 300)
_NAME_HEIGHT = 15


class Series(NamedTuple):
    """One line of a chart.

    Attributes:
        name: written at the end of the line.
        ink: colour.
        values: value by place on the axis.
    """

    name: str
    ink: str
    values: Mapping[int, float]


class Chart(NamedTuple):
    """What is drawn.

    Attributes:
        title: above the chart.
        across: what the places on the axis are.
        series: the lines.
        source: the file of the case.
    """

    title: str
    across: str
    series: Sequence[Series]
    source: Mapping[str, Any]


def transaction_rates(source: Path) -> str:
    """Stilltide by line and by topic, and Kafka's own producers, as many as serve them best."""
    result, details = _read(source)
    series = [
        Series("Stilltide, by line", LINE, {it["setting"]: it["ours"] for it in result["rows"]}),
        Series("Stilltide, by topic", TOPIC, _column(details, "topic_per_s")),
        Series("Kafka, Java", JAVA, _column(details, "java_per_s")),
        Series("Kafka, librdkafka", LIBRDKAFKA, _column(details, "librdkafka_per_s")),
    ]
    title = "Transactions a second, 10 records over 3 partitions each"
    return _drawn(Chart(title, "transactions open at once", series, result))


def transaction_latencies(source: Path) -> str:
    """Half of the transactions take at most so long; Kafka's are those of its strongest client."""
    result, _ = _read(source)
    rows = {it["setting"]: it for it in result["rows"]}
    series = [
        Series("Stilltide, by line", LINE, _column(rows, "ours_p50_ms")),
        Series("Stilltide, by topic", TOPIC, _column(rows, "topic_p50_ms")),
        Series("Kafka, the strongest", JAVA, _column(rows, "baseline_p50_ms")),
    ]
    title = "Median duration of a transaction, ms"
    return _drawn(Chart(title, "transactions open at once", series, result))


def growth_of_pairs(source: Path) -> str:
    """Processor time of the worker that uses more, over the number of replicated pairs."""
    return _growth(source, "pairs", "replicated pairs of a group and a partition", "ten pairs")


def growth_of_partitions(source: Path) -> str:
    """Processor time of the worker, over the number of data partitions."""
    return _growth(source, "partitions", "data partitions with transactions", "100 commits")


def _growth(source: Path, of: str, across: str, load: str) -> str:
    result = json.loads(source.read_text())
    rest: dict[int, float] = {}
    work: dict[int, float] = {}
    for row in result["rows"]:
        rest[row[of]] = max(it for name, it in row.items() if name.startswith("rest_worker"))
        work[row[of]] = max(it for name, it in row.items() if name.startswith("load_worker"))
    series = [
        Series(f"{load} a second", LINE, work),
        Series("at rest", TOPIC, rest),
    ]
    title = "Processor time of a worker, ms in each second"
    return _drawn(Chart(title, across, series, result))


def _read(source: Path) -> tuple[dict[str, Any], dict[int, dict[str, float]]]:
    result = json.loads(source.read_text())
    return result, {int(one["setting"]): one for one in result["details"]}


def _column(rows: Mapping[int, Mapping[str, float]], name: str) -> dict[int, float]:
    return {at: row[name] for at, row in rows.items()}


class _Axes:
    """Places of values in the plot."""

    def __init__(self, series: Sequence[Series]) -> None:
        values = [it for one in series for it in one.values.values()]
        self.counts = sorted({at for one in series for at in one.values})
        self.least, self.most = floor(log10(min(values))), ceil(log10(max(values)))

    @property
    def grid(self) -> list[float]:
        """The powers of ten between the lowest and the highest value."""
        return [10.0**power for power in range(self.least, self.most + 1)]

    def at(self, count: float, value: float) -> Point:
        """Where a value is drawn."""
        across = log10(count / self.counts[0]) / log10(self.counts[-1] / self.counts[0])
        up = (log10(value) - self.least) / (self.most - self.least)
        return _PLOT.x + across * _PLOT.width, _PLOT.y + (1 - up) * _PLOT.height


def _drawn(chart: Chart) -> str:
    drawing, axes = Drawing(860, 430, chart.title), _Axes(chart.series)
    drawing.text((_PLOT.x, 34), chart.title, bold=True)
    for value in axes.grid:
        x, y = axes.at(axes.counts[0], value)
        drawing.line([(x, y), (x + _PLOT.width, y)], ink="#dde2e7")
        drawing.text((x - 10, y + 4), f"{value:,g}", size=12, anchor="end")
    for count in axes.counts:
        x, _ = axes.at(count, axes.grid[0])
        drawing.text((x, _PLOT.y + _PLOT.height + 20), f"{count:,}", size=12, anchor="middle")
    middle = _PLOT.x + _PLOT.width / 2
    below = _PLOT.y + _PLOT.height + 38
    drawing.text((middle, below), chart.across, size=12, anchor="middle")
    for one in chart.series:
        points = [axes.at(count, one.values[count]) for count in sorted(one.values)]
        drawing.line(points, ink=one.ink, width=2)
        for point in points:
            drawing.dot(point, ink=one.ink)
    _name(drawing, axes, chart.series)
    made = f"{chart.source['command']} on {chart.source['machine']}"
    drawing.text((_PLOT.x, 414), made, size=11, ink=GREY)
    return drawing.svg()


def _name(drawing: Drawing, axes: _Axes, series: Sequence[Series]) -> None:
    """Writes each name at the end of its line, but not on top of another name."""
    ends = [(axes.at(max(one.values), one.values[max(one.values)]), one) for one in series]
    lowest = 0.0
    for (x, y), one in sorted(ends, key=lambda it: it[0][1]):
        lowest = max(y + 4, lowest + _NAME_HEIGHT)
        drawing.text((x + 12, lowest), one.name, size=12, ink=one.ink)
