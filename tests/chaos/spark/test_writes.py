"""Batches of Spark while driver, JVM and executors are killed: each batch is visible once.

*Source*: docs/protocols L9. `make chaos ARGS="-k batches_of_spark"` runs it; `KILLS=100` kills so
often, `SEED=7` draws other places. Prints the kills by victim.
"""

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stilltide.connectors.local.cluster import LocalCluster
from stilltide.schemas.digest import content_digest
from tests.support.looks import between_looks
from tests.support.processes.child import ROOT
from tests.support.processes.local import STILLTIDE
from tests.support.processes.worker_process import running_worker
from tests.support.spark.topics import create_topics
from tests.support.spark.write_batches import ROWS
from tests.support.spark.write_program import POINTS

SEED = int(os.environ.get("SEED", "1"))
KILLS = int(os.environ.get("KILLS", "12"))
PARTITIONS = 3
KILL_S = 120
"""For one kill and what follows from it, on a slow machine."""

FAILURES_MAX = 2 + KILLS // 10
"""Drivers that end by an error though nothing was done to them."""

PLACES = [f"{when} {effect}" for effect in POINTS for when in ("before", "after")]
VICTIMS = ("driver", "JVM", "executor", "executor", "frozen driver")
"""Executors twice: they are lost most often."""


class Driver:
    """The program `write_batches`, which waits at each of its places for `go`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.place = ""

    async def next_place(self) -> str:
        """The place that the driver waits at: `before EFFECT`; empty: it has ended."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            kind, *words = line.decode().split()
            if kind == "at":
                self.place = " ".join(words[:2])
                return self.place
        self.place = ""
        return ""

    def go(self) -> None:
        """Lets the driver go on behind its place."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")

    async def run_to_end(self) -> int:
        """Lets the driver pass its places until it ends; returns its exit code."""
        if self.place:
            self.go()
        while await self.next_place():
            self.go()
        return await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """A signal for the driver's Python."""
        self._process.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL; its JVM and executors are left to find out."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    def jvm(self) -> int:
        """The process of the driver's JVM."""
        (jvm,) = [pid for pid in _children(self._process.pid) if _is_java(pid)]
        return jvm

    def executors(self) -> list[int]:
        """The processes of the executors that live."""
        return [pid for pid in _children(self.jvm()) if _is_java(pid)]


class Campaign:
    """Drivers that write the same batches one after the other, and what is done to them."""

    def __init__(self, bootstrap: str, topic: str, directory: Path) -> None:
        self.failures = 0
        self.kills: Counter[str] = Counter()
        self._command = [sys.executable, "-m", "tests.support.spark.write_batches"]
        self._command += [bootstrap, topic, str(directory / "progress"), str(directory)]
        self._hold, self._held = directory / "hold", directory / "held"
        self._log_path = directory / "driver.log"
        self._random = random.Random(SEED)
        self._batches = 0
        self._driver: Driver | None = None

    @property
    def batches(self) -> int:
        """Number of batches that the last driver was to write."""
        return self._batches

    async def strike(self) -> None:
        """Kills once, at a place that a driver at work has come to."""
        victim = self._random.choice(VICTIMS)
        if victim in {"executor", "JVM"}:
            await self._kill_while_it_writes(victim)
            return
        place = self._random.choice(PLACES)
        driver = await self._at(place)
        self.kills[f"{victim} {place}"] += 1
        self._driver = None
        if victim == "driver":
            await driver.kill()
            return
        driver.signal(signal.SIGSTOP)
        try:
            await self.finish()
        finally:
            driver.signal(signal.SIGCONT)
        await driver.run_to_end()  # by an error, or since there was nothing left to do

    async def finish(self) -> None:
        """Drivers write what is left, undisturbed, until one has written all."""
        while (code := await (await self._at_work()).run_to_end()) != 0:
            assert code == 1, self._log_path.read_text()[-5000:]
            self.failures += 1  # by the time-out of a transaction, if the machine is slow
            assert self.failures <= FAILURES_MAX, self._log_path.read_text()[-5000:]

    async def close(self) -> None:
        """Ends the driver."""
        self._hold.unlink(missing_ok=True)
        if self._driver is not None:
            await self._driver.kill()

    async def _kill_while_it_writes(self, victim: str) -> None:
        driver = await self._at("before WriteRecords")
        self._held.unlink(missing_ok=True)
        self._hold.touch()
        driver.go()
        while not self._held.exists():
            await between_looks()
        pid = driver.jvm() if victim == "JVM" else _java_above(int(self._held.read_text()))
        self.kills[f"{victim} while it writes"] += 1
        os.kill(pid, signal.SIGKILL)
        self._hold.unlink()
        if victim == "JVM":
            self._driver = None
            assert await driver.run_to_end() != 0
        else:
            await driver.next_place()

    async def _at(self, place: str) -> Driver:
        """A driver that waits at a place of some batch."""
        while (driver := await self._at_work()).place != place:
            driver.go()
            await driver.next_place()
        return driver

    async def _at_work(self) -> Driver:
        """A driver that waits at its first place of some batch."""
        if self._driver is not None and self._driver.place:
            return self._driver
        # A driver of before has no batch left, or was killed: the next one has a few more to write.
        self._batches += 3
        with self._log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                str(self._batches),
                cwd=ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        self._driver = driver = Driver(process)
        assert await driver.next_place(), self._log_path.read_text()[-5000:]
        return driver


@pytest.fixture
async def campaign(
    cluster: LocalCluster, topic_name: str, tmp_path: Path
) -> AsyncIterator[Campaign]:
    """A campaign on a topic of its own."""
    create_topics(cluster.bootstrap, {topic_name: PARTITIONS})
    campaign = Campaign(cluster.bootstrap, topic_name, tmp_path)
    yield campaign
    await campaign.close()


@pytest.mark.timeout(KILLS * KILL_S + 600)
async def test_batches_of_spark_are_visible_once(
    cluster: LocalCluster, topic_name: str, tmp_path: Path, campaign: Campaign
):
    """0 missing, 0 extra: number and digest of what readers see are those of the batches."""
    with running_worker(cluster.bootstrap, tmp_path / "worker.log"):
        for _ in range(KILLS):
            await campaign.strike()
        await campaign.finish()
        # What killed drivers have left open is aborted at its time-out; readers wait (D2).
        while json.loads(await stilltide(cluster.bootstrap, "txn", "list")):
            await between_looks()
        expected = [
            (f"{batch}-{number}".encode(), f"value-{number}".encode())
            for batch in range(campaign.batches)
            for number in range(ROWS)
        ]
        audited = await audit(cluster.bootstrap, topic_name, tmp_path)
    sys.stdout.write(f"{campaign.batches} batches, {campaign.failures} drivers failed\n")
    for victim, count in sorted(campaign.kills.items()):
        sys.stdout.write(f"{count:4} {victim}\n")
    partitions = audited["partitions"]
    assert sum(one["visible"] for one in partitions) == len(expected)
    assert sum(int(one["digest"]) for one in partitions) == content_digest(expected)


async def audit(bootstrap: str, topic: str, directory: Path) -> dict[str, Any]:
    """What `stilltide audit run` says of a topic; every check is valid, or has nothing to check."""
    where = ["--topics", topic, "--report", str(directory / "report")]
    return json.loads(
        await stilltide(bootstrap, "audit", "run", *where, "--digest", "--update-index")
    )


async def stilltide(bootstrap: str, *arguments: str) -> bytes:
    """What a command prints as JSON."""
    command = [STILLTIDE, *arguments, "--bootstrap-servers", bootstrap, "-o", "json"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed.decode()
    return printed


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    texts = [path.read_text() for path in tasks.glob("*/children")]
    return [int(word) for text in texts for word in text.split()]


def _is_java(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name == "java"
    return False


def _java_above(pid: int) -> int:
    """The JVM that has started a process, or a process above it."""
    while not _is_java(pid):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid
