"""Other people's readers of committed data, each asked for the offsets it shows.

All take start positions and last stable offsets, read every partition from the one to the other in
small fetches, and return the offsets of the records they gave to the application.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as RawPartition
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.raw.fetch import KafkaBatchReader
from stilltide.connectors.local.jars import broker_jars
from stilltide.connectors.local.java import find_java
from stilltide.pipeline.core.native.batch_filter import BatchFilter, BatchVerdict
from stilltide.schemas.values import Offset, TopicPartition

Positions = Mapping[TopicPartition, int]
Seen = dict[TopicPartition, list[int]]
Client = Callable[[str, Positions, Positions], Seen]

FETCH_BYTES = 700
"""Of a partition in one fetch: some ten batches, so that fetches begin and end anywhere."""

WAIT_S = 240.0


def empty(starts: Positions) -> Seen:
    """Nothing seen yet."""
    return {data: [] for data in starts}


def librdkafka(bootstrap: str, starts: Positions, ends: Positions) -> Seen:
    """confluent-kafka."""
    seen, met = _confluent(bootstrap, starts, "read_committed")
    assert met == ends
    return seen


def uncommitted(bootstrap: str, starts: Positions, ends: Positions) -> Seen:
    """Every record that is left from the start to the last stable offset, whatever its fate."""
    seen, _ = _confluent(bootstrap, starts, "read_uncommitted")
    return {data: [it for it in found if it < ends[data]] for data, found in seen.items()}


def _confluent(bootstrap: str, starts: Positions, isolation: str) -> tuple[Seen, Positions]:
    """The offsets, and the ends that it met; it tells an end past markers too."""
    seen, ends = empty(starts), dict[TopicPartition, int]()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "check.crcs": True,
            "max.partition.fetch.bytes": FETCH_BYTES,
        }
    )
    consumer.assign([ConfluentPartition(*data, offset) for data, offset in starts.items()])
    deadline_s = time.monotonic() + WAIT_S
    while len(ends) < len(starts) and time.monotonic() < deadline_s:
        for message in consumer.consume(1000, 0.1):
            data = TopicPartition(message.topic() or "", message.partition() or 0)
            error = message.error()
            if error is None:
                seen[data].append(message.offset() or 0)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ends[data] = message.offset() or 0
    consumer.close()
    return seen, ends


def kafka_python(bootstrap: str, starts: Positions, ends: Positions) -> Seen:
    """kafka-python's consumer."""
    seen = empty(starts)
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="none",
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    names = {data: RawPartition(*data) for data in starts}
    consumer.assign(list(names.values()))
    for data, offset in starts.items():
        consumer.seek(names[data], offset)
    deadline_s = time.monotonic() + WAIT_S
    try:
        while any(consumer.position(names[data]) < end for data, end in ends.items()):
            assert time.monotonic() < deadline_s, "it does not move on"
            for name, records in consumer.poll(timeout_ms=100).items():
                seen[TopicPartition(*name)] += [record.offset for record in records]
    finally:
        consumer.close()
    return seen


def aiokafka(bootstrap: str, starts: Positions, ends: Positions) -> Seen:
    """The consumer that Faust stands on."""
    return asyncio.run(_aiokafka(bootstrap, starts, ends))


async def _aiokafka(bootstrap: str, starts: Positions, ends: Positions) -> Seen:
    seen = empty(starts)
    names = {data: AioPartition(*data) for data in starts}
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="none",
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    await consumer.start()
    try:
        consumer.assign(list(names.values()))
        for data, offset in starts.items():
            consumer.seek(names[data], offset)
        async with asyncio.timeout(WAIT_S):
            while any([await consumer.position(names[it]) < end for it, end in ends.items()]):
                for name, records in (await consumer.getmany(timeout_ms=100)).items():
                    seen[TopicPartition(*name)] += [record.offset for record in records]
    finally:
        await consumer.stop()
    return seen


@contextmanager
def java() -> Iterator[JavaGateway]:
    """The broker's own kafka-clients, in a JVM that py4j talks to."""
    path = ":".join(map(str, broker_jars()))
    port, token = launch_gateway(
        jarpath=str(next(Path(pyspark.__file__).parent.glob("jars/py4j-*.jar"))),
        classpath=path,
        java_path=str(find_java().path),
        javaopts=["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
        die_on_exit=True,
        enable_auth=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    try:
        yield gateway
    finally:
        gateway.shutdown()


def java_type(gateway: JavaGateway, key: bytes) -> str | None:
    """What Kafka's client for Java finds in the key of a control record; None: it refuses it."""
    jvm = gateway.jvm
    assert jvm is not None
    try:
        kind = jvm.org.apache.kafka.common.record.internal.ControlRecordType.parse(
            jvm.java.nio.ByteBuffer.wrap(key)
        )
    except Py4JJavaError:
        return None
    return kind.name()


def java_consumer(gateway: JavaGateway, bootstrap: str, starts: Positions, ends: Positions) -> Seen:
    """The consumer of Kafka itself."""
    seen, jvm = empty(starts), gateway.jvm
    assert jvm is not None
    options = jvm.java.util.HashMap()
    decoder = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    for name, value in {
        "bootstrap.servers": bootstrap,
        "enable.auto.commit": "false",
        "isolation.level": "read_committed",
        "auto.offset.reset": "none",
        "max.partition.fetch.bytes": str(FETCH_BYTES),
        "key.deserializer": decoder,
        "value.deserializer": decoder,
    }.items():
        options.put(name, value)
    names = {
        data: jvm.org.apache.kafka.common.TopicPartition(data.topic, data.partition)
        for data in starts
    }
    consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(options)
    assigned = jvm.java.util.ArrayList()
    for name in names.values():
        assigned.add(name)
    consumer.assign(assigned)
    for data, offset in starts.items():
        consumer.seek(names[data], offset)
    deadline_s = time.monotonic() + WAIT_S
    try:
        while any(consumer.position(names[data]) < end for data, end in ends.items()):
            assert time.monotonic() < deadline_s, "it does not move on"
            found = consumer.poll(jvm.java.time.Duration.ofMillis(100))
            for data, name in names.items() if not found.isEmpty() else ():
                seen[data] += [record.offset() for record in found.records(name)]
    finally:
        consumer.close()
    return seen


def ours(bootstrap: str, starts: Positions, ends: Positions) -> Seen:
    """The batch filter on raw fetches, with the records that every reader finds in a batch.

    Visible is what an uncommitted reader sees and lies in a batch that the filter lets through.
    """
    visible = asyncio.run(_visible(bootstrap, starts, ends))
    raw = uncommitted(bootstrap, starts, ends)
    return {
        data: [it for it in raw[data] if any(it in batch for batch in visible[data])]
        for data in starts
    }


async def _visible(
    bootstrap: str, starts: Positions, ends: Positions
) -> dict[TopicPartition, list[range]]:
    visible: dict[TopicPartition, list[range]] = {}
    reader = KafkaBatchReader(KafkaConfig(bootstrap), "conformance")
    for data, start in starts.items():
        position, found = start, visible.setdefault(data, [])
        while position < ends[data]:
            answer = await reader.fetch(data, Offset(position), bytes_max=FETCH_BYTES)
            assert answer.last_stable_offset == ends[data]
            filter_ = BatchFilter(Offset(position), answer.aborted)
            for batch in answer.batches:
                if filter_.batch_read(batch) is BatchVerdict.VISIBLE:
                    found.append(range(max(batch.base_offset, position), batch.last_offset + 1))
            position = filter_.position
    await reader.close()
    return visible
