"""Everything that serves, and every kind of application, on two clusters that go away together.

Cluster `b` is the one of the applications: its worker copies from `a` and indexes. A
`stilltide replicate` copies from `b` to `a`, and a `stilltide index run` indexes on `b`.
"""

import asyncio
import sys
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from confluent_kafka import Producer

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Record
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.looks import between_looks
from tests.support.native.topics import read_index, transactional, until_stable, write
from tests.support.outages.applications import Applications
from tests.support.processes.child import Child
from tests.support.processes.worker_process import WorkerProcess

NATIVE = TopicPartition("native", 0)
"""Indexed by the worker."""
NATIVE_ALONE = TopicPartition("native-alone", 0)
"""Indexed by `stilltide index run`."""
FAR = TopicPartition("far", 0)
"""Written on `a`, and copied to `b` by the worker."""

START_S = 600.0
"""For a broker that recovers its log on a busy machine."""

COUNT = 4
"""Partitions of system topics."""


class Scene:
    """The clusters, the processes and the applications, from entry to exit.

    Args:
        source: cluster `a`.
        own: cluster `b`.
        directory: of the logs.
        broker_away_s_max: the setting of every process.
        wait_s: time-out of each wait for a state that must come.
    """

    def __init__(
        self,
        source: LocalCluster,
        own: LocalCluster,
        directory: Path,
        *,
        broker_away_s_max: float,
        wait_s: float,
    ) -> None:
        self.clusters = [source, own]
        self.wait_s = wait_s
        named = f"a={source.bootstrap} b={own.bootstrap}"
        settings = {
            "broker_away_s_max": broker_away_s_max,
            "request_timeout_s": 3,
            "partitions": COUNT,
        }
        self.worker = WorkerProcess(
            own.bootstrap,
            directory / "worker.log",
            *("--cluster", "b", "--clusters", named, "--replicate-from", "a"),
            *("--index-topics", NATIVE.topic, "--session-timeout-s", "6"),
            replicate_topics=FAR.topic,
            **settings,
        )
        variables = {f"STILLTIDE_{name.upper()}": str(value) for name, value in settings.items()}
        command = [sys.executable, "-m", "stilltide"]
        site = ("--web-port", "0")
        link_options = ("--clusters", named, "--from", "b", "--to", "a", "--topics", "orders")
        server = ("--bootstrap-servers", own.bootstrap)
        self.link = Child(
            [*command, "replicate", *link_options, *site],
            directory / "link.log",
            variables,
        )
        self.indexer = Child(
            [*command, "index", "run", NATIVE_ALONE.topic, *site, *server],
            directory / "indexer.log",
            {**variables, "STILLTIDE_CLUSTER": "b"},
        )
        self.webs: dict[str, str] = {}
        self.connectors: list[Connector] = [
            KafkaConnector(KafkaConfig(it.bootstrap)) for it in self.clusters
        ]
        self.applications = Applications(own.bootstrap)
        self.far = 0
        self.rounds = 0
        self._producers: list[Producer] = []
        self._stack = AsyncExitStack()

    @property
    def children(self) -> dict[str, Child]:
        """The processes, by name."""
        return {"worker": self.worker, "link": self.link, "indexer": self.indexer}

    async def __aenter__(self) -> Self:
        source, own = self.connectors
        for connector, topics in (
            (source, ["far", "orders"]),
            (own, ["orders", "bills", NATIVE.topic, NATIVE_ALONE.topic]),
        ):
            admin = connector.admin()
            await admin.ensure_topics([TopicSpec(name, 1) for name in topics])
            await admin.close()
        for name, child in self.children.items():
            await self._stack.enter_async_context(child)
            self.webs[name] = (await child.announced())["web"]
        self.worker.web = self.webs["worker"]
        self._producers = [
            await asyncio.to_thread(transactional, it.bootstrap, "natives") for it in self.clusters
        ]
        await self._stack.enter_async_context(self.applications)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def go_away(self) -> None:
        """Kills both brokers."""
        await asyncio.gather(*(asyncio.to_thread(it.kill) for it in self.clusters))

    async def come_back(self) -> None:
        """Starts both brokers again, one after the other."""
        for one in self.clusters:
            await asyncio.to_thread(one.start, START_S)

    async def use(self, transactions: int) -> None:
        """Returns after everything has worked: so many transactions, copies, and the index."""
        applications = self.applications
        goal = len(applications.committed) + transactions
        async with asyncio.timeout(self.wait_s):
            await applications.until(lambda: len(applications.committed) >= goal)
        await self._use_natives()
        async with asyncio.timeout(self.wait_s):
            await self._until_copied()
            await self._until_indexed()

    async def check(self) -> None:
        """Nothing is lost and nothing is doubled, wherever it can be seen."""
        applications = self.applications
        await applications.stop()
        async with asyncio.timeout(self.wait_s):
            await applications.until(applications.all_seen)
        applications.check()
        async with asyncio.timeout(self.wait_s):
            for connector in self.connectors:
                seen: Counter[int] = Counter()
                while not applications.committed <= seen.keys():  # a link may be behind
                    found = await self._read(connector, "orders")
                    seen = Counter(int(it.value or b"") for it in found)
                    await between_looks()
                assert set(seen.values()) <= {1}

    async def _use_natives(self) -> None:
        self.rounds += 1
        source, own = self._producers
        await asyncio.to_thread(write, source, FAR, 5, commit=True)
        self.far += 5
        admin = self.connectors[1].admin()
        for data in (NATIVE, NATIVE_ALONE):
            await asyncio.to_thread(write, own, data, 2, commit=False)
            await until_stable(admin, data, 3 * self.rounds)
        await admin.close()

    async def _until_copied(self) -> None:
        copies = await self._read(self.connectors[1], FAR.topic, self.far)
        assert len(copies) == self.far, "copies on b"

    async def _until_indexed(self) -> None:
        bootstrap = self.clusters[1].bootstrap
        for data in (NATIVE, NATIVE_ALONE):
            while True:
                found = await read_index(bootstrap, data, COUNT)
                if found is not None and found.covers(0, 3 * self.rounds):
                    break
                await between_looks()

    async def _read(self, connector: Connector, topic: str, count: int = 0) -> list[Record]:
        """The committed records of a topic, once there are so many, and up to the present end."""
        data = TopicPartition(topic, 0)
        admin, reader = connector.admin(), connector.reader("test")
        found: list[Record] = []
        try:
            while (await admin.end_offsets([data], committed=True)).get(data, 0) < count:
                await between_looks()
            end = (await admin.end_offsets([data], committed=True))[data]
            await reader.assign({data: Offset(0)})
            while True:
                for item in await reader.read():
                    if isinstance(item, Record):
                        found.append(item)
                    elif item.end_offset >= end and len(found) >= count:
                        return found
        finally:
            await reader.close()
            await admin.close()
