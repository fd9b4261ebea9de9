"""A cluster and its workers, and what strikes them: shared by all chaos tests."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Self

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from tests.chaos.points import Point, reached
from tests.support.processes.worker_process import WorkerProcess, create_topics

POINT_S = 60.0
SESSION_S = 6.0


class Site:
    """Starts on entry with the topics and one worker; on exit every worker is gone.

    Args:
        cluster: the broker; started if it is down.
        directory: of the logs.
        seed: of everything random.
        topics: data topics to create.
    """

    def __init__(
        self, cluster: LocalCluster, directory: Path, seed: int, topics: list[str]
    ) -> None:
        self.cluster = cluster
        self.directory = directory
        self.seed = seed
        self.random = Random(seed)
        self.topics = topics
        self.workers: list[WorkerProcess] = []
        self.connector = KafkaConnector(KafkaConfig(bootstrap_servers=cluster.bootstrap))
        self._made = 0
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.cluster.start)
        await create_topics(self.cluster.bootstrap, *self.topics)
        await self.add_worker()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def add_worker(self, settings: Mapping[str, object] | None = None) -> WorkerProcess:
        """Another worker, serving; the group gives it its share. `settings` as `WorkerProcess`."""
        self._made += 1
        worker = WorkerProcess(
            self.cluster.bootstrap,
            self.directory / f"worker-{self.seed}-{self._made}.log",
            "--session-timeout-s",
            f"{SESSION_S:g}",
            broker_away_s_max=120,
            **(settings or {}),
        )
        await self._stack.enter_async_context(worker)
        await worker.serving()
        self.workers.append(worker)
        return worker

    async def point(self, point: Point) -> None:
        """Waits until the protocol reaches a point."""
        async with asyncio.timeout(POINT_S):
            await reached(self.connector, point)
