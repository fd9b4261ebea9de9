"""Makes the cleaner of a real broker remove records from the middle of a topic."""

from collections.abc import Callable, Mapping

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from stilltide.schemas.values import TopicPartition
from tests.support.looks import block_between_looks

TIMEOUT_S = 240.0
EAGER = {
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "1",
    "delete.retention.ms": "0",
}
"""Topic configs with which the cleaner compacts a log at its next round."""


def alter_configs(bootstrap: str, topic: str, configs: Mapping[str, str]) -> None:
    """Sets configs of a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(TIMEOUT_S)


def keys_of(bootstrap: str, log: TopicPartition) -> list[bytes]:
    """The keys of every committed record in a partition."""
    options = {"group.id": "unused", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": bootstrap, **options})
    consumer.assign([KafkaPartition(*log, OFFSET_BEGINNING)])
    keys: list[bytes] = []
    while True:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        if message.error() is not None:
            consumer.close()
            return keys
        keys.append(message.key())


def force_compaction(
    bootstrap: str,
    log: TopicPartition,
    roller: bytes,
    done: Callable[[list[bytes]], bool] = lambda keys: len(keys) == len(set(keys)),
) -> None:
    """Appends records of key `roller` until compaction has left keys for which `done` holds."""
    alter_configs(bootstrap, log.topic, EAGER)
    producer = Producer({"bootstrap.servers": bootstrap})
    while not done([key for key in keys_of(bootstrap, log) if key != roller]):
        producer.produce(log.topic, None, roller, log.partition)
        assert producer.flush(TIMEOUT_S) == 0
        block_between_looks()
