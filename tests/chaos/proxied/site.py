"""Two clusters, and proxies between each program and each broker of each cluster that it uses.

Each broker has a listener for each program, which tells the address of the program's own proxy: so
all connections of a program, also those that follow from metadata, go through its proxies.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.addresses import Listener, free_port
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.schemas.topics import Replicas, TopicSpec
from tests.chaos.proxied.topics import FIRST, OUTPUT, PARTITIONS, PUBLISHED, SECOND, TOPICS
from tests.support.processes.proxy import Proxy

BROKERS = {FIRST: 3, SECOND: 1}
_PROPERTIES = {"num.network.threads": "1"}
"""Each listener has so many threads."""


class Site:
    """Runs from entry to exit, with the topics.

    Args:
        directory: of the clusters.
        programs: names of the programs.

    Attributes:
        clusters: by name.
        proxies: by program, cluster and node id.
    """

    def __init__(self, directory: Path, programs: Sequence[str]) -> None:
        self.clusters: dict[str, LocalCluster] = {}
        self.proxies: dict[tuple[str, str, int], Proxy] = {}
        for cluster, brokers in BROKERS.items():
            listeners: dict[int, list[Listener]] = {}
            for node in range(1, brokers + 1):
                listeners[node] = [self._listener(it, cluster, node) for it in programs]
            self.clusters[cluster] = LocalCluster(
                cluster,
                directory / cluster,
                brokers=brokers,
                fast_start=True,
                listeners=listeners,
                properties=_PROPERTIES,
            )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for cluster in self.clusters.values():
                stack.push_async_callback(asyncio.to_thread, cluster.kill)
            await asyncio.gather(*(asyncio.to_thread(it.start) for it in self.clusters.values()))
            for proxy in self.proxies.values():
                await stack.enter_async_context(proxy)
            await self._create_topics()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def bootstrap(self, program: str, cluster: str) -> str:
        """The addresses of a cluster's brokers for a program."""
        nodes = range(1, BROKERS[cluster] + 1)
        return ",".join(self.proxies[program, cluster, node].address for node in nodes)

    def addresses(self, program: str) -> str:
        """The addresses of all clusters for a program, as the setting `clusters` has them."""
        return " ".join(f"{it}={self.bootstrap(program, it)}" for it in self.clusters)

    def connector(self, cluster: str) -> KafkaConnector:
        """A connector of a cluster without proxies, for those who judge."""
        return KafkaConnector(KafkaConfig(self.clusters[cluster].bootstrap))

    def lines(self, program: str, broker: int) -> list[Proxy]:
        """The proxies of a program, or of all if it is empty, to a broker, or to all if it is 0."""
        return [
            proxy
            for (name, _, node), proxy in self.proxies.items()
            if program in {name, ""} and broker in {node, 0}
        ]

    def _listener(self, program: str, cluster: str, node: int) -> Listener:
        port = free_port()
        proxy = self.proxies[program, cluster, node] = Proxy(port)
        name = program.upper().replace("-", "_")
        return Listener(name, "PLAINTEXT", port, advertised=proxy.address)

    async def _create_topics(self) -> None:
        for cluster, brokers in BROKERS.items():
            replicas = Replicas(3, 2) if brokers == 3 else Replicas(1, 1)
            admin = self.connector(cluster).admin()
            topics = (*TOPICS, OUTPUT, PUBLISHED) if cluster == FIRST else TOPICS
            await admin.ensure_topics(
                [TopicSpec(it, PARTITIONS, replicas=replicas) for it in topics]
            )
            await admin.close()
