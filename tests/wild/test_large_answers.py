"""Questions of a few bytes whose answers are megabytes.

What a user saw: an application with a bug asked a pending-ack store a thousand times in one record.
Each answer was 2 MB. The worker made all of them in one turn, took 2 GB and was killed, and so was
the worker that took its partitions over.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.writers import LogWriter
from stilltide.pipeline.drivers.service.own.replies import (
    CLIENT_WAITING_BYTES_MAX,
    WAITING_BYTES_MAX,
    Replies,
)
from stilltide.schemas.framing import decode_value, encode_batch
from stilltide.schemas.pending_ack import codec
from stilltide.schemas.pending_ack.acknowledgements import (
    AckBody,
    Acknowledge,
    AckQuestion,
    Acks,
    Attach,
    DescribeAcks,
)
from stilltide.schemas.service.envelopes import Done, Request, Response, client_key
from stilltide.schemas.topics import (
    ACK_REQUESTS,
    TXN_RESPONSES,
    TopicSpec,
    system_partition,
    system_topics,
)
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition, TxnId
from tests.support.coordinator.worker_memory import PARTITIONS, MemoryWorker, until
from tests.support.pending_ack.client import FIRST, AckClient

READ = SubscriptionId(TopicPartition("orders", 0), "billing")
OTHER = SubscriptionId(TopicPartition("orders", 0), "shipping")
PARTITION = system_partition(READ.data, PARTITIONS)
FAR = 2**55
COUNT = 100_000
QUESTIONS = 1000
NUMBER = 10_000
"""Of the first of these questions."""

ANSWER_BYTES = 2_000_000


@pytest.fixture
async def worker(broker: MemoryBroker, connector: MemoryConnector) -> AsyncIterator[MemoryWorker]:
    """A worker, and the topic that the groups read."""
    broker.create_topic(TopicSpec(READ.data.topic, 1))
    async with MemoryWorker(connector) as made:
        yield made


@pytest.fixture
async def client(connector: MemoryConnector, worker: MemoryWorker) -> AsyncIterator[AckClient]:
    """A client that has acknowledged as much as a store takes in one of its transactions."""
    made = AckClient(connector, READ)
    await made.open(partitions=PARTITIONS)
    assert isinstance(await made.ask(Attach(FIRST, EndOffset(0), ())), Acks)
    offsets = tuple(Offset(FAR + 2 * number) for number in range(COUNT))
    assert await made.ask(Acknowledge(TxnId(0, 1), FIRST, offsets)) == Done()
    yield made
    await made.close()


async def asked_at_once(
    client: AckClient, body: AckBody, worker: MemoryWorker, writer: LogWriter
) -> None:
    """The store has taken the same question a thousand times, in one record."""
    store = worker.pending_acks[PARTITION]
    logged = store.stats().log.records_written
    reply_partition = zlib.crc32(client.client_id) % PARTITIONS
    questions = [
        codec.encode_request(
            Request(client.client_id, NUMBER + number, 0, reply_partition, AckQuestion(READ, body))
        )
        for number in range(QUESTIONS)
    ]
    data = TopicPartition(ACK_REQUESTS, PARTITION)
    writer.append(data, encode_batch(questions), lambda _error, _offset: None)

    def taken() -> bool:
        log = store.stats().log
        return log.records_written - logged >= QUESTIONS and not log.appends_in_flight

    await until(taken)


def answers_to(broker: MemoryBroker, client_id: bytes) -> list[bytes]:
    """The answers to a client in the topic, in order."""
    records = [
        it
        for partition in range(PARTITIONS)
        for it in broker.records(TopicPartition(TXN_RESPONSES, partition))
        if it.key == client_key(client_id)
    ]
    return [data for it in records for data in decode_value(it.value)]


@pytest.mark.parametrize("kind", ["question", "claim"])
async def test_a_thousand_large_answers_take_no_more_than_their_bound(
    kind: str,
    broker: MemoryBroker,
    connector: MemoryConnector,
    worker: MemoryWorker,
    client: AckClient,
):
    """C16: the first ones are right, later ones are dropped, and another client gets its own."""
    other = AckClient(connector, OTHER)
    await other.open(partitions=PARTITIONS)
    member = await client.group_member()
    claim = Attach(FIRST, EndOffset(0), (), member)
    writer = connector.writer("flood")
    broker.hold(TXN_RESPONSES)
    await asked_at_once(client, DescribeAcks() if kind == "question" else claim, worker, writer)
    asking = asyncio.create_task(other.ask(DescribeAcks()))
    await asyncio.sleep(0)
    broker.release()
    assert await asking == Acks(EndOffset(0), (), (), b"")
    # On a busy machine, a request of the client itself may have been asked, and answered, twice.
    every = answers_to(broker, client.client_id)
    answers = [data for data in every if codec.decode_response(data).number >= NUMBER]
    assert len(answers[0]) > ANSWER_BYTES
    assert sum(map(len, answers)) <= CLIENT_WAITING_BYTES_MAX + len(answers[0])
    first = codec.decode_response(answers[0])
    assert isinstance(first, Response)
    assert first.number == NUMBER
    assert isinstance(first.answer, Acks)
    assert [len(it.ranges) for it in first.answer.pending] == [COUNT]
    described = await client.ask(DescribeAcks())
    assert described == first.answer, "whoever was not answered asks again"
    await writer.close()
    await other.close()


async def test_many_clients_share_a_bound(broker: MemoryBroker, connector: MemoryConnector):
    """C16: what waits for all of them together is bounded, and room comes with delivery."""
    for spec in system_topics(coordinators=1, partitions=1):
        broker.create_topic(spec)
    writer = connector.writer("worker")
    replies = Replies(writer, partition_count=1)
    broker.hold(TXN_RESPONSES)
    answer = bytes(1024 * 1024)
    clients = [b"%016d" % number for number in range(2 * WAITING_BYTES_MAX // len(answer))]
    for client_id in clients:
        replies.add(client_id, 0, answer)
        replies.send()
    assert not replies.room(b"another")
    assert replies.waiting_bytes == WAITING_BYTES_MAX
    broker.release()
    assert await writer.flush(10)
    assert replies.waiting_bytes == 0
    assert replies.room(clients[0])
    records = broker.records(TopicPartition(TXN_RESPONSES, 0))
    assert sum(len(it.value or b"") for it in records) // len(answer) == len(clients) // 2
    await writer.close()
