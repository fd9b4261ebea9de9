"""How commands print: data on stdout as a table or JSON; progress and errors on stderr.

*Invariants*: text of a stranger, such as a transactional id, reaches the terminal with its control
characters escaped, and is no markup of rich.

The module imports rich when it prints a table, so that `--help` and JSON do not wait for rich.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from stilltide.schemas.errors import StilltideError
from stilltide.schemas.printable import printable, printable_lines

_Command = TypeVar("_Command", bound=Callable[..., Any])
_WIDTH_PIPED = 200
"""Width of a table in a pipe or file, where rows need not fold at 80 columns."""
_ITEMS_SHOWN = 10
"""Items shown of a list in a table; JSON has all items."""

Row = Mapping[str, Any]
"""A line of data; its keys are the columns, in order."""


def output_option(command: _Command) -> _Command:
    """Adds `-o table|json`, passed to the command as `output`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Format of the data on stdout.",
    )(command)


def print_rows(
    rows: Sequence[Row], output: str, *, title: str | None = None, empty: str = ""
) -> None:
    """Prints rows of the same columns to stdout.

    Args:
        rows: the data; without rows a table prints nothing, and JSON prints `[]`.
        output: `table` or `json`.
        title: heading of a table.
        empty: line on stderr in place of a table without rows; empty: none.
    """
    if output == "json":
        print(json.dumps([dict(row) for row in rows], indent=2))
    elif not rows:
        if empty:
            say(empty)
    else:
        from rich.console import Console  # noqa: PLC0415 - see the module's docstring

        from stilltide.pipeline.cli.common.tables import (  # noqa: PLC0415 - as above
            Form,
            form_for,
            table_of,
        )

        is_terminal = sys.stdout.isatty()
        console = Console(width=None if is_terminal else _WIDTH_PIPED)
        heads = list(rows[0])
        cells = [[_cell(value) for value in row.values()] for row in rows]
        numbers = [isinstance(value, int | float) for value in rows[0].values()]
        form = form_for(heads, cells, console.width) if is_terminal else Form.BOXED
        console.print(table_of(heads, cells, numbers, form, title))


def print_columns(rows: Sequence[Row], output: str) -> None:
    """Prints rows of many columns to stdout: in a table each row is a column, below the first key.

    Args:
        rows: the data; without rows a table prints nothing, and JSON prints `[]`.
        output: `table` or `json`.
    """
    if output == "json" or not rows:
        print_rows(rows, output)
        return
    first, *others = rows[0]
    table = [
        {first: name} | {str(row[first]): _lines(row[name]) for row in rows} for name in others
    ]
    print_rows(table, output)


class _Lines(list[Any]):
    """Items that have a line each in their cell."""


def _lines(value: Any) -> Any:
    """A list whose items are to be shown on a line each; other values unchanged."""
    return _Lines(value) if isinstance(value, list) else value


def _cell(value: Any) -> str:
    """The text of a cell; of a list the first items."""
    if isinstance(value, list):
        items: list[Any] = value
        shown = [printable(str(each)) for each in items[:_ITEMS_SHOWN]]
        more = [f"... {len(items) - _ITEMS_SHOWN} more"] if len(items) > _ITEMS_SHOWN else []
        return ("\n" if isinstance(value, _Lines) else ", ").join([*shown, *more]) or "-"
    return "-" if value is None else printable(str(value))


def say(text: str) -> None:
    """Prints a line of progress or diagnostics to stderr, or several lines."""
    click.echo(printable_lines(text), err=True)


def print_event(event: Mapping[str, object]) -> None:
    """Prints an event of a command that runs for long, as a line of JSON to stdout."""
    print(json.dumps(event), flush=True)


def confirmed(question: str) -> bool:
    """Whether a person at the terminal says yes; without a terminal, no."""
    return sys.stdin.isatty() and click.confirm(question, err=True)


def print_error(error: StilltideError) -> None:
    """Prints an error to stderr: the primary message, then detail and hint if it has them."""
    place = f"{error.place}: " if error.place else ""
    say("error: " + printable(f"{place}{error.primary}"))
    for label, text in (("detail", error.detail), ("hint", error.hint)):
        if text:
            say(f"  {label}: " + text.replace("\n", "\n    "))


def utc(at_ms: int) -> str:
    """A time, milliseconds since 1970, as ISO 8601 in UTC with milliseconds.

    Some come from other people's producers, which may count in microseconds. Behind the year 9999
    a time is its number alone.
    """
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):
        return f"{at_ms} ms"
