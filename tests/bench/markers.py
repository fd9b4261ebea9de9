"""What the markers of others cost a reader: processor time of one marker that is passed over.

A data partition shares its partition of `stilltide.txn-markers` with others, and its reader reads
the markers of all. A topic of one partition holds one record of a transaction; the marker of that
transaction comes after so many of another topic. No worker runs, so that no snapshot spares them.
The time is that of a subscription from its start until it has delivered the record, less that of
one without markers before its own. `predicted_s` is by the factor of `core.sizing`.

Sizes: MARKERS (of the largest size; the others are a quarter and a sixteenth), ROUNDS.
"""

import asyncio
import itertools
import os
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Producer

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.connector import closing
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.client import Subscription
from stilltide.pipeline.core.sizing import READER_US_OF_A_MARKER
from stilltide.pipeline.interpreter import tune
from stilltide.schemas.coordinator import markers
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.headers import TXN
from stilltide.schemas.topics import TXN_MARKERS, TopicSpec, system_partition, system_topics
from stilltide.schemas.values import EndOffset, TopicPartition, TxnId
from tests.bench.harness import report, size
from tests.bench.spent import Spent

OTHER = "other"
RECORDS_OF_A_TXN = 10
FLUSH_EACH = 10_000
SYSTEM_PARTITIONS = 4
"""One for each number of markers."""


async def run() -> None:
    """Measures and reports."""
    most, rounds = size("MARKERS", 160_000), size("ROUNDS", 3)
    counts = (0, most // 16, most // 4, most)
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(LocalCluster("a", directory / "a", heap="512m"))
        connector = KafkaConnector(KafkaConfig(cluster.bootstrap))
        topics = [_topic_of(partition) for partition in range(SYSTEM_PARTITIONS)]
        async with closing(connector.admin()) as admin:
            system = system_topics(coordinators=1, partitions=SYSTEM_PARTITIONS)
            await admin.ensure_topics([*system, *(TopicSpec(it, 1) for it in (*topics, OTHER))])
            described = await admin.describe_topics([*topics, OTHER])
        ids = {name: it.topic_id for name, it in described.items()}
        for topic, count in zip(topics, counts, strict=True):
            await asyncio.to_thread(_write, cluster.bootstrap, topic, count, ids)
        tune()
        used_s: dict[int, list[float]] = {count: [] for count in counts}
        for number in range(rounds + 1):
            for topic, count in zip(topics, counts, strict=True):
                took_s = await _read(connector, topic, f"markers-{number}")
                if number:  # the first round warms up
                    used_s[count].append(took_s)
            say(f"markers: round {number} of {rounds}")
    before_s, *rest_s = (median(used_s[count]) for count in counts)
    rows = [_row(*it) for it in zip(counts[1:], (it - before_s for it in rest_s), strict=True)]
    report("markers", rows)


def _topic_of(partition: int) -> str:
    """A topic whose only partition belongs to this one of `stilltide.txn-markers`."""
    names = (f"read-{number}" for number in itertools.count())
    return next(
        it
        for it in names
        if system_partition(TopicPartition(it, 0), SYSTEM_PARTITIONS) == partition
    )


def _row(count: int, used_s: float) -> dict[str, Any]:
    predicted_s = count * READER_US_OF_A_MARKER / 1e6
    return {
        "markers": count,
        "reader_us": used_s / count * 1e6,
        "reader_s": used_s,
        "predicted_s": predicted_s,
        "ratio": used_s / predicted_s,
    }


async def _read(connector: KafkaConnector, topic: str, group: str) -> float:
    """Seconds of this process's processor time until the record is delivered."""
    spent = Spent({"reader": os.getpid()})
    async with Subscription([topic], group=group, connector=connector) as subscription:
        await anext(subscription)
        return spent.seconds()["reader"]


def _write(bootstrap: str, topic: str, count: int, topic_ids: dict[str, bytes]) -> None:
    """One record, `count` markers of the other topic, and the record's marker; blocks."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 0}
    )
    data, other, own = TopicPartition(topic, 0), TopicPartition(OTHER, 0), TxnId(0, count)
    partition = system_partition(data, SYSTEM_PARTITIONS)
    producer.produce(topic, b"record", partition=0, headers=[(TXN, own.to_bytes())])
    for number in range(count):
        end = EndOffset((number + 1) * RECORDS_OF_A_TXN)
        _mark(
            producer,
            partition,
            Marker(other, TxnId(0, number), True, EndOffset(0), end, 1, topic_ids[OTHER]),
        )
        if number % FLUSH_EACH == 0:
            producer.flush()
    _mark(
        producer,
        partition,
        Marker(data, own, True, EndOffset(0), EndOffset(1), 1, topic_ids[topic]),
    )
    producer.flush()


def _mark(producer: Producer, partition: int, marker: Marker) -> None:
    key = markers.encode_key(marker.data, marker.txn)
    producer.produce(TXN_MARKERS, markers.encode_value(marker), key, partition)
