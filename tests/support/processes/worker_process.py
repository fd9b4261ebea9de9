"""`stilltide worker` as a child process, and a load of transactions for it."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Self

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.demo import worker_process
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.errors import OutcomeUnknownError, PipelineError
from stilltide.schemas.coordinator.transactions import Listed, ListTransactions
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import TopicPartition
from tests.support.looks import between_looks
from tests.support.processes.child import Child, Held

COORDINATORS = 4
PARTITIONS = 3
"""Partition count of each data topic."""

READ_S = 360.0


class WorkerProcess(Child):
    """`stilltide worker` with an empty log; `serving` waits until the worker serves.

    Args:
        bootstrap: the cluster.
        log_path: file for stderr, emptied on entry.
        options: further options of the command.
        settings: environment variables, without the prefix.

    Attributes:
        web: address of the web site, once the worker serves.
    """

    def __init__(self, bootstrap: str, log_path: Path, *options: str, **settings: object) -> None:
        variables = {f"STILLTIDE_{name.upper()}": str(value) for name, value in settings.items()}
        super().__init__(worker_process.command(bootstrap, *options), log_path, variables)
        self.web = ""

    async def __aenter__(self) -> Self:
        assert self.log_path is not None
        self.log_path.unlink(missing_ok=True)
        return await super().__aenter__()

    async def serving(self) -> list[int]:
        """Waits until the worker serves; returns its coordinators."""
        announced = await self.announced()
        self.web = announced["web"]
        return announced["coordinators"]


class ModuleWorker:
    """A worker for all tests of a module, each with its own event loop; every call blocks.

    The loop that watches the process runs in a thread of its own.

    Args:
        child: the worker, not started yet.
    """

    def __init__(self, child: WorkerProcess) -> None:
        self._child = child
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @property
    def web(self) -> str:
        """The address of the web site."""
        return self._child.web

    @property
    def running(self) -> bool:
        """Whether the worker has been started and has not ended."""
        return self._child.running

    @property
    def said(self) -> str:
        """The content of the log."""
        return self._child.said

    def held(self) -> Held:
        """The resources that the worker uses now."""
        return self._child.held()

    def start(self) -> None:
        """Returns when the worker serves."""
        self._run(self._child.spawn())
        self._run(self._child.serving())

    def kill(self) -> None:
        """Sends SIGKILL and waits for the end."""
        self._run(self._child.kill())

    def close(self) -> None:
        """Sends SIGTERM, and SIGKILL if the worker does not end; the worker cannot start again."""
        try:
            if self._child.running:
                self._run(self._child.stop())
        finally:
            self._run(self._child.kill())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _run(self, step: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(step, self._loop).result()


@contextmanager
def running_worker(
    bootstrap: str, log_path: Path, *options: str, **settings: object
) -> Iterator[ModuleWorker]:
    """A worker that serves from entry to exit, for the tests of a module."""
    made = ModuleWorker(WorkerProcess(bootstrap, log_path, *options, **settings))
    try:
        made.start()
        yield made
    finally:
        made.close()


@dataclass
class Outcomes:
    """The outcomes that a client reported, by number of the transaction."""

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
        """Begins no further transaction; `run` returns when the begun ones have ended."""
        self.count = self.begun

    async def run(self, client: TransactionClient, ended: Callable[[int], None]) -> None:
        """Runs all transactions; calls `ended` after each with the number of ended ones."""

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
        """Checks that readers see every committed transaction whole, and others only if unknown."""
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
    """Reads the next `count` numbers with a `Subscription` of the group, and commits them."""
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
    async with Coordinators(client._connector, request_timeout_s=READ_S) as operator:
        for coordinator in range(operator.count):
            while True:
                listed = await operator.ask(coordinator, ListTransactions())
                assert isinstance(listed, Listed)
                if not listed.transactions:
                    break
                await between_looks()
