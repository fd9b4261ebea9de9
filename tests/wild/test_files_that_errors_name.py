"""Files that an error names, and that are gone when a user looks.

What a user saw: `make demo` on a busy machine ended with "the worker did not serve within 60 s; its
log is /tmp/stilltide-demo-.../worker.log", and the folder had been removed on the way out. The
worker had been busy all that time.
"""

import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from stilltide.connectors.local.readiness import StartProgress
from stilltide.connectors.scratch import scratch
from stilltide.pipeline.demo.worker_process import WorkerError, WorkerProcess
from stilltide.schemas.errors import StilltideError


async def failing_start(directory: Path) -> None:
    """Starts a worker with a setting that cannot be read, beside data that nobody will miss."""
    (directory / "a").mkdir()
    (directory / "a" / "segment.log").write_bytes(b"records")
    wrong = {"STILLTIDE_COORDINATORS": "many"}
    worker = WorkerProcess("127.0.0.1:1", directory / "worker.log", environment=wrong)
    try:
        await worker.start()
    finally:
        await worker.stop()


def test_the_log_of_a_worker_that_does_not_come_up_is_kept(tmp_path: Path):
    """The file in the hint is there, and what no error names is removed."""

    def demo() -> None:
        with scratch("demo-", tmp_path) as directory:
            asyncio.run(failing_start(directory))

    with pytest.raises(WorkerError) as failed:
        demo()
    log = Path(failed.value.hint.removeprefix("its log is "))
    assert "coordinators" in log.read_text()
    assert [it.name for it in tmp_path.rglob("*")] == [log.parent.name, "worker.log"]


@pytest.mark.parametrize(
    ("named", "kept"),
    [
        ("the full log is {0}/a/broker.log", ["a", "a/broker.log"]),
        ("see {0}/a/broker.log and {0}/worker.log", ["a", "a/broker.log", "worker.log"]),
        ("look into {0}/a", ["a", "a/broker.log", "a/data"]),
        ("no file", []),
    ],
)
def test_what_an_error_names_is_kept(tmp_path: Path, named: str, kept: list[str]):
    """A file that is named stays, a directory with all that is in it, and nothing else."""
    directory = tmp_path

    def work() -> None:
        nonlocal directory
        with scratch("s-", tmp_path) as directory:
            (directory / "a").mkdir()
            for name in ("a/broker.log", "a/data", "worker.log"):
                (directory / name).write_text(name)
            raise StilltideError("it failed", hint=named.format(directory))

    with pytest.raises(StilltideError, match="it failed"):
        work()
    left = sorted(str(it.relative_to(directory)) for it in directory.rglob("*"))
    assert left == kept
    assert directory.exists() == bool(kept)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, ValueError])
def test_nothing_is_left_without_an_error_that_names_it(
    tmp_path: Path, error: type[BaseException] | None
):
    """After success, Ctrl-C, or an error of another program."""
    with suppress(KeyboardInterrupt, ValueError), scratch("s-", tmp_path) as directory:
        (directory / "worker.log").write_text("a line")
        if error is not None:
            raise error(str(directory))
    assert list(tmp_path.iterdir()) == []


class Hand:
    """A clock that the test moves."""

    now_s = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now_s


def test_a_start_is_waited_for_as_long_as_its_log_grows(tmp_path: Path):
    """It is given up once the log stands still, and after ten minutes in any case."""
    log, clock = tmp_path / "worker.log", Hand()
    progress = StartProgress([log], [], now_s=clock)
    for step in range(10):
        clock.now_s += 55
        with log.open("a") as file:
            file.write(f"line {step}\n")
        assert progress.stalled() == ""
    clock.now_s += 49
    assert progress.stalled() == ""
    clock.now_s += 2
    assert progress.stalled() == "the start has taken 600 s"

    progress = StartProgress([log], [], now_s=clock)
    clock.now_s += 61
    assert progress.stalled() == "its log stood still for 60 s, and it computed nothing"


COMPUTING = """
import sys, time
while time.process_time() < 2: pass
print("computed", flush=True)
sys.stdin.read()
"""


def test_a_start_is_waited_for_as_long_as_it_computes(tmp_path: Path):
    """A worker that imports its modules writes nothing, and is at work."""
    clock = Hand()
    command = [sys.executable, "-c", COMPUTING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        progress = StartProgress([tmp_path / "none"], [child.pid], now_s=clock)
        assert child.stdout.readline() == b"computed\n"
        clock.now_s += 61
        assert progress.stalled() == ""
        child.stdin.close()
