"""D: the visible records that a group has not read, counted without joining the group."""

import asyncio

import pytest

from stilltide.connectors.errors import FatalError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.core.pending_ack.cursor import Cursor, encode
from stilltide.pipeline.drivers.groups.unread import Lag, lag_of
from stilltide.schemas.errors import UnknownVersionError
from stilltide.schemas.values import EndOffset, Offset, Range, TopicPartition, TxnId
from tests.support.coordinator.coordinated import CoordinatedTopic

GROUP = "billing"
FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
ABORTED, OPEN, COMMITTED = TxnId(0, 1), TxnId(0, 2), TxnId(0, 3)


@pytest.fixture
async def topic(connector: MemoryConnector) -> CoordinatedTopic:
    """A topic of two partitions."""
    return await CoordinatedTopic.create(connector, "orders", 2)


def to(end: int) -> Range:
    """A log from 0 on."""
    return Range(Offset(0), EndOffset(end))


async def lag(connector: MemoryConnector, records_max: int = 1000) -> list[Lag]:
    """The lag of the group."""
    async with asyncio.timeout(10):
        return await lag_of(connector, "orders", GROUP, records_max=records_max, timeout_s=5)


async def test_only_visible_records_above_the_commit_count(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic
):
    """Neither records of aborted transactions nor what was read; a group without commit: all."""
    await topic.write(0, None, 3)
    await topic.write(0, ABORTED, 4)
    await topic.write(0, COMMITTED, 2)
    await topic.abort(0, ABORTED)
    await topic.commit(0, COMMITTED, 9)
    broker.group(GROUP).committed[FIRST] = Committed(Offset(1), "")
    await topic.write(1, None, 2)
    assert await lag(connector) == [
        Lag(FIRST, Offset(1), EndOffset(9), 4, at_least=False, log=to(9)),
        Lag(SECOND, None, EndOffset(2), 2, at_least=False, log=to(2)),
    ]


async def test_counting_ends_at_an_undecided_record(
    connector: MemoryConnector, topic: CoordinatedTopic
):
    """No reader comes past it, so the decided end is its offset."""
    await topic.write(0, None, 3)
    await topic.write(0, OPEN, 1)
    await topic.write(0, None, 3)
    first, second = await lag(connector)
    assert first == Lag(FIRST, None, EndOffset(3), 3, at_least=False, log=to(7))
    assert second == Lag(SECOND, None, EndOffset(0), 0, at_least=False, log=to(0))


async def test_messages_acknowledged_out_of_order_are_not_left(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic
):
    """They are in the metadata of the group's commit."""
    await topic.write(0, None, 10)
    cursor = Cursor(Offset(2), (Range(Offset(4), EndOffset(8)),))
    broker.group(GROUP).committed[FIRST] = Committed(cursor.offset, encode(cursor))
    assert (await lag(connector))[0].visible == 4


async def test_the_work_is_bounded(connector: MemoryConnector, topic: CoordinatedTopic):
    """Beyond the limit the count is a lower bound, and no end is claimed."""
    await topic.write(0, None, 300)
    (first, _) = await lag(connector, records_max=100)
    assert first == Lag(FIRST, None, None, 100, at_least=True, log=to(300))
    (exact, _) = await lag(connector, records_max=300)
    assert exact == Lag(FIRST, None, EndOffset(300), 300, at_least=False, log=to(300))


async def test_more_undecided_records_than_are_held(
    connector: MemoryConnector, topic: CoordinatedTopic, monkeypatch: pytest.MonkeyPatch
):
    """Memory is bounded behind an undecided record, and the count still ends."""
    monkeypatch.setattr("stilltide.pipeline.drivers.read_committed.visible_scan.WAITING_MAX", 5)
    await topic.write(0, None, 2)
    await topic.write(0, OPEN, 100)
    (first, _) = await lag(connector)
    assert first == Lag(FIRST, None, EndOffset(2), 2, at_least=False, log=to(102))


async def test_errors_name_what_is_wrong(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic
):
    """A topic that is not there; a commit of a later version, with its place."""
    with pytest.raises(FatalError, match="does not exist"):
        await lag_of(connector, "nothing", GROUP, records_max=1, timeout_s=5)
    await topic.write(0, None, 1)
    broker.group(GROUP).committed[FIRST] = Committed(Offset(0), "st1;a=z")
    with pytest.raises(UnknownVersionError, match="orders/0@0"):
        await lag(connector)
