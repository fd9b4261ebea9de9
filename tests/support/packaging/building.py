"""Builds archives of a source tree, and runs programs outside of the checkout's environment."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
UV = str(Path(sys.executable).with_name("uv"))
EPOCH = 1_767_225_600
"""Time of the files in the archives, seconds since 1970."""


def ended(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs a command outside of the checkout's environment, to its end."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    } | {"SOURCE_DATE_EPOCH": str(EPOCH)}
    return subprocess.run(
        [str(word) for word in command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        **options,  # pyright: ignore[reportArgumentType, reportCallIssue]
    )


def run(*command: str | Path, **options: object) -> str:
    """As `ended`, of a command that must succeed; its stdout."""
    done = ended(*command, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(source: Path, into: Path, *kinds: str) -> dict[str, Path]:
    """Archives of a source tree, by their ending."""
    run(
        UV, "build", "--no-build-isolation", "--python", sys.executable,
        "--out-dir", into, *kinds, source,
    )  # fmt: skip
    return {path.suffix: path for path in into.iterdir() if path.suffix in (".gz", ".whl")}


def make_environment(path: Path) -> tuple[str | Path, ...]:
    """Makes an empty virtual environment; returns the command that installs into it."""
    run(UV, "venv", "--quiet", "--python", sys.executable, path)
    return (UV, "pip", "install", "--quiet", "--python", path / "bin/python")
