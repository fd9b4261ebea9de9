"""A cluster, its workers and its applications, with the outcomes that applications saw."""

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Self

from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.schemas.values import TopicPartition
from tests.chaos.points import Point
from tests.chaos.processes.application import RECORDS_PER_TOPIC
from tests.chaos.processes.site import POINT_S, Site
from tests.support.processes.child import Child
from tests.support.processes.worker_process import PARTITIONS, await_all_ended
from tests.support.snapshots.seen import seen_by_snapshots


class World:
    """Starts on entry with one worker; `check` says whether everything held."""

    def __init__(self, cluster: LocalCluster, directory: Path, seed: int) -> None:
        self.site = Site(cluster, directory, seed, [f"orders-{seed}", f"payments-{seed}"])
        self.applications: list[Child] = []
        self.fates: dict[str, str] = {}
        self._made = 0
        self._answered = 0
        self._heard_more = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.site.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for one in self.applications:
            if one.running:
                await one.kill()
        await self.site.__aexit__()

    async def add_application(self) -> Child:
        """Another application, at work."""
        self._made += 1
        name = f"app{self._made}"
        application = Child.of_module(
            "tests.chaos.processes.application",
            *(self.site.cluster.bootstrap, name, *self.site.topics),
            log_path=self.site.directory / f"application-{self.site.seed}.log",
        )
        await application.start(self._heard)
        self.applications.append(application)
        return application

    async def point(self, point: Point) -> None:
        """Waits until the protocol reaches a point."""
        await self.site.point(point)

    async def progress(self, transactions: int = 50) -> None:
        """Waits until so many more transactions were answered: what is needed works again."""
        goal = self._answered + transactions
        async with asyncio.timeout(POINT_S):
            while self._answered < goal:
                self._heard_more.clear()
                await self._heard_more.wait()

    def _heard(self, line: str) -> None:
        what, number = line.split()
        self.fates[number] = what
        self._answered += what != "begun"
        self._heard_more.set()

    async def settle(self) -> None:
        """Applications end in good order; then every transaction ends."""
        for one in self.applications:
            if one.running:
                await one.stop()
        async with TransactionClient(self.site.cluster.bootstrap, resend_s=0.5) as client:
            async with asyncio.timeout(POINT_S):
                await await_all_ended(client)

    async def check(self) -> None:
        """Committed is visible whole, aborted is not, and nobody heard otherwise."""
        admin = self.site.connector.admin()
        ends = await admin.end_offsets(
            [TopicPartition(topic, it) for topic in self.site.topics for it in range(PARTITIONS)]
        )
        await admin.close()
        seen: defaultdict[str, int] = defaultdict(int)
        async with Subscription(
            self.site.topics, group=f"check-{self.site.seed}", connector=self.site.connector
        ) as subscription:
            async for message in subscription.read_to(ends):
                assert message.value is not None
                seen[message.value.decode()] += 1
        whole = len(self.site.topics) * RECORDS_PER_TOPIC
        by_snapshots = await seen_by_snapshots(self.site.connector, self.site.topics, PARTITIONS)
        assert by_snapshots == seen, "snapshots say otherwise than markers"
        assert set(seen.values()) <= {whole}, "a transaction is visible in part"
        by_fate: defaultdict[str, set[str]] = defaultdict(set)
        for number, fate in self.fates.items():
            by_fate[fate].add(number)
        assert by_fate["committed"], "nothing was committed: the scenario proves nothing"
        assert by_fate["committed"] <= seen.keys(), "a committed transaction is not visible"
        assert not by_fate["aborted"] & seen.keys(), "an aborted transaction is visible"
        assert seen.keys() <= self.fates.keys(), "a transaction that nobody began"
