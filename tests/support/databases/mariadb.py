"""A MariaDB server of a test: databases of its own in a temporary directory, on a socket there.

The programs are those of Debian's package; root gets a missing one installed. MariaDB runs as root
only if it is told to run as a user, which is the package's own.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stilltide.pipeline.reaper import end_with_this_process
from tests.support.programs import program

PACKAGE, USERS = "mariadb-server", ("mysql", "nobody")
WAIT_S = 240
SETTINGS = (
    "--skip-networking",
    "--innodb-buffer-pool-size=16M",
    "--innodb-log-file-size=8M",
    "--innodb-flush-log-at-trx-commit=0",  # no test here cuts the power
    "--max-connections=60",
)


class MariaDbServer:
    """One server.

    Attributes:
        folder: holds the data and the socket.
        user: has all rights, without password.
    """

    user = "root"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._as = _user()
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> str:
        """Path of the socket."""
        return str(self.folder / "socket")

    def make(self) -> None:
        """Makes the system tables."""
        if self._as is not None:
            shutil.chown(self.folder, self._as)
        self._run(
            "mariadb-install-db",
            *self._places(),
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--innodb-log-file-size=8M",
        )

    def start(self) -> None:
        """Starts the server; returns when it takes connections."""
        assert program(["mariadbd"], PACKAGE) is not None
        command = ["mariadbd", *self._places(), f"--socket={self.socket}", *SETTINGS]
        log = f"--log-error={self.folder / 'log'}"
        self._server = subprocess.Popen(
            [*command, log], stdin=subprocess.DEVNULL, start_new_session=True
        )
        end_with_this_process(self._server.pid)
        at = f"--socket={self.socket}", f"--user={self.user}"
        self._run("mariadb-admin", "--no-defaults", *at, f"--wait={WAIT_S}", "ping")

    def stop(self) -> None:
        """Stops the server; open connections break."""
        assert self._server is not None
        self._server.terminate()
        self._server.wait(WAIT_S)

    def make_database(self, name: str) -> None:
        """Makes an empty database where there is none."""
        at = f"--socket={self.socket}", f"--user={self.user}"
        statement = f"CREATE DATABASE IF NOT EXISTS {name}"
        self._run("mariadb", "--no-defaults", *at, "--execute", statement)

    def url(self, driver: str, database: str) -> str:
        """For SQLAlchemy, such as `pymysql` or `aiomysql`."""
        return f"mysql+{driver}://{self.user}@/{database}?unix_socket={self.socket}"

    def _places(self) -> list[str]:
        """Options of the server and of what makes its tables; no file of the machine's is read."""
        places = ["--no-defaults", f"--datadir={self.folder / 'data'}"]
        return places if self._as is None else [*places, f"--user={self._as}"]

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            command,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{command[0]}: {done.stdout.decode()}{done.stderr.decode()}"


@contextmanager
def mariadb_server() -> Iterator[MariaDbServer]:
    """A server that runs until the block ends."""
    installed = program(["mariadb-install-db"], PACKAGE)
    assert installed is not None, "no MariaDB: `apt-get install mariadb-server`"
    with tempfile.TemporaryDirectory(prefix="stilltide-maria-", ignore_cleanup_errors=True) as name:
        server = MariaDbServer(Path(name))
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _user() -> str | None:
    """The user that root runs the server as; None: the tests' own."""
    if os.geteuid() != 0:
        return None
    names = {it.pw_name for it in pwd.getpwall()}
    return next(name for name in USERS if name in names)
