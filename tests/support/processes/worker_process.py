"""`stilltide worker` as a process of its own, and what applications do and see while it lives."""

import asyncio
import json
import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.demo import worker_process
from stilltide.pipeline.errors import OutcomeUnknownError, PipelineError
from stilltide.schemas.coordinator.transactions import Listed, ListTransactions
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import TopicPartition

COORDINATORS = 4
PARTITIONS = 3
"""Of each data topic."""

READ_S = 120.0


class Held(NamedTuple):
    """What a process holds of the machine."""

    rss_kib: int
    threads: int
    descriptors: int


def held_by(pid: int) -> Held:
    """What a process holds just now."""
    proc = Path("/proc") / str(pid)
    said = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    return Held(
        rss_kib=int(said["VmRSS"].split()[0]),
        threads=int(said["Threads"]),
        descriptors=len(list((proc / "fd").iterdir())),
    )


class WorkerProcess(worker_process.WorkerProcess):
    """Starts on entry, serves when `serving` returns, and is killed on exit if it still runs.

    Args:
        bootstrap: the cluster.
        log_path: where its stderr goes; written anew.
        options: further options of the command.
        settings: as environment variables, without the prefix.
    """

    def __init__(self, bootstrap: str, log_path: Path, *options: str, **settings: object) -> None:
        super().__init__(bootstrap, log_path, *options, environment=_variables(settings))

    async def __aenter__(self) -> Self:
        self.log_path.unlink(missing_ok=True)
        await self.spawn()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.kill()

    @property
    def said(self) -> str:
        """What it has said on stderr."""
        return self.log_path.read_text()

    def pause(self) -> None:
        """SIGSTOP: it holds its connections and does nothing."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._send(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM."""
        self._send(signal.SIGTERM)

    def held(self) -> Held:
        """What it holds just now."""
        return held_by(self.pid)

    async def ended(self, within_s: float) -> int:
        """Waits until it ends by itself; its exit code."""
        assert self._process is not None
        async with asyncio.timeout(within_s):
            return await self._process.wait()

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)


class ModuleWorker:
    """A worker of a module's tests, whose loops come and go; each call blocks.

    Args:
        bootstrap: the cluster.
        log_path: where its stderr goes.
        options: further options of the command.
        settings: as environment variables, without the prefix.
    """

    def __init__(self, bootstrap: str, log_path: Path, *options: str, **settings: object) -> None:
        self._command = worker_process.command(bootstrap, *options)
        self._environment = {**os.environ, **_variables(settings)}
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self.web = ""

    def start(self) -> None:
        """Returns when it serves."""
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log_path.read_text()
        self.web = json.loads(line)["web"]

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and waits until it is gone."""
        assert self._process is not None
        with self._process:
            self._process.terminate()


@contextmanager
def running_worker(
    bootstrap: str, log_path: Path, *options: str, **settings: object
) -> Iterator[ModuleWorker]:
    """A worker that serves from entry to exit, for the tests of a module."""
    made = ModuleWorker(bootstrap, log_path, *options, **settings)
    made.start()
    try:
        yield made
    finally:
        made.stop()


def _variables(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings as the environment holds them."""
    return {f"STILLTIDE_{name.upper()}": str(value) for name, value in settings.items()}


@dataclass
class Outcomes:
    """What an application was told of its transactions, by their number."""

    committed: set[int] = field(default_factory=set[int])
    aborted: set[int] = field(default_factory=set[int])
    unknown: set[int] = field(default_factory=set[int])

    @property
    def count(self) -> int:
        """How many have ended."""
        return len(self.committed) + len(self.aborted) + len(self.unknown)


@dataclass
class Load:
    """Numbered transactions, each of `per_topic` records in two topics; a fifth abort."""

    topics: tuple[str, str]
    count: int
    concurrency: int = 32
    per_topic: int = 2
    outcomes: Outcomes = field(default_factory=Outcomes)
    begun: int = 0

    def stop(self) -> None:
        """Begins no further transaction; `run` ends with those that have begun."""
        self.count = self.begun

    async def run(self, client: TransactionClient, ended: Callable[[int], None]) -> None:
        """Runs them all; `ended` is told after each how many have."""

        async def work() -> None:
            while self.begun < self.count:
                number, self.begun = self.begun, self.begun + 1
                await self._one(client, number)
                ended(self.outcomes.count)

        await asyncio.gather(*(work() for _ in range(self.concurrency)))

    async def _one(self, client: TransactionClient, number: int) -> None:
        outcomes = self.outcomes
        try:
            async with client.transaction() as txn:
                for topic in self.topics:
                    for part in range(self.per_topic):
                        await txn.send(topic, b"%d" % number, key=b"%d.%d" % (number, part))
                if number % 5 == 0:
                    await txn.abort()
        except OutcomeUnknownError:
            outcomes.unknown.add(number)
        except PipelineError:
            outcomes.aborted.add(number)
        else:
            (outcomes.aborted if number % 5 == 0 else outcomes.committed).add(number)

    async def check(self, bootstrap: str, group: str) -> None:
        """Readers see every committed transaction whole, and no other but an unknown one."""
        connector = KafkaConnector(KafkaConfig(bootstrap))
        admin = connector.admin()
        ends = await admin.end_offsets(
            [TopicPartition(topic, it) for topic in self.topics for it in range(PARTITIONS)]
        )
        await admin.close()
        seen: defaultdict[int, int] = defaultdict(int)
        async with Subscription(self.topics, group=group, connector=connector) as subscription:
            async for message in subscription.read_to(ends):
                assert message.value is not None
                seen[int(message.value)] += 1
        assert set(seen.values()) == {2 * self.per_topic}
        assert self.outcomes.committed <= seen.keys()
        assert seen.keys() <= self.outcomes.committed | self.outcomes.unknown
        assert self.outcomes.count == self.count


async def read_and_commit(connector: Connector, topic: str, group: str, count: int) -> list[int]:
    """So many numbers that a member of ours is given next; it commits all of them."""
    found: list[int] = []
    async with (
        asyncio.timeout(READ_S),
        Subscription([topic], group=group, connector=connector) as subscription,
    ):
        while len(found) < count:
            found.append(int((await anext(subscription)).value or b""))
        await subscription.commit()
    return found


async def create_topics(bootstrap: str, *names: str) -> None:
    """Creates data topics."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.ensure_topics([TopicSpec(name, PARTITIONS) for name in names])
    await admin.close()


async def await_all_ended(client: TransactionClient) -> None:
    """Returns when no coordinator has a transaction that has not ended."""
    assert client._cluster is not None
    for coordinator in range(COORDINATORS):
        while True:
            listed = await client._cluster.ask(coordinator, ListTransactions())
            assert isinstance(listed, Listed)
            if not listed.transactions:
                break
