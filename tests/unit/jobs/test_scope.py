"""What a run of the audits is about, on the memory broker."""

import pytest

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.errors import ConfigError
from stilltide.pipeline.jobs.audits.plan import Bounds, check_unmoved, resolve
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

PLACES = [TopicPartition("orders", number) for number in range(2)]


@pytest.fixture
def broker() -> MemoryBroker:
    """Two partitions of five records, and a compacted topic."""
    broker = MemoryBroker()
    broker.create_topic(TopicSpec("orders", 2))
    broker.create_topic(TopicSpec("prices", 1, {"cleanup.policy": "compact,delete"}))
    for place in PLACES:
        for _ in range(5):
            broker.append(place, None, b"v", None)
    return broker


async def test_whole_logs_by_default(broker: MemoryBroker):
    """And which topics are compacted."""
    scope = await resolve(MemoryConnector(broker), ["orders", "prices"], {}, {})
    assert scope.evidence.data == scope.logs
    assert [(read.start, read.end) for read in scope.logs] == [(0, 5), (0, 5), (0, 0)]
    assert scope.compacted == {"prices"}


@pytest.mark.parametrize(
    ("first", "until", "found"),
    [
        ({None: 1}, {None: 4}, [(1, 4), (1, 4)]),
        ({PLACES[1]: 2}, {}, [(0, 5), (2, 5)]),
        ({None: 1, PLACES[0]: 3}, {PLACES[0]: 3}, [(3, 3), (1, 5)]),
    ],
)
async def test_bounds(
    broker: MemoryBroker, first: Bounds, until: Bounds, found: list[tuple[int, int]]
):
    """A partition's own bound outranks that of all."""
    scope = await resolve(MemoryConnector(broker), ["orders"], first, until)
    assert [(read.start, read.end) for read in scope.evidence.data] == found


@pytest.mark.parametrize(
    ("first", "until", "error"),
    [
        ({None: 6}, {}, OffsetOutOfRangeError),
        ({}, {PLACES[1]: 6}, OffsetOutOfRangeError),
        ({None: 3}, {None: 2}, ConfigError),
        ({TopicPartition("orders", 2): 0}, {}, ConfigError),
        ({}, {TopicPartition("prices", 0): 0}, ConfigError),
    ],
)
async def test_bounds_that_cannot_be_are_refused(
    broker: MemoryBroker, first: Bounds, until: Bounds, error: type[Exception]
):
    """Outside of the log, the wrong way round, of what is not audited."""
    with pytest.raises(error):
        await resolve(MemoryConnector(broker), ["orders"], first, until)


async def test_a_log_that_moved_is_refused(broker: MemoryBroker):
    """Deleted records, a deleted topic, another topic of the same name."""
    connector = MemoryConnector(broker)
    scope = await resolve(connector, ["orders"], {PLACES[0]: 2}, {})
    admin = connector.admin()
    await check_unmoved(admin, scope)
    broker.delete_records(PLACES[0], Offset(2))
    await check_unmoved(admin, scope)
    broker.delete_records(PLACES[0], Offset(3))
    with pytest.raises(FatalError, match="deleted while") as caught:
        await check_unmoved(admin, scope)
    assert caught.value.place == "orders/0@3"
    broker.delete_topic("orders")
    with pytest.raises(FatalError, match="created again"):
        await check_unmoved(admin, scope)
    broker.create_topic(TopicSpec("orders", 2))
    with pytest.raises(FatalError, match="created again"):
        await check_unmoved(admin, scope)
    await admin.close()


async def test_ranges_are_of_the_audited_topics_only(broker: MemoryBroker):
    """In the order of topic and partition."""
    scope = await resolve(MemoryConnector(broker), ["prices"], {}, {})
    place = TopicPartition("prices", 0)
    assert scope.logs == (OffsetRange(place, Offset(0), EndOffset(0)),)
