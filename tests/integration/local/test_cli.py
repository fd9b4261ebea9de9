"""`stilltide local`: brokers that outlive the command, started and stopped by further ones."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from stilltide.connectors.local.broker import ClusterDir
from stilltide.connectors.local.detached import NAMES
from tests.support.looks import block_between_looks
from tests.support.processes.local import STILLTIDE, await_release, cluster_rows, run_stilltide

BROKER_2 = ("--broker", "2", "--cluster", "a")
_TIMEOUT_S = 360


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A working directory whose clusters are stopped at the end, also of a failed test."""
    yield tmp_path
    run_stilltide("local", "down", cwd=tmp_path)
    for name in NAMES:
        for each in ClusterDir(tmp_path / ".stilltide" / name).nodes.values():
            if each.lock_path.exists():
                await_release(each.path)


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


@pytest.mark.slow
def test_brokers_are_stopped_and_started_one_by_one(directory: Path):
    """`--broker N` stops and starts one of three; the others serve, and all keep their address."""
    assert run_stilltide("local", "up", "--brokers", "3", cwd=directory).returncode == 0
    rows = cluster_rows(directory)
    assert [(row["name"], row["broker"], row["state"]) for row in rows] == [
        ("a", node, "running") for node in (1, 2, 3)
    ]
    assert sorted(str(row["controller"]) for row in rows) == ["active", "standby", "standby"]

    assert (
        "broker 2 of cluster a" in run_stilltide("local", "down", *BROKER_2, cwd=directory).stderr
    )
    stopped = cluster_rows(directory)
    assert [row["state"] for row in stopped] == ["running", "stopped", "running"]
    assert (stopped[1]["pid"], stopped[1]["controller"]) == (None, None)

    assert run_stilltide("local", "up", *BROKER_2, cwd=directory).returncode == 0
    back = cluster_rows(directory)
    assert [row["bootstrap"] for row in back] == [row["bootstrap"] for row in rows]
    assert [row["pid"] == was["pid"] for row, was in zip(back, rows, strict=True)] == [
        True,
        False,
        True,
    ]

    other = run_stilltide("local", "up", "--brokers", "1", cwd=directory)
    assert other.returncode == 1
    assert "has 3 brokers, not 1" in other.stderr
    assert "--brokers 3" in other.stderr
    assert "cluster a stopped" in run_stilltide("local", "down", cwd=directory).stderr
    assert [row["state"] for row in cluster_rows(directory)] == ["stopped"] * 3


_INTERRUPTIBLE = [
    sys.executable,
    "-c",
    "import os, signal as s, sys; s.signal(2, s.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])",
]
"""Shells start commands in the background with SIGINT ignored; children would inherit that."""


@pytest.mark.parametrize(("number", "brokers"), [(signal.SIGINT, 3), (signal.SIGKILL, 1)])
def test_interrupted_start_leaves_nothing_that_down_misses(
    directory: Path, number: signal.Signals, brokers: int
):
    """Ctrl-C ends the brokers that were just starting; after SIGKILL `down` ends them."""
    command = [*_INTERRUPTIBLE, STILLTIDE, "local", "up", "--brokers", str(brokers)]
    locks = [each.lock_path for each in _cluster_a(directory, brokers).nodes.values()]
    with subprocess.Popen(command, cwd=directory, stderr=subprocess.DEVNULL) as starting:
        while not any(lock.exists() and lock.read_text() for lock in locks):
            assert starting.poll() is None
            block_between_looks()
        starting.send_signal(number)
        assert starting.wait(_TIMEOUT_S) != 0
    if number == signal.SIGKILL:
        assert run_stilltide("local", "down", cwd=directory).returncode == 0
    assert not any(each.is_held() for each in _cluster_a(directory, brokers).nodes.values())


def _cluster_a(directory: Path, brokers: int) -> ClusterDir:
    return ClusterDir(directory / ".stilltide" / "a", brokers)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("down", "--broker", "2", "--wipe"), "leave out --broker"),
        (("down", "--cluster", "a"), "--broker, which is missing"),
        (("up", "--broker", "2", "--brokers", "3"), "--cluster only"),
        (("up", "--broker", "2"), "was never started"),
        (("up", "--kafka-version", "2.8"), "'2.8' is not one of"),
    ],
)
def test_words_that_do_not_fit_are_refused(directory: Path, words: tuple[str, ...], part: str):
    """The message says which options go together, or what to start first; nothing is started."""
    done = run_stilltide("local", *words, cwd=directory)
    assert done.returncode != 0
    assert part in done.stderr
    assert cluster_rows(directory) == []


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
