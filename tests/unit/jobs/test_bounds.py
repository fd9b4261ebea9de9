"""Bounds of a read, on the memory broker."""

from datetime import UTC, datetime

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.errors import ConfigError
from stilltide.pipeline.jobs.bounds import Bound, narrowed, resolved
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

DATA = TopicPartition("orders", 0)
LOGS = [OffsetRange(DATA, Offset(0), EndOffset(5))]


async def resolve(
    bound: Bound | None, *, by_time: bool = False
) -> dict[TopicPartition | None, int]:
    """The bound on a log of five records, with timestamps of 1970."""
    broker = MemoryBroker()
    broker.create_topic(TopicSpec("orders", 1))
    for _ in range(5):
        broker.append(DATA, None, b"v", None)
    admin = MemoryConnector(broker).admin()
    return dict(await resolved(admin, LOGS, bound, by_time=by_time))


async def test_offsets_are_taken_as_they_are():
    """One for every partition, or some of their own."""
    assert await resolve(None) == {}
    assert await resolve(3) == {None: 3}
    assert await resolve({DATA: 2}) == {DATA: 2}


@pytest.mark.parametrize(
    ("moment", "found"),
    [(datetime(1970, 1, 1, tzinfo=UTC), 0), (datetime(2100, 1, 1, tzinfo=UTC), 5)],
)
async def test_a_moment_is_the_first_record_not_before_it(moment: datetime, found: int):
    """Before all records the log start, past them the end; as a number only when asked so."""
    assert await resolve(moment) == {DATA: found}
    assert await resolve(int(moment.timestamp() * 1000), by_time=True) == {DATA: found}


@pytest.mark.parametrize("bound", [datetime(2026, 1, 1), {DATA: 1}])  # noqa: DTZ001 - what is refused
async def test_a_moment_has_a_time_zone_and_is_for_all_partitions(bound: Bound):
    """A guess of the zone would be hours off, and nobody would see it."""
    with pytest.raises(ConfigError):
        await resolve(bound, by_time=True)


def test_a_range_lies_within_its_log():
    """Start and end are taken per partition."""
    assert narrowed(LOGS, {None: 1}, {DATA: 4}) == (LOGS[0]._replace(start=1, end=4),)
    with pytest.raises(ConfigError, match="read from 4 to 2"):
        narrowed(LOGS, {None: 4}, {None: 2})
