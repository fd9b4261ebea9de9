"""The watchdog's child ends with the process that started the watchdog."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stilltide.connectors.local import watchdog

_COMMAND = [sys.executable, "-I", "-S", str(watchdog.__file__)]

# Starts a watchdog, then forks a sibling of it that keeps the watchdog's input open.
_PARENT = """
import os, signal, subprocess, sys
writer, command = int(sys.argv[1]), sys.argv[2:]
guard = subprocess.Popen(
    command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(writer,),
    start_new_session=True,
)
os.close(writer)
if os.fork():
    print("forked", flush=True)
signal.pause()
"""


@pytest.fixture
def held() -> Iterator[tuple[int, int]]:
    """A pipe that reads as ended only when every process that was given its other end is gone."""
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)


def _start(command: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*_COMMAND, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )


def _sleeper(writer: int) -> list[str]:
    code = f"import os, signal; os.write({writer}, b'up\\n'); signal.pause()"
    return [sys.executable, "-S", "-c", code]


def test_child_is_killed_when_the_input_ends(held: tuple[int, int]):
    """Closing the pipe to the watchdog, as a dying parent does, kills the child."""
    reader, writer = held
    guard = subprocess.Popen(
        [*_COMMAND, *_sleeper(writer)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=(writer,),
    )
    os.close(writer)
    assert os.read(reader, 3) == b"up\n"
    assert guard.stdin is not None
    guard.stdin.close()
    assert os.read(reader, 1) == b""
    guard.wait()


def test_child_is_killed_when_a_fork_keeps_the_input_open(held: tuple[int, int]):
    """The parent's death counts even while a forked sibling of the watchdog holds the pipe."""
    reader, writer = held
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(writer), *_COMMAND, *_sleeper(writer)],
        stdout=subprocess.PIPE,
        pass_fds=(writer,),
        start_new_session=True,
    )
    os.close(writer)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"forked\n"
        assert os.read(reader, 3) == b"up\n"
        parent.kill()
        parent.wait()
        assert os.read(reader, 1) == b""
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.stdout.close()


def test_signal_is_passed_on_and_answered():
    """A byte on the input is a signal for the child, answered once it was sent."""
    with _start(["sleep", "100"]) as guard:
        assert guard.stdin is not None
        assert guard.stdout is not None
        assert int(guard.stdout.readline()) > 0
        guard.stdin.write(bytes([signal.SIGTERM]))
        assert guard.stdout.read(1) == b"."
        assert guard.wait() == 128 + signal.SIGTERM


def test_exit_code_is_passed_on():
    """The watchdog ends with its child, and with its exit code."""
    with _start(["sh", "-c", "exit 7"]) as guard:
        assert guard.wait() == 7


def test_watchdog_imports_only_the_standard_library():
    """It runs without site-packages, so a broken installation cannot leave a broker behind."""
    source = Path(str(watchdog.__file__)).read_text()
    imported = {line.split()[1] for line in source.splitlines() if line.startswith("import ")}
    assert imported <= set(sys.stdlib_module_names)
