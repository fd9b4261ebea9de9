"""A PostgreSQL server of a test: a cluster of its own in a temporary directory, on a socket there.

The programs are those of Debian's package, of the version that is installed; root gets a missing
one installed. PostgreSQL refuses to run as root, so that root runs it as the package's own user.
"""

import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from stilltide.pipeline.demo.worker_process import end_with_this_process
from tests.support.programs import program

PACKAGE, USERS = "postgresql", ("postgres", "nobody")
WAIT_S = 240
SETTINGS = (
    "fsync=off",  # no test here cuts the power
    "listen_addresses=",
    "shared_buffers=16MB",
    "max_connections=200",
)


def programs() -> Path:
    """The folder of `initdb`, `pg_ctl` and `postgres`, which Debian leaves out of the PATH.

    Raises:
        AssertionError: there is no PostgreSQL, and none can be installed.
    """
    folder = _newest()
    if folder is None:
        path = program(["initdb"], PACKAGE)  # installs Debian's package
        folder = Path(path).parent if path else _newest()
    assert folder is not None, "no PostgreSQL: `apt-get install postgresql`"
    return folder


def _newest() -> Path | None:
    found = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max((it.parent for it in found), default=None, key=lambda it: float(it.parent.name))


class PostgresServer:
    """One server; `start` after a `kill` recovers from its log, as after a crash.

    Args:
        folder: holds the data and the socket.
        settings: settings of the server that differ from those of tests.

    Attributes:
        folder: holds the data and the socket.
        user: superuser of the database, without password.
    """

    user = "tests"

    def __init__(self, folder: Path, settings: Sequence[str] = ()) -> None:
        self.folder = folder
        self._settings = (*SETTINGS, *settings)
        self._data = folder / "data"
        self._as = _user()

    def make(self) -> None:
        """Makes the cluster, empty."""
        if self._as is not None:
            shutil.chown(self.folder, self._as)
        self._run("initdb", "-D", str(self._data), "-U", self.user, "-A", "trust", "--no-sync")

    def start(self) -> None:
        """Starts the server; returns when it takes connections."""
        settings = [
            f"-c {it}" for it in (*self._settings, f"unix_socket_directories={self.folder}")
        ]
        log = str(self.folder / "log")
        self._control("start", "-w", "-t", str(WAIT_S), "-l", log, "-o", " ".join(settings))
        end_with_this_process(self.pid)

    def stop(self) -> None:
        """Stops the server; open connections break."""
        self._control("stop", "-m", "fast", "-w")

    def kill(self) -> None:
        """Kills every process of the server, as a crash does; returns when they are gone."""
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)  # starts no further ones
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        processes = [
            os.pidfd_open(number) for number in (pid, *map(int, children)) if _runs(number)
        ]
        for process in processes:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
        for process in processes:
            select.select([process], [], [], WAIT_S)
            os.close(process)
        # Where nobody reaps the dead, as process 1 of a container may not, their number is taken.
        for lock in (self._data / "postmaster.pid", *self.folder.glob(".s.PGSQL.*.lock")):
            lock.unlink()

    def stop_at_once(self) -> None:
        """Stops the server without a checkpoint; `start` recovers from the log then."""
        self._control("stop", "-m", "immediate", "-w")

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return int((self._data / "postmaster.pid").read_text().split()[0])

    @property
    def conninfo(self) -> str:
        """For psycopg and asyncpg's `connect`."""
        return f"postgresql://{self.user}@/postgres?host={self.folder}"

    def url(self, driver: str) -> str:
        """For SQLAlchemy, such as `psycopg` or `asyncpg`."""
        return f"postgresql+{driver}://{self.user}@/postgres?host={self.folder}"

    def _control(self, verb: str, *options: str) -> None:
        self._run("pg_ctl", verb, "-D", str(self._data), *options)

    def _run(self, name: str, *arguments: str) -> None:
        command = [str(programs() / name), *arguments]
        done = subprocess.run(
            command,
            user=self._as,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # the server keeps a pipe open
            stderr=subprocess.DEVNULL,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}"


@contextmanager
def postgres_server(*settings: str) -> Iterator[PostgresServer]:
    """A server that runs until the block ends; settings as `PostgresServer`'s."""
    programs()
    with tempfile.TemporaryDirectory(prefix="stilltide-pg-", ignore_cleanup_errors=True) as folder:
        server = PostgresServer(Path(folder), settings)
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _user() -> str | None:
    """The user that root runs the server as; None: the tests' own."""
    if os.geteuid() != 0:
        return None
    names: Sequence[str] = [it.pw_name for it in pwd.getpwall()]
    return next(name for name in USERS if name in names)
