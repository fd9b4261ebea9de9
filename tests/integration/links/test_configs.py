"""Configs and partition counts of topics follow the source's, between two real brokers (H8)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.core.links.configs import LeftAlone
from stilltide.pipeline.drivers.links.configs import ConfigOptions
from stilltide.pipeline.drivers.links.link import LinkRun, LinkRunOptions
from stilltide.pipeline.drivers.links.topics import TopicChoice
from stilltide.schemas.values import ClusterName, TopicPartition
from tests.support.links.link_process import Clusters, LinkProcess
from tests.support.links.numbered import numbers, produced
from tests.support.looks import between_looks
from tests.support.processes.operator import fetch

WAIT_S = 180.0
MIB = 1024 * 1024


def days(count: int) -> str:
    """A `retention.ms`; all are longer than the records of these tests are old."""
    return str(count * 24 * 3600 * 1000)


class Pair:
    """The topic of a test on both clusters."""

    def __init__(self, clusters: Clusters, topic: str, admins: Mapping[str, LogAdmin]) -> None:
        self.clusters, self.topic, self.admins = clusters, topic, admins

    def link(self, source: str, target: str, configs: ConfigOptions) -> LinkRun:
        """A link of the topic that looks often."""
        return LinkRun(
            (ClusterName(source), self.clusters.connector(source)),
            (ClusterName(target), self.clusters.connector(target)),
            SystemClock(),
            LinkRunOptions(
                TopicChoice((self.topic,), merge=True), look_interval_s=0.2, configs=configs
            ),
        )

    async def change(self, name: str, **configs: str | None) -> None:
        """Sets configs of the topic on a cluster; `_` means a dot, None unsets."""
        admin = self.clusters.connector(name).topic_admin()
        await admin.alter_configs(
            {self.topic: {it.replace("_", "."): configs[it] for it in configs}}
        )
        await admin.close()

    async def own(self, name: str) -> dict[str, str]:
        """The configs that are set on the topic of a cluster."""
        return (await self.admins[name].topic_overrides([self.topic])).get(self.topic, {})

    async def until(self, name: str, ready: Callable[[dict[str, str]], bool]) -> None:
        """Waits until the topic's own configs of a cluster are as wanted."""
        found: dict[str, str] = {}
        try:
            async with asyncio.timeout(WAIT_S):
                while not ready(found):
                    found = await self.own(name)
                    await between_looks()
        except TimeoutError:
            raise AssertionError(f"{self.topic} on {name} has {found}") from None


@pytest.fixture
async def pair(clusters: Clusters, topic_name: str) -> AsyncIterator[Pair]:
    """The clusters with admins for looking."""
    admins = {name: clusters.connector(name).admin() for name in "ab"}
    yield Pair(clusters, topic_name, admins)
    for admin in admins.values():
        await admin.close()


def options(lead: str = "", *left_alone: str) -> ConfigOptions:
    """Looks often."""
    return ConfigOptions(lead, LeftAlone.parsed(left_alone), interval_s=0.2)


@asynccontextmanager
async def running(link: LinkRun) -> AsyncIterator[LinkRun]:
    """Runs a link that serves, from entry to exit; raises the link's error."""
    serves = asyncio.Event()
    task = asyncio.create_task(link.run(lambda _: serves.set()))
    waits = asyncio.create_task(serves.wait())
    try:
        await asyncio.wait([task, waits], timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        yield link
    finally:
        waits.cancel()
        link.stop()
        await task


async def test_configs_follow_while_a_link_runs(pair: Pair):
    """Set, changed and unset; listed ones and those of the target's cluster stay."""
    await pair.clusters.create("a", pair.topic, retention_ms=days(1))
    produced(pair.clusters, "a", pair.topic, 0, 100)
    async with running(pair.link("a", "b", options("", f"{pair.topic}:retention.bytes"))):
        own = await pair.own("b")
        assert own == {"retention.ms": days(1), "min.insync.replicas": "1"}
        size = str(2 * MIB)
        await pair.change(
            "a",
            retention_ms=days(2),
            retention_bytes="5000000",
            max_message_bytes=size,
            cleanup_policy="compact,delete",
            min_insync_replicas="2",
            message_timestamp_type="LogAppendTime",
        )
        followed = {
            "retention.ms": days(2),
            "max.message.bytes": size,
            "cleanup.policy": "compact,delete",
            "min.insync.replicas": "1",
        }
        await pair.until("b", lambda found: found == followed)
        gone = dict.fromkeys(("retention_ms", "max_message_bytes", "cleanup_policy"))
        await pair.change("a", **gone, min_insync_replicas="1")
        await pair.until("b", lambda found: found == {"min.insync.replicas": "1"})
        produced(pair.clusters, "a", pair.topic, 100, 200)
        copies = await pair.clusters.records("b", TopicPartition(pair.topic, 0), 200)
        assert [it.value for it in copies] == numbers(0, 200)


async def test_partition_counts_follow_both_ways(pair: Pair):
    """With links in both directions, whichever side gains partitions."""
    await pair.clusters.create("a", pair.topic)
    produced(pair.clusters, "a", pair.topic, 0, 10)
    async with (
        running(pair.link("a", "b", options())),
        running(pair.link("b", "a", options())),
    ):
        await pair.clusters.records("b", TopicPartition(pair.topic, 0), 10)
        for name, count in (("a", 2), ("b", 3)):
            admin = AdminClient({"bootstrap.servers": pair.clusters.addresses[name]})
            admin.create_partitions([NewPartitions(pair.topic, count)])[pair.topic].result(30)
            other = "b" if name == "a" else "a"
            produced(pair.clusters, name, TopicPartition(pair.topic, count - 1), 0, 10)
            copied = TopicPartition(pair.topic, count - 1)
            assert len(await pair.clusters.records(other, copied, 10)) == 10
        for admin in pair.admins.values():
            found = await admin.describe_topics([pair.topic])
            assert found[pair.topic].partition_count == 3


async def test_two_opposite_links_do_not_swap_configs(pair: Pair):
    """Without a leading cluster each side keeps its own; the named one is followed, one way."""
    await pair.clusters.create("a", pair.topic)
    for name, first in (("a", 0), ("b", 10)):
        async with running(pair.link("a", "b", options())):
            await pair.until("b", bool)
        produced(pair.clusters, name, pair.topic, first, first + 10)
    ways = (("a", "b"), ("b", "a"))
    links = [pair.link(*way, options()) for way in ways]
    async with running(links[0]), running(links[1]):
        for name in "ab":
            await pair.clusters.records(name, TopicPartition(pair.topic, 0), 20)
        await pair.change("a", retention_ms=days(2))
        await pair.change("b", retention_ms=days(3))
        async with asyncio.timeout(WAIT_S):
            while not all(it.progress.configs_of(pair.topic).differing for it in links):
                await between_looks()
        assert [it.progress.carried for it in links] == [0, 0]
        kept = [(await pair.own(name))["retention.ms"] for name in "ab"]
        assert kept == [days(2), days(3)]
    links = [pair.link(*way, options("b")) for way in ways]
    async with running(links[0]), running(links[1]):
        await pair.until("a", lambda found: found.get("retention.ms") == days(3))
        for value in (days(4), days(5)):
            await pair.change("b", retention_ms=value)
            await pair.until("a", lambda found, value=value: found.get("retention.ms") == value)
        async with asyncio.timeout(WAIT_S):
            while [it.progress.carried for it in links] != [0, 3]:
                await between_looks()
        assert (await pair.own("b"))["retention.ms"] == days(5)


async def test_a_larger_record_does_not_stop_a_link_whose_source_raised_its_limit(pair: Pair):
    """The link raises the target's limit and goes on, also between two of its looks."""
    await pair.clusters.create("a", pair.topic)
    async with running(pair.link("a", "b", ConfigOptions(interval_s=3600))):
        produced(pair.clusters, "a", pair.topic, 0, 20_000)
        copied = TopicPartition(pair.topic, 0)
        await pair.clusters.records("b", copied, 20_000)
        await pair.change("a", max_message_bytes=str(3 * MIB))
        large = {"bootstrap.servers": pair.clusters.addresses["a"], "message.max.bytes": 3 * MIB}
        producer = Producer(large)
        producer.produce(pair.topic, b"x" * 2 * MIB, partition=0)
        assert producer.flush(30) == 0
        found = await pair.clusters.records("b", copied, 20_001)
        assert len(found[-1].value or b"") == 2 * MIB


async def test_a_link_fills_batches_of_a_topic_with_a_low_limit(pair: Pair):
    """The topic that it creates takes the batches of a link, which are larger than a producer's."""
    await pair.clusters.create("a", pair.topic, max_message_bytes="20000")
    producer = Producer({"bootstrap.servers": pair.clusters.addresses["a"], "batch.size": 10_000})
    for number in range(20_000):
        producer.produce(pair.topic, b"%d" % number, partition=0)
    assert producer.flush(30) == 0
    async with running(pair.link("a", "b", options())):
        copies = await pair.clusters.records("b", TopicPartition(pair.topic, 0), 20_000)
        assert [it.value for it in copies] == numbers(0, 20_000)


async def test_the_command_follows_the_cluster_that_it_is_told(pair: Pair, tmp_path: Path):
    """From its first look on, except what is listed; `/readyz` and the metrics say how it is."""
    await pair.clusters.create("a", pair.topic, retention_ms=days(2), retention_bytes="5000000")
    await pair.clusters.create("b", pair.topic, retention_ms=days(3), retention_bytes="1000000")
    told = ("--topics", pair.topic, "--configs-from", "a", "--configs-except", "retention.bytes")
    link = LinkProcess(
        pair.clusters.addresses, "a", "b", tmp_path / "link.log", *told, "--web-port", "0"
    )
    async with link:
        await link.serving()
        own = await pair.own("b")
        assert (own["retention.ms"], own["retention.bytes"]) == (days(2), "1000000")
        metrics = (await fetch(f"{link.web}/metrics"))[1]
        labels = f'source="a",target="b",topic="{pair.topic}"'
        assert f"stilltide_link_configs_carried_total{{{labels}}} 1.0" in metrics
        assert await link.stop() == 0, link.said
    wrong = LinkProcess(
        pair.clusters.addresses, "a", "b", tmp_path / "w.log", "--configs-except", "retention"
    )
    async with wrong:
        assert await wrong.ended() == 1
        assert "'retention' names no config that links follow" in wrong.said
