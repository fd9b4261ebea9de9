"""A schema registry of a test: Apicurio Registry, whose API is compatible with Confluent's.

Maven fetches the program once; it is checked, and unpacked into the cache. It keeps schemas in
memory.
"""

import fcntl
import hashlib
import signal
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stilltide.connectors.local.addresses import free_port
from stilltide.connectors.local.jars import MAVEN_PLUGIN, cache_dir, run_tool
from stilltide.connectors.local.java import find_java
from stilltide.pipeline.demo.worker_process import end_with_this_process
from tests.support.looks import block_between_looks

ARTIFACT = "io.apicurio:apicurio-registry-app:2.6.13.Final:tar.gz:all"
SHA256 = "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba"
START_S = 240.0


class SchemaRegistry:
    """A registry at one address, from `start` to `stop`.

    Args:
        folder: for the log.

    Attributes:
        url: what Confluent's clients take as `url`.
    """

    def __init__(self, folder: Path) -> None:
        self._port = free_port()
        self._log = folder / "registry.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    def start(self) -> None:
        """Starts the program; returns when it answers."""
        options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dquarkus.http.host=127.0.0.1"]
        (program,) = fetched().glob("*-runner.jar")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    find_java().path,
                    *options,
                    f"-Dquarkus.http.port={self._port}",
                    "-jar",
                    program,
                ],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        end_with_this_process(self._process.pid)
        until = time.monotonic() + START_S
        while not self._answers():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < until, self._log.read_text()
            block_between_looks()

    def stop(self) -> None:
        """Ends the program."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The program does not answer during the block; connections stay open."""
        assert self._process is not None, "started"
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects") as answer:  # noqa: S310 - of ours
                return answer.status == 200
        except (urllib.error.URLError, ConnectionError):
            return False


def fetched() -> Path:
    """The folder of the program, fetched when it is not cached."""
    folder = cache_dir() / "apicurio" / SHA256[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                _fetch(Path(scratch), folder)
    return folder


def _fetch(scratch: Path, folder: Path) -> None:
    copy = [f"{MAVEN_PLUGIN}:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={scratch}"]
    run_tool(["mvn", "-B", "-q", *copy], scratch)
    (archive,) = scratch.glob("*.tar.gz")
    with archive.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == SHA256, archive.name
    with tarfile.open(archive) as content:
        content.extractall(scratch / "unpacked", filter="data")
    (scratch / "unpacked").rename(folder)
