"""What a page consists of: sections with tables, cards and notes, as text; pure.

The console's pages and the screen of `stilltide status` are made of these values.

*Invariants*: the texts are raw, as topics and clients have written them; who draws them escapes.

A strip: what is at which offset of a partition, as bars of a drawing; pure.

*Invariants*: the number of bars does not grow with the number of records; whatever the strip shows
by colour is said in the tables and counts of its page, too.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from stilltide.pipeline.console.charts import TimeChart
from stilltide.pipeline.core.read_committed.machine import RecordVerdict
from stilltide.pipeline.core.status.asks import Answers, JudgedRun, Records, TxnSpan
from stilltide.pipeline.core.status.findings import StatusFinding, shown_age
from stilltide.pipeline.core.status.samples import Sample
from stilltide.pipeline.core.status.values import Aged, ClusterSeen, SystemStatus

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


def strip(records: Records, marks: Mapping[str, int | None]) -> Strip | None:
    """The strip of a window; None: the window has no offsets.

    Args:
        records: the records of the window, and their transactions.
        marks: offsets that are worth a line, by name; those outside the window are not drawn.
    """
    start, end = records.start, records.end
    if start >= end:
        return None
    scale = WIDTH / (end - start)
    lanes = _lanes(records.transactions)
    depth = 1 + max((number for number, _ in lanes), default=-1)
    height = _TOP + (_GAP + depth * _LANE if depth else 0)
    bars = [
        *_stacks(start, end, records.runs),
        *(_lane_bar(number, one, start, scale) for number, one in lanes),
        *(
            StripBar(min(WIDTH - 2, round((at - start) * scale)), 0, 2, height, "mark")
            for at in marks.values()
            if at is not None and start <= at <= end
        ),
    ]
    drawn = Counter[str]()
    for verdict, count in records.counts.items():
        drawn[kind_of(verdict)] += count
    legend = tuple((kind, f"{count:,} {kind}") for kind, count in sorted(drawn.items()))
    marked = ", ".join(f"{name} {at:,}" for name, at in marks.items() if at is not None)
    counts = ", ".join(text for _, text in legend) or "no record"
    label = f"Offsets {start:,} to {end:,}: {counts}; {marked}"
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
                StripBar(bar.x, bar.y, right - bar.x, bar.height, bar.kind)
                for bar in bars[-len(stack) :]
            ]
        else:
            bars += [StripBar(left, y, right - left, tall, kind) for kind, y, tall in stack]
        last = column, stack
    return bars


def _stack(counts: Mapping[str, int], size: int) -> list[tuple[str, int, int]]:
    """Kind, top and height of each share; a share that is there is at least one unit tall."""
    shares: list[tuple[str, int, int]] = []
    bottom = _TOP
    for kind, count in sorted(counts.items()):
        tall = min(bottom, max(1, round(_TOP * count / size)))
        if tall:
            bottom -= tall
            shares.append((kind, bottom, tall))
    return shares


def _lanes(spans: Iterable[TxnSpan]) -> list[tuple[int, TxnSpan]]:
    """A lane for each transaction, so that those in one lane do not overlap."""
    free_from: list[int] = []
    lanes: list[tuple[int, TxnSpan]] = []
    for span in spans:
        lane = next((it for it, end in enumerate(free_from) if end <= span.first), len(free_from))
        if lane == LANES_MAX:
            continue
        free_from[lane : lane + 1] = [span.last + 1]
        lanes.append((lane, span))
    return lanes


def _lane_bar(lane: int, span: TxnSpan, start: int, scale: float) -> StripBar:
    left = min(WIDTH - 2, round((span.first - start) * scale))
    width = max(2, min(WIDTH - left, round((span.last + 1 - span.first) * scale)))
    return StripBar(left, _TOP + _GAP + lane * _LANE, width, _LANE_BAR, kind_of(span.verdict))


ROWS_MAX = 50
"""Rows of a table; the others are counted."""

ROWS_EACH_MAX = 20
"""The same, where a page has a table for each of several clusters."""

ANY = "any"
"""The choice of all clusters, or of all states."""

UNKNOWN = "?"
NOTHING = "-"

_DIGITS = 18
"""Digits of a number in an address; more would be above every offset."""


Query = Mapping[str, str]
"""What the viewer has chosen, from the address of the page."""


@dataclass(frozen=True)
class PageView:
    """What a page is made of.

    Attributes:
        status: the state that all pages share.
        findings: what is found in it.
        query: what the viewer has chosen.
        answers: what was read for this page only.
        samples: the last half hour, the oldest sample first.
    """

    status: SystemStatus
    findings: Sequence[StatusFinding]
    query: Query
    answers: Answers
    samples: Sequence[Sample] = ()


@dataclass(frozen=True)
class Cell:
    """A text in a table or card.

    Attributes:
        text: the text.
        kind: how to draw it: `num`, `code`, `soft`, `id` (shortened where it is long, the whole on
            hover and in a copy), `lines` (with line breaks), `dump` (lines that are not wrapped),
            or a state: `good`, `warn`, `bad`, `idle`.
        note: a second, smaller line.
        command: a command to copy, below.
        href: where the text leads to; empty: nowhere.
        parts: cells that are drawn after the text, with commas between.
    """

    text: str
    kind: str = ""
    note: str = ""
    command: str = ""
    href: str = ""
    parts: "tuple[Cell, ...]" = ()


@dataclass(frozen=True)
class Column:
    """The head of a column, and whether its cells are numbers."""

    head: str
    is_number: bool = False


@dataclass(frozen=True)
class PageTable:
    """Rows below heads.

    Attributes:
        caption: what the rows are, for people who do not see the heading above.
        columns: from left to right; the first one names its row.
        rows: a cell for each column.
        more: number of rows that are left out.
        elsewhere: where they are.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: int = 0
    elsewhere: str = ""


@dataclass(frozen=True)
class Fact:
    """A named value with its age."""

    name: str
    value: Cell
    age: str


@dataclass(frozen=True)
class Card:
    """A thing with a state and facts, such as a cluster."""

    title: str
    note: str
    state: Cell
    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class Choice:
    """A field of a form.

    Attributes:
        name: its name in the address.
        label: what people choose.
        value: what is chosen now.
        options: what may be chosen; empty: any text.
        is_number: whether it is a number, >= 0.
    """

    name: str
    label: str
    value: str
    options: tuple[str, ...] = ()
    is_number: bool = False


@dataclass(frozen=True)
class PageSection:
    """A part of a page.

    Attributes:
        title: the heading.
        note: what the figures mean, in a sentence; may be empty.
        age: when the section was read; may be empty if its rows say so.
        problem: why it could not be read again; empty: it was.
        hint: the next step to end the problem.
        empty: what to say if there is nothing else.
        urgent: whether to draw attention to the section.
        path: address to which the choices lead.
        choices: fields of a form.
        links: further places, by their names.
    """

    title: str
    note: str = ""
    age: str = ""
    problem: str = ""
    hint: str = ""
    empty: str = ""
    urgent: bool = False
    cards: tuple[Card, ...] = ()
    strip: Strip | None = None
    charts: tuple[TimeChart, ...] = ()
    tables: tuple[PageTable, ...] = field(default=())
    path: str = ""
    choices: tuple[Choice, ...] = ()
    links: tuple[Cell, ...] = ()


def columns(*heads: str) -> tuple[Column, ...]:
    """Columns; a head that ends in `#` is one of numbers."""
    return tuple(Column(head.rstrip("#"), head.endswith("#")) for head in heads)


def table(
    caption: str,
    heads: Sequence[Column],
    rows: Sequence[tuple[Cell, ...]],
    total: int = 0,
    elsewhere: str = "",
    *,
    rows_max: int = ROWS_MAX,
) -> tuple[PageTable, ...]:
    """A table of the first rows; none without rows.

    Args:
        caption: as in `PageTable`.
        heads: the columns.
        rows: all rows, or the first ones.
        total: number of rows that there are, if `rows` are only the first ones.
        elsewhere: as in `PageTable`.
        rows_max: the most rows that are shown.
    """
    if not rows:
        return ()
    more = max(total, len(rows)) - min(len(rows), rows_max)
    return (PageTable(caption, tuple(heads), tuple(rows[:rows_max]), more, elsewhere),)


def number(value: int | None) -> Cell:
    """A count with its digits in groups of three; `?` if it is unknown."""
    return Cell(UNKNOWN if value is None else f"{value:,}", "num")


def size(count: int) -> Cell:
    """A number of bytes in the largest unit of which there is at least one."""
    for unit, length in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= length:
            return Cell(f"{count / length:.1f} {unit}", "num")
    return Cell(f"{count} B", "num")


def in_words(state: str) -> str:
    """A state that Kafka writes as `CompleteCommit`, as people read it: `complete commit`."""
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", state).lower()


def age_text(aged: Aged[Any], now_ms: int) -> str:
    """When a part was read, such as `2 s`; `never` if it never was."""
    age_ms = aged.age_ms(now_ms)
    return "never" if age_ms is None else shown_read(age_ms)


def shown_read(age_ms: int) -> str:
    """An age in whole seconds or longer units: a finer figure would only flicker."""
    return shown_age(age_ms) if age_ms >= 1000 else "now"  # noqa: PLR2004 - a second


def read_age(read_ms: int | None, now_ms: int) -> Cell:
    """The cell of the column of ages."""
    return Cell("never" if read_ms is None else shown_read(max(0, now_ms - read_ms)), "num")


def ago(at_ms: int | None, now_ms: int) -> str:
    """How long ago something was; `-` if it never was."""
    return NOTHING if at_ms is None else shown_read(max(0, now_ms - at_ms))


def address(path: str, **chosen: object) -> str:
    """The address of a page with these choices, without those that are None or empty.

    Relative, as all addresses of the console: a proxy may serve it below a path of its own.
    """
    given = {name: str(one) for name, one in chosen.items() if one not in (None, "")}
    return f"{path}?{urlencode(given, errors='replace')}" if given else path


def number_in(query: Query, name: str) -> int | None:
    """A number that the viewer has chosen; None: none, or not a number."""
    given = query.get(name, "")
    return int(given) if given.isascii() and given.isdecimal() and len(given) <= _DIGITS else None


def time_in(query: Query, name: str) -> int | None:
    """A time that the viewer has chosen, in milliseconds since 1970; None: none, or not a time.

    As times are shown, `2026-11-28 22:45:00`, or another form of ISO 8601; without a zone in UTC.
    """
    try:
        given = datetime.fromisoformat(query.get(name, "").strip())
        at = given.replace(tzinfo=UTC) if given.tzinfo is None else given
        return max(0, int(at.timestamp() * 1000))
    except (ValueError, OverflowError):
        return None


def chosen_of(status: SystemStatus, query: Query) -> list[ClusterSeen]:
    """The clusters that the viewer has chosen; all without a choice."""
    name = query.get("cluster", ANY)
    return [cluster for cluster in status.clusters if name in {ANY, cluster.name}]


def cluster_choice(status: SystemStatus, query: Query) -> Choice:
    """One cluster, or any."""
    names = (ANY, *(cluster.name for cluster in status.clusters))
    return Choice("cluster", "Cluster", query.get("cluster", ANY), names)


def rows_each(clusters: Sequence[ClusterSeen]) -> int:
    """The most rows of a table, where these clusters have one each."""
    return ROWS_MAX if len(clusters) == 1 else ROWS_EACH_MAX


def pages_of(path: str, first: int, shown: int, total: int, **chosen: object) -> tuple[Cell, ...]:
    """Links to the rows before and after those that are shown."""
    links = []
    if first > 0:
        before = max(0, first - max(shown, 1))
        links.append(Cell("earlier", href=address(path, **chosen, first=before or None)))
    if first + shown < total:
        links.append(Cell("later", href=address(path, **chosen, first=first + shown)))
    return tuple(links)
