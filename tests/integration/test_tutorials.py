"""Each tutorial starts with an empty folder, takes five commands at most, and prints what it says.

All pages run in one folder, on the clusters and workers of the page about fail-over, which comes
last. What the other pages say to install and to start is there then, and is not started again.
"""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from stilltide.connectors.local.addresses import _reserve, free_port, is_free
from tests.support.pages import FENCE, INSTALL, NAMED, PORTS, TIMEOUT_S, Terminal

FOLDER = Path(__file__).parents[2] / "docs/tutorials"
THERE = ("stilltide local up --port 9092", "stilltide worker")
"""What a page says to start, and the clusters of the page about fail-over hold already."""

DECIDERS = re.compile(r"STILLTIDE_DECIDERS=(\S+) (stilltide worker)")
"""The worker of the page that has a database; all workers of the tests have its setting."""

COMMANDS_MAX = 5


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
    for fence in FENCE.finditer(text):
        named = NAMED.findall(text[end : fence.start()])
        end = fence.end()
        kind, _, body = fence.groups()
        if kind == "sh":
            commands += body.splitlines()
        elif kind == "text":
            printed += body
        else:
            assert named, f"the page does not name the file of {body!r}"
            files[named[-1]] = body
    return Tutorial(files, commands, printed)


def save(terminal: Terminal, page: Tutorial) -> None:
    """Saves the files that the page says to save."""
    for name, text in page.files.items():
        terminal.save(name, text)


PAGES = sorted(path.stem for path in FOLDER.glob("[a-z]*.md"))
"""Not the README, which lists them."""


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """Two linked clusters with their workers, as the page about fail-over starts them."""
    folder = tmp_path_factory.mktemp("tutorials")
    page = tutorial("fail-over")
    first = next(port for port in iter(free_port, 0) if is_free(port + 1) and _reserve(port + 1))
    ports: dict[str, str] = dict(zip(PORTS, (str(first), str(first + 1)), strict=True))
    ((deciders, _),) = DECIDERS.findall((FOLDER / "both-or-neither.md").read_text())
    found = Terminal(folder, ports, STILLTIDE_DECIDERS=deciders)
    save(found, page)
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
    save(terminal, page)
    printed = ""
    for command in page.commands[1 + len(THERE) :]:
        done = terminal.run(command)
        assert (done.returncode == 0) != command.endswith(" dies"), f"{command}\n{done.stderr}"
        printed += done.stdout if command.startswith("python ") else ""
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
