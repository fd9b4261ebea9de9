"""Native Kafka transactions as the connector shows them."""

import asyncio

from confluent_kafka import Producer

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.readers import EndReached, Record
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition
from tests.contract.rig import records_of


def _transactional(bootstrap: str, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    return producer


async def _read_to(
    connector: KafkaConnector, data: TopicPartition, end: int, **options: bool
) -> list[bytes | None]:
    """Values from the log start until `EndReached` at `end`."""
    values: list[bytes | None] = []
    reader = connector.reader("r", **options)
    await reader.assign({data: Offset(0)})
    async with asyncio.timeout(240):
        while True:
            for item in await reader.read():
                if isinstance(item, Record):
                    values.append(item.value)
                elif item == EndReached(data.topic, data.partition, end):
                    await reader.close()
                    return values


async def test_open_and_aborted_data_show_only_uncommitted(bootstrap: str, topic_name: str):
    """`committed` decides about end offsets and records; ends pass over control records."""
    connector, data = KafkaConnector(KafkaConfig(bootstrap)), TopicPartition(topic_name, 0)
    admin = connector.admin()
    await admin.ensure_topics([TopicSpec(topic_name, 1)])
    producer = await asyncio.to_thread(_transactional, bootstrap, topic_name)
    producer.begin_transaction()
    for value in (b"a", b"b"):
        producer.produce(topic_name, value, partition=0)
    await asyncio.to_thread(producer.flush)

    assert await admin.end_offsets([data], committed=True) == {data: 0}
    assert await admin.end_offsets([data]) == {data: 2}
    assert await _read_to(connector, data, 0, committed=True) == []
    assert await _read_to(connector, data, 2, committed=False) == [b"a", b"b"]

    await asyncio.to_thread(producer.abort_transaction)
    producer.begin_transaction()
    producer.produce(topic_name, b"c", partition=0)
    await asyncio.to_thread(producer.commit_transaction)

    # Two aborted records, ABORT, one record, COMMIT; the last is written after the commit's answer.
    assert await _read_to(connector, data, 5, committed=True) == [b"c"]
    assert await admin.end_offsets([data], committed=True) == {data: 5}
    assert await _read_to(connector, data, 5, committed=False) == [b"a", b"b", b"c"]
    await admin.close()


async def test_a_new_group_starts_at_the_last_stable_offset(bootstrap: str, topic_name: str):
    """Started at the end, it gets what an open transaction commits later."""
    connector, data = KafkaConnector(KafkaConfig(bootstrap)), TopicPartition(topic_name, 0)
    admin = connector.admin()
    await admin.ensure_topics([TopicSpec(topic_name, 1)])
    producer = await asyncio.to_thread(_transactional, bootstrap, topic_name)
    producer.begin_transaction()
    producer.produce(topic_name, b"a", partition=0)
    await asyncio.to_thread(producer.flush)

    started: asyncio.Queue[object] = asyncio.Queue()
    member = connector.group_reader("m", topic_name, from_start=False)
    await member.subscribe([topic_name], assigned=started.put_nowait, revoked=lambda _: None)
    async with asyncio.timeout(240):
        assert await started.get() == {data: 0}
        await asyncio.to_thread(producer.commit_transaction)
        values: list[bytes | None] = []
        while not values:
            values += [it.value for it in records_of(await member.read())]
    assert values == [b"a"]
    await member.close()
    await admin.close()
