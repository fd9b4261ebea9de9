"""A strip: what is at which offset of a partition, as bars of a drawing; pure.

*Invariants*: the number of bars does not grow with the number of records; whatever the strip shows
by colour is said in the tables and counts of its page, too.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stilltide.pipeline.core.read_committed.verdict import RecordVerdict
from stilltide.pipeline.core.status.asks import JudgedRun, Records, TxnSpan

WIDTH = 1000
"""Width of a strip in its own units."""

COLUMNS_MAX = 200
LANES_MAX = 12

_TOP = 26
_LANE = 8
_LANE_BAR = 5
_GAP = 4

HIDDEN = (RecordVerdict.LATE, RecordVerdict.MALFORMED, RecordVerdict.LOST)
"""Verdicts that are drawn as one: withheld for another reason than an abort."""


@dataclass(frozen=True)
class StripBar:
    """A rectangle in a strip's own units, and what it stands for: a kind of the style sheet."""

    x: int
    y: int
    width: int
    height: int
    kind: str


@dataclass(frozen=True)
class Strip:
    """A drawing of a range of offsets.

    Attributes:
        label: what the drawing shows, for people who do not see it.
        height: its height in units; its width is `WIDTH`.
        bars: what it consists of.
        first, last: the offsets at its ends.
        legend: names of the kinds, with their counts.
        lines: the lines from left to right, with their offsets; empty: none is drawn.
    """

    label: str
    height: int
    bars: tuple[StripBar, ...]
    first: str
    last: str
    legend: tuple[tuple[str, str], ...]
    lines: str = ""


def kind_of(verdict: RecordVerdict) -> str:
    """The kind of a verdict in the style sheet."""
    return "withheld" if verdict in HIDDEN else verdict.value


def strip(found: Records, marks: Mapping[str, int | None]) -> Strip | None:
    """The strip of a window; None: the window has no offsets.

    Args:
        found: the records of the window, and their transactions.
        marks: offsets that are worth a line, by name; those outside the window are not drawn.
    """
    start, end = found.start, found.end
    if start >= end:
        return None
    scale = WIDTH / (end - start)
    lanes = _lanes(found.transactions)
    depth = 1 + max((number for number, _ in lanes), default=-1)
    height = _TOP + (_GAP + depth * _LANE if depth else 0)
    bars = [
        *_stacks(start, end, found.runs),
        *(_lane_bar(number, one, start, scale) for number, one in lanes),
        *(
            StripBar(min(WIDTH - 2, round((at - start) * scale)), 0, 2, height, "mark")
            for at in marks.values()
            if at is not None and start <= at <= end
        ),
    ]
    drawn = Counter[str]()
    for verdict, count in found.counts.items():
        drawn[kind_of(verdict)] += count
    legend = tuple((kind, f"{count:,} {kind}") for kind, count in sorted(drawn.items()))
    marked = ", ".join(f"{name} {at:,}" for name, at in marks.items() if at is not None)
    said = ", ".join(text for _, text in legend) or "no record"
    label = f"Offsets {start:,} to {end:,}: {said}; {marked}"
    within = [(at, name) for name, at in marks.items() if at is not None and start <= at <= end]
    lines = ", ".join(f"{name} {at:,}" for at, name in sorted(within))
    return Strip(label, height, tuple(bars), f"{start:,}", f"{end:,}", legend, lines)


def _stacks(start: int, end: int, runs: Sequence[JudgedRun]) -> list[StripBar]:
    """Columns of equal numbers of offsets, each with its share of every kind, bottom up."""
    size = -(-(end - start) // COLUMNS_MAX)  # offsets of a column
    columns: dict[int, Counter[str]] = {}
    for run in runs:
        at = run.first
        while at < run.end:
            column = (at - start) // size
            until = min(run.end, start + (column + 1) * size)
            columns.setdefault(column, Counter())[kind_of(run.verdict)] += until - at
            at = until
    bars: list[StripBar] = []
    unit = WIDTH * size / (end - start)
    last: tuple[int, list[tuple[str, int, int]]] | None = None
    for column, counts in sorted(columns.items()):
        left, right = round(column * unit), min(WIDTH, round((column + 1) * unit))
        stack = _stack(counts, size)
        if last is not None and last == (column - 1, stack):  # as its neighbour: one wider bar
            bars[-len(stack) :] = [
                StripBar(it.x, it.y, right - it.x, it.height, it.kind) for it in bars[-len(stack) :]
            ]
        else:
            bars += [StripBar(left, y, right - left, tall, kind) for kind, y, tall in stack]
        last = column, stack
    return bars


def _stack(counts: Mapping[str, int], size: int) -> list[tuple[str, int, int]]:
    """Kind, top and height of each share; a share that is there is at least one unit tall."""
    found: list[tuple[str, int, int]] = []
    bottom = _TOP
    for kind, count in sorted(counts.items()):
        tall = min(bottom, max(1, round(_TOP * count / size)))
        if tall:
            bottom -= tall
            found.append((kind, bottom, tall))
    return found


def _lanes(spans: Iterable[TxnSpan]) -> list[tuple[int, TxnSpan]]:
    """A lane for each transaction, so that those in one lane do not overlap."""
    free_from: list[int] = []
    found: list[tuple[int, TxnSpan]] = []
    for one in spans:
        lane = next((it for it, end in enumerate(free_from) if end <= one.first), len(free_from))
        if lane == LANES_MAX:
            continue
        free_from[lane : lane + 1] = [one.last + 1]
        found.append((lane, one))
    return found


def _lane_bar(lane: int, one: TxnSpan, start: int, scale: float) -> StripBar:
    left = min(WIDTH - 2, round((one.first - start) * scale))
    width = max(2, min(WIDTH - left, round((one.last + 1 - one.first) * scale)))
    return StripBar(left, _TOP + _GAP + lane * _LANE, width, _LANE_BAR, kind_of(one.verdict))
