"""A coordinator on the memory broker whose log is trimmed (C8)."""

from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.memory.log import Log
from stilltide.pipeline.errors import LogTrimmedError
from stilltide.schemas.coordinator import txn_log
from stilltide.schemas.coordinator.transactions import (
    Describe,
    End,
    Listed,
    ListTransactions,
    Open,
    Opened,
    Registered,
)
from stilltide.schemas.framing import decode_value
from stilltide.schemas.service.envelopes import Done, Refused
from stilltide.schemas.topics import TXN_LOG, TopicSpec, system_topics
from stilltide.schemas.values import EndOffset, Offset, TopicPartition
from tests.support.coordinator.asker import Asker
from tests.support.coordinator.worker_memory import PARTITIONS, MemoryWorker, until

LOG = TopicPartition(TXN_LOG, 0)
TIMEOUT_MS = 30_000
ORDERS = Registered(TopicPartition("orders", 0), EndOffset(0), bytes(16))
MANY = tuple(
    Registered(TopicPartition("orders-of-a-long-name", it), EndOffset(0), bytes(16))
    for it in range(50)
)

pytestmark = pytest.mark.topics(TopicSpec("orders", 1), TopicSpec(MANY[0].data.topic, len(MANY)))


@pytest.fixture
async def client(connector: MemoryConnector) -> AsyncIterator[Asker]:
    """A client of the coordinator, which need not run yet."""
    admin = connector.admin()
    await admin.ensure_topics(system_topics(coordinators=1, partitions=PARTITIONS))
    made = Asker(connector, name="c", resend_s=0.5)
    await made.open(partition_count=1, response_partition_count=PARTITIONS)
    yield made
    await made.close()


def log_of(broker: MemoryBroker) -> Log:
    """The coordinator's log."""
    log = broker.log(LOG)
    assert log is not None
    return log


def logged(broker: MemoryBroker) -> list[str]:
    """What the log holds, by kind of record."""
    records = [data for it in broker.records(LOG) for data in decode_value(it.value)]
    return [type(txn_log.decode(data).body).__name__ for data in records]


async def test_a_log_without_open_transactions_is_trimmed_to_its_base(
    broker: MemoryBroker, connector: MemoryConnector, client: Asker
):
    """C8: soon after the last transaction ended; the next sequence outlives its record."""
    log = log_of(broker)
    async with MemoryWorker(connector):
        for sequence in range(3):
            assert await client.ask(0, Open(TIMEOUT_MS, 1, (ORDERS,))) == Opened(sequence, 1)
            assert await client.ask(0, End(sequence, False, (), True)) == Done()
        await until(lambda: log.start == log.end - 1)
        assert logged(broker) == ["Base"]
    async with MemoryWorker(connector):
        assert await client.ask(0, Open(TIMEOUT_MS, 1, (ORDERS,))) == Opened(3, 1)
        refused = Refused("transaction 2 was aborted by its client")
        assert await client.ask(0, End(2, True, (), False)) == refused


async def test_a_trimmed_log_without_a_base_is_refused(
    broker: MemoryBroker, connector: MemoryConnector, client: Asker
):
    """C8: records that others deleted end the coordinator, with the log's place."""
    async with MemoryWorker(connector):
        for _ in range(2):
            await client.ask(0, Open(TIMEOUT_MS, 1, ()))
    broker.delete_records(LOG, Offset(2))
    async with MemoryWorker(connector) as worker:
        error = worker.ends["coordinator 0"].error
    assert isinstance(error, LogTrimmedError)
    assert error.place == f"{LOG}@2"


async def listed(client: Asker) -> Listed:
    """The open transactions, whatever place in the log they are told of."""
    found = await client.ask(0, ListTransactions())
    assert isinstance(found, Listed)
    return found._replace(as_of=EndOffset(0))


async def test_a_large_base_is_written_in_pieces(
    broker: MemoryBroker, connector: MemoryConnector, client: Asker
):
    """C8: open transactions survive in a base of several records, in their order."""
    log = log_of(broker)
    async with MemoryWorker(connector):
        await client.ask(0, Open(TIMEOUT_MS, 300, MANY))
        before = await listed(client)
        while log.start == 0:
            await client.ask(0, Describe(10**6))
        assert logged(broker).count("Base") > 1
    async with MemoryWorker(connector):
        assert await listed(client) == before
