"""How soon a Kafka reader reads on in a backlog."""

import asyncio

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.readers import Fetching, LogReader, Record
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition

RECORDS = 20_000
WAIT_S = 180


async def _read(reader: LogReader, count: int) -> int:
    """Reads so many records, or as many more as come with the last."""
    found = 0
    async with asyncio.timeout(WAIT_S):
        while found < count:
            found += sum(isinstance(it, Record) for it in await reader.read())
    return found


def _of_little(bootstrap: str) -> KafkaConnector:
    """Its clients read little ahead, so that they wait for nothing when a partition is paused."""
    return KafkaConnector(KafkaConfig(bootstrap, extra={"queued.min.messages": "1000"}))


async def _filled(connector: KafkaConnector, data: TopicPartition) -> None:
    """Makes the topic, with the backlog in its partition."""
    admin = connector.admin()
    await admin.ensure_topics([TopicSpec(data.topic, 1)])
    await admin.close()
    writer = connector.writer("w")
    for _ in range(RECORDS):
        await writer.room()
        writer.append(data, bytes(100), lambda *_: None)
    assert await writer.flush(WAIT_S)
    await writer.close()


async def test_a_backlog_that_was_paused_goes_on_at_once(bootstrap: str, topic_name: str):
    """Nothing is being fetched then, so a client left to itself looks once a second."""
    reader = _of_little(bootstrap).reader("r")
    connector = KafkaConnector(KafkaConfig(bootstrap))
    data = TopicPartition(topic_name, 0)
    await _filled(connector, data)
    admin = connector.admin()
    loop = asyncio.get_running_loop()
    took_s: list[float] = []
    for _ in range(5):
        await reader.assign({data: Offset(0)})
        found = await _read(reader, 1)
        reader.pause([data])
        await admin.end_offsets([data])
        reader.resume([data])
        began = loop.time()
        assert found + await _read(reader, RECORDS - found) == RECORDS
        took_s.append(loop.time() - began)
    assert min(took_s) < 0.5, took_s
    await reader.close()
    await admin.close()


async def test_a_backlog_that_begins_is_read_without_a_rest(bootstrap: str, topic_name: str):
    """Its first records wake the loop, which may be back before the thread has done its turn."""
    connector, data = KafkaConnector(KafkaConfig(bootstrap)), TopicPartition(topic_name, 0)
    await _filled(connector, data)
    reader = connector.reader("r", fetching=Fetching.SCANNING)
    loop = asyncio.get_running_loop()
    rests = 0
    for _ in range(300):
        await reader.assign({data: Offset(0)})
        found = await _read(reader, 1)
        while found < RECORDS // 4:
            began = loop.time()
            found += await _read(reader, 1)
            rests += loop.time() - began > 0.08
    assert rests < 30, rests  # one in ten; a busy machine has some of its own
    await reader.close()


async def test_what_was_paused_is_read_at_once_when_it_is_assigned_again(
    bootstrap: str, topic_name: str
):
    """As a log is that is read stretch by stretch."""
    connector, data = KafkaConnector(KafkaConfig(bootstrap)), TopicPartition(topic_name, 0)
    await _filled(connector, data)
    reader, admin = _of_little(bootstrap).reader("r", fetching=Fetching.SCANNING), connector.admin()
    loop = asyncio.get_running_loop()
    slow = 0
    for turn in range(60):
        began = loop.time()
        await reader.assign({data: Offset(turn)})
        await _read(reader, 1)
        slow += loop.time() - began > 0.5
        reader.pause([data])
        for _ in range(20):  # the client rests meanwhile
            await admin.end_offsets([data])
        if turn % 2:
            await reader.assign({})
    assert slow < 20, slow  # without the mend each turn is slow; so are some on a busy machine
    await reader.close()
    await admin.close()
