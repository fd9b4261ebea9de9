"""C1b, C17: answers reach the client in order, in records that the topic takes."""

import asyncio

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.service.own.replies import ANSWERS_BYTES_MAX, Replies
from stilltide.pipeline.drivers.service.own.watched_writer import WatchedWriter
from stilltide.schemas.framing import decode_value
from stilltide.schemas.topics import TXN_RESPONSES, system_topics
from stilltide.schemas.values import TopicPartition

ANSWERS = TopicPartition(TXN_RESPONSES, 0)


async def test_many_large_answers_of_one_turn_fit_into_their_records():
    """A client that asks for much at once cannot have a record refused for its size."""
    broker, hindrances = MemoryBroker(), Hindrances()
    for spec in system_topics(coordinators=1, partitions=1):
        broker.create_topic(spec)
    writer = WatchedWriter(MemoryConnector(broker).writer("worker"), hindrances)
    replies = Replies(writer, partition_count=1)
    answers = [bytes([number]) * (1024 * 1024 + number) for number in range(8)]
    for answer in answers:
        replies.add(b"c" * 16, 0, answer)
    replies.send()
    assert await writer.flush(10)
    records = broker.records(ANSWERS)
    assert [data for it in records for data in decode_value(it.value)] == answers
    assert len({it.key for it in records}) == 1
    assert max(len(it.value or b"") for it in records) <= ANSWERS_BYTES_MAX + 1024
    assert len(records) == 3
    assert not hindrances.failures
    await writer.close()


async def test_answers_of_one_turn_share_a_record():
    """Where they are small, which they nearly always are; each client has its own."""
    broker = MemoryBroker()
    for spec in system_topics(coordinators=1, partitions=1):
        broker.create_topic(spec)
    writer = MemoryConnector(broker).writer("worker")
    replies = Replies(writer, partition_count=1)
    for client in (b"c" * 16, b"d" * 16):
        for number in range(3):
            replies.add(client, 0, b"%d" % number)
    await asyncio.sleep(0)  # they are sent after this turn
    assert await writer.flush(10)
    records = broker.records(ANSWERS)
    assert [decode_value(it.value) for it in records] == [[b"0", b"1", b"2"]] * 2
    await writer.close()
