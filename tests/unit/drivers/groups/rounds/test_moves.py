"""Groups are moved many partitions at once, and each only from the state that is expected (I7)."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector, MemoryGroupAdmin
from stilltide.connectors.ports.admin import TopicDescription
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.core.groups.group import MoveGroup
from stilltide.pipeline.core.pending_ack.cursor import Cursor, decode, encode
from stilltide.pipeline.drivers.groups.rounds import COMMITTED_MAX, TOGETHER_MAX, GroupMoves
from stilltide.schemas.replication.origins import topic_incarnation
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import EndOffset, Offset, Range, TopicPartition

GROUP, PARTITIONS = "billing", 2 * COMMITTED_MAX + 1
ORDERS = [TopicPartition("orders", number) for number in range(PARTITIONS)]


class Counting(MemoryGroupAdmin):
    """Counts what is asked of the broker, and lets a test step in before a commit."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.asked: list[str] = []
        self.joins = False
        self._here = broker

    async def topics(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """Counted."""
        self.asked.append("topics")
        return await super().topics(names)

    async def active(self, groups: Collection[str]) -> set[str]:
        """Counted."""
        self.asked.append("active")
        return await super().active(groups)

    async def committed(
        self, groups: Collection[str], partitions: Collection[TopicPartition]
    ) -> dict[str, dict[TopicPartition, Committed]]:
        """Counted."""
        self.asked.append("committed")
        return await super().committed(groups, partitions)

    async def move(self, group: str, positions: Mapping[TopicPartition, Committed]) -> None:
        """Counted; with `joins` a member joins first."""
        self.asked.append("move")
        if self.joins:
            await join(self._here)
        await super().move(group, positions)


class World:
    """A broker and what moves a group there."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.broker.create_topic(TopicSpec("orders", PARTITIONS))
        self.admin = Counting(self.broker)
        self.moves = GroupMoves(self.admin)
        self.incarnation = topic_incarnation(self.broker.topics["orders"].description.topic_id)

    def commit(self, data: TopicPartition, offset: int, metadata: str = ""):
        """As the group does."""
        self.broker.group(GROUP).committed[data] = Committed(Offset(offset), metadata)

    def offsets(self) -> dict[TopicPartition, int]:
        """What the group has committed."""
        return {data: it.offset for data, it in self.broker.group(GROUP).committed.items()}

    async def moved(self, *wanted: MoveGroup) -> list[bool]:
        """All of these, wanted at the same time."""
        async with asyncio.timeout(60):
            return await asyncio.gather(*(self.moves.move(it) for it in wanted))

    def to(
        self,
        data: TopicPartition,
        offset: int | None,
        *,
        expected: int | None = None,
        group: str = GROUP,
    ) -> MoveGroup:
        """A move of a group."""
        before = None if expected is None else Offset(expected)
        after = None if offset is None else Offset(offset)
        return MoveGroup(group, data, self.incarnation, before, after, 0)


async def join(broker: MemoryBroker):
    """A member joins the group."""
    member = MemoryConnector(broker).group_reader("m", GROUP)
    await member.subscribe(["orders"], assigned=lambda _: None, revoked=lambda _: None)


@asynccontextmanager
async def moving() -> AsyncIterator[World]:
    """Moves that run."""
    world = World()
    task = asyncio.create_task(world.moves.run())
    try:
        yield world
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_partitions_are_moved_together():
    """I16: five requests for up to `COMMITTED_MAX` partitions."""
    async with moving() as world:
        done = await world.moved(*(world.to(data, 1) for data in ORDERS))
        assert done == [True] * PARTITIONS
        assert world.offsets() == dict.fromkeys(ORDERS, 1)
        assert len(world.admin.asked) == 3 * 5


async def test_groups_are_moved_together():
    """I16: four requests for as many groups as fit into one question, and one for each group."""
    async with moving() as world:
        groups = [f"group-{number}" for number in range(2 * TOGETHER_MAX // COMMITTED_MAX)]
        wanted = [
            world.to(data, 1, group=group) for data in ORDERS[:COMMITTED_MAX] for group in groups
        ]
        assert await world.moved(*wanted) == [True] * len(wanted)
        last = ORDERS[COMMITTED_MAX - 1]
        assert {world.broker.group(it).committed[last].offset for it in groups} == {1}
        assert len(world.admin.asked) == 2 * (4 + len(groups))


async def test_each_partition_is_moved_from_what_is_expected_alone():
    """I7: another commit, another topic and metadata that nobody can read are left as they are."""
    async with moving() as world:
        for data, metadata in zip(ORDERS[:4], ("", "", "st1;a=?", ""), strict=True):
            world.commit(data, 3, metadata)
        wanted = [
            world.to(ORDERS[0], 5, expected=3),
            world.to(ORDERS[1], 5, expected=2),
            world.to(ORDERS[2], 5, expected=3),
            MoveGroup(GROUP, ORDERS[3], b"another", Offset(3), Offset(5), 0),
            world.to(ORDERS[4], 5, expected=3),
            world.to(ORDERS[5], None),
        ]
        assert await world.moved(*wanted) == [True, False, False, False, False, False]
        assert world.offsets() == {ORDERS[0]: 5, ORDERS[1]: 3, ORDERS[2]: 3, ORDERS[3]: 3}


@pytest.mark.parametrize(
    ("offset", "adopts", "kept"),
    [(4, False, True), (6, True, True), (4, True, False), (2, True, False)],
)
async def test_a_reset_that_does_not_go_forward_forgets_acknowledgements(
    offset: int, *, adopts: bool, kept: bool
):
    """I10: every record from the offset on is read again; any other move keeps what lies above."""
    async with moving() as world:
        acknowledged = Cursor(Offset(4), (Range(Offset(8), EndOffset(9)),), ("z=1",))
        world.commit(ORDERS[0], 4, encode(acknowledged))
        move = replace(world.to(ORDERS[0], offset, expected=4), generation=1, adopts=adopts)
        assert await world.moved(move) == [True]
        commit = world.broker.group(GROUP).committed[ORDERS[0]]
        cursor = decode(commit.offset, commit.metadata)
        ranges = acknowledged.acknowledged if kept else ()
        assert cursor == Cursor(Offset(offset), ranges, ("z=1", "g=1"))


async def test_a_member_ends_the_moves_of_its_group_alone():
    """I7: whether it was there before, or joins before the commit."""
    async with moving() as world:
        other = world.to(ORDERS[0], 5, group="other")
        world.admin.joins = True
        assert await world.moved(world.to(ORDERS[0], 5), world.to(ORDERS[1], 5)) == [False] * 2
        assert await world.moved(world.to(ORDERS[0], 5), other) == [False, True]
        assert world.offsets() == {}


async def test_an_error_reaches_everyone_who_waits_and_nobody_later():
    """The controllers begin again; the moves of others go on."""
    async with moving() as world:
        world.broker.down()
        waiting = [asyncio.create_task(world.moves.move(world.to(it, 5))) for it in ORDERS[:2]]
        async with asyncio.timeout(60):
            await asyncio.wait(waiting)
        for one in waiting:
            with pytest.raises(RetriableError):
                one.result()
        world.broker.up()
        assert await world.moved(world.to(ORDERS[0], 5)) == [True]
