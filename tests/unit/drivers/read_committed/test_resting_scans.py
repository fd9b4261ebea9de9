"""Scans whose reader is closed at rest."""

import asyncio
from typing import Any

import pytest

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.memory.reader import MemoryReader
from stilltide.connectors.ports.readers import LogReader
from stilltide.pipeline.drivers.read_committed import decided_log
from stilltide.pipeline.drivers.read_committed.decided_log import RestingScans
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

DATA, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
WAIT_S = 20.0


class NotedConnector(MemoryConnector):
    """Keeps the readers that it has made."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.readers: list[LogReader] = []

    def reader(self, *arguments: Any, **options: Any) -> MemoryReader:
        """As `MemoryConnector.reader`."""
        self.readers.append(made := super().reader(*arguments, **options))
        return made


@pytest.fixture
def connector() -> NotedConnector:
    """A cluster with a topic of three records in each partition."""
    broker = MemoryBroker()
    broker.create_topic(TopicSpec(DATA.topic, 2))
    for data in (DATA, OTHER):
        for number in range(3):
            broker.append(data, None, b"%d" % number, None)
    return NotedConnector(broker)


async def scanned(
    scans: RestingScans, start: int, end: int, data: TopicPartition = DATA
) -> list[bytes | None]:
    """The values of a range."""
    read = OffsetRange(data, Offset(start), EndOffset(end))
    async with asyncio.timeout(WAIT_S):
        return [it.value async for records in scans.scan(read) for it in records]


async def closed(reader: LogReader) -> None:
    """Returns once a reader is closed."""
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(FatalError):
            await reader.read()


async def test_scans_that_follow_each_other_share_a_reader(connector: NotedConnector):
    """Also scans that begin at once, which wait for each other."""
    scans = RestingScans(connector, "test")
    found = await asyncio.gather(scanned(scans, 0, 2), scanned(scans, 1, 3))
    assert found == [[b"0", b"1"], [b"1", b"2"]]
    assert len(connector.readers) == 1
    await scans.close()
    await closed(connector.readers[0])
    await scans.close()


async def test_a_reader_is_closed_at_rest_and_the_next_scan_has_another(
    connector: NotedConnector, monkeypatch: pytest.MonkeyPatch
):
    """Nothing is kept open for a scan that may come; it finds its records all the same."""
    monkeypatch.setattr(decided_log, "REST_S", 0.01)
    scans = RestingScans(connector, "test")
    assert await scanned(scans, 0, 1) == [b"0"]
    await closed(connector.readers[0])
    assert await scanned(scans, 2, 3) == [b"2"]
    assert len(connector.readers) == 2
    await scans.close()
    await closed(connector.readers[1])


async def test_ranges_of_several_partitions_are_read_together(connector: NotedConnector):
    """Each asker has the records of its own range, whatever else is read with it."""
    scans = RestingScans(connector, "test")
    found = await asyncio.gather(
        scanned(scans, 0, 3), scanned(scans, 1, 2, OTHER), scanned(scans, 0, 1, OTHER)
    )
    assert found == [[b"0", b"1", b"2"], [b"1"], [b"0"]]
    assert len(connector.readers) == 1
    await scans.close()


async def test_a_range_that_has_left_its_log_is_an_error_of_its_asker_alone(
    connector: NotedConnector,
):
    """Others that are read together with it have their records, once."""
    await connector.admin().delete_records({OTHER: Offset(2)})
    scans = RestingScans(connector, "test")
    found, gone, late = await asyncio.gather(
        scanned(scans, 0, 3),
        scanned(scans, 0, 3, OTHER),
        scanned(scans, 2, 3, OTHER),
        return_exceptions=True,
    )
    assert found == [b"0", b"1", b"2"]
    assert isinstance(gone, OffsetOutOfRangeError)
    assert late == [b"2"]
    await scans.close()


async def test_a_scan_that_is_not_over_fails_at_the_close(connector: NotedConnector):
    """Nobody waits for an answer that cannot come."""
    scans = RestingScans(connector, "test")
    waiting = asyncio.create_task(scanned(scans, 0, 4))  # the last record is not there yet
    await asyncio.sleep(0)
    await scans.close()
    with pytest.raises(FatalError):
        await waiting
