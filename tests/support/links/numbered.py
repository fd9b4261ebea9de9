"""Records that bear numbers, for tests of links on real brokers."""

import time

from confluent_kafka import Producer

from stilltide.schemas.values import TopicPartition
from tests.support.links.link_process import Clusters

START_MS = round(time.time() - 3600) * 1000
"""Recent: retention deletes what is a week old."""


def produced(clusters: Clusters, name: str, data: TopicPartition | str, first: int, end: int):
    """Writes the numbers `[first, end)` with keys, headers and times; a topic: to partition 0."""
    topic, partition = (data, 0) if isinstance(data, str) else data
    options = {"enable.idempotence": True, "linger.ms": 20}  # else a retry may change the order
    producer = Producer({"bootstrap.servers": clusters.addresses[name], **options})
    for number in range(first, end):
        producer.produce(
            topic,
            b"%d" % number,
            b"k%d" % number,
            partition,
            timestamp=START_MS + number,
            headers=[("number", b"%d" % number)],
        )
    assert producer.flush(90) == 0


def numbers(first: int, end: int) -> list[bytes]:
    """What `produced` writes."""
    return [b"%d" % number for number in range(first, end)]
