"""A publish that had nothing to copy for a week told its operator to check that the broker runs.

Brokers forget a transactional id that is idle for longer than `transactional.id.expiration.ms`. The
next transaction of a publish or link was refused, which the log called "Purged in queue; check that
the broker runs", and `copied` counted the copies that were aborted, so that it showed more records
than the topic had.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.errors import RetriableError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.readers import NewRecord
from stilltide.pipeline.drivers.links.link import LinkRun, LinkRunOptions
from stilltide.schemas.replication.origins import PublishRoute
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import ClusterName, TopicPartition
from tests.support.looks import between_looks

WAIT_S = 180
COUNT = 5
PUBLISH = PublishRoute("orders", "orders.committed")
SOURCE, COPIES = TopicPartition("orders", 0), TopicPartition("orders.committed", 0)
FORGETFUL = {
    "transactional.id.expiration.ms": "1000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
}


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that forgets an idle transactional id after a second."""
    directory = tmp_path_factory.mktemp("forgetful")
    with LocalCluster("f", directory, fast_start=True, properties=FORGETFUL) as cluster:
        yield cluster.bootstrap


@pytest.fixture
async def connector(forgetful: str) -> KafkaConnector:
    """A connector, and a topic without records."""
    connector = KafkaConnector(KafkaConfig(forgetful))
    admin = connector.admin()
    await admin.ensure_topics([TopicSpec("orders", 1), TopicSpec("settings", 1)])
    await admin.close()
    return connector


async def until(ready: Callable[[], bool]) -> None:
    """Returns when `ready()` is true."""
    async with asyncio.timeout(WAIT_S):
        while not ready():
            await between_looks()


async def all_forgotten(connector: KafkaConnector) -> None:
    """Returns when the broker knows no transactional id any more."""
    native = connector.native_transactions("a-look")
    try:
        async with asyncio.timeout(WAIT_S):
            while await native.list_transactions():
                await between_looks()
    finally:
        await native.close()


async def write(connector: KafkaConnector) -> None:
    """Writes records to the source."""
    writer = connector.writer("application")
    for number in range(COUNT):
        writer.append(SOURCE, b"%d" % number, lambda _error, _offset: None)
    assert await writer.flush(WAIT_S)
    await writer.close()


@asynccontextmanager
async def publishing(connector: KafkaConnector) -> AsyncIterator[LinkRun]:
    """A publish that runs, and raises its error at exit."""
    end = ClusterName("f"), connector
    options = LinkRunOptions(publish=PUBLISH, partition_count=1)
    replication = LinkRun(end, end, SystemClock(), options)
    running = asyncio.create_task(replication.run())
    try:
        yield replication
    finally:
        replication.stop()
        async with asyncio.timeout(WAIT_S):
            await running


async def test_a_publish_goes_on_after_its_id_was_forgotten(connector: KafkaConnector):
    """It says what happened, copies each record once, and counts what it has committed."""
    async with publishing(connector) as publish:
        await write(connector)
        await until(lambda: publish.progress.records == COUNT)
        await all_forgotten(connector)
        await write(connector)
        await until(lambda: publish.progress.records >= 2 * COUNT)
        error = publish.last_error
    assert error is not None
    assert "the brokers have forgotten the transactional id" in error.cause
    assert publish.progress.records == 2 * COUNT
    admin = connector.admin()
    ends = await admin.end_offsets([COPIES], committed=True)
    await admin.close()
    assert ends[COPIES] >= 2 * COUNT


async def test_a_set_of_records_is_refused_with_the_cause(connector: KafkaConnector):
    """A writer whose id was forgotten says so; after `fence` the same set is written."""
    writer = connector.transactional_writer("settings-writer")
    records = [NewRecord(TopicPartition("settings", 0), b"k", b"v")]
    try:
        await writer.fence()
        await writer.write(records)
        await all_forgotten(connector)
        with pytest.raises(RetriableError, match="forgotten the transactional id") as raised:
            await writer.write(records)
        assert "transactional.id.expiration.ms" in raised.value.detail
        await writer.fence()
        await writer.write(records)
    finally:
        await writer.close()
