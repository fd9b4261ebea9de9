"""The root of the command line: lazy commands, exit codes, errors on stderr."""

import logging
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
import structlog

from stilltide.pipeline.cli import main
from stilltide.pipeline.cli.common.output import print_rows
from stilltide.pipeline.errors import ConfigError, PipelineError
from stilltide.pipeline.logging import configure_logging

_HELP_IMPORTS = """
import sys
from stilltide.pipeline.cli.main import run
code = run(["--help"])
loaded = {"faust", "pyspark", "confluent_kafka", "stilltide.pipeline.cli.local"} & set(sys.modules)
sys.exit(str(loaded) if loaded else code)
"""


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers, root.level
    yield
    root.handlers, root.level = before
    structlog.reset_defaults()


@click.command()
@click.argument("kind")
def failing(kind: str) -> None:
    """Fails in the way that is asked for."""
    if kind == "ours":
        raise ConfigError("it is wrong", detail="because", hint="do this")
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "exit":
        sys.exit(3)


@pytest.fixture
def _failing_noun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"{main.__package__}.failing", sys.modules[__name__])
    monkeypatch.setattr(main, "NOUNS", {"failing": main.Noun("failing:failing", "Fail.")})


def test_help_imports_no_command():
    """The help lists every command without paying for Faust, Spark or a Kafka client."""
    done = subprocess.run(
        [sys.executable, "-c", _HELP_IMPORTS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for noun in main.NOUNS:
        assert f"  {noun} " in done.stdout
    assert "Examples:" in done.stdout


@pytest.mark.usefixtures("_failing_noun")
def test_our_failure_is_printed_and_exits_1(capsys: pytest.CaptureFixture[str]):
    """A failure of ours is primary, detail and hint on stderr, and nothing on stdout."""
    assert main.run(["failing", "ours"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: it is wrong\n  detail: because\n  hint: do this\n"


@pytest.mark.usefixtures("_failing_noun")
def test_interrupt_exits_130(capsys: pytest.CaptureFixture[str]):
    """Ctrl-C is no failure of ours, and no traceback."""
    assert main.run(["failing", "interrupt"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["lokal"], ["--no-such-option"], ["local", "up", "--port", "x"]]
)
def test_wrong_usage_exits_2(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    """Wrong usage is told from failure by its exit code."""
    assert main.run(arguments) == 2
    assert "Error:" in capsys.readouterr().err


def test_slow_protobuf_is_refused():
    """Only upb is fast enough; another implementation is refused with the way out."""
    main.require_upb("upb")
    with pytest.raises(PipelineError, match="python implementation") as caught:
        main.require_upb("python")
    assert "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION" in caught.value.hint


def test_json_and_table_hold_the_same(capsys: pytest.CaptureFixture[str]):
    """The two outputs show the same rows; JSON of no rows is still JSON."""
    rows = [{"name": "a", "count": 12345, "log": None}]
    print_rows(rows, "json")
    assert capsys.readouterr().out == (
        '[\n  {\n    "name": "a",\n    "count": 12345,\n    "log": null\n  }\n]\n'
    )
    print_rows(rows, "table")
    table = capsys.readouterr().out
    assert all(cell in table for cell in ("name", "count", "12345", "-"))
    print_rows([], "json")
    assert capsys.readouterr().out == "[]\n"


def test_log_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]):
    """Our lines from the level up and libraries' warnings are on stderr; stdout stays clean."""
    configure_logging("info")
    structlog.get_logger("stilltide.pipeline.example").info("served", topic="orders")
    structlog.get_logger("stilltide.pipeline.example").debug("too much")
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("trouble")
    out, err = capsys.readouterr()
    assert out == ""
    assert "served" in err
    assert "orders" in err
    assert "trouble" in err
    assert "too much" not in err
    assert "chatter" not in err
