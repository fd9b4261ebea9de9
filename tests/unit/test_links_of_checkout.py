"""A checkout without its three links says which command makes them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINKS = ("connectors", "pipeline", "schemas")
OF_MAKE = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
SENTENCE = "this checkout of Stilltide lacks the link stilltide/connectors: run `make links`"


@pytest.fixture(params=["archive", "core.symlinks=false"])
def linkless(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkout whose links an archive has left out, or Git has written as text files."""
    (tmp_path / "stilltide").mkdir()
    for source in (ROOT / "stilltide").glob("*.py"):
        shutil.copy(source, tmp_path / "stilltide")
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in LINKS:
        (tmp_path / name).symlink_to(ROOT / name)
        if request.param != "archive":
            (tmp_path / "stilltide" / name).write_text(f"../{name}")
    return tmp_path


def run(checkout: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a checkout; a `make` there is not one of the `make` that runs the tests."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
    return subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )


def imported(checkout: Path) -> subprocess.CompletedProcess[str]:
    """Imports a public name from a checkout, and from no other."""
    return run(checkout, sys.executable, "-c", "import stilltide; stilltide.TopicPartition")


def test_import_names_the_command_that_makes_the_links(linkless: Path):
    """One sentence, with the folder in which to run the command."""
    ended = imported(linkless)
    assert ended.returncode == 1
    assert ended.stderr.endswith(f"ImportError: {SENTENCE} in {linkless}\n")


def test_make_names_the_command_that_makes_the_links(linkless: Path):
    """Before it installs or builds anything; the list of targets is shown all the same."""
    ended = run(linkless, "make", "setup")
    assert ended.returncode != 0
    assert ended.stderr.startswith("Makefile:")
    assert f"*** {SENTENCE}.  Stop.\n" in ended.stderr
    assert ended.stdout == ""
    assert "links" in run(linkless, "make").stdout


def test_make_links_mends_the_checkout(linkless: Path):
    """Afterwards the names can be imported, and a second run changes nothing."""
    for _ in range(2):
        ended = run(linkless, "make", "links")
        assert (ended.returncode, ended.stderr) == (0, "")
        assert {name: str((linkless / "stilltide" / name).readlink()) for name in LINKS} == {
            name: f"../{name}" for name in LINKS
        }
    assert imported(linkless).stderr == ""
