"""Bars of what cases of `make bench` have measured, on a linear axis that begins at 0."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.figures.drawing import BLUE, GREEN, GREY, YELLOW, Box, Drawing

_LEFT, _WIDTH, _TOP = 230, 500, 84
_BAR_HEIGHT, _BETWEEN = 18, 14
_FILLS = BLUE, GREEN, YELLOW
_LEGEND_STEP = 200


class Bars(NamedTuple):
    """What is drawn.

    Attributes:
        title: above the bars.
        names: what a bar of each row is, in order.
        rows: the values of each row; None: there is none.
        source: the file of the case.
    """

    title: str
    names: Sequence[str]
    rows: Mapping[str, Sequence[float | None]]
    source: Mapping[str, Any]


def at_rest(source: Path) -> str:
    """Processor time of each process, as more is connected to it."""
    result = json.loads(source.read_text())
    columns = ("broker alone", "worker", "links, groups")
    spent: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * len(columns))
    for row in result["rows"]:
        if row["process"] != "all" and row["thread"] not in _COMPILERS:
            for at, name in enumerate(columns):
                spent[row["process"].replace("_ab", " to b").replace("_ba", " to a")][at] += row[
                    name
                ]
    rows = {name: [it or None for it in values] for name, values in spent.items()}
    names = ("broker alone", "with a worker", "with links and ten groups")
    title = "Processor time at rest, ms in each second, without the compiler of the JVM"
    return _drawn(Bars(title, names, rows, result))


def read_again(source: Path) -> str:
    """Records that a group reads again after a fail-over, by how many it had left to read."""
    result = json.loads(source.read_text())
    rows = {
        f"{row['lag']:,} left to read": [
            row["subscription"],
            row["foreign"],
            row["mirrormaker_max"],
        ]
        for row in result["rows"]
    }
    names = ("Subscription", "any client of Kafka", "MirrorMaker 2")
    return _drawn(Bars("Records read again after a fail-over", names, rows, result))


_COMPILERS = ("C1 CompilerThre", "C2 CompilerThre")


def _drawn(bars: Bars) -> str:
    high = len(bars.names) * _BAR_HEIGHT + _BETWEEN
    height = _TOP + high * len(bars.rows) + 30
    drawing = Drawing(860, height, bars.title)
    drawing.text((24, 34), bars.title, bold=True)
    for at, name in enumerate(bars.names):
        x = 24 + at * _LEGEND_STEP
        drawing.box(Box(x, 48, 14, 14), fill=_FILLS[at])
        drawing.text((x + 22, 60), name, size=12)
    most = max(it for values in bars.rows.values() for it in values if it is not None) or 1
    for row, (label, values) in enumerate(bars.rows.items()):
        top = _TOP + row * high
        middle = top + len(values) * _BAR_HEIGHT / 2 + 4
        drawing.text((_LEFT - 12, middle), label, size=12, anchor="end")
        for at, value in enumerate(values):
            if value is not None:
                y, width = top + at * _BAR_HEIGHT, _WIDTH * value / most
                drawing.box(Box(_LEFT, y, max(width, 1), _BAR_HEIGHT - 3), fill=_FILLS[at])
                drawing.text((_LEFT + width + 8, y + 12), f"{value:,.0f}", size=12)
    made = f"{bars.source['command']} on {bars.source['machine']}"
    drawing.text((24, height - 16), made, size=11, ink=GREY)
    return drawing.svg()
