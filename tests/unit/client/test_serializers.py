"""The serializers of a client: which is called for what, what it may return, and its errors."""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.serialization import (
    IntegerSerializer,
    SerializationContext,
    Serializer,
    StringDeserializer,
    StringSerializer,
)

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import Subscription, Transaction, TransactionClient
from stilltide.pipeline.errors import (
    ArgumentError,
    NotAwaitedError,
    SerializerError,
    TransactionStateError,
)
from stilltide.schemas.values import TopicPartition
from tests.support.coordinator.worker_client import visible, written

pytestmark = pytest.mark.usefixtures("worker")

ORDERS = TopicPartition("orders", 0)


def as_json(value: object) -> bytes:
    """A callable as an application has it."""
    return json.dumps(value).encode()


class Noting(Serializer):
    """One of Confluent's kind, which notes its calls and writes a header, as some of theirs do."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, str, str]] = []

    def __call__(self, obj: Any, ctx: SerializationContext | None = None) -> bytes | None:
        """Notes the call."""
        assert ctx is not None
        assert isinstance(ctx.headers, list)
        self.calls.append((obj, ctx.topic, str(ctx.field)))
        ctx.headers.append((f"__{ctx.field}_schema_id", b"1"))
        return None if obj is None else str(obj).encode()


async def send(connector: MemoryConnector, client: dict[str, Any], **record: Any) -> None:
    """Sends one record by a client of its own."""
    async with (
        TransactionClient(connector=connector, **client) as made,
        made.transaction() as txn,
    ):
        await txn.send(**{"topic": "orders", "partition": 0, **record})


async def test_a_callable_makes_the_bytes(broker: MemoryBroker, connector: MemoryConnector):
    """Of values and keys alike; the partition follows from the key's bytes."""
    serializers = {"value_serializer": as_json, "key_serializer": str.encode}
    async with (
        TransactionClient(connector=connector, **serializers) as client,
        TransactionClient(connector=connector) as plain,
        client.transaction() as txn,
        plain.transaction() as other,
    ):
        data = await txn.send("orders", {"cents": 700}, key="a")
        assert data == await other.send("orders", b"", key=b"a")
    records = {(it.key, it.value) for it in broker.records(data)}
    assert records == {(b"a", b'{"cents": 700}'), (b"a", b"")}


async def test_a_mapping_names_topics(broker: MemoryBroker, connector: MemoryConnector):
    """Records of topics that it does not name are bytes, as ever."""
    async with (
        TransactionClient(connector=connector, value_serializer={"orders": as_json}) as client,
        client.transaction() as txn,
    ):
        await txn.send("orders", [1])
        await txn.send("payments", b"[2]")
        with pytest.raises(ArgumentError, match="payments: the value is a list, not bytes"):
            await txn.send("payments", [2])
    assert [value for _, value, _ in written(broker, "orders")] == [b"[1]"]
    assert [value for _, value, _ in written(broker, "payments")] == [b"[2]"]


async def test_no_callable_is_given_a_tombstone(broker: MemoryBroker, connector: MemoryConnector):
    """None is the absence of a value, or of a key."""
    serializers = {"value_serializer": as_json, "key_serializer": as_json}
    await send(connector, serializers, value=None)
    (record,) = broker.records(ORDERS)
    assert (record.key, record.value) == (None, None)


async def test_confluents_are_given_the_context_and_tombstones(
    broker: MemoryBroker, connector: MemoryConnector
):
    """The key comes first, as in Confluent's own producer; headers that they add are written."""
    noting = Noting()
    serializers = {"value_serializer": noting, "key_serializer": noting}
    await send(connector, serializers, value=None, key=7, headers=[("id", b"1")])
    assert noting.calls == [(7, "orders", "key"), (None, "orders", "value")]
    (record,) = broker.records(ORDERS)
    assert (record.key, record.value) == (b"7", None)
    assert list(record.headers or ())[1:] == [
        ("id", b"1"),
        ("__key_schema_id", b"1"),
        ("__value_schema_id", b"1"),
    ]


async def test_confluents_own_for_plain_types(broker: MemoryBroker, connector: MemoryConnector):
    """Those that need no registry."""
    serializers = {"value_serializer": StringSerializer(), "key_serializer": IntegerSerializer()}
    await send(connector, serializers, value="text", key=1)
    (record,) = broker.records(ORDERS)
    assert (record.key, record.value) == (b"\0\0\0\1", b"text")


async def test_what_is_to_be_awaited_is_awaited(broker: MemoryBroker, connector: MemoryConnector):
    """An async function is a serializer, too."""

    async def slowly(value: object) -> bytes:
        await asyncio.sleep(0)
        return as_json(value)

    await send(connector, {"value_serializer": slowly}, value=[1])
    assert [it.value for it in broker.records(ORDERS)] == [b"[1]"]


def _failing(_: object) -> bytes:
    raise ValueError("no such field")


async def _failing_later(value: object) -> bytes:
    await asyncio.sleep(0)
    return _failing(value)


@pytest.mark.parametrize(
    ("serializer", "why"),
    [
        (_failing, "ValueError: no such field"),
        (_failing_later, "ValueError: no such field"),
        (lambda _: "text", "it has returned a str, not bytes"),
        (lambda _: bytearray(b"text"), "it has returned a bytearray, not bytes"),
        (IntegerSerializer(), "SerializationError: required argument is not an integer"),
    ],
)
@pytest.mark.parametrize("field", ["key", "value"])
async def test_an_error_of_a_serializer_leaves_the_transaction_as_it_was(
    connector: MemoryConnector, serializer: Callable[..., Any], why: str, field: str
):
    """It is typed, names topic and field, and has sent nothing; the transaction goes on."""
    options: dict[str, Any] = {f"{field}_serializer": {"orders": serializer}}
    async with (
        TransactionClient(connector=connector, **options) as client,
        client.transaction() as txn,
    ):
        await txn.send("payments", b"before")
        with pytest.raises(SerializerError) as raised:
            await txn.send("orders", **{"value": b"v", "key": b"k", field: "x"})
        assert txn.state == "open"
        assert txn.delivered.keys() <= {TopicPartition("payments", n) for n in range(3)}
        await txn.send("payments", b"after")
    error = raised.value
    assert (error.topic, error.field, error.detail) == ("orders", field, why)
    assert str(error).startswith(f"orders: the {field} cannot be serialized")
    assert await visible(connector) == {("payments", b"before"): 1, ("payments", b"after"): 1}


async def test_nothing_is_serialized_for_a_transaction_that_has_ended(connector: MemoryConnector):
    """A serializer may register a schema, which nobody would need."""
    noting = Noting()
    async with TransactionClient(connector=connector, value_serializer=noting) as client:
        async with client.transaction() as txn:
            await txn.abort()
        with pytest.raises(TransactionStateError):
            await txn.send("orders", "late")
        async with client.transaction() as txn:
            with pytest.raises(ArgumentError, match="the headers are a dict"):
                await txn.send("orders", "x", headers={"id": b""})  # pyright: ignore[reportArgumentType]
    assert noting.calls == []


@pytest.mark.filterwarnings("ignore:coroutine 'Transaction._serialize' was never awaited")
async def test_a_send_that_is_lost_in_its_serializer_is_found_by_the_commit(
    connector: MemoryConnector,
):
    """As one that was never awaited, or has not ended, without a serializer."""
    wait = asyncio.Event()

    async def waits(value: str) -> bytes:
        await wait.wait()
        return value.encode()

    async def commit_with(use: Callable[[Transaction], object]) -> None:
        async with (
            TransactionClient(connector=connector, value_serializer=waits) as client,
            client.transaction() as txn,
        ):
            use(txn)
            await asyncio.sleep(0)

    with pytest.raises(NotAwaitedError, match="1 send was never awaited"):
        await commit_with(lambda txn: txn.send("orders", "x"))
    tasks: list[asyncio.Task[Any]] = []
    with pytest.raises(NotAwaitedError, match="1 send has not ended"):
        await commit_with(lambda txn: tasks.append(asyncio.create_task(txn.send("orders", "x"))))
    wait.set()
    with pytest.raises(TransactionStateError):
        await tasks[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (7, "`value_serializer` is a int, not a serializer"),
        ({"orders": "json"}, "`value_serializer` of orders is a str, not a serializer"),
        (StringSerializer, "`value_serializer` is the class StringSerializer, not an object"),
        (
            StringDeserializer(),
            "`value_serializer` is a StringDeserializer, which is no serializer",
        ),
    ],
)
async def test_what_is_no_serializer_is_refused(connector: MemoryConnector, given: Any, said: str):
    """When the client is made, and by what it is."""
    with pytest.raises(ArgumentError, match=said):
        TransactionClient(connector=connector, value_serializer=given)
    said = said.replace("serializer", "deserializer").replace("Stringdeserializer", "String")
    if "String" not in said:
        with pytest.raises(ArgumentError, match=said):
            Subscription(["orders"], group="g", connector=connector, value_deserializer=given)


async def test_an_object_that_has_to_be_awaited_is_refused(connector: MemoryConnector):
    """Confluent's asynchronous classes make a coroutine, which makes the object."""

    async def made() -> Serializer:
        return StringSerializer()

    with pytest.raises(ArgumentError, match="is a coroutine, not a serializer\n  hint: await it"):
        TransactionClient(connector=connector, value_serializer=made())  # pyright: ignore[reportArgumentType]


async def test_what_may_wait_for_a_registry_runs_on_a_thread(
    broker: MemoryBroker, connector: MemoryConnector
):
    """Everything else of the process goes on while it waits; others run on the event loop."""
    from confluent_kafka.schema_registry.serde import BaseSerializer  # noqa: PLC0415 - needs an extra

    threads: list[threading.Thread] = []

    class OfARegistry(BaseSerializer):
        def __init__(self) -> None:
            pass

        def __call__(self, obj: Any, ctx: object = None) -> bytes | None:  # noqa: ARG002 - theirs
            threads.append(threading.current_thread())
            return str(obj).encode()

    def here(value: object) -> bytes:
        threads.append(threading.current_thread())
        return str(value).encode()

    serializers = {"value_serializer": OfARegistry(), "key_serializer": here}
    await send(connector, serializers, value=1, key=2)
    await send(connector, {"key_serializer": here}, value=b"", key=2)
    assert threads[0] is threads[1] is not threading.main_thread()
    assert threads[2] is threading.main_thread()
    assert [it.value for it in broker.records(ORDERS)] == [b"1", b""]
