"""Clusters, a worker on each and a link for each direction, all as processes.

A link that ends is started again, as a restart policy does.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from itertools import permutations
from pathlib import Path
from typing import Self

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import ClusterName
from tests.chaos.points import Point, reached
from tests.chaos.processes.site import POINT_S, SESSION_S
from tests.support.links.link_process import LinkProcess
from tests.support.processes.worker_process import WorkerProcess

START_S = 180.0
"""Three clusters, workers and six links on two cores take their time."""
PARTITIONS = 2
"""Of the topic."""


LINK_PROCESSES = 2


class KeptLink:
    """A link that is started again whenever it ends.

    Args:
        make: a process of it.
    """

    def __init__(self, make: Callable[[], LinkProcess]) -> None:
        self._make = make
        self._processes: list[LinkProcess] = []
        self._keeping: asyncio.Task[None] | None = None
        self._serving = asyncio.Event()
        self.ended = 0

    async def start(self):
        """It copies, or another process does beside those before it."""
        self._serving.clear()
        self._keeping = asyncio.create_task(self._keep())
        async with asyncio.timeout(START_S):
            await self._serving.wait()

    async def kill(self):
        """SIGKILL; another process follows."""
        await self._processes[-1].kill()

    def shares(self) -> list[int]:
        """The processes that copy."""
        return self._processes[-1].processes()

    async def freeze(self) -> LinkProcess:
        """SIGSTOP; another process takes over. The caller gets the frozen one."""
        assert self._keeping is not None
        self._keeping.cancel()
        await asyncio.wait([self._keeping])
        frozen = self._processes[-1]
        frozen.pause()
        await self.start()
        return frozen

    async def close(self):
        """No process is left."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        for one in self._processes:
            await one.kill()

    async def _keep(self) -> None:
        while True:
            process = self._make()
            await process.spawn()
            self._processes.append(process)
            if await process.line():
                self._serving.set()
            await process.ended(None)
            self.ended += 1


class Mesh:
    """Starts on entry with everything; on exit every process but the brokers is gone.

    Args:
        brokers: one for each cluster; started if they are down.
        directory: of the logs.
        topic: to be linked; created everywhere.
        in_workers: whether workers run the links.
    """

    def __init__(
        self, brokers: Sequence[LocalCluster], directory: Path, topic: str, *, in_workers: bool
    ) -> None:
        self.brokers = {one.name: one for one in brokers}
        self.topic = topic
        self.workers: dict[str, WorkerProcess] = {}
        self.links: dict[tuple[str, str], KeptLink] = {}
        self._directory = directory
        self._in_workers = in_workers
        self._made = 0
        self._stack = AsyncExitStack()

    @property
    def names(self) -> list[str]:
        """Of the clusters."""
        return list(self.brokers)

    @property
    def connectors(self) -> dict[ClusterName, KafkaConnector]:
        """By name."""
        return {ClusterName(name): self.connector(name) for name in self.brokers}

    def connector(self, name: str) -> KafkaConnector:
        """To one of them."""
        return KafkaConnector(KafkaConfig(self.brokers[name].bootstrap))

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.push_async_exit(self._stack)
            await self._start()
            stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        for broker in self.brokers.values():
            await asyncio.to_thread(broker.start)
        for name in self.names:
            admin = self.connector(name).admin()
            await admin.ensure_topics([TopicSpec(self.topic, PARTITIONS)])
            await admin.close()
        for name in self.names:  # one by one: beside another they take longer than they may
            await self.add_worker(name)
        for ends in permutations(self.names, 2) if not self._in_workers else ():
            self.links[ends] = KeptLink(lambda ends=ends: self._link(*ends))
            self._stack.push_async_callback(self.links[ends].close)
        await asyncio.gather(*(link.start() for link in self.links.values()))

    async def add_worker(self, name: str):
        """A worker of a cluster, serving; in place of the one before."""
        self._made += 1
        addresses = " ".join(f"{one}={it.bootstrap}" for one, it in self.brokers.items())
        sources = [one for one in self.names if one != name and self._in_workers]
        worker = WorkerProcess(
            self.brokers[name].bootstrap,
            self._directory / f"worker-{name}-{self._made}.log",
            *("--cluster", name, "--session-timeout-s", f"{SESSION_S:g}"),
            clusters=addresses,
            replicate_from=" ".join(sources),
            replicate_topics=self.topic,
            broker_away_s_max=120,
        )
        await self._stack.enter_async_context(worker)
        await worker.serving()
        self.workers[name] = worker

    async def point(self, name: str, point: Point):
        """Waits until the protocol reaches a point on a cluster."""
        async with asyncio.timeout(POINT_S):
            await reached(self.connector(name), point)

    def _link(self, source: str, target: str) -> LinkProcess:
        return LinkProcess(
            {name: one.bootstrap for name, one in self.brokers.items()},
            source,
            target,
            self._directory / f"link-{source}-{target}.log",
            *("--topics", self.topic, "--processes", str(LINK_PROCESSES)),
        )
