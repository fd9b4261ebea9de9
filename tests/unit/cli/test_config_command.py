import json
from pathlib import Path

import pytest

from stilltide.pipeline.cli.main import run


def test_secrets_are_redacted_and_origins_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Every setting has a line with its origin; of a password only that there is one."""
    monkeypatch.setenv("STILLTIDE_SECURITY_PROTOCOL", "SASL_PLAINTEXT")
    monkeypatch.setenv("STILLTIDE_SASL_MECHANISM", "PLAIN")
    monkeypatch.setenv("STILLTIDE_SASL_USERNAME", "alice")
    monkeypatch.setenv("STILLTIDE_SASL_PASSWORD", "hush")
    clusters = {"b": {"bootstrap_servers": "h:1", "options": {"sasl.password": "hush"}}}
    monkeypatch.setenv("STILLTIDE_CLUSTERS", json.dumps(clusters))
    assert run(["config", "show", "--origin", "-o", "json"]) == 0
    printed = capsys.readouterr().out
    rows = {row["setting"]: (row["value"], row["origin"]) for row in json.loads(printed)}
    assert rows["sasl_username"] == ("alice", "STILLTIDE_SASL_USERNAME")
    assert rows["sasl_password"] == ("**********", "STILLTIDE_SASL_PASSWORD")
    assert rows["clusters"] == ("b=h:1", "STILLTIDE_CLUSTERS")
    assert rows["coordinators"] == (4, "default")
    assert rows["replication_factor"] == ("auto", "default")
    assert rows["min_insync_replicas"] == ("auto", "default")
    assert "hush" not in printed


def test_wrong_value_of_a_secret_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Neither on stdout nor in the error."""
    monkeypatch.setenv("STILLTIDE_SASL_PASSWORD", "hush")
    assert run(["config", "show"]) == 1
    printed = capsys.readouterr()
    assert "sasl_password" in printed.err
    assert "STILLTIDE_SASL_PASSWORD" in printed.err
    assert "hush" not in printed.out + printed.err


def test_file_of_settings_is_an_option_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    """`--config` stands before the command, and wins over the variable."""
    path = tmp_path / "stilltide.toml"
    path.write_text("coordinators = 9")
    monkeypatch.setenv("STILLTIDE_CONFIG", str(tmp_path / "other.toml"))
    assert run(["--config", str(path), "config", "show", "--origin", "-o", "json"]) == 0
    rows = {row["setting"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["coordinators"]["value"] == 9
    assert rows["coordinators"]["origin"] == str(path)


@pytest.mark.parametrize(
    "command",
    [
        ["worker"],
        ["replicate", "--from", "a", "--to", "b"],
        ["index", "once", "orders"],
        ["index", "run", "orders"],
    ],
)
def test_commands_that_create_topics_take_their_replicas(
    capsys: pytest.CaptureFixture[str], command: list[str]
):
    """As options, which are checked before any cluster is asked."""
    options = ["--replication-factor", "2", "--min-insync-replicas", "3"]
    assert run([*command, *options]) == 1
    refused = "min_insync_replicas is 3, but replication_factor is 2 (option)"
    assert refused in capsys.readouterr().err
