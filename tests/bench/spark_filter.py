"""What Spark's read-committed filters cost, against a plain count of the same topic.

The topic is written once; every round counts it plainly, under Kafka's own read_committed, and
filtered, in one session and in turn. What decides the records is read anew for each count.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from connectors.base import NewRecord
from connectors.kafka.config import KafkaConfig
from connectors.kafka.connector import KafkaConnector
from connectors.local.cluster import LocalCluster
from connectors.local.jars import spark_jars
from connectors.spark.session import SparkOptions, spark_session
from connectors.spark.source import read_ranges
from pipeline.cli.output import say
from pipeline.core.txn_buffer.buffer import DataPosition, TransactionBuffer
from pipeline.jobs.read_committed import read_committed
from schemas.headers import TXN
from schemas.markers import Marker
from schemas.placement import system_partition
from schemas.topics import TXN_MARKERS, TXN_SNAPSHOTS, TopicSpec, system_topics
from schemas.values import EndOffset, Offset, OffsetRange, TopicPartition, TxnId
from tests.bench.harness import report

RECORDS = 5_000_000
PER_TRANSACTION = 10
ABORTED_EVERY = 10
PARTITIONS = 4
COORDINATORS = 4
SYSTEM_PARTITIONS = 4
PART_BYTES_MAX = 256 * 1024
ROUNDS = 5
TOPIC = "bench"
VALUE = b"v" * 100
DATA = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
COORDINATED_RATIO_MIN = 0.667


def txn_of(number: int) -> TxnId:
    """Coordinators take turns."""
    return TxnId(number % COORDINATORS, number // COORDINATORS)


def aborts(number: int) -> bool:
    """Which transactions abort."""
    return number % ABORTED_EVERY == 0


def produce(bootstrap: str) -> None:
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
                        producer.produce(TOPIC, VALUE, partition=partition, headers=header)
                        break
                    except BufferError:
                        producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(120) == 0


async def write_snapshots(connector: KafkaConnector) -> list[OffsetRange]:
    """What a snapshot writer says once all have ended; the ranges of the topic."""
    admin = connector.admin()
    topic_id = (await admin.describe_topics([TOPIC]))[TOPIC].topic_id
    ends = await admin.end_offsets(DATA)
    await admin.close()
    writer = connector.transactional_writer("bench")
    await writer.fence()
    for data in DATA:
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
    return [OffsetRange(data, Offset(0), ends[data]) for data in DATA]


async def create_topics(connector: KafkaConnector) -> None:
    """The data topic, and what its outcomes are kept in."""
    admin = connector.admin()
    specs = system_topics(coordinators=COORDINATORS, partitions=SYSTEM_PARTITIONS)
    wanted = [spec for spec in specs if spec.name in (TXN_MARKERS, TXN_SNAPSHOTS)]
    await admin.ensure_topics([TopicSpec(TOPIC, PARTITIONS), *wanted])
    await admin.close()


def timed(count: Callable[[], int], expected: int) -> float:
    """Seconds of one count."""
    began = time.perf_counter()
    found = count()
    assert found == expected, (found, expected)
    return time.perf_counter() - began


def measure(spark: SparkSession, bootstrap: str, ranges: list[OffsetRange]) -> dict[str, Any]:
    """The row `coordinated`."""

    def plain() -> int:
        return read_ranges(spark, bootstrap, ranges, headers=False).count()

    def filtered() -> int:
        return read_committed(spark, bootstrap, [TOPIC]).count()

    visible = RECORDS - RECORDS // ABORTED_EVERY
    timed(plain, RECORDS), timed(filtered, visible)
    plain_s: list[float] = []
    filtered_s: list[float] = []
    for number in range(ROUNDS):
        for each in (0, 1) if number % 2 else (1, 0):
            if each:
                plain_s.append(timed(plain, RECORDS))
            else:
                filtered_s.append(timed(filtered, visible))
        say(f"spark_filter: plain {plain_s[-1]:.2f} s, filtered {filtered_s[-1]:.2f} s")
    ours, baseline = median(filtered_s), median(plain_s)
    return {
        "setting": "coordinated",
        "ours": ours,
        "baseline": baseline,
        "ratio": baseline / ours,
        "unit": "s",
    }


async def run() -> None:
    """Measures, prints and writes the case."""
    with TemporaryDirectory() as path, LocalCluster("a", Path(path)) as cluster:
        connector = KafkaConnector(KafkaConfig(cluster.bootstrap))
        await create_topics(connector)
        say(f"spark_filter: writing {RECORDS} records")
        produce(cluster.bootstrap)
        ranges = await write_snapshots(connector)
        options = SparkOptions(jars=spark_jars(), master="local[2]")
        with spark_session(options) as spark:
            row = measure(spark, cluster.bootstrap, ranges)
    report(
        "spark_filter",
        [row],
        records=RECORDS,
        aborted_transactions=RECORDS // PER_TRANSACTION // ABORTED_EVERY,
        ratio_min=COORDINATED_RATIO_MIN,
    )
