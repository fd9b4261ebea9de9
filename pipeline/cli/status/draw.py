"""Draws the blocks of `stilltide status` with rich.

*Invariants*: text of a stranger, such as the name of a topic, is no markup, and its control
characters are escaped.
"""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stilltide.pipeline.cli.status.screen import Block
from stilltide.schemas.printable import printable, printable_lines

_INDENT = (0, 0, 0, 1)


def drawn(first: str, made: Sequence[Block]) -> RenderableType:
    """The first line and the blocks, with an empty line before each block."""
    lines: list[RenderableType] = [Text(printable(first), style="bold")]
    for block in made:
        lines += [Text(""), Text(block.title, style="bold red" if block.urgent else "bold")]
        lines.append(Padding(_table(block), _INDENT, expand=False))
    return Group(*lines)


def _table(block: Block) -> Table:
    table = Table(
        box=None, show_header=bool(block.columns), header_style="dim", padding=(0, 2, 0, 0)
    )
    for number in range(len(block.rows[0])):
        head = block.columns[number] if block.columns else ""
        is_number = number in block.numbers
        table.add_column(Text(head), justify="right" if is_number else "left", overflow="fold")
    for row in block.rows:
        table.add_row(*(Text(printable_lines(cell)) for cell in row))
    return table
