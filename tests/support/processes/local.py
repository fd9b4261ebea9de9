"""Helpers for local brokers: write and read records, and wait for a broker's end."""

import fcntl
import json
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

STILLTIDE = Path(sys.executable).with_name("stilltide")
_TIMEOUT_S = 240


def create_topic(bootstrap: str, name: str) -> None:
    """Creates a topic of one partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(_TIMEOUT_S)


def delete_topic(bootstrap: str, name: str) -> None:
    """Deletes a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(_TIMEOUT_S)


def delete_topics(bootstrap: str) -> None:
    """Deletes every topic but Kafka's own."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = [it for it in admin.list_topics(timeout=_TIMEOUT_S).topics if not it.startswith("__")]
    for deleted in (admin.delete_topics(names) if names else {}).values():
        deleted.result(_TIMEOUT_S)


def write_values(bootstrap: str, topic: str, values: list[bytes]) -> None:
    """Writes values to partition 0 and returns when all are acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(_TIMEOUT_S) == 0


def read_values(bootstrap: str, topic: str) -> list[bytes]:
    """The values of partition 0, from start to end."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
    )
    try:
        partition = TopicPartition(topic, 0, 0)
        end = _end_offset(consumer, partition)
        consumer.assign([partition])
        return [record.value() for record in consumer.consume(end, timeout=_TIMEOUT_S)]
    finally:
        consumer.close()


def commit(bootstrap: str, topic: str, group: str, offset: int, *, partitions: int = 1) -> None:
    """Commits an offset of each partition, as a client does that is no member of the group."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    )
    places = [TopicPartition(topic, number, offset) for number in range(partitions)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def _end_offset(consumer: Consumer, partition: TopicPartition) -> int:
    """The end offset; asks again while a new leader does not know it yet."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return consumer.get_watermark_offsets(partition, timeout=_TIMEOUT_S)[1]
        except KafkaException as error:
            new_leader = error.args[0].code() == KafkaError.OFFSET_NOT_AVAILABLE
            if not new_leader or time.monotonic() > deadline_s:
                raise


def await_release(data_dir: Path) -> None:
    """Returns when no process holds the data directory any more."""
    with (data_dir / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def run_stilltide(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Runs the command line as a user would."""
    return subprocess.run(
        [STILLTIDE, *arguments], cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )


def cluster_rows(cwd: Path) -> list[dict[str, object]]:
    """The rows that `stilltide local status -o json` prints in `cwd`."""
    return json.loads(run_stilltide("local", "status", "-o", "json", cwd=cwd).stdout)
