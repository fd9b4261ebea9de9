"""The README does what it says: its programs run, and its commands exist."""

import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.cli.main import run
from tests.support.processes.worker_process import running_worker

README = Path(__file__).parents[2] / "README.md"
ADDRESS = "127.0.0.1:9092"
TIMEOUT_S = 120

TEXT = README.read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = sorted(
    set(re.findall(r"^ {4}stilltide (.+?)(?: {2,}#.*)?$", TEXT, re.MULTILINE))
    | set(re.findall(r"`stilltide (.+?)`", TEXT))
)


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with a worker, of this module's own."""
    directory = tmp_path_factory.mktemp("readme")
    with (
        LocalCluster("r", directory / "r", fast_start=True) as cluster,
        running_worker(cluster.bootstrap, directory / "worker.log"),
    ):
        yield cluster.bootstrap


def test_its_programs_run_one_after_the_other(bootstrap: str):
    """With the address exchanged, each ends well; what the writers commit the readers print."""
    assert len(PROGRAMS) >= 3
    printed = ""
    for program in PROGRAMS:
        assert ADDRESS in program
        done = subprocess.run(
            [sys.executable, "-c", program.replace(ADDRESS, bootstrap)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{program}\n{done.stderr}"
        printed += done.stdout
    for topic, order in (("orders", b'{"order": 1}'), ("payments", b'"cents": 995')):
        assert topic in printed
        assert order.decode() in printed
    assert "invoiced b'{\"order\": 1}'" in printed


@pytest.fixture
def _logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers, root.level
    yield
    root.handlers, root.level = before
    structlog.reset_defaults()


@pytest.mark.usefixtures("_logging_restored")
@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_exist(command: str, capsys: pytest.CaptureFixture[str]):
    """Noun, verb and options of every command are known; `--help` keeps it from being run."""
    words = command.replace("...", "").split()
    assert run([*words, "--help"]) == 0, capsys.readouterr().err
    assert "Usage: stilltide" in capsys.readouterr().out


def test_commands_were_found():
    """The pattern finds the commands, or the test above would say nothing."""
    assert {"local", "worker", "audit"} <= {command.split()[0] for command in COMMANDS}
