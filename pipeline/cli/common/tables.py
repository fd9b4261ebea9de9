"""The form of a table that stays readable in the width of a terminal.

*Invariants*: no word is broken: a table that would have to is shown as records, one line for each
value. The choice depends on the rows and the width alone.
"""

import re
from collections.abc import Sequence
from enum import Enum

from rich.box import HEAVY_HEAD
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stilltide.schemas.printable import printable

_BORDER, _GAP = 3, 2
"""Columns that each cell takes more than its text: in a box, and without one."""

_SPLIT = re.compile(r"[_.]")
"""Where a head is wrapped."""

_PROSE_MIN = 20
"""Fewest columns for a text of several words, unless the text is shorter."""


class Form(Enum):
    """How rows are shown.

    Attributes:
        BOXED: a table with lines, each cell on one line.
        PLAIN: a table without lines, whose heads and texts of several words are wrapped.
        TURNED: a table whose columns are the rows, and whose first column has the heads.
        RECORDS: a line for each value, an empty line between rows.
    """

    BOXED = "boxed"
    PLAIN = "plain"
    TURNED = "turned"
    RECORDS = "records"


def form_for(heads: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> Form:
    """The first form, in the order of `Form`, in which everything fits the width."""
    columns = list(zip(heads, *cells, strict=True))
    wide = [max(map(_width, column)) for column in columns]
    if sum(wide) + _BORDER * len(wide) + 1 <= width:
        return Form.BOXED
    narrow = [_narrowest(head, texts) for head, *texts in columns]
    if sum(narrow) + _GAP * (len(narrow) - 1) <= width:
        return Form.PLAIN
    turned = [max(map(_width, row)) for row in (heads, *cells)]
    if len(cells) > 1 and sum(turned) + _BORDER * len(turned) + 1 <= width:
        return Form.TURNED
    return Form.RECORDS


def table_of(
    heads: Sequence[str],
    cells: Sequence[Sequence[str]],
    numbers: Sequence[bool],
    form: Form,
    title: str | None,
) -> RenderableType:
    """The rows in a form.

    Args:
        heads: names of the columns.
        cells: for each row a text for each column.
        numbers: whether each column holds numbers.
        form: the form.
        title: heading; None for none.
    """
    if form is Form.RECORDS:
        return _records(heads, cells, title)
    if form is Form.TURNED:
        first, *others = zip(heads, *cells, strict=True)
        right = [False, *[any(numbers)] * len(cells)]
        return table_of(first, others, right, Form.BOXED, title)
    boxed = form is Form.BOXED
    table = Table(
        title=Text(printable(title)) if title else None,  # a string would be read as markup
        title_justify="left",
        box=HEAVY_HEAD if boxed else None,
        padding=(0, 1) if boxed else (0, _GAP, 0, 0),
        pad_edge=boxed,
    )
    for number, head in enumerate(heads):
        shown = printable(head if boxed else _SPLIT.sub(_apart, head))
        is_prose = any(len(row[number].split()) > 1 for row in cells)
        texts = [row[number] for row in cells]
        table.add_column(
            Text(shown),
            justify="right" if numbers[number] else "left",
            overflow="fold",
            min_width=None if boxed else _narrowest(head, texts),
            no_wrap=not boxed and not is_prose and _SPLIT.search(head) is None,
        )
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def _records(
    heads: Sequence[str], cells: Sequence[Sequence[str]], title: str | None
) -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, _GAP, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for number, row in enumerate(cells):
        if number:
            table.add_row("", "")
        for head, text in zip(heads, row, strict=True):
            table.add_row(Text(printable(head)), Text(text))
    return Group(Text(printable(title)), table) if title else table


def _apart(match: re.Match[str]) -> str:
    return " " if match[0] == "_" else f"{match[0]} "


def _width(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def _narrowest(head: str, texts: Sequence[str]) -> int:
    """Columns in which nothing but texts of several words is wrapped, and these not too much."""
    widest = max(map(_width, texts), default=0)
    words = max((cell_len(word) for text in texts for word in text.split()), default=0)
    of_head = max(map(cell_len, _SPLIT.sub(_apart, head).split()), default=0)
    return max(of_head, words, min(widest, _PROSE_MIN))
