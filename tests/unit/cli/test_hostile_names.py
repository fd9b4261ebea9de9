"""Names that strangers chose, in every form in which commands print."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

import pytest

from stilltide.pipeline.cli.common.output import print_columns, print_error, print_rows, say
from stilltide.pipeline.logging import configure_logging, get_logger
from stilltide.schemas.errors import StilltideError
from tests.support.hostile import HOSTILE, is_harmless

each_name = pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)


def shown(name: str) -> str:
    """What must be seen of it in one line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


@each_name
def test_a_table_shows_a_name_as_text(name: str, capsys: pytest.CaptureFixture[str]):
    """In cells, headings and titles: no control sequence, no markup, nothing left out."""
    print_rows([{"id": name, "count": 1}], "table", title=name)
    printed = capsys.readouterr().out
    assert is_harmless(printed)
    if len(name) < 100:
        assert printed.count(shown(name)) == 2


@each_name
def test_a_table_of_columns_shows_a_name_as_text(name: str, capsys: pytest.CaptureFixture[str]):
    """Also where a name is the heading of a column, or an item of a list."""
    print_columns([{"id": name, "clients": [name, "x"], "tuple": (name,)}], "table")
    printed = capsys.readouterr().out
    assert is_harmless(printed)
    if len(name) < 50:
        assert printed.count(shown(name)) >= 2


@each_name
def test_json_keeps_the_name(name: str, capsys: pytest.CaptureFixture[str]):
    """JSON is escaped by its own rules, and a program reads the very name."""
    print_rows([{"id": name}], "json")
    printed = capsys.readouterr().out
    assert is_harmless(printed)
    assert json.loads(printed) == [{"id": name}]


@each_name
def test_errors_and_progress_are_harmless(name: str, capsys: pytest.CaptureFixture[str]):
    """An error has its place and primary message in one line."""
    print_error(StilltideError(f"no {name}", detail=name, hint=name, topic=name))
    say(f"reading {name}")
    printed = capsys.readouterr().err
    assert is_harmless(printed)
    assert shown(f"error: {name}: no {name}") == printed.splitlines()[0]


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """What the log of a process holds; in the test, so that pytest collects nothing of it."""
    stream = io.StringIO()
    root = logging.getLogger()
    before, level = root.handlers, root.level
    with redirect_stderr(stream):
        configure_logging()
    try:
        yield stream
    finally:
        root.handlers = before
        root.setLevel(level)


@each_name
def test_a_log_line_is_one_line(name: str):
    """Fields, events, values in other values, and lines of libraries cannot forge a line."""
    with logged() as written:
        log = get_logger("stilltide.pipeline.cli")
        log.warning("seen", topic=name, within=[name], place=(name, 1), error=StilltideError(name))
        logging.getLogger("aiokafka.of.test").error("lost %s", name)
    lines = written.getvalue().splitlines()
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)


def test_a_log_line_shows_a_list_as_a_list():
    """Partitions and their like are not shown as quoted text."""
    with logged() as written:
        get_logger("stilltide.pipeline.cli").warning("assigned", partitions=[0, 1, 2])
    assert "partitions=[0, 1, 2]" in written.getvalue()


@each_name
def test_a_traceback_shows_no_control_characters_and_no_locals(name: str):
    """A secret in a local variable is not in the log."""
    secret = "-".join(["hush"] * 2)
    with logged() as written:
        try:
            raise ValueError(name)  # noqa: TRY301 - a traceback is what is wanted
        except ValueError:
            get_logger("stilltide.pipeline.cli").exception("failed", topic=name)
    assert "ValueError" in written.getvalue()
    assert is_harmless(written.getvalue())
    assert secret not in written.getvalue()
