"""Other people's consumers, with no library of ours, each asked for all that it shows of a topic.

Each reads committed records from the beginning to the given last stable offsets, and returns the
records of each partition in the order in which it showed them.
"""

import asyncio
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as RawPartition
from pyspark.sql import SparkSession

from stilltide.connectors.local.jars import broker_jars, jar_set
from stilltide.connectors.local.java import find_java
from stilltide.schemas.values import TopicPartition

WAIT_S = 90.0
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
_SILENCE_MS = 8000
_BETWEEN_HEADERS = "\x1f"
"""A character that `Bytes` never prints as it is."""

_ESCAPED = re.compile(r"\\x([0-9A-F]{2})")


class Shown(NamedTuple):
    """A record as a consumer gave it to the application."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


Ends = Mapping[TopicPartition, int]
Seen = dict[int, list[Shown]]
Reader = Callable[[str, Ends], Seen]


def librdkafka(bootstrap: str, ends: Ends) -> Seen:
    """confluent-kafka."""
    seen: Seen = {data.partition: [] for data in ends}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "foreign-readers",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([ConfluentPartition(*data, 0) for data in ends])
    ended: set[int] = set()
    deadline_s = time.monotonic() + WAIT_S
    while len(ended) < len(ends):
        assert time.monotonic() < deadline_s, "it does not move on"
        for message in consumer.consume(1000, 0.1):
            partition = message.partition()
            assert partition is not None
            error = message.error()
            if error is None:
                headers = message.headers() or []
                assert isinstance(headers, list)
                seen[partition].append(_shown(message.key(), message.value(), headers))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(partition)
    consumer.close()
    return seen


def kafka_python(bootstrap: str, ends: Ends) -> Seen:
    """kafka-python's consumer."""
    seen: Seen = {data.partition: [] for data in ends}
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    names = {data: RawPartition(*data) for data in ends}
    consumer.assign(list(names.values()))
    deadline_s = time.monotonic() + WAIT_S
    try:
        while any(consumer.position(names[data]) < end for data, end in ends.items()):
            assert time.monotonic() < deadline_s, "it does not move on"
            for name, records in consumer.poll(timeout_ms=100).items():
                seen[name.partition] += [_shown(it.key, it.value, it.headers) for it in records]
    finally:
        consumer.close()
    return seen


def aiokafka(bootstrap: str, ends: Ends) -> Seen:
    """Aiokafka's consumer."""
    return asyncio.run(_aiokafka(bootstrap, ends))


async def _aiokafka(bootstrap: str, ends: Ends) -> Seen:
    seen: Seen = {data.partition: [] for data in ends}
    names = {data: AioPartition(*data) for data in ends}
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        consumer.assign(list(names.values()))
        async with asyncio.timeout(WAIT_S):
            while any([await consumer.position(names[it]) < end for it, end in ends.items()]):
                for name, records in (await consumer.getmany(timeout_ms=100)).items():
                    seen[name.partition] += [_shown(it.key, it.value, it.headers) for it in records]
    finally:
        await consumer.stop()
    return seen


def console(bootstrap: str, ends: Ends) -> Seen:
    """kafka-console-consumer.sh, without the script; ends when nothing has come for seconds."""
    (topic,) = {data.topic for data in ends}
    jars = os.pathsep.join(map(str, [*broker_jars(), *jar_set("tools")]))
    as_bytes = "org.apache.kafka.common.serialization.BytesDeserializer"
    formatting = {
        "print.partition": "true",
        "print.headers": "true",
        "print.key": "true",
        "key.separator": "\t",
        "headers.separator": _BETWEEN_HEADERS,
        "key.deserializer": as_bytes,
        "value.deserializer": as_bytes,
        "headers.deserializer": as_bytes,
        "null.literal": "<null>",
    }
    asked = ["--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning"]
    asked += ["--isolation-level", "read_committed", "--timeout-ms", str(_SILENCE_MS)]
    for name, value in formatting.items():
        asked += ["--formatter-property", f"{name}={value}"]
    done = subprocess.run(
        [str(find_java().path), "-Xmx128m", "-Dlog4j2.level=OFF", "-cp", jars, CONSOLE, *asked],
        capture_output=True,
        timeout=4 * WAIT_S,
        check=False,
    )
    seen: Seen = {data.partition: [] for data in ends}
    for line in done.stdout.decode().splitlines():
        partition, headers, key, value = line.split("\t")
        seen[int(partition.removeprefix("Partition:"))].append(
            _shown(_unescaped(key), _unescaped(value), _printed_headers(headers))
        )
    return seen


def _printed_headers(text: str) -> Iterable[tuple[str, bytes | None]]:
    if text == "NO_HEADERS":
        return []
    pairs = (one.split(":", 1) for one in text.split(_BETWEEN_HEADERS))
    return [(name, _unescaped(value)) for name, value in pairs]


def _unescaped(text: str) -> bytes | None:
    """The bytes that Kafka's `Bytes` prints as characters, and as hexadecimal numbers."""
    if text == "<null>":
        return None
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text).encode("latin-1")


def spark_reader(spark: SparkSession) -> Reader:
    """Spark's Kafka source in batch."""

    def read(bootstrap: str, ends: Ends) -> Seen:
        (topic,) = {data.topic for data in ends}
        rows = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
            .load()
            .orderBy("partition", "offset")
            .collect()
        )
        seen: Seen = {data.partition: [] for data in ends}
        for row in rows:
            headers = [(it["key"], it["value"]) for it in row["headers"] or []]
            seen[row["partition"]].append(_shown(row["key"], row["value"], headers))
        return seen

    return read


def _shown(
    key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]
) -> Shown:
    plain = [(name, None if it is None else bytes(it)) for name, it in headers]
    return Shown(
        None if key is None else bytes(key), None if value is None else bytes(value), tuple(plain)
    )
