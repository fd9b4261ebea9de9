"""`stilltide replicate` as a process of its own, and what it copies between two brokers."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.records import Record
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition

WAIT_S = 60.0


class LinkProcess:
    """Copies from its start on; killed on exit if it still runs.

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
        self._command = [*command, "--from", source, "--to", target, *options]
        self._log_path = log_path
        self._process: Process | None = None
        self._topics: list[str] = []
        self.web: str | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def said(self) -> str:
        """What it, and those before it, have said on stderr."""
        return self._log_path.read_text()

    async def spawn(self):
        """Starts it and waits for nothing."""
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdout=PIPE, stderr=log, env=dict(os.environ)
            )

    async def serving(self) -> list[str]:
        """The topics that it copies, once it has checked them."""
        async with asyncio.timeout(WAIT_S):
            assert await self.served(), self.said
        return self._topics

    async def served(self) -> bool:
        """Whether it has come to copy, and not ended before."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if line:
            told = json.loads(line)
            self._topics, self.web = told["topics"], told["web"]
        return bool(line)

    def send(self, number: signal.Signals):
        """A signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self, within_s: float | None = WAIT_S) -> int:
        """Waits until it ends, None: however long; its exit code."""
        assert self._process is not None
        async with asyncio.timeout(within_s):
            return await self._process.wait()

    async def kill(self):
        """SIGKILL, and waits until it is gone."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self.ended()

    async def __aenter__(self) -> Self:
        await self.spawn()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.kill()


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
