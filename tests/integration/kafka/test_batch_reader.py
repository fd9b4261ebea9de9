"""`BatchReader` on a real broker: what the port promises (connectors.ports)."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from confluent_kafka import Producer

from stilltide.connectors.errors import FatalError, MissingTopicError, OffsetOutOfRangeError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.readers import BatchReader
from stilltide.schemas.native.transactions import AbortedTransaction, Control
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import TopicPartition


@pytest.fixture
async def reader(bootstrap: str) -> AsyncIterator[BatchReader]:
    """A reader of the shared broker."""
    made = KafkaConnector(KafkaConfig(bootstrap)).batch_reader("r")
    yield made
    await made.close()


@pytest.fixture
async def log(bootstrap: str, topic_name: str) -> TopicPartition:
    """Five committed records, three aborted, a committed one, an open one: offsets 0-12."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.ensure_topics([TopicSpec(topic_name, 1)])
    await admin.close()
    await asyncio.to_thread(_write, bootstrap, topic_name)
    return TopicPartition(topic_name, 0)


def _write(bootstrap: str, topic: str) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": topic, "linger.ms": 100}
    )
    producer.init_transactions(30)
    for count, commit in ((5, True), (3, False), (1, True), (1, None)):
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(topic, b"v", partition=0)
        producer.flush(30)
        if commit:
            producer.commit_transaction(30)
        elif commit is False:
            producer.abort_transaction(30)


async def test_committed_and_uncommitted(reader: BatchReader, log: TopicPartition):
    """Batches with markers; the list and the end differ, the positions in the answer do not."""
    found = await reader.fetch(log, 0)
    assert [(it.base_offset, it.last_offset, it.control) for it in found.batches] == [
        (0, 4, None),
        (5, 5, Control.COMMIT),
        (6, 8, None),
        (9, 9, Control.ABORT),
        (10, 10, None),
        (11, 11, Control.COMMIT),
    ]
    (producer,) = {it.producer_id for it in found.batches}
    assert all(it.is_transactional for it in found.batches)
    assert [it.record_count for it in found.batches] == [5, 1, 3, 1, 1, 1]
    assert list(found.aborted) == [AbortedTransaction(producer, 6)]
    raw = await reader.fetch(log, 0, committed=False)
    assert [it.base_offset for it in raw.batches] == [0, 5, 6, 9, 10, 11, 12]
    assert list(raw.aborted) == []
    for answer in (found, raw):
        assert (answer.log_start, answer.last_stable_offset, answer.high_watermark) == (0, 12, 13)


async def test_any_position_and_size(reader: BatchReader, log: TopicPartition):
    """The batch that holds the position comes first, alone if there is no room for more."""
    for position, base in ((0, 0), (3, 0), (5, 5), (7, 6), (8, 6), (11, 11)):
        found = await reader.fetch(log, position, bytes_max=1)
        assert [it.base_offset for it in found.batches] == [base]
    between = await reader.fetch(log, 9, bytes_max=1)
    assert [it.first_offset for it in between.aborted] == [6], "between data and marker"


async def test_the_end_is_an_answer_without_batches(reader: BatchReader, log: TopicPartition):
    """At the last stable offset, or at the high watermark; the broker waits a moment for more."""
    began = time.monotonic()
    assert (await reader.fetch(log, 12)).batches == []
    assert (await reader.fetch(log, 13, committed=False)).batches == []
    assert time.monotonic() - began < 60
    assert [it.base_offset for it in (await reader.fetch(log, 12, committed=False)).batches] == [12]


async def test_positions_that_the_log_does_not_hold(
    reader: BatchReader, log: TopicPartition, bootstrap: str
):
    """Below the log start and beyond the end; the error names the place."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.delete_records({log: 7})
    await admin.close()
    for position in (0, 6, 14, 1000):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            await reader.fetch(log, position)
        assert caught.value.place == f"{log.topic}/0@{position}"
    found = await reader.fetch(log, 7)
    assert (found.log_start, found.batches[0].base_offset) == (7, 6), "a batch is given whole"


async def test_what_does_not_exist_is_fatal(reader: BatchReader, log: TopicPartition):
    """A topic, a partition, a name that no topic can have; asking does not make it."""
    await reader.fetch(log, 0)
    absent = [
        TopicPartition(log.topic + "-absent", 0),
        TopicPartition(log.topic, 9),
        TopicPartition("no name", 0),
    ]
    found = await asyncio.gather(*(reader.fetch(it, 0) for it in absent), return_exceptions=True)
    assert [type(it) for it in found] == [MissingTopicError] * 2 + [FatalError]
    assert (await reader.fetch(log, 0)).batches


async def test_calls_may_overlap(reader: BatchReader, log: TopicPartition):
    """Each gets its own answer, also those that wait at the end."""
    positions = [0, 12, 3, 12, 7, 12, 11] * 3
    found = await asyncio.gather(*(reader.fetch(log, it) for it in positions))
    bases = [it.batches[0].base_offset if it.batches else None for it in found]
    assert bases == [0, None, 0, None, 6, None, 11] * 3


async def test_close_ends_a_waiting_fetch(bootstrap: str, log: TopicPartition):
    """It and every later one raise `FatalError`; closing twice, or unused, is safe."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    reader, unused = connector.batch_reader("r"), connector.batch_reader("u")
    await reader.fetch(log, 0)
    waiting = asyncio.create_task(reader.fetch(TopicPartition(log.topic + "-absent", 0), 0))
    await asyncio.sleep(0)
    await asyncio.gather(reader.close(), unused.close())
    for call in (waiting, reader.fetch(log, 0), unused.fetch(log, 0)):
        with pytest.raises(FatalError, match="closed"):
            await call
    await reader.close()
