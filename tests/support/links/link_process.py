"""`stilltide replicate` and `publish` as child processes, and the brokers of links."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.readers import Record
from stilltide.schemas.replication.origins import PublishRoute
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.looks import between_looks
from tests.support.processes.child import Child

WAIT_S = 180.0


class LinkProcess(Child):
    """`stilltide replicate` between two of the clusters; `serving` waits until the link copies.

    Args:
        clusters: addresses of clusters, by name.
        source: name of the cluster to copy from.
        target: name of the cluster to copy to.
        log_path: file to which stderr is appended.
        options: further options of the command.

    Attributes:
        web: address of the web site, once the link copies; None without a web site.
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
        """Waits until the link copies; returns its topics."""
        announced = await self.announced(within_s)
        self.web = announced["web"]
        return announced["topics"]


class PublishProcess(Child):
    """`stilltide publish`; `serving` waits until the publish copies.

    Args:
        bootstrap: the cluster, whose name is `a`.
        publish: source and target topic.
        log_path: file to which stderr is appended.
        options: further options of the command.

    Attributes:
        web: address of the web site, once the publish copies; None without a web site.
    """

    def __init__(
        self, bootstrap: str, publish: PublishRoute, log_path: Path, *options: str
    ) -> None:
        command = [sys.executable, "-m", "stilltide", "publish", publish.source]
        named = ["--to", publish.target, "--bootstrap-servers", bootstrap]
        super().__init__([*command, *named, *options], log_path)
        self.web: str | None = None

    async def serving(self) -> None:
        """Waits until the publish copies."""
        self.web = (await self.announced(WAIT_S))["web"]


async def fenced(*both: Child) -> None:
    """Waits until one of two processes with one log has ended because the other took over (H2)."""
    ends = [asyncio.create_task(each.ended()) for each in both]
    ended, going_on = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for end in going_on:
        end.cancel()
    assert [end.result() for end in ended] == [1]
    assert "another owner has taken over" in both[0].said


class Clusters:
    """Two or more brokers, by name; every test uses other topics."""

    def __init__(self, brokers: Sequence[LocalCluster]) -> None:
        self.brokers = {one.name: one for one in brokers}

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses of the brokers, by name."""
        return {name: one.bootstrap for name, one in self.brokers.items()}

    def connector(self, name: str) -> KafkaConnector:
        """A connector of one broker."""
        return KafkaConnector(KafkaConfig(self.brokers[name].bootstrap))

    async def create(self, name: str, topic: str, partitions: int = 1, **configs: str):
        """Creates a topic; `_` in config names means a dot."""
        admin = self.connector(name).admin()
        wanted = {key.replace("_", "."): value for key, value in configs.items()}
        await admin.ensure_topics([TopicSpec(topic, partitions, wanted)])
        await admin.close()

    async def records(
        self, name: str, data: TopicPartition, count: int, *, more: bool = False
    ) -> list[Record]:
        """The first `count` committed records of a partition, once they are there.

        Args:
            name: name of the cluster.
            data: the partition, which may not exist yet.
            count: number of records to wait for.
            more: whether further records may follow.
        """
        connector = self.connector(name)
        admin, reader = connector.admin(), connector.reader("test")
        found: list[Record] = []
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    if data in await admin.end_offsets([data]):
                        break
                    await between_looks()
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
