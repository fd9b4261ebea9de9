import pytest

from stilltide.connectors.errors import OffsetOutOfRangeError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture
def broker() -> MemoryBroker:
    """Two partitions with ten records of two keys each."""
    broker = MemoryBroker()
    broker.create_topic(TopicSpec("orders", 2, {"cleanup.policy": "compact"}))
    for data in (FIRST, SECOND):
        for number in range(10):
            broker.append(data, b"%d" % (number % 2), b"v", None)
    return broker


async def scanned(broker: MemoryBroker, *ranges: OffsetRange) -> dict[int, list[int]]:
    """Offsets by partition, as they come."""
    found: dict[int, list[int]] = {}
    reader = MemoryConnector(broker).reader("scan")
    async for records in scan(reader, ranges):
        for record in records:
            found.setdefault(record.partition, []).append(record.offset)
    await reader.close()
    return found


async def test_every_record_of_the_ranges_and_no_other_comes(broker: MemoryBroker):
    """Start inclusive, end exclusive; what is empty is not waited for."""
    found = await scanned(
        broker,
        OffsetRange(FIRST, Offset(2), EndOffset(5)),
        OffsetRange(SECOND, Offset(0), EndOffset(10)),
    )
    assert found == {0: [2, 3, 4], 1: list(range(10))}
    assert await scanned(broker, OffsetRange(FIRST, Offset(5), EndOffset(5))) == {}


@pytest.mark.parametrize("end", [5, 9, 10])
async def test_a_range_ends_also_where_its_last_records_are_gone(broker: MemoryBroker, end: int):
    """Compaction and control records leave gaps; a later record, or the end of the log, ends it."""
    broker.topics["orders"].compact()
    found = await scanned(broker, OffsetRange(FIRST, Offset(0), EndOffset(end)))
    assert found == {5: {}, 9: {0: [8]}, 10: {0: [8, 9]}}[end]


async def test_a_range_that_was_trimmed_is_an_error(broker: MemoryBroker):
    """Not a shorter range."""
    broker.delete_records(FIRST, Offset(3))
    with pytest.raises(OffsetOutOfRangeError):
        await scanned(broker, OffsetRange(FIRST, Offset(0), EndOffset(5)))
