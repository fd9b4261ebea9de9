"""Finds a Java that runs Kafka and Spark.

Both run on Java 17 and 21.

Refuses a Java older than 17; never installs one.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from stilltide.connectors.local.errors import JavaMissingError

MAJOR_MIN = 17
_TIMEOUT_S = 20
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


class Java(NamedTuple):
    """A Java launcher and its major version."""

    path: Path
    major: int

    @property
    def home(self) -> Path:
        """The value of JAVA_HOME for programs that find Java by that variable only."""
        return self.path.resolve().parent.parent


def parse_major(text: str) -> int | None:
    """The major version in the output of `java -version`, None if there is none.

    `1.8.0_392` is 8, `17.0.15` is 17, `21-ea` is 21.
    """
    version = _VERSION.search(text)
    return int(version.group(1)) if version else None


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The first Java of version 17 or newer, in JAVA_HOME and then on the PATH.

    Raises:
        JavaMissingError: there is none; names those found and the package to install.
    """
    rejected: list[str] = []
    for path in _candidates(environ):
        major = _major_of(path)
        if major is not None and major >= MAJOR_MIN:
            return Java(path, major)
        rejected.append(f"{path} is " + (f"Java {major}" if major else "not a working Java"))
    raise JavaMissingError(
        f"the local broker and Spark need Java {MAJOR_MIN} or newer",
        detail="; ".join(rejected) or "JAVA_HOME is not set and there is no java on the PATH",
        hint=f"install a JDK or JRE {MAJOR_MIN} or 21 (package openjdk-{MAJOR_MIN}-jre-headless on "
        "Debian), or point JAVA_HOME at one",
    )


def _candidates(environ: Mapping[str, str]) -> list[Path]:
    candidates: list[Path] = []
    if home := environ.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        candidates.append(Path(on_path))
    return candidates


def _major_of(path: Path) -> int | None:
    try:
        done = subprocess.run(  # noqa: S603 - the user's own Java
            [path, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_major(done.stderr + done.stdout)
