"""Links of a worker: they go on whatever ends one, as long as they are assigned (B4)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from stilltide.connectors.chance import SystemChance
from stilltide.pipeline.drivers.links.link import LinkOwner, LinkRun
from stilltide.pipeline.drivers.worker.placement import LINKS
from stilltide.pipeline.drivers.worker.runtime import Runtime
from stilltide.schemas.retry import Retry
from stilltide.schemas.topics import PREFIX, REPLICATION_POSITIONS
from stilltide.schemas.values import TopicPartition
from tests.support.links.memory_link import BUCKET, MemoryCluster, link_of, until


def links_of(
    *sources: MemoryCluster, target: MemoryCluster
) -> tuple[Runtime[str, LinkOwner], list[str]]:
    """The owners of these links, and the names of the links that have begun."""
    begun: list[str] = []
    clusters = {str(cluster.name): cluster for cluster in sources}

    def link(source: str) -> LinkRun:
        begun.append(source)
        return link_of(clusters[source], target)

    runtime: Runtime[str, LinkOwner] = Runtime(
        LINKS,
        lambda source: LinkOwner(partial(link, source)),
        chance=SystemChance(),
        keys=lambda _: list(clusters),
        retry=Retry(0.01),
    )
    return runtime, begun


@asynccontextmanager
async def running(runtime: Runtime[str, LinkOwner]) -> AsyncIterator[None]:
    """Links that run until the block ends."""
    await runtime.assign([0])
    try:
        yield
    finally:
        await runtime.stop()


async def test_every_source_is_copied():
    """To one target."""
    a, c, b = MemoryCluster("a"), MemoryCluster("c", orders=0), MemoryCluster("b", orders=0)
    c.create("other")
    other = TopicPartition("other", 0)
    a.write(b"1")
    c.write(b"2", data=other)
    links, begun = links_of(a, c, target=b)
    async with running(links):
        await until(lambda: b.values() == [b"1"])
        await until(lambda: b.values(other) == [b"2"])
        assert sorted(begun) == ["a", "c"]
        running_links = {name: owner.link for name, owner in links.owners.items()}
        assert {name: link and link.progress.records for name, link in running_links.items()} == {
            "a": 1,
            "c": 1,
        }
    assert not links.owners, "what has ended shows nothing"


async def test_a_link_that_cannot_be_is_tried_again():
    """Until somebody repairs what is wrong; nothing else ends with it."""
    a, b = MemoryCluster("a"), MemoryCluster("b", orders=2)
    a.write(b"1")
    links, begun = links_of(a, target=b)
    async with running(links):
        await until(lambda: len(begun) > 1)
        assert b.values() == []
        assert "a" in links.ends
        b.broker.delete_topic("orders")
        await until(lambda: b.values() == [b"1"])
        assert not links.ends


async def test_a_fenced_link_goes_on_while_it_is_assigned():
    """B4: it takes the link back."""
    a, b = MemoryCluster("a"), MemoryCluster("b", orders=0)
    a.write(b"1")
    links, begun = links_of(a, target=b)
    async with running(links):
        await until(lambda: b.values() == [b"1"])
        for number in range(4):
            b.broker.transactions.fence(f"{PREFIX}link-a-b-{number}")
        a.write(b"2")
        await until(lambda: b.values() == [b"1", b"2"])
        assert len(begun) == 2


async def test_what_cannot_be_understood_ends_the_link_and_no_more():
    """B8: the link is shown with the place and tried again; the driver goes on."""
    a, b = MemoryCluster("a"), MemoryCluster("b", orders=0)
    b.broker.append(TopicPartition(REPLICATION_POSITIONS, 0), BUCKET, b"bucket", None)
    links, begun = links_of(a, target=b)
    async with running(links):
        await until(lambda: len(begun) > 1)
        assert links.ends["a"].place == (REPLICATION_POSITIONS, "0", "0")


async def test_a_link_that_has_ended_tells_why_where_everybody_can_read_it():
    """H9: in a record on the target, which stays when the link runs again."""
    a, b = MemoryCluster("a"), MemoryCluster("b", orders=2)
    a.write(b"1")
    links, _ = links_of(a, target=b)
    async with running(links):
        await until(lambda: "a" in links.ends and bool(b.last_errors()))
        b.broker.delete_topic("orders")
        await until(lambda: b.values() == [b"1"])
        assert not links.ends
        assert "orders" in b.last_errors()["a"].cause


async def test_an_error_that_a_link_survives_is_its_last_one():
    """A source that was away: the link goes on by itself, and says what has happened (H9)."""
    a, b = MemoryCluster("a"), MemoryCluster("b", orders=0)
    a.write(b"1")
    links, begun = links_of(a, target=b)
    async with running(links):
        await until(lambda: b.values() == [b"1"])
        assert not b.last_errors()
        a.broker.down()
        await until(lambda: "a" in b.last_errors())
        a.broker.up()
        a.write(b"2")
        await until(lambda: b.values() == [b"1", b"2"])
        assert begun == ["a"]
        link = links.owners["a"].link
        assert link is not None
        assert link.last_error is not None
        assert not links.ends


async def test_an_error_outlives_the_process_that_met_it():
    """H9: another worker knows the error, and with it the time, from the target alone."""
    a, b = MemoryCluster("a"), MemoryCluster("b", orders=2)
    first, _ = links_of(a, target=b)
    async with running(first):
        await until(lambda: bool(b.last_errors()))
    told = b.last_errors()["a"]
    b.broker.delete_topic("orders")
    second, _ = links_of(a, target=b)
    async with running(second):
        await until(
            lambda: (link := second.owners["a"].link) is not None and link.last_error == told
        )


async def test_a_target_that_is_away_is_told_when_it_is_back():
    """H9: of the error that was met meanwhile; nothing waits for it."""
    a, b = MemoryCluster("a"), MemoryCluster("b", orders=0)
    a.write(b"1")
    links, begun = links_of(a, target=b)
    async with running(links):
        await until(lambda: b.values() == [b"1"])
        b.broker.down()
        await until(
            lambda: (link := links.owners["a"].link) is not None and link.last_error is not None
        )
        b.broker.up()
        await until(lambda: "a" in b.last_errors())
        assert begun == ["a"]
