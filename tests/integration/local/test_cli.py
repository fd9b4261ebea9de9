"""`stilltide local`: brokers that outlive the command, started and stopped by further ones."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from stilltide.connectors.local.detached import NAMES
from tests.support.processes.local import await_release, cluster_rows, run_stilltide


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A working directory whose clusters are stopped at the end, also of a failed test."""
    yield tmp_path
    run_stilltide("local", "down", cwd=tmp_path)
    for name in NAMES:
        if (tmp_path / ".stilltide" / name).exists():
            await_release(tmp_path / ".stilltide" / name)


def test_up_status_down_round(directory: Path):
    """Clusters run on after `up`, a second `up` finds them, `down` stops them, `up` brings back."""
    assert run_stilltide("local", "up", "--clusters", "2", cwd=directory).returncode == 0
    rows = cluster_rows(directory)
    assert [(row["name"], row["state"]) for row in rows] == [("a", "running"), ("b", "running")]
    for row in rows:
        admin = AdminClient({"bootstrap.servers": row["bootstrap"]})
        assert len(admin.list_topics(timeout=20).brokers) == 1
        assert Path(str(row["log"])).stat().st_size > 0

    again = run_stilltide("local", "up", "--clusters", "2", cwd=directory)
    assert again.returncode == 0
    assert again.stderr.count("is already running") == 2
    assert cluster_rows(directory) == rows

    moved = run_stilltide("local", "up", "--port", "19999", cwd=directory)
    assert moved.returncode == 1
    assert str(rows[0]["bootstrap"]) in moved.stderr

    assert run_stilltide("local", "down", cwd=directory).returncode == 0
    stopped = cluster_rows(directory)
    assert [(row["state"], row["pid"]) for row in stopped] == [("stopped", None)] * 2
    assert "no cluster was running" in run_stilltide("local", "down", cwd=directory).stderr

    assert run_stilltide("local", "up", cwd=directory).returncode == 0
    back = cluster_rows(directory)
    assert back[0]["bootstrap"] == rows[0]["bootstrap"]
    assert [row["state"] for row in back] == ["running", "stopped"]

    assert run_stilltide("local", "down", "--wipe", cwd=directory).returncode == 0
    assert cluster_rows(directory) == []
    assert not list((directory / ".stilltide").iterdir())


def test_status_without_clusters_says_how_to_start_one(directory: Path):
    """Where nothing was ever started, the data is empty and the next step is on stderr."""
    done = run_stilltide("local", "status", "-o", "json", cwd=directory)
    assert done.returncode == 0
    assert done.stdout == "[]\n"
    assert "stilltide local up" in done.stderr


def test_failure_is_one_error_with_the_log(directory: Path):
    """A broker that cannot start is a failure with detail and hint, without a traceback."""
    done = run_stilltide("local", "up", "--heap", "lots", cwd=directory)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Invalid maximum heap size" in done.stderr
    assert "broker.log" in done.stderr
    assert "Traceback" not in done.stderr
