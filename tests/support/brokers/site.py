"""Three brokers with two workers, another cluster to copy to, and the worlds on them."""

import gc
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from uuid import uuid4

from stilltide.connectors.local.cluster import LocalCluster
from stilltide.schemas.topics import Replicas
from tests.support.brokers.faults import Brokers
from tests.support.brokers.progress import PROGRESS_S
from tests.support.brokers.world import NATIVE, World
from tests.support.looks import between_looks
from tests.support.processes.child import Held
from tests.support.processes.worker_process import ModuleWorker, running_worker

REPLICAS = Replicas(3, 2)
SESSION_S = 6.0
GROWTH_MAX = 1.1
"""How many times as many threads and descriptors a worker may hold after a world as before."""

FIRST_GROWTH_MAX = 1.5
"""The same for a worker's first world: clients connect to a broker when they first need it."""

_EXECUTOR = "asyncio_"
"""Prefix of the threads of an event loop's pool, which end with the loop."""


class Site:
    """Shared by the worlds of a module, each with topics of its own.

    Args:
        cluster: three brokers.
        other: the cluster that links copy to.
        workers: of the cluster of three brokers.
        directory: of logs.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        other: LocalCluster,
        workers: list[ModuleWorker],
        directory: Path,
    ) -> None:
        self.cluster = cluster
        self.brokers = Brokers(cluster)
        self._other, self._workers, self._directory = other, workers, directory
        self._growth_max = FIRST_GROWTH_MAX

    @asynccontextmanager
    async def world(self) -> AsyncIterator[World]:
        """A load at work; when the test is done everything must hold, and nothing be left."""
        await self.brokers.in_order()
        here, workers = _threads(), [it.held() for it in self._workers]
        name = uuid4().hex[:8]
        addresses = self.cluster.bootstrap, self._other.bootstrap
        async with World(*addresses, self._directory, name, REPLICAS) as world:
            await world.progress()
            yield world
            await world.progress()
            await world.settle()
            await world.check()
        await self._check_left(here, workers)

    async def _check_left(self, here: int, before: list[Held]) -> None:
        until_s = time.monotonic() + PROGRESS_S
        while _threads() > here and time.monotonic() < until_s:
            gc.collect()  # clients end their threads when they are dropped
            await between_looks()
        assert _threads() <= here, "threads of clients are left"
        for worker, was in zip(self._workers, before, strict=True):
            assert worker.running, worker.said[-5000:]
            held = worker.held()
            assert held.threads <= was.threads * self._growth_max, (was, held)
            assert held.descriptors <= was.descriptors * self._growth_max, (was, held)
        self._growth_max = GROWTH_MAX


@contextmanager
def running_site(directory: Path) -> Iterator[Site]:
    """Clusters and workers that run from entry to exit."""
    options = ("--index-topics", NATIVE, "--session-timeout-s", f"{SESSION_S:g}")
    with (
        LocalCluster("a", directory / "a", brokers=3, fast_start=True) as cluster,
        LocalCluster("b", directory / "b", fast_start=True) as other,
        running_worker(cluster.bootstrap, directory / "one.log", *options) as one,
        running_worker(cluster.bootstrap, directory / "two.log", *options) as two,
    ):
        yield Site(cluster, other, [one, two], directory)


def _threads() -> int:
    """Threads of this process, those of clients among them, but not those of the event loop."""
    pooled = sum(it.name.startswith(_EXECUTOR) for it in threading.enumerate())
    return len(list(Path("/proc/self/task").iterdir())) - pooled
