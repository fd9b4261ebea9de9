"""The code of an earlier version, and what runs with it."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from stilltide.pipeline.demo import worker_process
from tests.support.processes.child import ROOT, Child

OLDER = "63d5508d"
"""The last commit before policies, record bytes and positions of groups are looked at."""

USER = Path(__file__).with_name("user.py")
COMMAND_S = 240


class Code:
    """A version of Stilltide.

    Args:
        folder: its code; None: that of the tests.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._variables: dict[str, str] = {}
        if folder is not None:
            # Without the second one, Python would look into the working folder first.
            self._variables = {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}

    def worker(self, bootstrap: str, log_path: Path, *options: str, **settings: object) -> Child:
        """A worker of this version with these options and settings, not started yet."""
        named = {f"STILLTIDE_{name.upper()}": str(value) for name, value in settings.items()}
        command = worker_process.command(bootstrap, *options)
        return Child(command, log_path, {**self._variables, **named})

    def link(self, clusters: str, log_path: Path, ends: str = "ab") -> Child:
        """A link of this version from one cluster to another, by the letters of their names."""
        words = ("replicate", "--from", ends[0], "--to", ends[1], "--clusters", clusters, "--merge")
        return Child([sys.executable, "-m", "stilltide", *words], log_path, self._variables)

    def used(self, bootstrap: str, name: str) -> "subprocess.CompletedProcess[str]":
        """What an application of this version gets; see `tests.support.versions.user`."""
        return self._ran([sys.executable, str(USER), bootstrap, name])

    def command(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """The end of a command of this version."""
        return self._ran([sys.executable, "-m", "stilltide", *words])

    def _ran(self, line: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            line,
            cwd=ROOT,
            env={**os.environ, **self._variables},
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )


def older_code(folder: Path) -> Code:
    """The older version, unpacked into a folder; skips the test where the history lacks it."""
    git = ("git", "-C", str(ROOT))
    known = subprocess.run([*git, "cat-file", "-e", f"{OLDER}^{{commit}}"], check=False)
    if known.returncode:
        pytest.skip(f"the history does not reach back to {OLDER}")
    packed = subprocess.run(
        [*git, "archive", OLDER, "stilltide", "pipeline", "schemas", "connectors"],
        check=True,
        capture_output=True,
    )
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    return Code(folder)
