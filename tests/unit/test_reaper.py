"""The reaper's children end with their parent, and with no other process."""

import os
import signal
import subprocess
import sys

import pytest

from stilltide.pipeline import reaper

# Starts a child that holds the descriptor, has it end with this process, and says so.
_PARENT = """
import signal, subprocess, sys
from stilltide.pipeline.reaper import end_with_this_process
writer = int(sys.argv[1])
child = subprocess.Popen(
    [sys.executable, "-S", "-c", "import signal; signal.pause()"],
    pass_fds=(writer,), start_new_session=True,
)
end_with_this_process(child.pid)
print(child.pid, flush=True)
signal.pause()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_child_ends_with_its_parent(how: signal.Signals):
    """A parent that is killed leaves no child behind."""
    reader, writer = os.pipe()
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(writer)],
        stdout=subprocess.PIPE,
        pass_fds=(writer,),
    )
    os.close(writer)
    assert parent.stdout is not None
    assert int(parent.stdout.readline()) > 0
    parent.send_signal(how)
    parent.wait()
    parent.stdout.close()
    assert os.read(reader, 1) == b"", "the pipe ends once the child is gone"
    os.close(reader)


def test_another_process_with_the_same_number_is_let_be():
    """The start time of a process belongs to its number."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "import signal; print(flush=True); signal.pause()"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            subprocess.run(
                [sys.executable, "-I", "-S", reaper.__file__],
                input=f"{other.pid} 1\n".encode(),
                check=True,
            )
            assert other.poll() is None
        finally:
            other.kill()
