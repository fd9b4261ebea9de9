"""Each tutorial starts with an empty folder, takes five commands at most, and prints what it says.

All pages run in one folder, on the clusters and workers of the page about fail-over, which comes
last. What the other pages say to install and to start is there then, and is not started again.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from stilltide.connectors.local.addresses import _reserve, free_port, is_free

FOLDER = Path(__file__).parents[2] / "docs/tutorials"
PORTS = ("9092", "9093")
"""The ports of the pages, which the tests exchange."""

INSTALL = re.compile(r"python3 -m venv \.venv && \. \.venv/bin/activate && pip install .+")
THERE = ("stilltide local up --port 9092", "stilltide worker")
"""What a page says to start, and the clusters of the page about fail-over hold already."""

DECIDERS = re.compile(r"STILLTIDE_DECIDERS=(\S+) (stilltide worker)")
"""The worker of the page that has a database; all workers of the tests have its setting."""

COMMANDS_MAX = 5
TIMEOUT_S = 800

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"\bSave th\w+ \w+ as `([\w.-]+)`")


class Tutorial(NamedTuple):
    """A page: files to save by name, commands in order, and what the programs print in all."""

    files: dict[str, str]
    commands: list[str]
    printed: str


def tutorial(name: str) -> Tutorial:
    """The page of that name."""
    files: dict[str, str] = {}
    commands: list[str] = []
    printed = ""
    text = (FOLDER / f"{name}.md").read_text()
    end = 0
    for fence in _FENCE.finditer(text):
        named = _NAMED.findall(text[end : fence.start()])
        end = fence.end()
        kind, body = fence.groups()
        if kind == "sh":
            commands += body.splitlines()
        elif kind == "text":
            printed += body
        else:
            assert named, f"the page does not name the file of {body!r}"
            files[named[-1]] = body
    return Tutorial(files, commands, printed)


PAGES = sorted(path.stem for path in FOLDER.glob("[a-z]*.md"))
"""Not the README, which lists them."""


class Terminal:
    """A shell in the folder of a reader, with the ports of the pages exchanged."""

    def __init__(self, folder: Path, ports: dict[str, str]) -> None:
        self._folder = folder
        self._ports = ports
        ((deciders, _),) = DECIDERS.findall((FOLDER / "both-or-neither.md").read_text())
        self._environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            "STILLTIDE_BOOTSTRAP_SERVERS": f"127.0.0.1:{ports[PORTS[0]]}",
            "STILLTIDE_DECIDERS": deciders,
        }

    def exchanged(self, text: str) -> str:
        """A text of a page with the ports of this run."""
        for page, mine in self._ports.items():
            text = text.replace(page, mine)
        return text

    def save(self, page: Tutorial) -> None:
        """Saves the files that the page says to save."""
        for name, text in page.files.items():
            (self._folder / name).write_text(self.exchanged(text))

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        return subprocess.run(
            ["bash", "-c", self.exchanged(command)],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def start(self, command: str) -> subprocess.Popen[str]:
        """Starts a command that runs until it is stopped, as a process group of its own."""
        with (self._folder / "started.log").open("w") as log:
            return subprocess.Popen(
                ["bash", "-c", self.exchanged(command)],
                cwd=self._folder,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """Two linked clusters with their workers, as the page about fail-over starts them."""
    folder = tmp_path_factory.mktemp("tutorials")
    page = tutorial("fail-over")
    first = next(port for port in iter(free_port, 0) if is_free(port + 1) and _reserve(port + 1))
    found = Terminal(folder, dict(zip(PORTS, (str(first), str(first + 1)), strict=True)))
    found.save(page)
    install, up, workers, _ = page.commands
    assert INSTALL.fullmatch(install)
    started = found.run(up)
    assert started.returncode == 0, started.stderr
    running = found.start(workers)
    try:
        assert running.stdout is not None
        for _ in PORTS:
            assert '"serving"' in running.stdout.readline(), (folder / "started.log").read_text()
        yield found
    finally:
        os.killpg(running.pid, signal.SIGTERM)
        running.wait(TIMEOUT_S)
        assert found.run("stilltide local down --wipe").returncode == 0


@pytest.mark.parametrize("name", PAGES)
def test_a_tutorial_takes_few_commands(name: str):
    """The first installs; each further one is known, so none is left out of the tests below."""
    page = tutorial(name)
    assert INSTALL.fullmatch(page.commands[0])
    assert len(page.commands) <= COMMANDS_MAX
    if name != "fail-over":
        assert [DECIDERS.sub(r"\2", command) for command in page.commands[1:3]] == list(THERE)


SILENCE = re.compile(r"^.* no_answer_yet .*\n", re.MULTILINE)
"""What a program logs where a worker takes more than two seconds, as on a busy machine."""

SLOW = ("audit",)
"""Pages that start Spark, as those of `test_documentation.py`."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name in sorted({*PAGES} - {"fail-over"})
    ],
)
def test_what_a_tutorial_prints(terminal: Terminal, name: str):
    """Its programs print what the page says; only a program that dies on purpose fails."""
    page = tutorial(name)
    terminal.save(page)
    printed = ""
    for command in page.commands[1 + len(THERE) :]:
        done = terminal.run(command)
        assert (done.returncode == 0) != command.endswith(" dies"), f"{command}\n{done.stderr}"
        printed += SILENCE.sub("", done.stdout) if command.startswith("python ") else ""
        if command.startswith("stilltide txn history "):
            assert "committed" in done.stdout
            assert "aborted" in done.stdout
    assert printed == page.printed


@pytest.mark.slow
def test_the_loss_of_a_cluster(terminal: Terminal):
    """The group reads each order once: some on the cluster that is lost, the others elsewhere."""
    done = terminal.run(tutorial("fail-over").commands[-1])
    assert done.returncode == 0, done.stderr
    read = re.findall(r"^127\.0\.0\.1:\d+: (.+)$", done.stdout, re.MULTILINE)
    assert len(read) == 2, done.stdout
    assert sorted(int(one) for line in read for one in line.split()) == list(range(20))
