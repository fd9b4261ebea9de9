"""Links of a worker: they go on whatever ends one, as long as they are assigned (B4)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from stilltide.connectors.chance import SystemChance
from stilltide.pipeline.drivers.links.link import LinkRun
from stilltide.pipeline.drivers.links.owner import LinksDriver
from stilltide.schemas.topics import PREFIX, REPLICATION_POSITIONS
from stilltide.schemas.values import TopicPartition
from tests.support.links.memory_link import BUCKET, WAIT_S, MemoryCluster, link_of, until


def driver_of(*sources: MemoryCluster, target: MemoryCluster) -> tuple[LinksDriver, list[str]]:
    """A driver of these links, and the names of those it has begun."""
    begun: list[str] = []
    clusters = {one.name: one for one in sources}

    def link(source: str) -> LinkRun:
        begun.append(source)
        return link_of(next(it for name, it in clusters.items() if name == source), target)

    names = [one.name for one in sources]
    return LinksDriver(names, link, again_s=0.01, chance=SystemChance()), begun


@asynccontextmanager
async def running(driver: LinksDriver) -> AsyncIterator[asyncio.Task[None]]:
    """A driver that runs until the block ends; gives its task."""
    task = asyncio.create_task(driver.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_every_source_is_copied():
    """To one target."""
    a, c, b = MemoryCluster("a"), MemoryCluster("c", orders=0), MemoryCluster("b", orders=0)
    c.create("other")
    other = TopicPartition("other", 0)
    a.write(b"1")
    c.write(b"2", data=other)
    driver, begun = driver_of(a, c, target=b)
    async with running(driver):
        await until(lambda: b.values() == [b"1"])
        await until(lambda: b.values(other) == [b"2"])
        assert sorted(begun) == ["a", "c"]
        assert {name: one.progress.records for name, one in driver.links.items()} == {
            "a": 1,
            "c": 1,
        }
    assert not driver.links, "what has ended shows nothing"


async def test_a_link_that_cannot_be_is_tried_again():
    """Until somebody repairs what is wrong; nothing else ends with it."""
    a, b = MemoryCluster("a"), MemoryCluster("b", orders=2)
    a.write(b"1")
    driver, begun = driver_of(a, target=b)
    async with running(driver) as task:
        await until(lambda: len(begun) > 1)
        assert not task.done()
        assert b.values() == []
        assert "a" in driver.ends
        b.broker.delete_topic("orders")
        await until(lambda: b.values() == [b"1"])
        assert not driver.ends


@pytest.mark.parametrize("assigned", [True, False])
async def test_a_fenced_link_goes_on_while_it_is_assigned(*, assigned: bool):
    """B4: it takes the link back, or ends for good."""
    a, b = MemoryCluster("a"), MemoryCluster("b", orders=0)
    a.write(b"1")
    driver, begun = driver_of(a, target=b)
    task = asyncio.create_task(driver.run())
    await until(lambda: b.values() == [b"1"])
    driver.assigned = assigned
    for number in range(4):
        b.broker.transactions.fence(f"{PREFIX}link-a-b-{number}")
    a.write(b"2")
    if assigned:
        await until(lambda: b.values() == [b"1", b"2"])
        assert len(begun) == 2
        task.cancel()
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(task, return_exceptions=True)
    assert len(begun) == 1 + assigned


async def test_what_cannot_be_understood_ends_the_link_and_no_more():
    """B8: the link is shown with the place and tried again; the driver goes on."""
    a, b = MemoryCluster("a"), MemoryCluster("b", orders=0)
    b.broker.append(TopicPartition(REPLICATION_POSITIONS, 0), BUCKET, b"bucket", None)
    driver, begun = driver_of(a, target=b)
    async with running(driver) as task:
        await until(lambda: len(begun) > 1)
        assert not task.done()
        assert driver.ends["a"].place == (REPLICATION_POSITIONS, "0", "0")


async def test_a_link_that_has_ended_tells_why_where_everybody_can_read_it():
    """H9: in a record on the target, which stays when the link runs again."""
    a, b = MemoryCluster("a"), MemoryCluster("b", orders=2)
    a.write(b"1")
    driver, _ = driver_of(a, target=b)
    async with running(driver):
        await until(lambda: "a" in driver.ends and bool(b.last_errors()))
        b.broker.delete_topic("orders")
        await until(lambda: b.values() == [b"1"])
        assert not driver.ends
        assert "orders" in b.last_errors()["a"].cause


async def test_an_error_that_a_link_survives_is_its_last_one():
    """A source that was away: the link goes on by itself, and says what has happened (H9)."""
    a, b = MemoryCluster("a"), MemoryCluster("b", orders=0)
    a.write(b"1")
    driver, begun = driver_of(a, target=b)
    async with running(driver):
        await until(lambda: b.values() == [b"1"])
        assert not b.last_errors()
        a.broker.down()
        await until(lambda: "a" in b.last_errors())
        a.broker.up()
        a.write(b"2")
        await until(lambda: b.values() == [b"1", b"2"])
        assert begun == ["a"]
        assert driver.links["a"].last_error is not None
        assert not driver.ends


async def test_an_error_outlives_the_process_that_met_it():
    """H9: another worker knows the error, and with it the time, from the target alone."""
    a, b = MemoryCluster("a"), MemoryCluster("b", orders=2)
    first, _ = driver_of(a, target=b)
    async with running(first):
        await until(lambda: bool(b.last_errors()))
    told = b.last_errors()["a"]
    b.broker.delete_topic("orders")
    second, _ = driver_of(a, target=b)
    async with running(second):
        await until(lambda: "a" in second.links and second.links["a"].last_error is not None)
        assert second.links["a"].last_error == told


async def test_a_target_that_is_away_is_told_when_it_is_back():
    """H9: of the error that was met meanwhile; nothing waits for it."""
    a, b = MemoryCluster("a"), MemoryCluster("b", orders=0)
    a.write(b"1")
    driver, begun = driver_of(a, target=b)
    async with running(driver):
        await until(lambda: b.values() == [b"1"])
        b.broker.down()
        await until(lambda: driver.links["a"].last_error is not None)
        b.broker.up()
        await until(lambda: "a" in b.last_errors())
        assert begun == ["a"]
