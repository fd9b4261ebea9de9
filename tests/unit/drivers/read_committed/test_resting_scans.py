"""Scans whose reader is closed at rest."""

import asyncio
from typing import Any

import pytest

from stilltide.connectors.errors import FatalError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.readers import LogReader
from stilltide.pipeline.drivers.read_committed import decided_log
from stilltide.pipeline.drivers.read_committed.decided_log import RestingScans
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

DATA = TopicPartition("orders", 0)
WAIT_S = 20.0


class NotedConnector(MemoryConnector):
    """Keeps the readers that it has made."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.readers: list[LogReader] = []

    def reader(self, *arguments: Any, **options: Any) -> LogReader:
        """As `MemoryConnector.reader`."""
        self.readers.append(made := super().reader(*arguments, **options))
        return made


@pytest.fixture
def connector() -> NotedConnector:
    """A cluster with a topic of three records."""
    broker = MemoryBroker()
    broker.create_topic(TopicSpec(DATA.topic, 1))
    for number in range(3):
        broker.append(DATA, None, b"%d" % number, None)
    return NotedConnector(broker)


async def scanned(scans: RestingScans, start: int, end: int) -> list[bytes | None]:
    """The values of a range."""
    read = OffsetRange(DATA, Offset(start), EndOffset(end))
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
