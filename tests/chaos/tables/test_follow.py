"""Tables of every format while what writes to them is killed: nothing lost, nothing doubled.

*Source*: rules K1, K2, K3, K4, K5. `make chaos ROUNDS=100 ARGS="-k tables"` kills a hundred times
at random moments, and each kill befalls the tables of all formats; `SEED=7` draws other moments.
The command is killed twice for each format.
"""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random

import pytest

from stilltide.pipeline.cli.common.output import say
from tests.support.processes.child import Child
from tests.support.processes.jvm import jvm_of
from tests.support.spark.histories import MixedHistory
from tests.support.spark.topics import create_topics

SEED, ROUNDS = int(os.environ.get("SEED", "1")), int(os.environ.get("ROUNDS", "2"))
FORMATS = ("parquet", "manifest", "delta", "iceberg")
PARTITIONS, WAIT_S = 3, 1800
OF_COMMAND, OF_PART, SPARES = 2, 25, 1
BATCHES_MAX, QUIET_S, DELAY_S_MAX = 4, 30, 3.0
BEHIND = 40
"""What happens in the topic before each kill: more than a table stores until then, so that no table
has nothing to do when the kill comes."""

CATCH_UP = "10000"
CONTENT, WRITERS = "tests.support.spark.table_content", "tests.support.spark.table_writers"


async def hear(child: Child, about: str, lines: int, seconds: float) -> list[str]:
    """Listens to so many lines about something, if they come, and then for a while.

    The last line is empty if the process has ended.
    """
    heard: list[str] = []
    for count, limit_s in ((lines, QUIET_S), (sys.maxsize, seconds)):
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while sum(about in line for line in heard) < count:
                    heard.append(await child.line())
                    if not heard[-1]:
                        return heard
    return heard


async def kill(child: Child, *, whole: bool) -> None:
    """Kills the process, whose JVM ends by itself then; or the JVM, which ends the process.

    A process that has nothing to store does not notice the end of its JVM, and is killed, too.
    """
    if not whole:
        jvm_of(child.pid).kill()
        with suppress(TimeoutError):
            assert await child.ended(QUIET_S) == 1
    await child.kill()


async def check(folder: Path, bootstrap: str, topic: str, *places: str) -> None:
    """Each table holds what an audit sees, by digest, and no offset twice."""
    async with Child.of_module(CONTENT, str(folder), bootstrap, topic, *places) as child:
        async with asyncio.timeout(WAIT_S):
            found = json.loads(await child.line())
    audited = found.pop("audited")
    assert audited["records"] > 0
    assert found == dict.fromkeys(places, audited)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FORMATS)
async def test_a_command_that_is_killed_goes_on(
    name: str, bootstrap: str, topic_name: str, tmp_path: Path
):
    """K2, K3: SIGKILL of the command or of its JVM; then it stores the rest and ends."""
    create_topics(bootstrap, {topic_name: PARTITIONS})
    random, place = Random(SEED), f"{name}:{tmp_path}/lake/orders"
    history = MixedHistory(bootstrap, topic_name, PARTITIONS, SEED)
    words = ("--topics", topic_name, "--to", place, "--bootstrap-servers", bootstrap)
    more = ("--master", "local[1]", "--every", "0.1", "--records-max", "9")
    command = [sys.executable, "-m", "stilltide", "table", "follow", *words, *more]
    async with Child(command, tmp_path / "log") as child:
        for number in range(OF_COMMAND):
            if number:
                await child.spawn()
            await asyncio.to_thread(history.act, 15)
            await child.announced(WAIT_S)
            lines, seconds = random.randrange(BATCHES_MAX), random.uniform(0, DELAY_S_MAX)
            await hear(child, '"batch"', lines, seconds)
            await kill(child, whole=number % 2 == 0)
    await asyncio.to_thread(history.end)
    async with Child([*command, "--once"], tmp_path / "log") as child:
        await child.announced(WAIT_S)
        while await child.line():
            """One more batch."""
        assert await child.ended(WAIT_S) == 0, child.said
    await check(tmp_path, bootstrap, topic_name, place)


class Writers:
    """Processes that write to tables, started in advance.

    Args:
        stack: ends them.
        folder: for their logs.
        classes: file with the classes of their JVMs.
        arguments: of the program.
    """

    def __init__(self, stack: AsyncExitStack, folder: Path, classes: Path, *arguments: str) -> None:
        self._stack = stack
        self._folder = folder
        self._variables = {"CLASSES": str(classes)}
        self._arguments = arguments
        self._waiting: list[Child] = []
        self._count = 0

    async def next(self) -> Child:
        """The process that waits longest, which begins to write now."""
        while len(self._waiting) <= SPARES:
            self._count += 1
            log_path = self._folder / f"log-{self._count}"
            command = [sys.executable, "-m", WRITERS, *self._arguments]
            child = Child(command, log_path, self._variables)
            self._waiting.append(await self._stack.enter_async_context(child))
        child = self._waiting.pop(0)
        async with asyncio.timeout(WAIT_S):
            assert await child.line() == "ready", child.said
        child.send(signal.SIGUSR1)
        return child


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The classes of a JVM that has written to tables of all formats."""
    return asyncio.run(made_classes(tmp_path_factory.mktemp("classes")))


async def made_classes(folder: Path) -> Path:
    """Has a process write to tables and make the file."""
    places = [f"{name}:{folder}/lake/{name}_orders" for name in FORMATS]
    command = [sys.executable, "-m", WRITERS, str(folder), "none", "none", *places]
    made = folder / "classes.jsa"
    variables = {"CLASSES": str(made), "CLASSES_MADE": "1"}
    async with Child(command, folder / "log", variables) as child:
        assert await child.ended(WAIT_S) == 0, child.said
    assert made.exists()
    return made


@pytest.mark.timeout(900 + 300 * OF_PART)
@pytest.mark.parametrize("part", range(-(-ROUNDS // OF_PART)))
async def test_tables_hold_what_an_audit_sees(
    part: int, classes: Path, bootstrap: str, topic_name: str, tmp_path: Path
):
    """K2, K3, K5: one process writes to all of them; the next one begins when it is killed.

    The JVM of a killed process may still commit. Its successor has to notice, and must not store
    the batch again; it may end with an error.
    """
    create_topics(bootstrap, {topic_name: PARTITIONS})
    random, stored = Random(SEED + part), Counter[str]()
    places = [f"{name}:{tmp_path}/lake/{name}_orders" for name in FORMATS]
    history = MixedHistory(bootstrap, topic_name, PARTITIONS, SEED + part)
    kills, killed, overtaken = min(OF_PART, ROUNDS - part * OF_PART), 0, 0
    async with AsyncExitStack() as stack:
        arguments = str(tmp_path), bootstrap, topic_name, *places
        writers = Writers(stack, tmp_path, classes, *arguments)
        while killed < kills:
            await asyncio.to_thread(history.act, BEHIND)
            child = await writers.next()
            # Every second kill waits for the table that has the fewest batches.
            slowest = min(FORMATS, key=stored.__getitem__)
            name = slowest if killed % 2 else random.choice(FORMATS)
            lines = random.randrange(killed % 2, BATCHES_MAX)
            heard = await hear(child, name, lines, random.uniform(0, DELAY_S_MAX))
            stored.update(line.split(":")[0] for line in heard if line)
            if heard[-1:] != [""]:
                await kill(child, whole=random.random() < 0.5)
                killed += 1
            else:
                assert await child.ended(WAIT_S) == 1
                assert "another writer has stored batch" in child.said
                overtaken += 1
            say(f"killed {killed} times, {overtaken} ended by themselves; batches: {dict(stored)}")
    assert min(stored[name] for name in FORMATS) >= kills // 2
    await asyncio.to_thread(history.end)
    last = [sys.executable, "-m", WRITERS, str(tmp_path), bootstrap, topic_name, *places]
    variables = {"ONCE": "1", "RECORDS_MAX": CATCH_UP, "CLASSES": str(classes)}
    async with Child(last, tmp_path / "log", variables) as child:
        assert await child.line() == "ready"
        child.send(signal.SIGUSR1)
        assert await child.ended(WAIT_S) == 0, child.said
    await check(tmp_path, bootstrap, topic_name, *places)
