"""Programs of Debian's packages that tests run; root gets a missing one installed."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

INSTALL_S = 900


def program(names: Sequence[str], package: str) -> str | None:
    """The path of the first of these programs; None: there is none, and none can be installed.

    Processes of a run may ask at the same time: apt refuses to run twice.
    """
    found = _found(names)
    if found or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return found
    with (Path(tempfile.gettempdir()) / "stilltide-tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _found(names) is None:
            for arguments in (("update",), ("install", "-y", "--no-install-recommends", package)):
                subprocess.run(
                    ["apt-get", *arguments], check=True, capture_output=True, timeout=INSTALL_S
                )
    return _found(names)


def _found(names: Sequence[str]) -> str | None:
    return next(filter(None, map(shutil.which, names)), None)
