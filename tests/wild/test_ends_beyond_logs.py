"""A user saw: markers are not trimmed any more, and `stilltide.txn-markers` grows for ever.

A program with a fault had committed a transaction whose records end, as it said, at an offset that
no log has. A marker is trimmed once a snapshot has passed that offset, and no marker before it.
"""

from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.drivers.coordinator.end_offsets import BEYOND_MAX
from stilltide.pipeline.testing.cluster import MemoryCluster
from stilltide.schemas.coordinator.requests import decode_response, encode_request
from stilltide.schemas.coordinator.transactions import (
    Answer,
    End,
    Open,
    Opened,
    Registered,
    RequestBody,
    Written,
)
from stilltide.schemas.framing import decode_value, encode_batch
from stilltide.schemas.service.envelopes import Done, RefusalCode, Refused, Request, client_key
from stilltide.schemas.topics import TXN_REQUESTS, TXN_RESPONSES
from stilltide.schemas.values import OFFSET_MAX, EndOffset, Offset, TopicPartition
from tests.support.coordinator.worker_memory import until

CLIENT = b"client-012345678"
ORDERS, OTHER, GONE = (TopicPartition(it, 0) for it in ("orders", "other", "gone"))
ANSWERS = TopicPartition(TXN_RESPONSES, 1)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """A cluster with three topics, each with a record."""
    async with MemoryCluster({it.topic: 1 for it in (ORDERS, OTHER, GONE)}) as made:
        for data in (ORDERS, OTHER, GONE):
            made.append(data.topic, b"plain")
        yield made


async def answer(broker: MemoryBroker, number: int, body: RequestBody) -> Answer:
    """The answer to a request of a program that makes its requests itself."""
    request = encode_request(Request(CLIENT, number, 0, ANSWERS.partition, body))
    broker.append(TopicPartition(TXN_REQUESTS, 0), CLIENT, encode_batch([request]), None)

    def found() -> list[Answer]:
        values = [it.value for it in broker.records(ANSWERS) if it.key == client_key(CLIENT)]
        told = [decode_response(data) for value in values for data in decode_value(value)]
        return [one.answer for one in told if one.number == number]

    await until(found)
    return found()[0]


async def opened(broker: MemoryBroker, *partitions: TopicPartition) -> None:
    """Transaction 0, registered with these partitions."""
    registered = tuple(
        Registered(it, EndOffset(0), broker.topics[it.topic].description.topic_id)
        for it in partitions
    )
    assert await answer(broker, 1, Open(60_000, 1, registered)) == Opened(0, 1)


def commit(*ends: tuple[TopicPartition, int]) -> End:
    """A commit of one record on each partition, with these end offsets."""
    written = tuple(Written(data, Offset(0), EndOffset(end), 1) for data, end in ends)
    return End(0, committed=True, written=written, wait_visible=False)


@pytest.mark.parametrize("end", [BEYOND_MAX + 1, OFFSET_MAX])
async def test_an_end_beyond_the_log_is_refused(cluster: MemoryCluster, end: int):
    """C16: the reason names partition and both ends, and the transaction may still be committed."""
    await opened(cluster.broker, ORDERS, OTHER)
    refused = await answer(cluster.broker, 2, commit((OTHER, 1), (ORDERS, end)))
    assert isinstance(refused, Refused)
    assert refused.code is RefusalCode.MALFORMED
    assert refused.reason == f"orders/0 ends at 1, and the commit's records at {end}"
    assert await answer(cluster.broker, 3, commit((OTHER, 1), (ORDERS, 1))) == Done()


async def test_a_true_end_far_beyond_what_is_known_is_taken(cluster: MemoryCluster):
    """C3: the log is asked how far it reaches; it is not asked again for the next commit."""
    log = cluster.broker.log(ORDERS)
    assert log is not None
    log.end = EndOffset(5_000_000)
    await opened(cluster.broker, ORDERS)
    assert await answer(cluster.broker, 2, commit((ORDERS, 5_000_000))) == Done()
    async with (
        TransactionClient(connector=cluster.connector) as client,
        client.transaction() as txn,
    ):
        await txn.send(ORDERS.topic, b"1")
    assert txn.state == "committed"


async def test_a_topic_that_has_gone_keeps_no_commit_from_the_others(cluster: MemoryCluster):
    """C3: a partition that no longer exists has no end offset."""
    await opened(cluster.broker, ORDERS, GONE)
    del cluster.broker.topics[GONE.topic]
    asked = commit((ORDERS, 1), (GONE, OFFSET_MAX))
    assert await answer(cluster.broker, 2, asked) == Done()
