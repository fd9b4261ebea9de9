"""How far a data partition is decided, asked while the tail is behind (H)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.drivers.read_committed.decided_log import DecidedLog
from stilltide.pipeline.drivers.read_committed.outcome_tails import OutcomeLogs
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.schemas.coordinator import markers
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.headers import TXN
from stilltide.schemas.topics import TXN_MARKERS, TopicSpec, system_topics
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId

DATA = TopicPartition("orders", 0)
ID = TxnId(0, 7)
WAIT_S = 20.0


@pytest.fixture
async def broker() -> MemoryBroker:
    """With two plain records."""
    made = MemoryBroker()
    for spec in [*system_topics(coordinators=1, partitions=1), TopicSpec(DATA.topic, 1)]:
        made.create_topic(spec)
    made.append(DATA, None, b"0", None)
    made.append(DATA, None, b"1", None)
    return made


@pytest.fixture
async def decided(broker: MemoryBroker) -> AsyncIterator[DecidedLog]:
    """That has read them."""
    connector = MemoryConnector(broker)
    admin = connector.admin()

    made = DecidedLog(
        OutcomeLogs(connector, admin, OutageGuard(admin, timeout_s=WAIT_S), "test", 1, 1)
    )
    made.add({DATA: Offset(0)})
    running = asyncio.create_task(made.run())
    async with asyncio.timeout(WAIT_S):
        assert await made.decided_end_now(DATA) == 2
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await made.close()
    await admin.close()


async def test_a_stale_tail_is_waited_for(broker: MemoryBroker, decided: DecidedLog):
    """H: records written before the question count, though the tail has not read them yet."""
    broker.append(DATA, None, b"2", None)
    assert decided.decided_end(DATA) == 2, "which may lag"
    async with asyncio.timeout(WAIT_S):
        assert await decided.decided_end_now(DATA) == 3


async def test_a_marker_that_was_not_read_yet_is_waited_for(
    broker: MemoryBroker, decided: DecidedLog
):
    """H: an outcome written before the question counts; without one the record is not decided."""
    broker.append(DATA, None, b"2", [(TXN, ID.to_bytes())])
    broker.append(DATA, None, b"3", None)
    async with asyncio.timeout(WAIT_S):
        assert await decided.decided_end_now(DATA) == 2
    topic_id = broker.topics[DATA.topic].description.topic_id
    marker = Marker(DATA, ID, True, EndOffset(2), EndOffset(3), 1, topic_id)
    key, value = markers.encode_key(DATA, ID), markers.encode_value(marker)
    broker.append(TopicPartition(TXN_MARKERS, 0), key, value, None)
    assert decided.decided_end(DATA) == 2
    async with asyncio.timeout(WAIT_S):
        assert await decided.decided_end_now(DATA) == 4


@pytest.fixture
def two_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log made afterwards pauses a partition with two undecided records."""
    monkeypatch.setattr("stilltide.pipeline.drivers.read_committed.decided_log.WAITING_MAX", 2)


@pytest.mark.usefixtures("two_may_wait")
async def test_a_marker_ends_a_pause(broker: MemoryBroker, decided: DecidedLog):
    """D7: fetching goes on after the marker, though no other partition has new records."""
    other = TopicPartition("payments", 0)
    broker.create_topic(TopicSpec(other.topic, 1))
    decided.add({other: Offset(0)})
    for _ in range(3):
        broker.append(other, None, b"2", [(TXN, ID.to_bytes())])
    async with asyncio.timeout(WAIT_S):
        assert await decided.decided_end_now(other) == 0
    broker.append(other, None, b"3", None)
    marker = Marker(other, ID, False, EndOffset(0), None, 0, bytes(16))
    key, value = markers.encode_key(other, ID), markers.encode_value(marker)
    broker.append(TopicPartition(TXN_MARKERS, 0), key, value, None)
    async with asyncio.timeout(WAIT_S):
        assert await decided.decided_end_now(other) == 4
