"""What a page consists of: sections with tables, cards and notes, as text; pure.

The console's pages and the screen of `stilltide status` are made of these values.

*Invariants*: the texts are raw, as topics and clients have written them; who draws them escapes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from stilltide.pipeline.console.strip import Strip
from stilltide.pipeline.core.status.asks import Answers
from stilltide.pipeline.core.status.findings import StatusFinding, shown_age
from stilltide.pipeline.core.status.state import Aged, SystemStatus

ROWS_MAX = 50
"""Rows of a table; the others are counted."""

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
        found: what is found in it.
        query: what the viewer has chosen.
        answers: what was read for this page only.
    """

    status: SystemStatus
    found: Sequence[StatusFinding]
    query: Query
    answers: Answers


@dataclass(frozen=True)
class Cell:
    """A text in a table or card.

    Attributes:
        text: the text.
        kind: how to draw it: `num`, `code`, `soft`, or a state: `good`, `warn`, `bad`, `idle`.
        note: a second, smaller line.
        command: a command to copy, below.
        href: where the text leads to; empty: nowhere.
    """

    text: str
    kind: str = ""
    note: str = ""
    command: str = ""
    href: str = ""


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
    tables: tuple[PageTable, ...] = field(default=())
    path: str = ""
    choices: tuple[Choice, ...] = ()
    links: tuple[Cell, ...] = ()


def columns(*heads: str) -> tuple[Column, ...]:
    """Columns; a head that ends in `#` is one of numbers."""
    return tuple(Column(it.rstrip("#"), it.endswith("#")) for it in heads)


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
    """The address of a page with these choices, without those that are None or empty."""
    given = {name: str(one) for name, one in chosen.items() if one not in (None, "")}
    return f"/{path}?{urlencode(given, errors='replace')}" if given else f"/{path}"


def number_in(query: Query, name: str) -> int | None:
    """A number that the viewer has chosen; None: none, or not a number."""
    given = query.get(name, "")
    return int(given) if given.isascii() and given.isdecimal() and len(given) <= _DIGITS else None


def pages_of(path: str, first: int, shown: int, total: int, **chosen: object) -> tuple[Cell, ...]:
    """Links to the rows before and after those that are shown."""
    links = []
    if first > 0:
        before = max(0, first - max(shown, 1))
        links.append(Cell("earlier", href=address(path, **chosen, first=before or None)))
    if first + shown < total:
        links.append(Cell("later", href=address(path, **chosen, first=first + shown)))
    return tuple(links)
