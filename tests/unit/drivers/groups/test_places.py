"""Groups as operators are shown them, read once from topics and groups.

Rules I.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector, MemoryGroupAdmin, MemoryReader
from stilltide.connectors.ports.readers import Committed, EndReached, Record
from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.drivers.groups import places as group_places
from stilltide.pipeline.drivers.groups.report import Standpoint, describe_group, reason
from stilltide.schemas.snapshots.snapshots import SnapshotEnd, encode_end, end_key
from stilltide.schemas.topics import REPLICATION_POSITIONS, TXN_SNAPSHOTS, TopicSpec, system_topics
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition
from tests.support.groups.clusters import DATA, WAIT_S, replicated

NUMBERS = [b"%d" % number for number in range(30)]


class Counting(MemoryConnector):
    """Counts what is read of the data to find out how far it is decided."""

    count = 0

    def reader(self, client_id: str, **options: Any) -> MemoryReader:
        """One that counts."""
        made = super().reader(client_id, **options)
        read = made.read

        async def counted() -> Sequence[Record | EndReached]:
            items = await read()
            self.count += sum(isinstance(it, Record) for it in items)
            return items

        if client_id.endswith("-data"):
            made.read = counted
        return made


async def test_a_group_that_lags_far_is_described_by_a_snapshot(monkeypatch: pytest.MonkeyPatch):
    """E1: below its max read position all is decided, so that nobody need read it to know."""
    monkeypatch.setattr(group_places, "TOLD_EVERY_S", 0.0)
    broker = MemoryBroker("id-a")
    for spec in [*system_topics(coordinators=1, partitions=1), TopicSpec(DATA.topic, 1)]:
        broker.create_topic(spec)
    for value in NUMBERS * 10:
        broker.append(DATA, None, value, None)
    broker.group("g").committed[DATA] = Committed(Offset(5), "")
    connector = Counting(broker)
    told: list[str] = []

    async def described() -> Standpoint:
        connector.count = 0
        connectors = {ClusterName("a"): connector}
        (found,) = await describe_group(
            connectors, DATA.topic, "g", timeout_s=10, report=told.append
        )
        return found

    whole = await described()
    assert connector.count == 295
    assert told[0] == "reading orders/0 on cluster a: at 5 of 300"
    topic_id = (await connector.admin().describe_topics([DATA.topic]))[DATA.topic].topic_id
    end = SnapshotEnd(topic_id, EndOffset(290), EndOffset(0), 1, (), {}, {}, EndOffset(0), ())
    snapshots = TopicPartition(TXN_SNAPSHOTS, 0)
    broker.append(snapshots, end_key(DATA), encode_end(end), None)
    assert await described() == whole
    assert connector.count == 10


class ReadingOn(MemoryConnector):
    """Whenever it was asked for the offsets of groups, the group reads on before the answer."""

    def __init__(self, broker: MemoryBroker, read_on: Callable[[], Awaitable[None]]) -> None:
        super().__init__(broker)
        self._read_on = read_on

    def group_admin(self) -> MemoryGroupAdmin:
        """One whose answers are old."""
        made = super().group_admin()
        ask = made.committed

        async def committed(
            groups: Collection[str], partitions: Collection[TopicPartition]
        ) -> dict[str, dict[TopicPartition, Committed]]:
            found = await ask(groups, partitions)
            await self._read_on()
            return found

        made.committed = committed
        return made


async def test_a_group_that_reads_on_while_it_is_described_was_not_reset():
    """I10: beside an update of a later commit, the commit looks as if it was moved back."""
    async with replicated("ab", "g") as sites:
        a, b = sites["a"], sites["b"]
        a.write(*NUMBERS[:10])
        a.commit("g", 4)
        await sites.until(lambda: b.committed("g") == 4)

        async def read_on() -> None:
            a.commit("g", 8)
            await sites.until(lambda: b.committed("g") == 8)

        connectors = {ClusterName("a"): ReadingOn(a.broker, read_on)}
        (found,) = await describe_group(connectors, DATA.topic, "g", timeout_s=10)
        assert found.seen.offset == 4
        assert found.standing is not Standing.RESET_BY_HAND
        a.commit("g", 2)
        await sites.until(lambda: any(one.until == 8 for one in a.applied()))
        connectors = {ClusterName("a"): a.connector}
        (found,) = await describe_group(connectors, DATA.topic, "g", timeout_s=10)
        assert found.standing is Standing.RESET_BY_HAND


async def test_a_group_that_went_on_here_is_judged_by_links_of_a_cluster_that_is_away():
    """I7: their index is on this cluster; without it the group would seem to be moved for ever."""
    async with replicated("ab", "g") as sites:
        a, b = sites["a"], sites["b"]
        a.write(*NUMBERS[:10])
        a.commit("g", 4)
        await sites.until(lambda: b.committed("g") == 4)
        await sites.unlink("a", "b")
        await sites.unlink("b", "a")
        b.commit("g", 7)  # by a plain consumer: without a tag
        await sites.until(lambda: any(getattr(it, "offset", None) == 7 for _, it in b.updates()))
        connectors = {ClusterName("b"): b.connector}
        async with asyncio.timeout(WAIT_S):
            while True:  # the controller may have moved it for the tag of a generation first
                (described,) = await describe_group(connectors, DATA.topic, "g", timeout_s=10)
                if described.standing is Standing.AT_THE_PREFIX:
                    break
        assert described.unasked.keys() == {"a"}
        away = reason(described, disabled=[], away=[ClusterName("a")])
        assert "; cluster a does not answer: what the group has read there" in away
        heard = described._replace(unasked={ClusterName("a"): 125_000})
        assert "a was not asked (last sign of it 2 min ago)" in reason(heard, disabled=[])
        assert "cluster a was not asked" in reason(described, disabled=[])
        moving = described._replace(standing=Standing.MOVING)
        assert "a worker on b moves it within a second" in reason(moving, disabled=[])
        stopped = moving._replace(has_workers=False)
        assert "no worker runs on b" in reason(stopped, disabled=[])
        held = moving._replace(open_at=(TopicPartition(REPLICATION_POSITIONS, 3), EndOffset(7)))
        assert "open transaction at stilltide.replication-positions/3@7" in reason(
            held, disabled=[]
        )
