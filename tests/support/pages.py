"""What readers of the pages do: a terminal, with the ports of the pages exchanged."""

import os
import re
import subprocess
import sys
from pathlib import Path

PORTS = ("9092", "9093")
"""The ports of the pages, which tests exchange."""

TIMEOUT_S = 800

FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
"""A block of a page: its kind, the file that it is, and its text."""

NAMED = re.compile(r"\bSave th\w+ \w+ as `([\w.-]+)`")
"""The text before a block that says under which name to save it."""

INSTALL = re.compile(r"(?:python3 -m venv \.venv && \. \.venv/bin/activate && )?pip install .+")


class Terminal:
    """A shell in the folder of a reader, with the ports of the pages exchanged.

    Args:
        folder: the folder.
        ports: the ports of this run, by those of the pages; the first one is that of the cluster.
        environment: further variables.
    """

    def __init__(self, folder: Path, ports: dict[str, str], **environment: str) -> None:
        self._folder = folder
        self._ports = ports
        self._environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            "STILLTIDE_BOOTSTRAP_SERVERS": f"127.0.0.1:{ports[PORTS[0]]}",
            **environment,
        }

    def exchanged(self, text: str) -> str:
        """A text of a page with the ports of this run."""
        for page, mine in self._ports.items():
            text = text.replace(page, mine)
        return text

    def save(self, name: str, text: str) -> None:
        """Saves a file that a page says to save."""
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
