"""Kills child processes whose parent is gone, even if the parent was killed by SIGKILL.

A process that calls `end_with_this_process` has one reaper, which runs this file as a script. The
reaper reads one line for each child, `PID START`, and waits for the end of its input: the input
ends when the parent is gone, in whatever way. Then the reaper kills what is left of the children.

*Invariants*: a process that got the number of a dead child has another start time, and is let be.

Imports only the standard library, so that a reaper starts in milliseconds.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_reapers: dict[int, "subprocess.Popen[bytes]"] = {}
"""By the process that started it: a forked process has the memory of its parent."""


def end_with_this_process(pid: int) -> None:
    """Has a child killed once this process is gone; the child leads a session of its own."""
    reaper = _reapers.get(os.getpid())
    if reaper is None or reaper.poll() is not None:
        reaper = subprocess.Popen(  # noqa: S603 - arguments are ours
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the parent alone
        )
        _reapers[os.getpid()] = reaper
    assert reaper.stdin is not None
    reaper.stdin.write(f"{pid} {_started(pid)}\n".encode())
    reaper.stdin.flush()


def _started(pid: int) -> str:
    """The start time of a process, in the system's ticks; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""


def _main() -> None:
    for pid, started in [line.split() for line in sys.stdin if len(line.split()) == 2]:  # noqa: PLR2004
        if _started(int(pid)) == started:
            with suppress(OSError):
                os.killpg(int(pid), signal.SIGKILL)


if __name__ == "__main__":
    _main()
