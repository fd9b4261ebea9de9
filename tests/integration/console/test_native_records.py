"""The page of a topic marks records of Kafka's own transactions as its readers take them."""

import asyncio

import pytest
from confluent_kafka import Producer

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.core.read_committed.machine import RecordVerdict
from stilltide.pipeline.core.status.asks import Records, RecordsAsk
from stilltide.pipeline.core.status.values import Aged
from stilltide.pipeline.drivers.status.cluster import StatusTarget
from stilltide.pipeline.drivers.status.looks.looks import Looks
from stilltide.schemas.topics import TopicSpec, system_topics
from stilltide.schemas.values import TopicPartition
from tests.support.console.pages import text
from tests.support.native.topics import until_stable
from tests.support.status.samples import WELL, A

WAIT_S = 120


@pytest.fixture
async def data(empty_kafka: LocalCluster, topic_name: str) -> TopicPartition:
    """The only partition of a new topic, on a broker with system topics."""
    admin = KafkaConnector(KafkaConfig(empty_kafka.bootstrap)).admin()
    await admin.ensure_topics(
        [TopicSpec(topic_name, 1), *system_topics(coordinators=1, partitions=1)]
    )
    await admin.close()
    return TopicPartition(topic_name, 0)


def producing(bootstrap: str, name: str, data: TopicPartition, *values: bytes) -> Producer:
    """A producer whose open transaction has these records."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(data.topic, value, partition=data.partition)
    assert producer.flush(WAIT_S) == 0
    return producer


def write_all(bootstrap: str, data: TopicPartition) -> Producer:
    """Committed, aborted, plain and open, in this order; the producer of the open one."""
    committed = producing(bootstrap, f"{data.topic}-1", data, b"kept 1", b"kept 2")
    committed.commit_transaction(WAIT_S)
    aborted = producing(bootstrap, f"{data.topic}-2", data, b"dropped 1", b"dropped 2")
    aborted.abort_transaction(WAIT_S)
    plain = Producer({"bootstrap.servers": bootstrap})
    plain.produce(data.topic, b"plain 1", partition=data.partition)
    assert plain.flush(WAIT_S) == 0
    opened = producing(bootstrap, f"{data.topic}-3", data, b"pending")
    plain.produce(data.topic, b"plain 2", partition=data.partition)
    assert plain.flush(WAIT_S) == 0
    return opened


async def judged(
    connector: KafkaConnector, data: TopicPartition, since_ms: int | None = None
) -> Records:
    """The records of the partition, all or from a time on, as the console reads them."""
    looks = Looks([StatusTarget(A, "", connector, connector)])
    try:
        ask = RecordsAsk(A, data, 0 if since_ms is None else None, since_ms=since_ms)
        aged = (await looks.answers([ask], WAIT_S))[ask]
        assert isinstance(aged.value, Records), aged.problem
        return aged.value
    finally:
        await looks.close()


def marks(found: Records) -> dict[bytes | None, RecordVerdict]:
    """The verdict of each record, by its value."""
    return {it.value: it.verdict for it in found.records}


def page(found: Records) -> str:
    """The words of the page, with these records read."""
    data = found.ends.data
    address = f"topic?cluster={A}&topic={data.topic}&partition={data.partition}&from=0"
    return text(
        address,
        WELL,
        lambda ask: Aged(found, WELL.now_ms) if isinstance(ask, RecordsAsk) else Aged(),
    )


async def test_native_transactions_decide_the_marks_of_their_records(
    empty_kafka: LocalCluster, data: TopicPartition
):
    """Committed, aborted and open ones beside plain records; then the open one is aborted."""
    connector = KafkaConnector(KafkaConfig(empty_kafka.bootstrap))
    admin = connector.admin()
    opened = await asyncio.to_thread(write_all, empty_kafka.bootstrap, data)
    # Two markers follow their transactions: records are at 0, 1, 3, 4, 6, 7 and 8.
    await until_stable(admin, data, 7)
    found = await judged(connector, data)
    visible, aborted, undecided = (
        RecordVerdict.VISIBLE,
        RecordVerdict.ABORTED,
        RecordVerdict.UNDECIDED,
    )
    decided = {
        b"kept 1": visible,
        b"kept 2": visible,
        b"dropped 1": aborted,
        b"dropped 2": aborted,
        b"plain 1": visible,
    }
    assert marks(found) == decided | {b"pending": undecided, b"plain 2": undecided}
    assert (found.counts[visible], found.counts[aborted], found.counts[undecided]) == (3, 2, 2)
    said = page(found)
    assert said.count("aborted native transaction") == 2
    assert said.count("undecided at or behind an open native transaction") == 2
    assert "2 aborted 2 undecided 3 visible" in said
    await asyncio.to_thread(opened.abort_transaction, WAIT_S)
    await until_stable(admin, data, 10)
    found = await judged(connector, data)
    assert marks(found) == decided | {b"pending": aborted, b"plain 2": visible}
    said = page(found)
    assert said.count("aborted native transaction") == 3
    assert "undecided" not in said.partition("Records of")[2]
    await admin.close()


async def test_records_from_a_time_on(empty_kafka: LocalCluster, data: TopicPartition):
    """By the timestamps of records, as Kafka looks them up; behind the last one the last ones."""
    connector = KafkaConnector(KafkaConfig(empty_kafka.bootstrap))
    producer = Producer({"bootstrap.servers": empty_kafka.bootstrap})
    for at_ms in (1000, 2000, 3000):
        producer.produce(data.topic, b"%d" % at_ms, partition=0, timestamp=at_ms)
    assert await asyncio.to_thread(producer.flush, WAIT_S) == 0
    for since_ms, values in ((0, [b"1000", b"2000", b"3000"]), (2000, [b"2000", b"3000"])):
        found = await judged(connector, data, since_ms)
        assert [it.value for it in found.records] == values
    assert (await judged(connector, data, 4000)).start == 0
