"""I14: operators ask the controllers of real clusters: resets, looks and position snapshots."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from stilltide.connectors.clock import SystemClock
from stilltide.schemas.values import TopicPartition as Data
from tests.support.links.link_process import Clusters
from tests.support.processes.local import run_stilltide
from tests.support.processes.worker_process import ModuleWorker, read_and_commit, running_worker

WAIT_S = 60.0
PARTITIONS, COUNT = 2, 20
SESSION_S = 6


class Site:
    """Two linked clusters with their workers, as an operator has them; every test has a topic."""

    def __init__(self, clusters: Clusters, directory: Path, stack: ExitStack) -> None:
        self.clusters = clusters
        self.directory = directory
        self._stack = stack
        self.named = " ".join(f"{name}={at}" for name, at in clusters.addresses.items())

    def worker(self, cluster: str, name: str, **settings: object) -> ModuleWorker:
        """A worker of a cluster that copies the topics of the tests from the other one."""
        (source,) = {*"ab"} - {cluster}
        linked = {
            "clusters": self.named,
            "replicate_from": source,
            "replicate_topics": "test-*",
        }
        options = ("--cluster", cluster, "--session-timeout-s", f"{SESSION_S}")
        address, log = self.clusters.addresses[cluster], self.directory / f"{name}.log"
        return self._stack.enter_context(
            running_worker(address, log, *options, **linked | settings)
        )

    async def create(self, topic: str, *groups: str) -> None:
        """Makes a topic on both clusters, and replicates groups of it."""
        for name in "ab":
            await self.clusters.create(name, topic, PARTITIONS)
        for group in groups:
            await self.run("subscription", "enable", topic, group, "--clusters", self.named)

    async def run(self, *words: str, code: int = 0) -> str:
        """What a command prints; stderr if it fails as it should."""
        done = await asyncio.to_thread(run_stilltide, *words, cwd=self.directory)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stderr if code else done.stdout

    async def ask(self, cluster: str, *words: str, code: int = 0) -> Any:
        """What a command about a cluster prints as JSON."""
        at = ["--bootstrap-servers", self.clusters.addresses[cluster], "-o", "json"]
        done = await asyncio.to_thread(run_stilltide, *words, *at, cwd=self.directory)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return json.loads(done.stdout)

    async def reset(self, cluster: str, topic: str, group: str, *options: str) -> list[int | None]:
        """Resets a group; returns the offsets of the reset, by partition."""
        rows = await self.ask(cluster, "group", "reset", topic, group, *options, "--apply")
        assert all(row["applied"] for row in rows)
        return [row["to_offset"] for row in rows]

    def write(self, cluster: str, topic: str, *, at_ms: int | None = None) -> None:
        """Writes numbers to each partition, one each ms."""
        producer = Producer({"bootstrap.servers": self.clusters.addresses[cluster]})
        first_ms = SystemClock().now_ms() if at_ms is None else at_ms
        for number, partition in product(range(COUNT), range(PARTITIONS)):
            producer.produce(
                topic, b"%d" % number, partition=partition, timestamp=first_ms + number
            )
        assert producer.flush(30) == 0

    async def at(self, cluster: str, topic: str, group: str, *counts: int) -> None:
        """Returns when a group stands behind so many records of each partition on a cluster."""
        copies = [
            await self.clusters.records(cluster, Data(topic, number), COUNT)
            for number in range(PARTITIONS)
        ]
        address = self.clusters.addresses[cluster]
        consumer = Consumer({"bootstrap.servers": address, "group.id": group})
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        found: list[int] = []
        try:
            async with asyncio.timeout(WAIT_S):
                while found != list(counts):
                    got = await asyncio.to_thread(consumer.committed, places, 30)
                    found = [
                        sum(record.offset < place.offset for record in records)
                        for place, records in zip(got, copies, strict=True)
                    ]
        except TimeoutError:
            raise AssertionError(f"{cluster}: {found} instead of {counts}") from None
        finally:
            consumer.close()

    def commit(self, cluster: str, topic: str, group: str, *offsets: int) -> None:
        """What a foreign consumer does that names its partitions itself."""
        address = self.clusters.addresses[cluster]
        consumer = Consumer({"bootstrap.servers": address, "group.id": group})
        places = [TopicPartition(topic, number, at) for number, at in enumerate(offsets)]
        consumer.assign(places)
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()


@pytest.fixture(scope="module")
def site(clusters: Clusters, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A worker on each cluster; links in both directions run in them."""
    with ExitStack() as stack:
        made = Site(clusters, tmp_path_factory.mktemp("site"), stack)
        made.first = made.worker("a", "a1")  # pyright: ignore[reportAttributeAccessIssue]
        made.worker("b", "b1")
        yield made


@pytest.mark.timeout(600)
async def test_a_reset_reaches_the_other_cluster(site: Site, topic_name: str):
    """To an offset, a time, the log start and the end; without --apply nothing is changed."""
    group = f"{topic_name}-g"
    await site.create(topic_name, group)
    first_ms = SystemClock().now_ms() - 60_000
    site.write("a", topic_name, at_ms=first_ms)
    site.commit("a", topic_name, group, 20, 20)
    await site.at("b", topic_name, group, 20, 20)

    words = ("group", "reset", topic_name, group, "--to-offset", "12")
    shown = await site.ask("a", *words)
    assert [(it["from_offset"], it["to_offset"], it["applied"]) for it in shown] == [
        (20, 12, False),
        (20, 12, False),
    ]
    await site.at("a", topic_name, group, 20, 20)
    assert await site.reset("a", topic_name, group, "--to-offset", "12") == [12, 12]
    for name in "ab":
        await site.at(name, topic_name, group, 12, 12)
    time = datetime.fromtimestamp((first_ms + 5) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    assert await site.reset("b", topic_name, group, "--to-datetime", time) == [5, 5]
    for name in "ab":
        await site.at(name, topic_name, group, 5, 5)
    assert await site.reset("b", topic_name, group, "--to-latest", "--partition", "1") == [20]
    for name in "ab":
        await site.at(name, topic_name, group, 5, 20)
    assert await site.reset("a", topic_name, group, "--to-earliest") == [0, 0]
    for name in "ab":
        await site.at(name, topic_name, group, 0, 0)
    again = await read_and_commit(site.clusters.connector("b"), topic_name, group, 40)
    assert sorted(again) == sorted([*range(20)] * 2)
    said = await site.run(*words[:4], code=2)
    assert "--to-earliest" in said
