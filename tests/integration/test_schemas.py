"""Confluent's serializers in transactions and subscriptions, with a real schema registry."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.schema_registry import (
    AsyncSchemaRegistryClient,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import (
    AsyncAvroDeserializer,
    AsyncAvroSerializer,
    AvroDeserializer,
    AvroSerializer,
)
from confluent_kafka.schema_registry.json_schema import (
    AsyncJSONDeserializer,
    AsyncJSONSerializer,
    JSONDeserializer,
    JSONSerializer,
)
from confluent_kafka.schema_registry.protobuf import (
    AsyncProtobufDeserializer,
    AsyncProtobufSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
)
from google.type.money_pb2 import Money

from stilltide import sync
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.errors import SerializerError, UndecodableError
from stilltide.schemas.pending_ack.dead_letters import decode
from stilltide.schemas.values import TopicPartition
from stilltide.testing import MemoryCluster, SyncMemoryCluster
from tests.support.coordinator.worker_memory import until
from tests.support.processes.registry import SchemaRegistry

WAIT_S = 60
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Payment",
        "fields": [{"name": "order", "type": "long"}, {"name": "note", "type": "string"}],
    }
)
JSON_SCHEMA = json.dumps(
    {
        "title": "Payment",
        "type": "object",
        "properties": {"order": {"type": "integer"}, "note": {"type": "string"}},
        "required": ["order"],
    }
)
PAYMENT: dict[str, Any] = {"order": 7, "note": "paid"}
CONF = {"use.deprecated.format": False}
MONEY = Money(currency_code="EUR", units=9)

FORMATS = pytest.mark.parametrize("form", ["avro", "json", "protobuf"])


# A type checker does not see the parameters of these classes, nor that some are to be awaited.
BLOCKING: dict[str, tuple[Any, Any]] = {
    "avro": (AvroSerializer, AvroDeserializer),
    "json": (JSONSerializer, JSONDeserializer),
    "protobuf": (ProtobufSerializer, ProtobufDeserializer),
}
ASYNCHRONOUS: dict[str, tuple[Any, Any]] = {
    "avro": (AsyncAvroSerializer, AsyncAvroDeserializer),
    "json": (AsyncJSONSerializer, AsyncJSONDeserializer),
    "protobuf": (AsyncProtobufSerializer, AsyncProtobufDeserializer),
}


def serdes(form: str, registry: Any, kinds: dict[str, tuple[Any, Any]]) -> tuple[Any, Any, Any]:
    """Serializer, deserializer and a value of a format, which ask the registry."""
    serializer, deserializer = kinds[form]
    if form == "avro":
        return serializer(registry, AVRO), deserializer(registry), PAYMENT
    if form == "json":
        return serializer(JSON_SCHEMA, registry), deserializer(JSON_SCHEMA), PAYMENT
    return serializer(Money, registry, CONF), deserializer(Money, CONF), MONEY


def blocking_serdes(form: str, **conf: Any) -> tuple[Any, Any, Any]:
    """Those that wait for the registry."""
    return serdes(form, SchemaRegistryClient(conf), BLOCKING)


async def async_serdes(form: str, **conf: Any) -> tuple[Any, Any, Any]:
    """Those that are awaited."""
    serializer, deserializer, value = serdes(form, AsyncSchemaRegistryClient(conf), ASYNCHRONOUS)
    return await serializer, await deserializer, value


@pytest.fixture
def topic() -> str:
    """A topic, whose subjects no other test has."""
    return f"payments-{uuid4().hex}"


@pytest.fixture
async def cluster(topic: str) -> AsyncIterator[MemoryCluster]:
    """A cluster with the topic, and one for its dead letters."""
    async with MemoryCluster({topic: 1, f"{topic}-g-DLQ": 1}) as made:
        yield made


@FORMATS
@pytest.mark.parametrize("blocking", [True, False])
async def test_what_a_serializer_has_written_a_deserializer_reads(
    cluster: MemoryCluster,
    registry: SchemaRegistry,
    topic: str,
    form: str,
    blocking: bool,  # noqa: FBT001 - a parameter of the test
):
    """With the frame of the registry; a tombstone is none that is framed."""
    if blocking:
        serializer, deserializer, value = blocking_serdes(form, url=registry.url)
    else:
        serializer, deserializer, value = await async_serdes(form, url=registry.url)
    async with (
        TransactionClient(connector=cluster.connector, value_serializer=serializer) as client,
        client.transaction() as txn,
    ):
        await txn.send(topic, value)
        await txn.send(topic, None)
    framed, tombstone = await cluster.committed(topic)
    assert framed.value is not None
    assert framed.value[0] == 0
    assert tombstone.value is None
    async with (
        asyncio.timeout(WAIT_S),
        Subscription(
            topic, group="g", connector=cluster.connector, value_deserializer=deserializer
        ) as messages,
    ):
        assert [(await anext(messages)).value for _ in range(2)] == [value, None]


@FORMATS
def test_without_an_event_loop(registry: SchemaRegistry, topic: str, form: str):
    """The blocking ones, of `stilltide.sync`."""
    serializer, deserializer, value = blocking_serdes(form, url=registry.url)
    with SyncMemoryCluster({topic: 1}) as cluster:
        connector = cluster.connector
        with (
            sync.TransactionClient(connector=connector, value_serializer=serializer) as client,
            client.transaction() as txn,
        ):
            txn.send(topic, value)
            with pytest.raises(SerializerError, match="the value cannot be serialized"):
                txn.send(topic, object())
            txn.send(topic, value)
        with sync.Subscription(
            topic, group="g", connector=connector, value_deserializer=deserializer
        ) as messages:
            assert [it.value for it in next(messages.batches())] == [value, value]


async def test_the_schema_may_be_named_in_a_header(cluster: MemoryCluster, topic: str):
    """By its GUID, which Confluent's mock of a registry has, and Apicurio has not."""
    registry = SchemaRegistryClient.new_client({"url": "mock://"})
    serializer: Any = BLOCKING["avro"][0](
        registry, AVRO, conf={"schema.id.serializer": header_schema_id_serializer}
    )
    deserializer: Any = BLOCKING["avro"][1](registry)
    serializers = {"value_serializer": serializer, "key_serializer": serializer}
    async with (
        TransactionClient(connector=cluster.connector, **serializers) as client,
        client.transaction() as txn,
    ):
        await txn.send(topic, PAYMENT, key=PAYMENT, headers=[("id", b"1")])
    (record,) = await cluster.committed(topic)
    names = [name for name, _ in record.headers or ()]
    assert names == ["txn", "id", "__key_schema_id", "__value_schema_id"]
    deserializers = {"value_deserializer": deserializer, "key_deserializer": deserializer}
    async with (
        asyncio.timeout(WAIT_S),
        Subscription(topic, group="g", connector=cluster.connector, **deserializers) as messages,
    ):
        message = await anext(messages)
    assert (message.key, message.value) == (PAYMENT, PAYMENT)


STRANGE = [
    b"no frame at all",
    b"",
    b"\0",
    b"\0\0\0\0",
    b"\0\x7f\xff\xff\xffxyz",  # a schema that the registry does not have
]


@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("blocking", [True, False])
async def test_a_strangers_record_ends_no_reader(
    cluster: MemoryCluster,
    registry: SchemaRegistry,
    topic: str,
    strange: bytes,
    blocking: bool,  # noqa: FBT001 - a parameter of the test
):
    """It is raised, skipped, or a dead letter; the next record is read."""
    if blocking:
        serializer, deserializer, value = blocking_serdes("avro", url=registry.url)
    else:
        serializer, deserializer, value = await async_serdes("avro", url=registry.url)
    cluster.append(topic, strange)
    async with (
        TransactionClient(connector=cluster.connector, value_serializer=serializer) as client,
        client.transaction() as txn,
    ):
        await txn.send(topic, value)

    def subscribe(group: str, **options: Any) -> Subscription:
        return Subscription(
            topic,
            group=group,
            connector=cluster.connector,
            value_deserializer=deserializer,
            **options,
        )

    async with asyncio.timeout(WAIT_S):
        async with subscribe("r") as messages:
            with pytest.raises(UndecodableError) as raised:
                await anext(messages)
            assert raised.value.record.value == strange
            assert (await anext(messages)).value == value
        async with subscribe("s", on_undecodable="skip") as messages:
            assert (await anext(messages)).value == value
            assert messages.statistics()[TopicPartition(topic, 0)].undecodable == 1
        options = {"acknowledgements": True, "deliveries_max": 3, "on_undecodable": "dead_letter"}
        async with subscribe("g", **options) as messages:
            assert (await anext(messages)).value == value
            await until(lambda: messages.statistics()[TopicPartition(topic, 0)].dead_lettered)
    (letter,) = await cluster.committed(f"{topic}-g-DLQ")
    assert letter.value == strange
    assert decode(letter.headers) is not None


@pytest.mark.parametrize("blocking", [True, False])
async def test_an_outage_of_the_registry_passes_nothing_over(
    cluster: MemoryCluster,
    registry: SchemaRegistry,
    topic: str,
    blocking: bool,  # noqa: FBT001 - a parameter of the test
):
    """Neither by a record that is skipped, nor by one that is sent; afterwards all go on."""
    conf = {"url": registry.url, "timeout": 1, "max.retries": 0}
    serializer, _, value = blocking_serdes("avro", url=registry.url)
    late, reader, _ = (
        blocking_serdes("avro", **conf) if blocking else await async_serdes("avro", **conf)
    )
    async with (
        TransactionClient(connector=cluster.connector, value_serializer=serializer) as client,
        TransactionClient(connector=cluster.connector, value_serializer=late) as other,
        Subscription(
            topic,
            group="g",
            connector=cluster.connector,
            value_deserializer=reader,
            on_undecodable="skip",
        ) as messages,
        asyncio.timeout(WAIT_S),
    ):
        async with client.transaction() as txn:
            await txn.send(topic, value)
        async with other.transaction() as txn:
            with registry.frozen():
                for _ in range(2):
                    with pytest.raises(SerializerError, match="asks does not answer"):
                        await anext(messages)
                with pytest.raises(SerializerError, match="the value cannot be serialized"):
                    await txn.send(topic, value)
            await txn.send(topic, value)
        assert [(await anext(messages)).value for _ in range(2)] == [value, value]
        assert messages.statistics()[TopicPartition(topic, 0)].undecodable == 0


async def test_a_registry_that_hangs_holds_up_nothing_else(
    cluster: MemoryCluster, registry: SchemaRegistry, topic: str
):
    """Confluent's client waits for ever by default: it waits on a thread."""
    serializer, deserializer, value = blocking_serdes("avro", url=registry.url)
    async with (
        TransactionClient(connector=cluster.connector, value_serializer=serializer) as client,
        TransactionClient(connector=cluster.connector) as other,
        asyncio.timeout(WAIT_S),
        client.transaction() as txn,
    ):
        with registry.frozen():
            waiting = asyncio.create_task(txn.send(topic, value))
            async with other.transaction() as more:
                await more.send(topic, None)
            assert not waiting.done()
        await waiting
    tombstone, framed = await cluster.committed(topic)
    assert tombstone.value is None
    assert framed.value is not None
    async with (
        asyncio.timeout(WAIT_S),
        Subscription(
            topic, group="g", connector=cluster.connector, value_deserializer=deserializer
        ) as messages,
    ):
        assert [(await anext(messages)).value for _ in range(2)] == [None, value]
