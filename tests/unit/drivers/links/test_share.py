"""Processes share a link: each copies to its partitions of replication-positions (H12)."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from stilltide.connectors.errors import FencedError
from stilltide.pipeline.drivers.links.link import LinkRun, LinkRunOptions
from stilltide.pipeline.drivers.links.share import LinkShare
from stilltide.pipeline.drivers.links.topics import TopicChoice
from stilltide.schemas.topics import system_partition
from stilltide.schemas.values import TopicPartition
from tests.support.links.memory_link import (
    OPTIONS,
    SYSTEM_PARTITIONS,
    WAIT_S,
    MemoryCluster,
    link_of,
    until,
)

PARTITIONS = [TopicPartition("orders", number) for number in range(6)]


def sharing(share: LinkShare) -> LinkRunOptions:
    """Options of a process with a share."""
    return replace(OPTIONS, share=share)


@asynccontextmanager
async def running(*links: LinkRun) -> AsyncIterator[None]:
    """Processes of a link; raises what ended one of them."""
    tasks = [asyncio.create_task(link.run()) for link in links]
    try:
        yield
    finally:
        for link in links:
            link.stop()
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*tasks)


def is_copied(a: MemoryCluster, b: MemoryCluster) -> bool:
    """Whether all records of all partitions are on the target."""
    return all(len(b.values(data)) >= len(a.values(data)) for data in PARTITIONS)


async def test_each_process_copies_its_part():
    """All of the link, and no partition twice; the process with partition 0 creates the topics."""
    a, b = MemoryCluster("a", orders=6), MemoryCluster("b", orders=0)
    for data in PARTITIONS:
        a.write(b"1", b"2", data=data)
    links = [link_of(a, b, sharing(LinkShare.of(number, 2))) for number in (1, 0)]
    async with running(*links):
        await until(lambda: is_copied(a, b))
        await until(lambda: sum(link.progress.records for link in links) == 12)
    assert {data: b.values(data) for data in PARTITIONS} == {it: [b"1", b"2"] for it in PARTITIONS}
    for link, number in zip(links, (1, 0), strict=True):
        copied = link.progress.partitions
        assert {system_partition(data, SYSTEM_PARTITIONS) for data in copied} == {number}


async def test_a_process_without_partition_0_creates_no_topic():
    """It waits until the leading process has created the topic."""
    a, b = MemoryCluster("a", orders=6), MemoryCluster("b", orders=0)
    for data in PARTITIONS:
        a.write(b"1", data=data)
    share, looked = LinkShare((1,), assigned=True), asyncio.Event()
    link = link_of(a, b, sharing(share))
    running = asyncio.create_task(link.run(lambda _: looked.set()))
    await looked.wait()
    assert "orders" not in b.broker.topics
    share.assign((0, 1))
    await until(lambda: is_copied(a, b))
    link.stop()
    await running


async def test_a_given_share_that_another_process_has_ends_with_an_error():
    """Two processes with one number are a mistake of their operator."""
    a, b = MemoryCluster("a", orders=6), MemoryCluster("b", orders=0)
    for data in PARTITIONS:
        a.write(b"1", data=data)
    older = asyncio.create_task(link_of(a, b, sharing(LinkShare.of(0, 1))).run())
    await until(lambda: is_copied(a, b))
    async with running(link_of(a, b, sharing(LinkShare.of(0, 1)))):
        for data in PARTITIONS:
            a.write(b"2", data=data)
        with pytest.raises(FencedError):
            await older


async def test_records_that_another_process_copied_are_no_strangers():
    """H1: also where they came between a look at the buckets and one at the target's log."""
    a, b = MemoryCluster("a", orders=6), MemoryCluster("b", orders=6)
    links = [link_of(a, b, sharing(LinkShare.of(number, 2))) for number in (0, 1)]
    async with running(links[0]):
        for data in PARTITIONS:
            a.write(b"1", data=data)
        async with running(links[1]):
            await until(lambda: is_copied(a, b))


@pytest.mark.parametrize("seed", range(12))
async def test_records_are_copied_once_while_partitions_move(seed: int):
    """B4, H2: shares overlap or leave partitions out for a while, and processes die."""
    chance = random.Random(seed)
    a, b = MemoryCluster("a", orders=6), MemoryCluster("b", orders=0)
    shares = [LinkShare((), assigned=True) for _ in range(3)]
    options = [replace(sharing(it), choice=TopicChoice(merge=True)) for it in shares]
    tasks = [asyncio.create_task(link_of(a, b, it).run()) for it in options]
    written = 0
    for _ in range(25):
        for data in chance.sample(PARTITIONS, 3):
            written += 1
            a.write(b"%d" % written, data=data)
        for share in shares:
            if chance.random() < 0.5:
                share.assign({it for it in range(SYSTEM_PARTITIONS) if chance.random() < 0.5})
        if chance.random() < 0.3:
            killed = chance.randrange(len(tasks))
            tasks[killed].cancel()
            await asyncio.gather(tasks[killed], return_exceptions=True)
            tasks[killed] = asyncio.create_task(link_of(a, b, options[killed]).run())
        for _ in range(chance.randrange(300)):
            await asyncio.sleep(0)
    for number, share in enumerate(shares):
        share.assign({it for it in range(SYSTEM_PARTITIONS) if it == number})
    await until(lambda: is_copied(a, b))
    for data in PARTITIONS:
        assert b.values(data) == a.values(data)
    for task in tasks:
        assert not task.done(), "no process ends because another one has its partitions"
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_shares_of_one_count_are_all_of_a_link():
    """Each partition is in one; limits are divided by partitions."""
    shares = [LinkShare.of(number, 3) for number in range(3)]
    for partition in range(20):
        assert sum(partition in share for share in shares) == 1
    assert [share.part_of(1000.0, 4) for share in shares] == [500.0, 250.0, 250.0]
    assert LinkShare().part_of(1000.0, 4) == 1000.0
    assert LinkShare().part_of(None, 4) is None
    assert [share.leads for share in shares] == [True, False, False]
