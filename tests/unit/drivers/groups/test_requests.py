"""Requests of operators to controllers on clusters in memory.

Rules I10, I14, B10.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.client import Subscription
from stilltide.pipeline.core.groups.controller import SyncMode
from stilltide.pipeline.drivers.groups.client import GroupLine
from stilltide.pipeline.drivers.service.ended import OwnerEnd
from stilltide.pipeline.errors import ActiveMembersError, RefusedError
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.replication.requests import AtOffset, AtTime, Edge, ResetAnswer
from stilltide.schemas.topics import GROUP_REQUESTS
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.groups.clusters import DATA, Site, Sites, cancelled, replicated
from tests.support.intruders.kinds import kinds

VALUES = [b"%d" % number for number in range(10)]


async def feed(site: Site) -> None:
    """Hands each value of group-requests to the controllers' owner, as the Faust agent does."""
    reader = site.connector.reader("requests", committed=False)
    await reader.assign({TopicPartition(GROUP_REQUESTS, 0): Offset(0)})
    while True:
        for item in await reader.read():
            if isinstance(item, Record):
                assert site.driver is not None
                site.driver.requests_received(item.value, operator=True)


@asynccontextmanager
async def asking(site: Site) -> AsyncIterator[GroupLine]:
    """An operator of the cluster."""
    feeding = asyncio.create_task(feed(site))
    try:
        async with GroupLine(site.connector, "test", timeout_s=20) as line:
            yield line
    finally:
        await cancelled(feeding)


@asynccontextmanager
async def read_group() -> AsyncIterator[tuple[Sites, Site, Site, GroupLine]]:
    """A group that has read ten records at a, and was carried over to b."""
    async with replicated("ab", "g") as sites, asking(sites["a"]) as line:
        a, b = sites["a"], sites["b"]
        a.write(*VALUES)
        a.commit("g", 10)
        await sites.until(lambda: (b.committed("g") or 0) >= 10)
        yield sites, a, b, line


async def test_a_reset_is_replicated():
    """I10, I14: it is shown first, then both clusters move the group back."""
    async with read_group() as (sites, a, b, line):
        shown = await line.reset_shown(DATA, "g", AtOffset(Offset(4)))
        assert shown == ResetAnswer(Offset(10), Offset(4), 0)
        assert a.committed("g") == 10
        done = await line.reset(DATA, "g", shown)
        assert done == ResetAnswer(Offset(10), Offset(4), 1, moved=True)
        assert a.committed("g") == 4
        await sites.until(lambda: b.committed("g") == 4)
        assert (await line.reset(DATA, "g", shown)).generation == 1
        assert len([it for it in a.updates() if it[1] and it[1].generation == 1]) <= 2
        with pytest.raises(RefusedError):
            await line.reset(DATA, "g", shown._replace(to_offset=Offset(5)))


async def test_targets_of_a_reset():
    """Log start, end and a time; an offset outside the log and an unknown group are refused."""
    async with read_group() as (_, _, _, line):
        targets = (Edge.EARLIEST, Edge.LATEST, AtTime(0))
        shown = [(await line.reset_shown(DATA, "g", it)).to_offset for it in targets]
        assert shown == [0, 10, 0]
        for group, target in (("g", AtOffset(Offset(11))), ("slip", Edge.EARLIEST)):
            with pytest.raises(RefusedError):
                await line.reset_shown(DATA, group, target)


async def test_a_reset_is_refused_while_a_member_is_active():
    """I10: with a typed error, and nothing is changed; also if the member joined after a look."""
    async with read_group() as (_, a, _, line):
        shown = await line.reset_shown(DATA, "g", Edge.EARLIEST)
        a.write(b"more")
        async with Subscription([DATA.topic], group="g", connector=a.connector) as member:
            assert (await anext(member)).value == b"more"
            with pytest.raises(ActiveMembersError):
                await line.reset(DATA, "g", shown)
            with pytest.raises(ActiveMembersError, match=r"group g has members") as refused:
                await line.reset_shown(DATA, "g", Edge.EARLIEST)
            (member_id,) = a.broker.group("g").member_ids
            assert refused.value.detail == f"members: {member_id}"
            assert a.committed("g") == 10


async def test_a_reset_that_stops_members():
    """I14: the member goes on behind the reset, and the other cluster follows once it has left."""
    async with read_group() as (sites, a, b, line):
        a.write(b"more")
        async with Subscription([DATA.topic], group="g", connector=a.connector) as member:
            assert (await anext(member)).value == b"more"
            shown = await line.reset_shown(DATA, "g", AtOffset(Offset(4)), stop=True)
            assert a.committed("g") == 10
            done = await line.reset(DATA, "g", shown, stop=True)
            assert done == ResetAnswer(Offset(10), Offset(4), 1, moved=True)
            assert [(await anext(member)).value for _ in range(7)] == [*VALUES[4:], b"more"]
            await member.commit()
        await sites.until(lambda: (b.committed("g") or 0) >= 11)


async def test_a_member_that_joins_between_reset_and_move():
    """I14: the answer says that the group is not moved yet; it is once the member has left."""
    async with read_group() as (sites, a, _, line):
        shown = await line.reset_shown(DATA, "g", Edge.EARLIEST)
        async with Subscription([DATA.topic], group="g", connector=a.connector):
            await sites.until(lambda: a.broker.group("g").is_active)
            assert a.driver is not None
            assert a.driver.owned is not None
            one = a.driver.owned.partitions[DATA]
            one.machine.reset("g", Offset(0), stop=True)
            one.wake_groups()
            await sites.until(lambda: one.machine.groups["g"].generation == 1)
            done = await line.reset(DATA, "g", shown)
            assert (done.generation, done.moved) == (1, False)
        await sites.until(lambda: a.committed("g") == 0)


async def test_a_reset_that_arrives_late_is_refused():
    """I14: a request that lay in the topic while no worker ran changes nothing."""
    async with read_group() as (_, a, _, line):
        shown = await line.reset_shown(DATA, "g", Edge.EARLIEST)
        line._timeout_ms = -1_000_000
        with pytest.raises(RefusedError, match="refused"):
            await line.reset(DATA, "g", shown)
        assert a.committed("g") == 10


async def test_no_generation_says_read_again_with_snapshots():
    """I12: a replicated reset is refused with sync=snapshot."""
    async with replicated("ab", "g", mode=SyncMode.SNAPSHOT) as sites, asking(sites["a"]) as line:
        sites["a"].write(*VALUES)
        with pytest.raises(RefusedError):
            await line.reset_shown(DATA, "g", Edge.EARLIEST)


async def test_sync_now_and_snapshot_now():
    """I14: what was read is published when the answer comes; positions are of a new attempt."""
    async with replicated("ab", "g") as sites, asking(sites["a"]) as line:
        a, b = sites["a"], sites["b"]
        a.write(*VALUES)
        await sites.until(lambda: len(b.values()) == 10)
        a.commit("g", 7)
        synced = await line.sync(DATA, "g")
        assert (synced.offset, synced.unpublished) == (7, 0)
        b.write(b"back")
        await sites.until(lambda: b"back" in a.values())
        first = await line.take_positions(DATA)
        second = await line.take_positions(DATA)
        assert second.started_ms > first.started_ms


async def test_hostile_requests_end_nothing():
    """B10: each kind of bad record is refused by its reader or ignored; the controllers go on."""
    async with replicated("ab", "g") as sites:
        a = sites["a"]
        await sites.until(lambda: a.driver is not None and a.driver.serving)
        assert a.driver is not None
        for kind in kinds(GROUP_REQUESTS, compacted=False):
            try:
                a.driver.requests_received(kind.value, operator=True)
                a.driver.refuse(kind.value, OwnerEnd(DecodeError("damaged"), 0.0, 60.0))
            except DecodeError:
                continue
        a.write(*VALUES)
        a.commit("g", 6)
        await sites.until(lambda: (sites["b"].committed("g") or 0) >= 6)
