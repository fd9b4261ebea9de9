"""Commands with the usual mistakes.

What a user saw: `stilltide acl print ... > FILE` on a full disk ended with a traceback, and so did
a command whose output a script had closed, and one that was interrupted within its first second.
`stilltide produce` did so where its input was closed.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.local import STILLTIDE

NOBODY = ("--bootstrap-servers", "127.0.0.1:1")
ACL = ("acl", "print", "--component", "worker", "--topic", "orders")


def ran(*arguments: str, shell: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """A command that has ended; `shell` is what the command line says about its streams."""
    line = " ".join([str(STILLTIDE), *(f"'{it}'" for it in arguments), shell])
    return subprocess.run(  # noqa: S602 - ours
        f"set -o pipefail; {line}",
        shell=True,
        executable="/bin/bash",
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


MISTAKES = {
    "unknown command": (("topic",), 2, "Did you mean 'topics'?"),
    "unknown option": (("txn", "list", "--nope"), 2, "No such option: --nope"),
    "wrong type": (("worker", "--coordinators", "many"), 2, "is not a valid integer"),
    "no transaction": (("txn", "describe", "abc"), 2, "for example 0:17"),
    "no address": (("txn", "list", "--bootstrap-servers", "here"), 1, "for example 127.0.0.1"),
    "no broker, as JSON": (("txn", "list", "-o", "json", *NOBODY), 1, "hint: correct the"),
    "no topic": (("acl", "print", "--component", "worker"), 2, "need --topic"),
    "no settings": (("--config", "/nowhere.toml", "config", "show"), 1, "/nowhere.toml"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_the_next_step(name: str):
    """One error on stderr, nothing on stdout, the exit code of its kind, no traceback."""
    arguments, code, words = MISTAKES[name]
    done = ran(*arguments)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_input_that_is_closed():
    """As of a job of a supervisor; the error says what else to give."""
    done = ran("produce", "orders", *NOBODY, shell="<&-")  # noqa: S604 - ours
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "standard input is closed; name a file" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("shell", "code", "words"),
    [
        ("> /dev/full", 1, "hint: make room where it goes"),
        ("-o json > /dev/full", 1, "error: the output cannot be written: No space left"),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        ("| head -1", 0, ""),
    ],
)
def test_output_that_goes_nowhere(shell: str, code: int, words: str):
    """A full disk is an error with the next step; closed streams and a short pipe are none."""
    done = ran(*ACL, shell=shell)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_without_colour_there_is_none():
    """NO_COLOR, and output that is no terminal."""
    done = ran(*ACL, NO_COLOR="1")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr


def test_json_is_json_also_through_a_pipe():
    """A program reads it; what people read is on stderr."""
    done = ran(*ACL, "-o", "json")
    assert json.loads(done.stdout)


def test_ctrl_c_ends_a_command(tmp_path: Path):
    """With the exit code of SIGINT and one word, whatever the command waits for."""
    fifo = tmp_path / "settings.toml"
    os.mkfifo(fifo)
    command = [str(STILLTIDE), "--config", str(fifo), "config", "show"]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child,
        fifo.open("w"),  # returns once the command reads its settings
    ):
        child.send_signal(signal.SIGINT)
        assert child.stderr is not None
        said = child.stderr.read()
    assert child.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in said


def test_ctrl_c_ends_a_command_that_begins():
    """The same while its modules are imported, which takes most of a second."""
    begun = [sys.executable, "-X", "importtime", "-m", "stilltide", "txn", "list", *NOBODY]
    with subprocess.Popen(begun, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if line.endswith(" click\n"):
                break
        child.send_signal(signal.SIGINT)
        said = child.stderr.read()
    assert child.returncode == 130, said
    assert "interrupted" in said
    assert "Traceback" not in said
