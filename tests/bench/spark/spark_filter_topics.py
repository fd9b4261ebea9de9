"""The topics of the case `spark_filter`: one of coordinated transactions, one of native ones."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Producer

from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.readers import NewRecord
from stilltide.pipeline.core.snapshots.buffer import DataPosition, TransactionBuffer
from stilltide.pipeline.drivers.native.owner import AbortedIndexing
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.headers import TXN
from stilltide.schemas.topics import (
    TXN_MARKERS,
    TXN_SNAPSHOTS,
    TopicSpec,
    system_partition,
    system_topics,
)
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition, TxnId

RECORDS = 5_000_000
PER_TRANSACTION = 10
ABORTED_EVERY = 10
PARTITIONS = 4
COORDINATORS = 4
SYSTEM_PARTITIONS = 4
PART_BYTES_MAX = 256 * 1024
COORDINATED = "coordinated"
NATIVE = "native"
NATIVE_ABORTED = 100_000
NATIVE_PRODUCERS = 50
NATIVE_ABORTED_EACH = 25
"""Of one producer, between two transactions that commit."""
VALUE = b"v" * 100


def txn_of(number: int) -> TxnId:
    """Coordinators take turns."""
    return TxnId(number % COORDINATORS, number // COORDINATORS)


def aborts(number: int) -> bool:
    """Which transactions abort."""
    return number % ABORTED_EVERY == 0


def produce_coordinated(bootstrap: str) -> None:
    """Every transaction's records, over all partitions; fifty of them are open at once."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    open_at_once = 50
    count = RECORDS // PER_TRANSACTION
    for first in range(0, count, open_at_once):
        headers = [
            [(TXN, txn_of(number).to_bytes())] for number in range(first, first + open_at_once)
        ]
        for record in range(PER_TRANSACTION):
            for at, header in enumerate(headers):
                partition = (record + at) % PARTITIONS
                while True:
                    try:
                        producer.produce(COORDINATED, VALUE, partition=partition, headers=header)
                        break
                    except BufferError:
                        producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(120) == 0


async def write_snapshots(connector: KafkaConnector) -> None:
    """What a snapshot writer says once all have ended."""
    places = partitions_of(COORDINATED)
    admin = connector.admin()
    topic_id = (await admin.describe_topics([COORDINATED]))[COORDINATED].topic_id
    ends = await admin.end_offsets(places)
    await admin.close()
    writer = connector.transactional_writer("bench")
    await writer.fence()
    for data in places:
        end, log_start = ends[data], EndOffset(0)
        buffer = TransactionBuffer(data, floors={}, part_bytes_max=PART_BYTES_MAX)
        for number in filter(aborts, range(RECORDS // PER_TRANSACTION)):
            marker = Marker(data, txn_of(number), False, log_start, end, 0, topic_id)
            buffer.marker_read(Offset(number), marker)
        found = DataPosition(topic_id, log_start, end, end)
        place = TopicPartition(TXN_SNAPSHOTS, system_partition(data, SYSTEM_PARTITIONS))
        records = buffer.snapshot(found, [], {}, Offset(0))
        await writer.write([NewRecord(place, *record) for record in records])
    await writer.close()


async def create_topics(connector: KafkaConnector) -> None:
    """The data topics, and what outcomes of coordinated transactions are kept in."""
    admin = connector.admin()
    specs = system_topics(coordinators=COORDINATORS, partitions=SYSTEM_PARTITIONS)
    wanted = [spec for spec in specs if spec.name in (TXN_MARKERS, TXN_SNAPSHOTS)]
    data = [TopicSpec(name, PARTITIONS) for name in (COORDINATED, NATIVE)]
    await admin.ensure_topics([*data, *wanted])
    await admin.close()


def partitions_of(topic: str) -> list[TopicPartition]:
    """All of them."""
    return [TopicPartition(topic, number) for number in range(PARTITIONS)]


async def ranges_of(connector: KafkaConnector, topic: str) -> list[OffsetRange]:
    """All that is stable in a topic."""
    admin = connector.admin()
    ends = await admin.end_offsets(partitions_of(topic), committed=True)
    await admin.close()
    return [OffsetRange(data, Offset(0), ends[data]) for data in partitions_of(topic)]


async def produce_native(connector: KafkaConnector, bootstrap: str) -> None:
    """Many producers, each of small transactions that abort and large ones that commit."""
    per_producer = NATIVE_ABORTED // NATIVE_PRODUCERS
    committed = (RECORDS - NATIVE_ABORTED * PER_TRANSACTION) * NATIVE_ABORTED_EACH // NATIVE_ABORTED

    def work(number: int) -> None:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"bench-{number}",
                "linger.ms": 2,
            }
        )
        producer.init_transactions(60)
        for each in range(per_producer):
            partition = (number + each) % PARTITIONS
            transaction(producer, partition, PER_TRANSACTION, producer.abort_transaction)
            if each % NATIVE_ABORTED_EACH == 0:
                transaction(producer, partition, committed, producer.commit_transaction)

    with ThreadPoolExecutor(NATIVE_PRODUCERS) as threads:
        loop = asyncio.get_running_loop()
        await asyncio.gather(
            *(loop.run_in_executor(threads, work, number) for number in range(NATIVE_PRODUCERS))
        )
    await until_ended(connector)


def transaction(
    producer: Producer, partition: int, count: int, end: Callable[[float], object]
) -> None:
    """One transaction on one partition."""
    producer.begin_transaction()
    for _ in range(count):
        producer.produce(NATIVE, VALUE, partition=partition)
    assert producer.flush(60) == 0
    end(60)


async def until_ended(connector: KafkaConnector) -> None:
    """Waits for the last markers, then indexes."""
    admin = connector.admin()
    places = partitions_of(NATIVE)
    async with asyncio.timeout(60):
        while await admin.end_offsets(places) != await admin.end_offsets(places, committed=True):
            """Each look takes a round trip."""
    await admin.close()
    indexing = AbortedIndexing(
        connector,
        connector.batch_reader("bench"),
        [NATIVE],
        partition_count=SYSTEM_PARTITIONS,
        patience_s=30,
    )
    await indexing.once()
    await indexing.close()
