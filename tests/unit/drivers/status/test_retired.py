"""A link that was retired is forgotten, until it gives a sign of life again."""

import asyncio

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.clock import MemoryClock
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.core.status.values import LinkStatus
from stilltide.pipeline.drivers.status.cluster import StatusTarget
from stilltide.pipeline.drivers.status.collector import StatusCollector
from stilltide.pipeline.drivers.status.links import forget_link
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.replication.positions import (
    Beat,
    BeatKey,
    LastError,
    LastErrorKey,
    encode_beat,
    encode_beat_key,
    encode_last_error,
    encode_last_error_key,
)
from stilltide.schemas.topics import REPLICATION_POSITIONS, system_topics
from stilltide.schemas.values import ClusterName, TopicPartition

pytestmark = pytest.mark.topics(*system_topics(coordinators=1, partitions=1))

A, B = ClusterName("a"), ClusterName("b")
PATIENCE_S = 120.0
POSITIONS = TopicPartition(REPLICATION_POSITIONS, 0)


def beat(broker: MemoryBroker, at_ms: int) -> None:
    """The link from b to a gives a sign of life."""
    key = encode_beat_key(BeatKey(B, A, 0))
    broker.append(POSITIONS, key, encode_beat(Beat(at_ms, None)), None)


def fail(broker: MemoryBroker, at_ms: int, cause: str = "no room") -> None:
    """The link from b to a tells an error."""
    key, told = encode_last_error_key(LastErrorKey(B, A)), LastError(at_ms, cause, "make room")
    broker.append(POSITIONS, key, encode_last_error(told), None)


async def links(broker: MemoryBroker, clock: MemoryClock) -> tuple[LinkStatus, ...]:
    """The links that the status shows."""
    connector = MemoryConnector(broker)
    target = StatusTarget(A, "a:9092", connector, connector)
    async with StatusCollector([target], clock=clock) as collector:
        found = (await collector.collect(PATIENCE_S)).links[A]
    assert found.problem == ""
    return found.value or ()


async def forget(broker: MemoryBroker, clock: MemoryClock, *, sure: bool = True) -> LinkStatus:
    """What the command does."""
    async with asyncio.timeout(PATIENCE_S):
        return await forget_link(A, MemoryConnector(broker), B, clock, sure=sure)


async def test_a_retired_link_is_forgotten_until_it_beats_again(broker: MemoryBroker):
    """Without being sure nothing changes."""
    clock = MemoryClock(1_000_000)
    beat(broker, 900_000)
    assert (await forget(broker, clock, sure=False)).beat_ms == 900_000
    assert [it.running for it in await links(broker, clock)] == [False]
    await forget(broker, clock)
    assert await links(broker, clock) == ()
    beat(broker, 970_000)
    assert [it.beat_ms for it in await links(broker, clock)] == [970_000]
    await forget(broker, clock)
    assert await links(broker, clock) == ()


async def test_a_link_that_runs_is_not_forgotten(broker: MemoryBroker):
    """The error says what to do first."""
    clock = MemoryClock(1_000_000)
    beat(broker, 999_000)
    with pytest.raises(RefusedError, match="may run") as caught:
        await forget(broker, clock)
    assert "stop the link first" in (caught.value.hint or "")
    assert [it.running for it in await links(broker, clock)] == [True]


async def test_a_link_that_nobody_knows(broker: MemoryBroker):
    """The error names those that are known."""
    with pytest.raises(RefusedError, match="no link from b copies to a") as caught:
        await forget(broker, MemoryClock(1_000_000))
    assert "nowhere" in caught.value.detail


async def test_the_last_error_of_a_link_is_read_from_its_record(broker: MemoryBroker):
    """H9: with time and hint, whether the link runs or not; the newest record counts."""
    clock = MemoryClock(1_000_000)
    fail(broker, 400_000, "older")
    fail(broker, 700_000)
    beat(broker, 999_000)
    for now_ms, running in ((1_000_000, True), (1_100_000, False)):
        (link,) = await links(broker, MemoryClock(now_ms))
        assert link.running is running
        told = link.last_error, link.last_error_ms, link.last_error_hint
        assert told == ("no room", 700_000, "make room")
    broker.append(POSITIONS, encode_last_error_key(LastErrorKey(B, A)), b"\xff", None)
    assert [it.last_error for it in await links(broker, clock)] == [""]


async def test_a_link_that_has_told_nothing_but_an_error_does_not_run(broker: MemoryBroker):
    """H9: it has never copied; it can be forgotten until it fails again."""
    clock = MemoryClock(1_000_000)
    fail(broker, 900_000)
    assert [(it.running, it.beat_ms) for it in await links(broker, clock)] == [(False, None)]
    await forget(broker, clock)
    assert await links(broker, clock) == ()
    fail(broker, 950_000)
    assert [it.last_error_ms for it in await links(broker, clock)] == [950_000]
