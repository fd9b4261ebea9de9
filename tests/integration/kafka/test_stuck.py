"""Readers of Kafka that no broker serves for longer than they bear."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.kafka.logs import LOGGER
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.readers import Fetching, LogReader, Record
from stilltide.connectors.ports.writers import LogWriter
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition
from tests.contract.rig import Membership

WAIT_S = 450
FETCH_TIMEOUT_S = 3
SHARED = "shared-tailing"


class BegunAnew(logging.Handler):
    """Waits for readers that begin again; by the client ids their warnings name."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._loop = asyncio.get_running_loop()
        self._readers: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        """Runs on a reader's thread."""
        if "begins again with a new client" in record.getMessage():
            assert isinstance(record.args, tuple)
            self._loop.call_soon_threadsafe(self._readers.put_nowait, str(record.args[0]))

    async def next(self, timeout_s: float = WAIT_S) -> str:
        """The next one.

        Raises:
            TimeoutError: none has started over in time.
        """
        async with asyncio.timeout(timeout_s):
            return await self._readers.get()


@pytest.fixture
async def begun_anew(caplog: pytest.LogCaptureFixture) -> AsyncIterator[BegunAnew]:
    """Hears of every reader of the test."""
    caplog.set_level(logging.DEBUG, LOGGER.name)  # where one begins again more than once
    handler = BegunAnew()
    LOGGER.addHandler(handler)
    yield handler
    LOGGER.removeHandler(handler)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker of this module's own, to be frozen."""
    with LocalCluster("frozen", tmp_path_factory.mktemp("frozen"), fast_start=True) as cluster:
        yield cluster


@pytest.fixture
async def connector(cluster: LocalCluster, topic_name: str) -> KafkaConnector:
    """Of that broker, where the topic has three partitions."""
    connector = KafkaConnector(
        KafkaConfig(cluster.bootstrap, fetch_timeout_s=FETCH_TIMEOUT_S, session_timeout_s=12)
    )
    admin = connector.admin()
    await admin.ensure_topics([TopicSpec(topic_name, 3)])
    await admin.close()
    return connector


async def _append(writer: LogWriter, data: TopicPartition, value: bytes) -> None:
    writer.append(data, value, lambda *_: None)
    assert await writer.flush(WAIT_S)


async def _read(reader: LogReader, count: int) -> list[Record]:
    records: list[Record] = []
    async with asyncio.timeout(WAIT_S):
        while len(records) < count:
            try:
                items = await reader.read()
            except RetriableError:  # the broker is away, or was
                continue
            records += [it for it in items if isinstance(it, Record)]
    return records


async def test_readers_read_on_with_a_new_client(
    cluster: LocalCluster, connector: KafkaConnector, topic_name: str, begun_anew: BegunAnew
):
    """Two share it: to neither anything is lost or told again, and what was paused stays so."""
    read, paused = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
    shared = TopicPartition(topic_name, 2)
    writer = connector.writer("w")
    reader, other = connector.reader("stuck"), connector.reader("stuck too")
    await _append(writer, read, b"0")
    await _append(writer, paused, b"p")
    await reader.assign({read: Offset(0), paused: Offset(1)})
    await other.assign({shared: Offset(0)})
    assert [it.name for it in threading.enumerate()].count(SHARED) == 1
    assert [it.value for it in await _read(reader, 1)] == [b"0"]
    reader.pause([paused])
    cluster.pause()
    assert await begun_anew.next() == SHARED
    cluster.resume()
    await _append(writer, shared, b"s")
    await _append(writer, paused, b"q")
    await _append(writer, read, b"1")
    await _append(writer, read, b"2")
    assert [it.value for it in await _read(reader, 2)] == [b"1", b"2"]
    assert [it.value for it in await _read(other, 1)] == [b"s"]
    reader.resume([paused])
    assert [it.value for it in await _read(reader, 1)] == [b"q"]
    await other.close()
    await reader.close()
    assert SHARED not in [it.name for it in threading.enumerate()]
    await writer.close()


async def test_a_reader_that_shares_with_nobody_reads_on_too(
    cluster: LocalCluster, connector: KafkaConnector, topic_name: str, begun_anew: BegunAnew
):
    """With a new client of its own."""
    data = TopicPartition(topic_name, 0)
    writer, reader = connector.writer("w"), connector.reader("alone", fetching=Fetching.SCANNING)
    await _append(writer, data, b"0")
    await reader.assign({data: Offset(0)})
    assert [it.value for it in await _read(reader, 1)] == [b"0"]
    cluster.pause()
    assert await begun_anew.next() == "alone"
    cluster.resume()
    await _append(writer, data, b"1")
    assert [it.value for it in await _read(reader, 1)] == [b"1"]
    await reader.close()
    await writer.close()


async def test_a_member_joins_its_group_again_as_a_new_client(
    cluster: LocalCluster, connector: KafkaConnector, topic_name: str, begun_anew: BegunAnew
):
    """It is told that its partitions were lost, gets them again, reads on and commits."""
    data = TopicPartition(topic_name, 0)
    writer = connector.writer("w")
    member = Membership(connector.group_reader("stuck", topic_name))
    await member.join(topic_name)
    await _append(writer, data, b"0")
    await member.until(lambda: len(member.records) == 1)
    await member.reader.commit({data: Offset(1)})
    cluster.pause()
    assert await begun_anew.next() == "stuck"
    cluster.resume()
    await _append(writer, data, b"1")
    # The group waits for the member that was, until its session ends.
    await member.until(lambda: len(member.records) == 2, WAIT_S)
    assert [it.value for it in member.records] == [b"0", b"1"]
    assert [kind for kind, _ in member.events] == ["assigned", "revoked", "assigned"]
    await member.reader.commit({data: Offset(2)})
    await member.leave()
    await writer.close()


async def test_a_quiet_reader_keeps_its_client(
    connector: KafkaConnector, topic_name: str, begun_anew: BegunAnew
):
    """At the end of its partition it is served, and so is one that has paused all it reads."""
    data = TopicPartition(topic_name, 0)
    quiet, paused = connector.reader("quiet"), connector.reader("paused")
    for reader in (quiet, paused):
        await reader.assign({data: Offset(0)})
    paused.pause([data])
    with pytest.raises(TimeoutError):
        await begun_anew.next(2 * FETCH_TIMEOUT_S)
    for reader in (quiet, paused):
        await reader.close()
