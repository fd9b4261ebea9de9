"""What consumers without any library of ours see of a published topic (H7)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.schemas.headers import TXN
from stilltide.schemas.replication.origins import ORIGIN, origin_of
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.links.foreign_readers import (
    Ends,
    Reader,
    Seen,
    Shown,
    aiokafka,
    console,
    kafka_python,
    librdkafka,
    spark_reader,
)
from tests.support.looks import between_looks
from tests.support.processes.worker_process import PARTITIONS, WorkerProcess, create_topics
from tests.support.spark.session import local_spark

SOURCE, TARGET = "orders", "orders.committed"
TURNS = 120
WAIT_S = 180.0
SEED = 7


class Published:
    """A broker with a published topic, and what a `Subscription` on the source sees."""

    def __init__(self, bootstrap: str, expected: Seen, ends: Ends) -> None:
        self.bootstrap = bootstrap
        self.expected = expected
        self.ends = ends


@pytest.fixture(scope="module")
def published(empty_kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Published:
    """Made once: transactions of both kinds, committed and aborted, and plain records between."""
    return asyncio.run(_publish(empty_kafka.bootstrap, tmp_path_factory.mktemp("published")))


@pytest.fixture(scope="module")
def spark() -> Iterator[Reader]:
    """The run's Spark session, as a reader."""
    with local_spark() as session:
        yield spark_reader(session)


async def _publish(bootstrap: str, directory: Path) -> Published:
    connector = KafkaConnector(KafkaConfig(bootstrap))
    await create_topics(bootstrap, SOURCE)
    log_path = directory / "worker.log"
    async with WorkerProcess(bootstrap, log_path, "--publish", f"{SOURCE}:{TARGET}") as worker:
        await worker.serving()
        await _write(bootstrap)
        expected = await _subscribed(connector)
        ends = await _copied(connector, expected)
        assert await worker.stop() == 0, worker.said
    return Published(bootstrap, expected, ends)


async def _write(bootstrap: str) -> None:
    """Coordinated and native transactions that overlap, a third aborted; plain records between."""
    random = Random(SEED)
    native = Producer({"bootstrap.servers": bootstrap, "transactional.id": "native"})
    plain = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    await asyncio.to_thread(native.init_transactions, WAIT_S)
    async with TransactionClient(bootstrap) as client:
        for turn in range(TURNS):
            native.begin_transaction()
            outcome = random.choice(["committed", "committed", "aborted"])
            async with client.transaction() as txn:
                for number in range(random.randint(1, 4)):
                    value = b"%s %d.%d" % (outcome.encode(), turn, number)
                    headers = [("number", b"%d" % number), ("twice", b"1"), ("twice", b"2")]
                    where = random.randrange(PARTITIONS)
                    value = None if random.random() < 0.1 else value
                    await txn.send(SOURCE, value, key=b"c", headers=headers, partition=where)
                    native.produce(SOURCE, value, b"n%d" % turn, partition=where)
                    plain.produce(SOURCE, b"plain", partition=where)
                if outcome == "aborted":
                    await txn.abort()
            native.flush(WAIT_S)
            plain.flush(WAIT_S)
            end = native.abort_transaction if turn % 3 == 0 else native.commit_transaction
            await asyncio.to_thread(end, WAIT_S)


async def _subscribed(connector: KafkaConnector) -> Seen:
    """What a `Subscription` sees of the source."""
    ends = await _ends(connector, SOURCE)
    seen: Seen = {number: [] for number in range(PARTITIONS)}
    async with (
        asyncio.timeout(WAIT_S),
        Subscription([SOURCE], group="truth", connector=connector) as subscription,
    ):
        async for message in subscription.read_to(ends):
            headers = tuple(one for one in message.headers or () if one[0] != TXN)
            seen[message.partition].append(Shown(message.key, message.value, headers))
    assert min(map(len, seen.values())) > TURNS
    return seen


async def _copied(connector: KafkaConnector, expected: Seen) -> Ends:
    """The last stable offsets of the target, once it holds as many records and nothing is open."""
    reader = connector.reader("target")
    left = {TopicPartition(TARGET, number): len(shown) for number, shown in expected.items()}
    async with asyncio.timeout(WAIT_S):
        while not (await _ends(connector, TARGET)).keys() >= left.keys():
            await between_looks()
        for data, count in left.items():
            await reader.assign({data: Offset(0)})
            found = 0
            while found < count:
                found += sum(isinstance(item, Record) for item in await reader.read())
    await reader.close()
    return await _ends(connector, TARGET)


async def _ends(connector: KafkaConnector, topic: str) -> dict[TopicPartition, int]:
    admin = connector.admin()
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    ends = await admin.end_offsets(partitions, committed=True)
    await admin.close()
    return ends


@pytest.mark.parametrize(
    "reader",
    [librdkafka, aiokafka, kafka_python, console, "spark"],
    ids=lambda it: getattr(it, "__name__", it),
)
def test_every_client_sees_what_a_subscription_sees(
    published: Published, reader: Reader | str, request: pytest.FixtureRequest
):
    """H7: the same keys, values and headers in the same order, and one origin on each record."""
    read = request.getfixturevalue(reader) if isinstance(reader, str) else reader
    seen = read(published.bootstrap, published.ends)
    for partition, records in seen.items():
        origins = [origin_of(record.headers) for record in records]
        offsets = [one.offset for one in origins if one is not None]
        assert offsets == sorted(set(offsets))
        assert len(offsets) == len(records)
        assert {one.incarnation.cluster for one in origins if one} == {"a"}
        plain = [
            record._replace(headers=tuple(one for one in record.headers if one[0] != ORIGIN))
            for record in records
        ]
        assert plain == published.expected[partition]
