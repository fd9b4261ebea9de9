"""`--help` of every command is written beforehand, and imports none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stilltide.pipeline.cli.common.helps import (
    FILE,
    WIDTH,
    words_of,
    written_help,
)
from stilltide.pipeline.cli.main import cli, run

HEAVY = {
    "aiohttp",
    "confluent_kafka",
    "faust",
    "kafka",
    "pydantic",
    "pyspark",
    "rich",
    "structlog",
}
"""Modules that take longer to import than a help may take: 0.4 s of a processor."""

ASK = """
import json, sys
from stilltide.pipeline.cli.program import run_program
for words in json.loads(sys.argv[1]):
    assert run_program([*words, "--help"]) == 0
run_program(["--help"])
try:
    run_program(["--version"])
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)))
"""


MAKE = """
import sys
from stilltide.pipeline.cli.common.helps import content
from stilltide.pipeline.cli.main import cli
sys.stdout.write(content(cli))
"""


def test_the_file_is_what_the_commands_say():
    """`make helps` was run after the last change of a command.

    Asked in a process of its own: click keeps the help option that a test has asked a command for.
    """
    done = subprocess.run([sys.executable, "-c", MAKE], capture_output=True, text=True, check=True)
    assert Path(FILE).read_text() == done.stdout


def test_no_help_imports_what_takes_long():
    """By name, since a time would depend on the machine; also `--version`."""
    words = json.dumps(list(words_of(cli)))
    done = subprocess.run(
        [sys.executable, "-c", ASK, words],
        env={"COLUMNS": str(WIDTH), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    modules = set(json.loads(done.stdout.splitlines()[-1]))
    assert not modules & HEAVY
    assert not [name for name in modules if name.startswith("stilltide.pipeline.drivers")]


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_a_help_is_printed_as_click_does(option: str, capsys: pytest.CaptureFixture[str]):
    """Both options give the same text."""
    assert run(["txn", "list", option]) == 0
    assert capsys.readouterr().out == f"{written_help(['txn', 'list', '--help'])}\n"


def test_a_narrow_terminal_gets_a_text_of_its_own(monkeypatch: pytest.MonkeyPatch):
    """Click wraps the text."""
    monkeypatch.setenv("COLUMNS", str(WIDTH - 1))
    assert written_help(["txn", "list", "--help"]) is None
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    assert written_help(["txn", "list", "--help"]) is not None


@pytest.mark.parametrize(
    "words", [["--help"], ["no-such", "--help"], ["txn", "list"], ["txn", "--help", "list"], []]
)
def test_other_command_lines_are_clicks(words: list[str]):
    """Also the help of a command that does not exist."""
    assert written_help(words) is None
