"""The help of every command, written beforehand, so that `--help` imports no command.

*Source*: a command imports what it runs with, which takes up to two seconds of a processor:
clients of Kafka, settings, Faust, Spark. `make helps` writes the file; a test compares it with the
commands.

*Refuses*: a terminal of fewer columns than the texts have; click wraps them then.
"""

import io
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout

import click

FILE = os.path.join(os.path.dirname(__file__), "helps.json")  # noqa: PTH118, PTH120 - pathlib is slow to import
WIDTH = 80
"""Columns of the texts; click writes no wider ones."""

_OPTIONS = ("-h", "--help")


def written_help(arguments: Sequence[str]) -> str | None:
    """The help that a command line asks for; None: click has to make it.

    Args:
        arguments: the words of the command, and `--help` as the last one.
    """
    if len(arguments) < 2 or arguments[-1] not in _OPTIONS:  # noqa: PLR2004 - a word and the option
        return None
    if shutil.get_terminal_size((WIDTH, 0)).columns < WIDTH:
        return None
    with open(FILE, encoding="utf-8") as file:  # noqa: PTH123 - as above
        lines = json.load(file).get(" ".join(arguments[:-1]))
    return None if lines is None else "\n".join(lines)


def made_help(command: click.Group, words: Sequence[str]) -> str:
    """The help of a command as click makes it for a terminal of `WIDTH` columns."""
    printed, columns = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(WIDTH)
    try:
        with redirect_stdout(printed):
            command.main([*words, "--help"], prog_name="stilltide", standalone_mode=False)
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
    return printed.getvalue().removesuffix("\n")


def words_of(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command below a group, groups included."""
    if words:
        yield words
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield from words_of(below, (*words, name))


def content(command: click.Group) -> str:
    """The content of the file."""
    helps = {" ".join(words): made_help(command, words).split("\n") for words in words_of(command)}
    return json.dumps(helps, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    from stilltide.pipeline.cli.main import cli

    with open(FILE, "w", encoding="utf-8") as file:  # noqa: PTH123 - as above
        file.write(content(cli))
