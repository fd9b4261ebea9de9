"""What a page consists of: sections with tables, cards and notes, as text; pure.

*Invariants*: the texts are raw, as topics and clients have written them; the templates escape them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stilltide.pipeline.core.status.findings import shown_age
from stilltide.pipeline.core.status.state import Aged

ROWS_MAX = 50
"""Rows of a table; the others are counted."""

UNKNOWN = "?"
NOTHING = "-"


@dataclass(frozen=True)
class Cell:
    """A text in a table or card.

    Attributes:
        text: the text.
        kind: how to draw it: `num`, `code`, `soft`, or a state: `good`, `warn`, `bad`, `idle`.
        note: a second, smaller line.
        command: a command to copy, below.
    """

    text: str
    kind: str = ""
    note: str = ""
    command: str = ""


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
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: int = 0


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
    """

    title: str
    note: str = ""
    age: str = ""
    problem: str = ""
    hint: str = ""
    empty: str = ""
    urgent: bool = False
    cards: tuple[Card, ...] = ()
    tables: tuple[PageTable, ...] = field(default=())


def columns(*heads: str) -> tuple[Column, ...]:
    """Columns; a head that ends in `#` is one of numbers."""
    return tuple(Column(it.rstrip("#"), it.endswith("#")) for it in heads)


def table(
    caption: str, heads: Sequence[Column], rows: Sequence[tuple[Cell, ...]], total: int = 0
) -> tuple[PageTable, ...]:
    """A table of the first rows; none without rows.

    Args:
        caption: as in `PageTable`.
        heads: the columns.
        rows: all rows, or the first ones.
        total: number of rows that there are, if `rows` are only the first ones.
    """
    if not rows:
        return ()
    more = max(total, len(rows)) - min(len(rows), ROWS_MAX)
    return (PageTable(caption, tuple(heads), tuple(rows[:ROWS_MAX]), more),)


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
