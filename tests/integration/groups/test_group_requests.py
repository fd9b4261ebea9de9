"""I14: operators ask the controllers of real clusters: resets, looks and position snapshots."""

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, Self

import pytest
from aiohttp import ClientSession
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.local.jars import broker_jars, jar_set
from stilltide.connectors.local.java import find_java
from stilltide.pipeline.client import Subscription
from stilltide.pipeline.core.groups.group import Standing
from stilltide.schemas.values import TopicPartition as Data
from tests.support.links.link_process import Clusters
from tests.support.looks import between_looks
from tests.support.processes.local import commit, run_stilltide
from tests.support.processes.worker_process import ModuleWorker, read_and_commit, running_worker

WAIT_S = 180.0
PARTITIONS, COUNT = 2, 20
SESSION_S = 6
ACKNOWLEDGED_ABOVE = 12


LONG = ("--timeout-s", "60")
"""The options of a command that waits for another worker."""
TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


def reset_with_kafka(address: str, topic: str, group: str, offset: int) -> None:
    """`kafka-consumer-groups --reset-offsets`, as an operator runs it."""
    jars = ":".join(map(str, [*jar_set("tools"), *broker_jars()]))
    options = ["--bootstrap-server", address, "--group", group, "--topic", topic]
    reset = ["--reset-offsets", "--to-offset", f"{offset}", "--execute"]
    subprocess.run(
        [str(find_java().path), "-Xmx128m", "-cp", jars, TOOL, *options, *reset],
        check=True,
        timeout=120,
    )


class Member:
    """A foreign member of a group that reads and commits; leaves on exit."""

    def __init__(self, address: str, topic: str, group: str) -> None:
        self.values: list[int] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group,
                "client.id": "till-7",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([topic])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read_until(self, count: int) -> None:
        """Reads until it has got so many records in all; commits each."""
        deadline_s = time.monotonic() + WAIT_S
        while len(self.values) < count:
            assert time.monotonic() < deadline_s, f"{len(self.values)} of {count} records"
            record = self._consumer.poll(1)
            if record is None or record.error():
                continue
            self.values.append(int(record.value() or b""))
            with contextlib.suppress(KafkaException):  # removed from the group
                self._consumer.commit(record, asynchronous=False)


class Site:
    """Two linked clusters with their workers, as an operator has them; every test has a topic."""

    def __init__(self, clusters: Clusters, directory: Path, stack: ExitStack) -> None:
        self.clusters = clusters
        self.directory = directory
        self.workers: dict[str, ModuleWorker] = {}
        self._stack = stack
        self.named = " ".join(f"{name}={at}" for name, at in clusters.addresses.items())

    def start(self, name: str, **settings: object) -> None:
        """A worker of the cluster that its name begins with; it also copies from the other one."""
        cluster = name[0]
        (source,) = {*"ab"} - {cluster}
        linked = {
            "clusters": self.named,
            "replicate_from": source,
            "replicate_topics": "test-*",
        }
        options = ("--cluster", cluster, "--session-timeout-s", f"{SESSION_S}")
        address, log = self.clusters.addresses[cluster], self.directory / f"{name}.log"
        self.workers[name] = self._stack.enter_context(
            running_worker(address, log, *options, **linked | settings)
        )

    def kill(self, *names: str) -> None:
        """SIGKILL to those of the workers that run."""
        for name in names:
            if self.workers[name].running:
                self.workers[name].kill()

    async def owned(self, name: str, topic: str) -> bool:
        """Whether a worker controls groups of a topic."""
        url = f"{self.workers[name].web}/metrics"
        async with ClientSession() as session, session.get(url) as response:
            return f'topic="{topic}"' in await response.text()

    async def left(self, cluster: str, group: str) -> None:
        """Returns once a group has no members: a broker that is busy hears late that they left."""
        admin = self.clusters.connector(cluster).group_admin()
        async with asyncio.timeout(WAIT_S):
            while group in await admin.active([group]):
                await between_looks()
        await admin.close()

    async def create(self, topic: str, *groups: str) -> None:
        """Makes a topic on both clusters, and replicates groups of it."""
        for name in "ab":
            await self.clusters.create(name, topic, PARTITIONS)
        for group in groups:
            await self.run("subscription", "enable", topic, group, "--clusters", self.named)

    async def run(self, *words: str) -> None:
        """Runs a command to a good end."""
        done = await asyncio.to_thread(run_stilltide, *words, cwd=self.directory)
        assert done.returncode == 0, (words, done.stderr)

    async def refused(self, cluster: str, *words: str) -> str:
        """What a refused command about a cluster says on stderr; it prints nothing."""
        at = ["--bootstrap-servers", self.clusters.addresses[cluster], "-o", "json"]
        done = await asyncio.to_thread(run_stilltide, *words, *at, cwd=self.directory)
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

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

    async def take_positions(self, cluster: str, topic: str) -> list[Any]:
        """Takes a position snapshot, as soon as the links run; until then it is refused."""
        words = ("group", "snapshot-now", topic, *LONG)
        at = ["--bootstrap-servers", self.clusters.addresses[cluster], "-o", "json"]
        deadline_s = time.monotonic() + WAIT_S
        while True:
            done = await asyncio.to_thread(run_stilltide, *words, *at, cwd=self.directory)
            if done.returncode == 0:
                return json.loads(done.stdout)
            assert "a link from or to another cluster does not run" in done.stderr
            assert time.monotonic() < deadline_s, done.stderr
            await between_looks()

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
            await self.clusters.records(cluster, Data(topic, number), max(counts), more=True)
            for number in range(PARTITIONS)
        ]
        address = self.clusters.addresses[cluster]
        consumer = Consumer({"bootstrap.servers": address, "group.id": group})
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        found: list[int] = []
        try:
            async with asyncio.timeout(WAIT_S):
                while found != list(counts):
                    await between_looks()
                    got = await asyncio.to_thread(consumer.committed, places, 30)
                    found = [
                        sum(record.offset < place.offset for record in records)
                        for place, records in zip(got, copies, strict=True)
                    ]
        except TimeoutError:
            raise AssertionError(f"{cluster}: {found} instead of {counts}") from None
        finally:
            consumer.close()

    def commit(self, cluster: str, topic: str, group: str, offset: int) -> None:
        """What a foreign consumer does that names its partitions itself."""
        commit(self.clusters.addresses[cluster], topic, group, offset, partitions=PARTITIONS)

    async def copied(self, topic: str) -> None:
        """Returns when the links have copied both ways what `write` wrote to both clusters."""
        for name, number in product("ab", range(PARTITIONS)):
            await self.clusters.records(name, Data(topic, number), 2 * COUNT)


@pytest.fixture(scope="module")
def site(clusters: Clusters, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A worker on each cluster; links in both directions run in them."""
    with ExitStack() as stack:
        made = Site(clusters, tmp_path_factory.mktemp("site"), stack)
        made.start("a1")
        made.start("b1")
        yield made


@pytest.fixture
def group(topic_name: str) -> str:
    """A group that no other test uses."""
    return f"{topic_name}-g"


async def test_a_reset_reaches_the_other_cluster(site: Site, topic_name: str, group: str):
    """To an offset, a time, the log start and the end; without --apply nothing is changed."""
    await site.create(topic_name, group)
    first_ms = SystemClock().now_ms() - 60_000
    site.write("a", topic_name, at_ms=first_ms)
    site.commit("a", topic_name, group, COUNT)
    await site.at("b", topic_name, group, COUNT, COUNT)

    words = ("group", "reset", topic_name, group)
    shown = await site.ask("a", *words, "--to-offset", "12")
    keys = ("from_offset", "to_offset", "applied", "moved")
    assert [tuple(it[key] for key in keys) for it in shown] == [(COUNT, 12, False, False)] * 2
    await site.at("a", topic_name, group, COUNT, COUNT)
    assert await site.reset("a", topic_name, group, "--to-offset", "12") == [12, 12]
    for name in "ab":
        await site.at(name, topic_name, group, 12, 12)
    at = datetime.fromtimestamp((first_ms + 5) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    assert await site.reset("b", topic_name, group, "--to-datetime", at) == [5, 5]
    for name in "ab":
        await site.at(name, topic_name, group, 5, 5)
    (end,) = await site.reset("b", topic_name, group, "--to-latest", "--partition", "1")
    assert end >= COUNT
    for name in "ab":
        await site.at(name, topic_name, group, 5, COUNT)
    assert await site.reset("a", topic_name, group, "--to-earliest") == [0, 0]
    for name in "ab":
        await site.at(name, topic_name, group, 0, 0)
    again = await read_and_commit(site.clusters.connector("b"), topic_name, group, 2 * COUNT)
    assert sorted(again) == sorted([*range(COUNT)] * 2)
    assert "no such offset" in await site.refused("a", *words, "--to-offset", "999", "--apply")
    assert "no such group" in await site.refused("a", *words[:3], "unknown", "--to-earliest")


@pytest.mark.parametrize("offset", [1, 0])
async def test_a_reset_to_where_the_group_stands(
    site: Site, topic_name: str, group: str, offset: int
):
    """What was acknowledged above the position is returned again, as after a reset back (I10)."""
    await site.create(topic_name, group)
    site.write("a", topic_name)
    connector = site.clusters.connector("a")

    def subscribe() -> Subscription:
        return Subscription([topic_name], group=group, connector=connector, acknowledgements=True)

    def is_acknowledged_first(number: int) -> bool:
        return number == 0 or number > ACKNOWLEDGED_ABOVE

    async with subscribe() as subscription, asyncio.timeout(WAIT_S):
        for _ in range(PARTITIONS * COUNT):
            message = await anext(subscription)
            if is_acknowledged_first(int(message.value or b"")):
                subscription.acknowledge(message)
        await subscription.commit()
    await site.at("a", topic_name, group, *[1] * PARTITIONS)
    await site.left("a", group)
    assert await site.reset("a", topic_name, group, "--to-offset", str(offset)) == [offset] * 2
    async with subscribe() as subscription, asyncio.timeout(WAIT_S):
        again = [await anext(subscription) for _ in range(PARTITIONS * (COUNT - offset))]
    numbers = sorted(int(it.value or b"") for it in again)
    assert numbers == sorted([*range(offset, COUNT)] * PARTITIONS)


async def test_a_reset_while_a_member_is_active(site: Site, topic_name: str, group: str):
    """Refused by name of group and members; with --stop the member goes on behind the reset."""
    await site.create(topic_name, group)
    site.write("a", topic_name)
    words = ("group", "reset", topic_name, group, "--to-offset", "7")
    with Member(site.clusters.addresses["a"], topic_name, group) as member:
        await asyncio.to_thread(member.read_until, 2 * COUNT)
        await site.at("a", topic_name, group, COUNT, COUNT)
        for options in ([], ["--apply"]):
            said = await site.refused("a", *words, *options)
            assert f"group {group} has members on this cluster" in said
            assert "members: till-7-" in said
            assert "--stop" in said
        shown = await site.ask("a", *words, "--stop")
        assert [(it["from_offset"], it["to_offset"]) for it in shown] == [(COUNT, 7)] * 2
        rows = await site.ask("a", *words, "--stop", "--apply", "--timeout-s", "30")
        assert [(it["applied"], it["moved"]) for it in rows] == [(True, True)] * 2
        await asyncio.to_thread(member.read_until, 2 * COUNT + 2 * (COUNT - 7))
        assert sorted(member.values[2 * COUNT :]) == sorted([*range(7, COUNT)] * 2)
    await site.at("b", topic_name, group, COUNT, COUNT)


async def test_looks_and_position_snapshots(site: Site, topic_name: str, group: str):
    """What was committed is published when sync-now ends; snapshot-now names a new snapshot."""
    await site.create(topic_name, group)
    site.write("a", topic_name)
    # Without `--merge` links refuse a topic that had records on both sides before they copied any.
    for number in range(PARTITIONS):
        await site.clusters.records("b", Data(topic_name, number), COUNT)
    site.write("b", topic_name)
    site.commit("a", topic_name, group, 9)
    rows = await site.ask("a", "group", "sync-now", topic_name, group)
    assert [(it["offset"], it["unpublished"]) for it in rows] == [(9, 0)] * 2
    await site.copied(topic_name)
    first = await site.take_positions("a", topic_name)
    second = await site.take_positions("a", topic_name)
    assert [it["partition"] for it in second] == [0, 1]
    for before, after in zip(first, second, strict=True):
        assert after["completed"] > before["completed"]
        assert after["round_trip_ms"] >= 0
    assert "enable" in await site.refused("a", "group", "sync-now", topic_name, "unknown")


@pytest.mark.slow
async def test_another_worker_takes_the_groups_over(site: Site, topic_name: str, group: str):
    """The owner is killed; requests to the other worker work, a repeated reset changes nothing."""
    await site.create(topic_name, group)
    site.write("a", topic_name)
    site.commit("a", topic_name, group, COUNT)
    await site.at("b", topic_name, group, COUNT, COUNT)
    assert await site.owned("a1", topic_name)
    site.start("a2")
    assert await site.reset("a", topic_name, group, "--to-offset", "8", *LONG) == [8, 8]
    site.kill("a1")
    rows = await site.ask("a", "group", "sync-now", topic_name, group, *LONG)
    assert [it["offset"] for it in rows] == [8, 8]
    assert await site.owned("a2", topic_name)
    assert await site.reset("a", topic_name, group, "--to-offset", "3", *LONG) == [3, 3]
    await site.at("b", topic_name, group, 3, 3)


@pytest.mark.slow
async def test_workers_without_clusters_leave_requests_to_others(
    site: Site, topic_name: str, group: str
):
    """Such a worker gets no partition of the topic, as a member and as the leader of the group."""
    await site.create(topic_name, group)
    site.write("a", topic_name)
    site.commit("a", topic_name, group, COUNT)
    site.start("a3", clusters="", replicate_from="")
    assert await site.reset("a", topic_name, group, "--to-offset", "8", *LONG) == [8, 8]
    site.kill("a2")  # the worker without clusters is the leader from now on
    site.start("a4")
    assert await site.reset("a", topic_name, group, "--to-offset", "3", *LONG) == [3, 3]
    await site.at("b", topic_name, group, 3, 3)
    assert await site.owned("a4", topic_name)
    assert not await site.owned("a3", topic_name)
    site.kill("a4")
    done = await asyncio.to_thread(
        run_stilltide,
        *("group", "sync-now", topic_name, group, "--timeout-s", "3"),
        *("--bootstrap-servers", site.clusters.addresses["a"]),
        cwd=site.directory,
    )
    assert done.returncode == 4
    assert "no answer from controllers" in done.stderr
    site.kill("a3")


@pytest.mark.slow
async def test_a_reset_by_kafkas_tool_with_position_snapshots(
    site: Site, topic_name: str, group: str
):
    """I12: nobody undoes it, though another cluster names higher positions; then it goes on."""
    site.kill(*site.workers)
    for name in ("a5", "b2"):
        site.start(name, sync="snapshot")
    await site.create(topic_name, group)
    site.write("a", topic_name)
    await site.take_positions("a", topic_name)
    site.commit("a", topic_name, group, COUNT)
    await site.at("b", topic_name, group, COUNT, COUNT)
    said = await site.refused("a", "group", "reset", topic_name, group, "--to-earliest")
    assert "sync=snapshot" in said

    await asyncio.to_thread(reset_with_kafka, site.clusters.addresses["b"], topic_name, group, 4)
    site.write("a", topic_name)
    await site.take_positions("a", topic_name)
    site.commit("a", topic_name, group, 2 * COUNT)
    rows = await site.ask("a", "group", "sync-now", topic_name, group, *LONG)
    assert [it["unpublished"] for it in rows] == [0, 0]
    await site.take_positions("b", topic_name)  # behind the update of a
    rows = await site.ask("b", "group", "sync-now", topic_name, group, *LONG)
    assert {it["standing"] for it in rows} == {Standing.RESET_BY_HAND.value}
    assert [it["offset"] for it in rows] == [4, 4]
    left = sorted([*range(4, COUNT), *range(COUNT)] * PARTITIONS)
    read = await read_and_commit(site.clusters.connector("b"), topic_name, group, len(left))
    assert sorted(read) == left
    await site.at("b", topic_name, group, 2 * COUNT, 2 * COUNT)
