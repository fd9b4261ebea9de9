"""Several processes share a link (H12), and the work of a worker; what ends one of them."""

import asyncio
import os
import signal
from pathlib import Path

from stilltide.schemas.values import TopicPartition
from tests.support.links.link_process import Clusters, LinkProcess
from tests.support.links.numbered import numbers, produced
from tests.support.looks import between_looks
from tests.support.processes.child import command_of
from tests.support.processes.worker_process import WorkerProcess

PARTITIONS = 6


async def all_copied(clusters: Clusters, topic: str, end: int):
    """Waits until `end` records of each partition are copied; each is there once, in order."""
    for number in range(PARTITIONS):
        copies = await clusters.records("b", TopicPartition(topic, number), end)
        assert [it.value for it in copies] == numbers(0, end)


def write(clusters: Clusters, topic: str, first: int, end: int):
    """Writes numbers to each partition of the source."""
    for number in range(PARTITIONS):
        produced(clusters, "a", TopicPartition(topic, number), first, end)


async def test_processes_of_replicate_share_a_link(
    clusters: Clusters, topic_name: str, tmp_path: Path
):
    """A process that is killed is started again; SIGTERM ends all, with exit code 0."""
    await clusters.create("a", topic_name, PARTITIONS)
    options = "--topics", topic_name, "--processes", "2"
    async with LinkProcess(
        clusters.addresses, "a", "b", tmp_path / "link.log", *options
    ) as running:
        assert await running.serving() in ([], [topic_name])
        write(clusters, topic_name, 0, 1_000)
        await all_copied(clusters, topic_name, 1_000)
        before = running.processes()
        shares = [it[it.index("--share") + 1] for it in map(command_of, before)]
        assert sorted(shares) == ["0/2", "1/2"]
        write(clusters, topic_name, 1_000, 1_010)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        await all_copied(clusters, topic_name, 1_010)
        assert not set(running.processes()) & set(before)
        running.terminate()
        assert await running.ended() == 0, running.said


async def test_a_process_that_ends_with_an_error_ends_the_others(
    clusters: Clusters, topic_name: str, tmp_path: Path
):
    """The command has the exit code of the process, which has said why."""
    await clusters.create("a", topic_name, 2)
    await clusters.create("b", topic_name, 3)
    options = "--topics", topic_name, "--processes", "2"
    async with LinkProcess(
        clusters.addresses, "a", "b", tmp_path / "link.log", *options
    ) as running:
        assert await running.ended() == 1
        assert f"topic {topic_name} has 2 partitions on a and 3 on b" in running.said


async def test_no_process_outlives_the_command(clusters: Clusters, topic_name: str, tmp_path: Path):
    """Not even if the command is killed."""
    await clusters.create("a", topic_name, PARTITIONS)
    options = "--topics", topic_name, "--processes", "2"
    async with LinkProcess(
        clusters.addresses, "a", "b", tmp_path / "link.log", *options
    ) as running:
        await running.serving()
        left = running.processes()
        assert len(left) == 2
        os.kill(running.pid, signal.SIGKILL)
        async with asyncio.timeout(90):
            while any(map(command_of, left)):
                await between_looks()


async def test_workers_share_a_link_and_take_over_from_each_other(
    clusters: Clusters, topic_name: str, tmp_path: Path
):
    """H12: one copies on where another one was killed; nothing is copied twice or left out."""
    await clusters.create("a", topic_name, PARTITIONS)
    worker = WorkerProcess(
        clusters.addresses["b"],
        tmp_path / "worker.log",
        "--processes",
        "2",
        "--web-port",
        "0",
        cluster="b",
        clusters=f"a={clusters.addresses['a']}",
        replicate_from="a",
        replicate_topics=f"{topic_name}*",
        session_timeout_s=6,
    )
    async with worker:
        await worker.serving()
        end = 0
        for _ in range(3):
            write(clusters, topic_name, end, end + 300)
            end += 300
            os.kill(worker.processes()[0], signal.SIGKILL)
            await all_copied(clusters, topic_name, end)
        worker.terminate()
        assert await worker.ended() == 0, worker.said
