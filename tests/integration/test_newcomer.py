"""A newcomer reads the README and the first pages in one folder, in this order.

Each command and each program of a page is run, or has a reason in `LEFT_OUT`. What a page needs is
there because this page, or an earlier one, has said so.
"""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stilltide.connectors.local.addresses import free_port
from tests.support.pages import FENCE, INSTALL, NAMED, PORTS, Terminal

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/start.md",
    "docs/tutorials/transactions.md",
    "docs/tutorial.md",
    "docs/services.md",
    "docs/tables.md",
)

SLOW = ("README.md", "docs/tutorial.md", "docs/tables.md")
"""Pages that start Spark."""

OTHER_CLUSTERS = "starts or stops other clusters than the one of the walk"
LEFT_OUT = {
    ". .venv/bin/activate": "the tests are in an environment",
    "stilltide publish orders --to orders.committed": "runs until stopped",
    "stilltide group failover orders billing --to b": "needs a second cluster",
    "stilltide table follow --topics orders,payments --to delta:/tables/sales --web-port 6066": (
        "runs until stopped"
    ),
    "stilltide table status delta:/tables/sales --history 10": "the table of the command before",
    "stilltide local up": OTHER_CLUSTERS,
    "stilltide local up --brokers 3 --clusters 2": OTHER_CLUSTERS,
    "stilltide local up --broker 2 --cluster b": OTHER_CLUSTERS,
    "stilltide local down --broker 2 --cluster b": OTHER_CLUSTERS,
    "stilltide local down": OTHER_CLUSTERS,
}
"""Commands that are not run, with the reason; `make` and `pip install` are not, either."""

UNASKED = "stilltide dead-letter "
"""Commands that end by exit code 3 where no person says yes."""

_WORKER = re.compile(r"stilltide worker( --bootstrap-servers 127\.0\.0\.1:9092)?")
_COMMENT = re.compile(r"\s+#.*$")


class Newcomer:
    """The folder and the worker of a reader, from page to page.

    Args:
        folder: the folder.
        terminal: a shell there.
    """

    def __init__(self, folder: Path, terminal: Terminal) -> None:
        self._folder = folder
        self._terminal = terminal
        self._saved: dict[str, str] = {}
        self._worker: int | None = None

    def read(self, page: str) -> None:
        """Does what the page says, and compares what it says is printed."""
        text = (ROOT / page).read_text()
        end, printed = 0, ""
        for fence in FENCE.finditer(text):
            before, end = text[end : fence.start()], fence.end()
            kind, title, body = fence.groups()
            named = title or next(iter(NAMED.findall(before)[-1:]), None)
            if kind == "python" and named:
                self._save(named, body)
            elif kind == "python":
                self._terminal.save("program.py", body)
                printed = self._ended("python program.py")
            elif kind == "sh":
                printed = "".join(map(self._command, body.splitlines()))
            elif before.rstrip().endswith("program prints:"):
                assert printed == body, page

    def close(self) -> None:
        """Stops the worker and the cluster."""
        if self._worker is not None:
            os.killpg(self._worker, signal.SIGTERM)
            os.waitpid(self._worker, 0)
        assert self._terminal.run("stilltide local down --wipe").returncode == 0

    def _save(self, name: str, text: str) -> None:
        """A file of one page is not that of another one."""
        assert self._saved.setdefault(name, text) == text, name
        self._terminal.save(name, text)

    def _command(self, line: str) -> str:
        """Runs a command; what it prints if it is a program."""
        command = _COMMENT.sub("", line)
        if command in LEFT_OUT or command.startswith("make ") or INSTALL.fullmatch(command):
            return ""
        if _WORKER.fullmatch(command):
            self._start_worker(command)
            return ""
        printed = self._ended(command)
        return printed if command.startswith("python ") else ""

    def _ended(self, command: str) -> str:
        done = self._terminal.run(command)
        codes = (0, 3) if command.startswith(UNASKED) else (0,)
        assert done.returncode in codes, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _start_worker(self, command: str) -> None:
        """Starts the worker of the first page that says so; the others find it there."""
        if self._worker is None:
            started = self._terminal.start(command)
            self._worker = started.pid
            assert started.stdout is not None
            line = started.stdout.readline()
            assert '"serving"' in line, (self._folder / "started.log").read_text()


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newcomer]:
    """An empty folder."""
    folder = tmp_path_factory.mktemp("newcomer")
    terminal = Terminal(folder, {PORTS[0]: str(free_port())}, STILLTIDE_WEB_PORT="0")
    found = Newcomer(folder, terminal)
    yield found
    found.close()


@pytest.mark.parametrize(
    "page",
    [pytest.param(it, marks=[pytest.mark.slow] if it in SLOW else []) for it in PAGES],
)
def test_a_page_does_what_it_says_after_those_before(newcomer: Newcomer, page: str):
    """Every command ends well, and every program prints what the page says."""
    newcomer.read(page)


def test_what_is_left_out_is_on_a_page():
    """A reason without a command would hide that the pages have changed."""
    lines = {
        _COMMENT.sub("", line)
        for page in PAGES
        for kind, _, body in FENCE.findall((ROOT / page).read_text())
        if kind == "sh"
        for line in body.splitlines()
    }
    assert LEFT_OUT.keys() <= lines
