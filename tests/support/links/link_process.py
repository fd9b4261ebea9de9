"""`stilltide replicate` as a process of its own, and what it copies between two brokers."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.records import Record
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.processes.child import Child

WAIT_S = 60.0


class LinkProcess(Child):
    """`stilltide replicate` between two of the clusters; `serving` says when it copies.

    Args:
        clusters: by name.
        source: name of the one that it copies from.
        target: of the one that it copies to.
        log_path: where its stderr goes; appended to.
        options: further options of the command.

    Attributes:
        web: address of its site, once it serves; None without one.
    """

    def __init__(
        self,
        clusters: Mapping[str, str],
        source: str,
        target: str,
        log_path: Path,
        *options: str,
    ) -> None:
        named = " ".join(f"{name}={address}" for name, address in clusters.items())
        command = [sys.executable, "-m", "stilltide", "replicate", "--clusters", named]
        super().__init__([*command, "--from", source, "--to", target, *options], log_path)
        self.web: str | None = None

    async def serving(self, within_s: float = WAIT_S) -> list[str]:
        """Waits until the link copies; its topics."""
        announced = await self.announced(within_s)
        self.web = announced["web"]
        return announced["topics"]


class Clusters:
    """Two brokers, or more, by name; every test has topics of its own."""

    def __init__(self, brokers: Sequence[LocalCluster]) -> None:
        self.brokers = {one.name: one for one in brokers}

    @property
    def addresses(self) -> dict[str, str]:
        """By name."""
        return {name: one.bootstrap for name, one in self.brokers.items()}

    def connector(self, name: str) -> KafkaConnector:
        """To one of them."""
        return KafkaConnector(KafkaConfig(self.brokers[name].bootstrap))

    async def create(self, name: str, topic: str, partitions: int = 1, **configs: str):
        """A topic; `_` in config names stands for a dot."""
        admin = self.connector(name).admin()
        wanted = {key.replace("_", "."): value for key, value in configs.items()}
        await admin.ensure_topics([TopicSpec(topic, partitions, wanted)])
        await admin.close()

    async def records(
        self, name: str, data: TopicPartition, count: int, *, more: bool = False
    ) -> list[Record]:
        """The first `count` committed records of a partition, once they are there.

        Args:
            name: of the cluster.
            data: the partition; may have to be created first.
            count: how many.
            more: whether others may lie behind them.
        """
        connector = self.connector(name)
        admin, reader = connector.admin(), connector.reader("test")
        found: list[Record] = []
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    if data in await admin.end_offsets([data]):
                        break
                await reader.assign({data: Offset(0)})
                while len(found) < count:
                    found += [it for it in await reader.read() if isinstance(it, Record)]
        except TimeoutError:
            raise AssertionError(f"{len(found)} of {count} records of {data} on {name}") from None
        finally:
            await reader.close()
            await admin.close()
        assert more or len(found) == count, f"{len(found)} records of {data} on {name}"
        return found
