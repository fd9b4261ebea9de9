"""Replicated groups between real brokers: workers, links, operators, any client."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.links.link_process import Clusters, LinkProcess
from tests.support.processes.local import commit, run_stilltide
from tests.support.processes.worker_process import WorkerProcess, read_and_commit

WAIT_S = 180.0


class Operated:
    """Both clusters as an operator has them."""

    def __init__(self, clusters: Clusters, directory: Path) -> None:
        self.clusters = clusters
        self.named = " ".join(f"{name}={at}" for name, at in clusters.addresses.items())
        self._directory = directory

    async def run(self, *words: str, code: int = 0) -> str:
        """What a command prints."""
        command = [*words, "--clusters", self.named]
        done = await asyncio.to_thread(run_stilltide, *command, cwd=self._directory)
        assert done.returncode == code, done.stderr
        return done.stdout

    async def ask(self, *words: str, code: int = 0) -> Any:
        """What it prints as JSON."""
        return json.loads(await self.run(*words, "-o", "json", code=code))


def produced(address: str, topic: str, first: int, end: int):
    """Writes the numbers `[first, end)` to partition 0."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5})
    for number in range(first, end):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(30) == 0


def committed(address: str, topic: str, group: str) -> int:
    """Offset of a group; -1001: none."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    try:
        return consumer.committed([TopicPartition(topic, 0)], 30)[0].offset
    finally:
        consumer.close()


async def metrics(worker: WorkerProcess) -> list[str]:
    """What it shows, line by line."""
    async with ClientSession() as session, session.get(f"{worker.web}/metrics") as response:
        return (await response.text()).splitlines()


async def shows_nothing_to_read_again(worker: WorkerProcess, topic: str, group: str) -> None:
    """Returns when the metrics of cluster b's worker say so of partition 0."""
    labels = f'cluster="b",group="{group}",partition="0",topic="{topic}"'
    sample = f"stilltide_subscription_read_again_records{{{labels}}} 0.0"
    async with asyncio.timeout(WAIT_S):
        while sample not in await metrics(worker):
            """Each look takes a round trip."""


async def refuses_a_group_that_nobody_knows(operated: Operated, topic: str) -> None:
    """Whatever is asked of it, exit code 1, and nothing on stdout."""
    for verb, *options in (["describe"], ["sync-status"], ["failover", "--to", "b"]):
        assert not await operated.run("subscription", verb, topic, "slip", *options, code=1)


async def is_taken_by_a_pattern(operated: Operated, topic: str) -> None:
    """I15: a pattern that takes nothing is refused; one that takes the group places it on b."""
    pattern, refused = f"{topic}*", f"{topic}?*"
    assert not await operated.run("group", "enable", refused, "gro*", code=1)
    assert not await operated.run("group", "enable", pattern, "group?*", code=1)
    await operated.run("group", "enable", pattern, "gro*")
    rows = await operated.ask("group", "list")
    takes = {it["cluster"]: it["takes"] for it in rows if it["topic"] == pattern}
    assert takes["a"] == [f"{topic}/group"]
    assert not [it for it in rows if it["topic"] == refused]
    b = operated.clusters.addresses["b"]
    async with asyncio.timeout(WAIT_S):
        while await asyncio.to_thread(committed, b, topic, "group") < 0:  # none
            """Each look takes a round trip."""


async def test_groups_fail_over_between_two_brokers(
    clusters: Clusters, topic_name: str, tmp_path: Path
):
    """A foreign group is moved exactly, and one of ours reads nothing twice and misses nothing."""
    a, b = clusters.addresses["a"], clusters.addresses["b"]
    operated = Operated(clusters, tmp_path)
    foreign, ours = f"{topic_name}-foreign", f"{topic_name}-ours"
    await clusters.create("a", topic_name)
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                WorkerProcess(
                    clusters.addresses[name],
                    tmp_path / f"worker-{name}.log",
                    "--cluster",
                    name,
                    clusters=operated.named,
                )
            )
            for name in "ab"
        ]
        await asyncio.gather(*(worker.serving() for worker in workers))
        for ends in ("ab", "ba"):
            log = tmp_path / f"{ends}.log"
            options = ("--topics", topic_name, "--merge")
            link = LinkProcess(clusters.addresses, ends[0], ends[1], log, *options)
            await stack.enter_async_context(link)
            await link.serving()
        for group in (foreign, ours):
            await operated.run("subscription", "enable", topic_name, group)
        produced(a, topic_name, 0, 500)
        first = await read_and_commit(clusters.connector("a"), topic_name, ours, 300)
        commit(a, topic_name, foreign, 120)
        produced(b, topic_name, 500, 600)

        for group in (foreign, ours):
            done = await operated.ask(
                "subscription", "failover", topic_name, group, "--to", "b", "--timeout-s", "60"
            )
            assert [(one["read_again"], one["cluster"]) for one in done] == [(0, "b")]
        assert committed(b, topic_name, foreign) == 120
        rest = await read_and_commit(clusters.connector("b"), topic_name, ours, 300)
        assert sorted(first + rest) == list(range(600))

        listed = await operated.ask("subscription", "list")
        assert (ours, "b") in [(it["group"], it["cluster"]) for it in listed if it["replicated"]]
        described = await operated.ask("subscription", "describe", topic_name, foreign)
        assert [one["cluster"] for one in described] == ["a", "b"]
        assert described[1]["offset"] == 120
        await shows_nothing_to_read_again(workers[1], topic_name, foreign)
        status = await operated.ask("subscription", "sync-status", topic_name, foreign)
        assert all(one["in_sync"] for one in status)
        (found,) = await operated.ask(
            "offset", "translate", topic_name, "0", "77", "--from", "a", "--to", "b"
        )
        assert (found["translated"], found["record"]) == (77, 77)
        await operated.run("subscription", "failover", topic_name, ours, "--to", "c", code=1)
        await refuses_a_group_that_nobody_knows(operated, topic_name)
        await operated.run("subscription", "disable", topic_name, foreign)


@pytest.mark.slow
async def test_a_link_that_is_stopped_is_seen_on_both_clusters(
    clusters: Clusters, topic_name: str, tmp_path: Path
):
    """I13: 15 s after its last beat, and as soon as the next one is there.

    The group is replicated by a pattern (I15).
    """
    operated = Operated(clusters, tmp_path)
    await clusters.create("a", topic_name)
    async with AsyncExitStack() as stack:
        workers: dict[str, WorkerProcess] = {}
        for name, address in clusters.addresses.items():
            log = tmp_path / f"worker-{name}.log"
            worker = WorkerProcess(address, log, "--cluster", name, clusters=operated.named)
            workers[name] = await stack.enter_async_context(worker)
        await asyncio.gather(*(worker.serving() for worker in workers.values()))
        links: dict[str, LinkProcess] = {}
        for source, target in ("ab", "ba"):
            log = tmp_path / f"{source}{target}.log"
            options = ("--topics", topic_name, "--merge")
            link = LinkProcess(clusters.addresses, source, target, log, *options)
            links[source] = await stack.enter_async_context(link)
            await link.serving()
        produced(clusters.addresses["a"], topic_name, 0, 10)
        produced(clusters.addresses["b"], topic_name, 10, 20)
        commit(clusters.addresses["a"], topic_name, "group", 1)
        await is_taken_by_a_pattern(operated, topic_name)

        async def both_show(connected: int) -> None:
            for here, remote in ("ab", "ba"):
                labels = f'cluster="{here}",partition="0",remote="{remote}",topic="{topic_name}"'
                sample = f"stilltide_replication_link_connected{{{labels}}} {connected}.0"
                async with asyncio.timeout(WAIT_S):
                    while sample not in await metrics(workers[here]):
                        """Each look takes a round trip."""

        await both_show(1)
        links["a"].pause()
        await both_show(0)
        rows = await operated.ask("subscription", "describe", topic_name, "group")
        assert [(it["cluster"], it["links_stopped"]) for it in rows] == [("a", "b"), ("b", "a")]
        assert all("no sign for 15 s" in it["why"] for it in rows)
        links["a"].resume()
        await both_show(1)
