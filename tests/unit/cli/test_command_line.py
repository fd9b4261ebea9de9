"""What holds for every command: names of clusters, suggestions, completion, the form of logs."""

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from stilltide.pipeline.cli.common.asking import bootstrap_option, command_settings
from stilltide.pipeline.cli.completion import SHELLS, completion_script
from stilltide.pipeline.cli.main import NOUNS, cli, run
from stilltide.pipeline.errors import ConfigError
from stilltide.pipeline.logging import LEVELS

CLUSTERS = "a=127.0.0.1:9092 b=127.0.0.1:9192"


@click.command()
@bootstrap_option
def asks(bootstrap_servers: str | None) -> None:
    """A command that asks one cluster."""


def asked(*arguments: str) -> str:
    """The cluster and address that a command with these options asks."""
    with click.Context(asks) as ctx:
        asks.parse_args(ctx, list(arguments))
        settings = command_settings(bootstrap_servers=ctx.params["bootstrap_servers"])
    return f"{settings.cluster} {settings.kafka.bootstrap_servers}"


def test_the_address_of_a_named_cluster_is_that_in_the_settings(monkeypatch: pytest.MonkeyPatch):
    """Without a name it is that of cluster a; an address that is given wins."""
    monkeypatch.setenv("STILLTIDE_CLUSTERS", CLUSTERS)
    assert asked() == "a 127.0.0.1:9092"
    assert asked("--cluster", "b") == "b 127.0.0.1:9192"
    assert asked("--cluster", "b", "--bootstrap-servers", "h:1") == "b h:1"
    monkeypatch.setenv("STILLTIDE_BOOTSTRAP_SERVERS", "127.0.0.1:7")
    assert asked() == "a 127.0.0.1:7"


@pytest.mark.parametrize("clusters", [CLUSTERS, ""])
def test_a_cluster_without_an_address_is_refused(clusters: str, monkeypatch: pytest.MonkeyPatch):
    """No command asks another cluster than the one that was named."""
    monkeypatch.setenv("STILLTIDE_CLUSTERS", clusters)
    with pytest.raises(ConfigError, match="unknown cluster 'c'"):
        asked("--cluster", "c")


def test_options_of_a_named_cluster_apply_to_it(monkeypatch: pytest.MonkeyPatch):
    """TLS and SASL of a cluster in JSON, unless the process has settings of its own."""
    named = {"bootstrap_servers": "h:9", "options": {"client.rack": "r1"}}
    monkeypatch.setenv("STILLTIDE_CLUSTERS", json.dumps({"b": named}))
    with click.Context(asks) as ctx:
        asks.parse_args(ctx, ["--cluster", "b"])
        assert command_settings().kafka.extra == {"client.rack": "r1"}


@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        (["stauts"], "Did you mean 'status'?"),
        (["txn", "lst"], "Did you mean 'list'?"),
        (["subscripton"], "Did you mean 'subscription'?"),
    ],
)
def test_an_unknown_command_gets_a_suggestion(
    words: list[str], suggested: str, capsys: pytest.CaptureFixture[str]
):
    """Also below a noun, and also a former name; a word that is like none gets none."""
    assert run(words) == 2
    assert suggested in capsys.readouterr().err
    assert run(["xyzzy"]) == 2
    assert "Did you mean" not in capsys.readouterr().err


def completed(*words: str) -> list[str]:
    """What completes the last word."""
    found = ShellComplete(cli, {}, "stilltide", "_X").get_completions(list(words[:-1]), words[-1])
    return [one.value for one in found]


def test_nouns_verbs_and_clusters_are_completed(monkeypatch: pytest.MonkeyPatch):
    """Clusters from the settings; settings that are not in order complete nothing."""
    monkeypatch.setenv("STILLTIDE_CLUSTERS", CLUSTERS)
    assert completed("sta") == ["status"]
    assert set(completed("")) == set(NOUNS)
    assert "list" in completed("txn", "li")
    assert completed("txn", "list", "--cluster", "") == ["a", "b"]
    monkeypatch.setenv("STILLTIDE_CLUSTERS", "?")
    assert completed("txn", "list", "--cluster", "") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_printed_and_installed(
    shell: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """The same script, where the shell looks for it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    assert run(["completion"]) == 0
    script = capsys.readouterr().out
    assert script.strip() == completion_script(shell).strip()
    assert "_STILLTIDE_COMPLETE" in script
    assert run(["completion", "--install"]) == 0
    (installed,) = [it for it in tmp_path.rglob("*") if it.is_file()]
    assert installed.read_text().strip() == script.strip()
    assert str(installed) in capsys.readouterr().err


def test_a_shell_without_completion_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """With the names of those that have one."""
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert run(["completion"]) == 1
    assert "bash|zsh|fish" in capsys.readouterr().err


_LOGS = """
import logging
from stilltide.pipeline.logging import configure_logging, get_logger, hear_clients
configure_logging({level!r}, {form!r}, silences_clients=True)
get_logger("stilltide.pipeline.x").warning("seen", topic="orders", count=3)
logging.getLogger("stilltide.kafka").error("FAIL: refused")
hear_clients()
logging.getLogger("stilltide.kafka").error("FAIL: again")
"""


def logged(form: str, level: str = "info") -> list[str]:
    """The lines of a process that logs an event, and a line of a client before and after it."""
    code = _LOGS.format(form=form, level=level)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    return done.stderr.splitlines()


def test_log_lines_bear_date_and_zone():
    """In text, and in JSON, whose lines are objects with the event's fields."""
    at, *_ = logged("text")[0].split()
    assert datetime.fromisoformat(at).tzinfo is not None
    event = json.loads(logged("json")[0])
    assert datetime.fromisoformat(event["timestamp"]).tzinfo is not None
    assert (event["event"], event["level"]) == ("seen", "warning")
    assert (event["topic"], event["count"]) == ("orders", 3)


def test_lines_of_clients_wait_until_a_process_serves():
    """A command that ends reports its error itself; with debug everything is logged."""
    assert ["refused" in line for line in logged("text")] == [False, False]
    assert "again" in logged("text")[-1]
    assert sum("FAIL" in line for line in logged("text", LEVELS[0])) == 2
