"""The deserializers of a subscription: what is returned, and where a refused record leaves it."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from confluent_kafka.serialization import Deserializer, SerializationContext, StringDeserializer
from structlog.testing import capture_logs

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.errors import (
    AcknowledgementError,
    ArgumentError,
    ConfigError,
    SerializerError,
    UndecodableError,
)
from stilltide.schemas.pending_ack.dead_letters import decode
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import EndOffset, TopicPartition
from tests.support.coordinator.worker_client import take
from tests.support.coordinator.worker_memory import until

pytestmark = pytest.mark.usefixtures("worker")

ORDERS = TopicPartition("orders", 0)
GROUP = "billing"
DEAD_LETTERS = TopicPartition("orders-billing-DLQ", 0)
BAD = b"{"


def subscribe(connector: MemoryConnector, group: str = GROUP, **options: Any) -> Subscription:
    """A member that reads JSON."""
    given = {"value_deserializer": json.loads, **options}
    return Subscription(["orders"], group=group, connector=connector, **given)


def write(broker: MemoryBroker, *values: bytes | None) -> None:
    """Records of a producer without transactions."""
    for value in values:
        broker.append(ORDERS, b"k", value, None)


Reading = Callable[[Subscription, int], AsyncGenerator[Any, None]]


async def by_next(messages: Subscription, _: int) -> AsyncGenerator[Any, None]:
    """One message for each call."""
    while True:
        yield await anext(messages)


async def by_iteration(messages: Subscription, _: int) -> AsyncGenerator[Any, None]:
    """One message after the other."""
    async for message in messages:
        yield message


async def by_batches(messages: Subscription, _: int) -> AsyncGenerator[Any, None]:
    """Batches."""
    async for batch in messages.batches(3):
        for message in batch:
            yield message


async def to_an_end(messages: Subscription, end: int) -> AsyncGenerator[Any, None]:
    """Up to an end offset."""
    async for message in messages.read_to({ORDERS: EndOffset(end)}):
        yield message


WAYS = pytest.mark.parametrize("way", [by_next, by_iteration, by_batches, to_an_end])


async def some(reading: AsyncGenerator[Any, None], count: int) -> list[Any]:
    """The next values."""
    async with asyncio.timeout(20):
        return [(await anext(reading)).value for _ in range(count)]


@WAYS
async def test_messages_are_decoded(broker: MemoryBroker, connector: MemoryConnector, way: Reading):
    """In each way of reading; a tombstone stays None, and positions are as ever."""
    write(broker, b"[0]", None, b'{"a": 2}', b"3", b"4")
    async with subscribe(connector) as messages:
        assert await some(way(messages, 5), 5) == [[0], None, {"a": 2}, 3, 4]
        assert messages.position(ORDERS) == 5
        await messages.commit()
        assert messages.statistics()[ORDERS].delivered == 5
    assert broker.group(GROUP).committed[ORDERS].offset == 5


async def test_keys_and_topics(broker: MemoryBroker, connector: MemoryConnector):
    """Keys have deserializers of their own; a mapping leaves other topics as they are."""
    write(broker, b"[0]")
    broker.append(TopicPartition("payments", 0), b"k", b"[1]", None)
    async with Subscription(
        ["orders", "payments"],
        group=GROUP,
        connector=connector,
        value_deserializer={"orders": json.loads},
        key_deserializer=StringDeserializer(),
    ) as messages:
        received = {it.topic: (it.key, it.value) for it in await take(messages, 2)}
    assert received == {"orders": ("k", [0]), "payments": ("k", b"[1]")}


async def test_confluents_are_given_the_context_and_tombstones(
    broker: MemoryBroker, connector: MemoryConnector
):
    """Topic, field and headers, which may name a schema."""
    calls: list[Any] = []

    class Noting(Deserializer):
        def __call__(self, value: bytes | None, ctx: SerializationContext | None = None) -> Any:
            assert ctx is not None
            calls.append((value, ctx.topic, str(ctx.field), ctx.headers))

    broker.append(ORDERS, None, None, [("id", b"1")])
    async with subscribe(connector, value_deserializer=Noting(), key_deserializer=Noting()) as it:
        await take(it)
    headers = [("id", b"1")]
    assert calls == [(None, "orders", "key", headers), (None, "orders", "value", headers)]


@WAYS
async def test_an_undecodable_record_is_raised_once(
    broker: MemoryBroker, connector: MemoryConnector, way: Reading
):
    """The error names the place and has the record; a commit passes it, a restart meets it."""
    write(broker, b"0", BAD, b"2")
    for _ in range(2):
        async with subscribe(connector) as messages:
            reading = way(messages, 3)
            assert await some(reading, 1) == [0]
            with pytest.raises(
                UndecodableError, match=r"^orders/0@1: the value cannot be"
            ) as raised:
                await anext(reading)
            assert raised.value.record.value == BAD
            assert raised.value.field == "value"
            assert isinstance(raised.value.__cause__, json.JSONDecodeError)
    async with subscribe(connector) as messages:
        with pytest.raises(UndecodableError):
            await some(way(messages, 3), 2)
        await messages.commit()
        assert broker.group(GROUP).committed[ORDERS].offset == 2
        assert await some(way(messages, 3), 1) == [2]


async def test_a_raised_record_is_acknowledged_or_comes_again(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
):
    """With acknowledgements the error's record is a message like others, in transactions too."""
    write(broker, b"0", BAD, b"2", BAD)
    options: dict[str, Any] = {"acknowledgements": True, "redelivery_delay_s": 0.01}
    async with subscribe(connector, **options) as messages:
        (first,) = await take(messages)
        with pytest.raises(UndecodableError) as raised:
            await take(messages)
        messages.negative_acknowledge(raised.value.record, raised.value)
        assert [it.value for it in await take(messages)] == [2]
        with pytest.raises(UndecodableError) as other:
            await take(messages)
        with pytest.raises(UndecodableError) as again:
            await take(messages)
        assert (again.value.record.offset, again.value.record.deliveries) == (1, 2)
        messages.acknowledge(first)
        messages.acknowledge(again.value.record)
        async with client.transaction() as txn:
            await txn.acknowledge(messages, other.value.record)
    async with subscribe(connector, **options) as messages:
        assert [it.offset for it in await take(messages)] == [2]
        write(broker, b"4")
        assert [it.offset for it in await take(messages)] == [4]


@WAYS
@pytest.mark.parametrize("acknowledgements", [False, True])
async def test_undecodable_records_are_skipped(
    broker: MemoryBroker,
    connector: MemoryConnector,
    way: Reading,
    acknowledgements: bool,  # noqa: FBT001 - a parameter of the test
):
    """They are counted, one of a partition is logged, and the group's position goes past them."""
    write(broker, BAD, b"1", BAD, BAD, b"4")
    options = {"on_undecodable": "skip", "acknowledgements": acknowledgements}
    with capture_logs() as logs:
        async with subscribe(connector, **options) as messages:
            assert await some(way(messages, 5), 2) == [1, 4]
            if acknowledgements:
                for offset in (1, 4):
                    record = broker.records(ORDERS)[offset]
                    messages.acknowledge(record._replace(topic="orders"))
            await messages.commit()
            counts = messages.statistics()[ORDERS]
            assert (counts.undecodable, counts.delivered) == (3, 2)
    assert broker.group(GROUP).committed[ORDERS].offset == 5
    (line,) = [it for it in logs if it["event"].startswith("a record cannot be decoded")]
    assert (line["topic"], line["partition"], line["offset"]) == ("orders", 0, 0)
    assert "JSONDecodeError" in line["detail"]


@WAYS
async def test_a_topic_of_bad_records_alone_does_not_begin_again(
    broker: MemoryBroker, connector: MemoryConnector, way: Reading
):
    """Nobody gets a message after which to commit; the position is committed without one."""
    group = broker.group(GROUP)
    write(broker, BAD, BAD, BAD)
    async with subscribe(connector, on_undecodable="skip") as messages:
        reading = asyncio.create_task(some(way(messages, 9), 1))
        await until(lambda: ORDERS in group.committed and group.committed[ORDERS].offset == 3)
        write(broker, b"3", BAD)
        assert await reading == [3]
        reading = asyncio.create_task(some(way(messages, 9), 1))
        await until(lambda: messages.statistics()[ORDERS].undecodable == 4)
        reading.cancel()
        await asyncio.wait([reading])
    assert group.committed[ORDERS].offset == 3  # the application has not said that 3 is done


async def test_bad_records_behind_the_last_commit_are_committed_on_leaving(
    broker: MemoryBroker, connector: MemoryConnector
):
    """However soon after the last ones; not behind a message that was not committed."""
    group = broker.group(GROUP)
    for first in range(0, 15, 3):
        write(broker, b"0", BAD, BAD)
        async with subscribe(connector, on_undecodable="skip") as messages:
            assert [it.offset for it in await take(messages)] == [first]
            await messages.commit()
            end = {ORDERS: EndOffset(first + 3)}
            assert [it async for it in messages.read_to(end)] == []
        assert group.committed[ORDERS].offset == first + 3


DEAD: dict[str, Any] = {
    "on_undecodable": "dead_letter",
    "acknowledgements": True,
    "deliveries_max": 5,
    "redelivery_delay_s": 0.01,
}


async def test_undecodable_records_become_dead_letters(
    broker: MemoryBroker, connector: MemoryConnector
):
    """At once, with their bytes and the reason; a cumulative acknowledgement is not disturbed."""
    broker.create_topic(TopicSpec(DEAD_LETTERS.topic, 1))
    write(broker, b"0", BAD, b"2", BAD, b"4")
    async with subscribe(connector, **DEAD) as messages:
        last = (await take(messages, 3))[-1]
        assert last.value == 4
        messages.acknowledge_cumulative(last)
        await until(lambda: messages.statistics()[ORDERS].dead_lettered == 2)
        await messages.commit()
        assert messages.statistics()[ORDERS].undecodable == 2
        assert broker.group(GROUP).committed[ORDERS].offset >= 5
    letters = [it for it in broker.records(DEAD_LETTERS) if it.value is not None]
    assert [(it.key, it.value) for it in letters] == [(b"k", BAD)] * 2
    headers = decode(letters[0].headers)
    assert headers is not None
    assert (headers.data, headers.deliveries) == (ORDERS, 1)
    assert headers.error.startswith("value: JSONDecodeError: ")


async def test_a_dead_letter_that_cannot_be_sent_keeps_its_place(
    broker: MemoryBroker, connector: MemoryConnector
):
    """The group's position stays before the record until its dead letter is there."""
    broker.create_topic(TopicSpec(DEAD_LETTERS.topic, 1))
    write(broker, BAD, b"1")
    async with subscribe(connector, **DEAD) as messages:
        broker.delete_topic(DEAD_LETTERS.topic)
        with capture_logs() as logs:
            (message,) = await take(messages)
            messages.acknowledge_cumulative(message)
            await until(lambda: [it for it in logs if it["event"] == "dead_letter_not_sent"])
        await messages.commit()
        assert broker.group(GROUP).committed.get(ORDERS, EndOffset(0)) in (0, (0, "")) or (
            broker.group(GROUP).committed[ORDERS].offset == 0
        )
        broker.create_topic(TopicSpec(DEAD_LETTERS.topic, 1))
        await until(lambda: messages.statistics()[ORDERS].dead_lettered == 1)
        await messages.commit()
        assert broker.group(GROUP).committed[ORDERS].offset >= 2


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"on_undecodable": "dead_letter"}, ConfigError, "the group has no dead letters"),
        (
            {"on_undecodable": "dead_letter", "acknowledgements": True},
            ConfigError,
            "the group has no dead letters",
        ),
        (
            {"on_undecodable": "skip", "value_deserializer": None},
            ConfigError,
            "`on_undecodable` has no effect without a deserializer",
        ),
        ({"on_undecodable": "ignore"}, ConfigError, "`on_undecodable` is 'ignore'"),
        ({"key_deserializer": 7}, ArgumentError, "`key_deserializer` is a int"),
    ],
)
async def test_options_are_checked(
    connector: MemoryConnector, options: dict[str, Any], error: type[Exception], said: str
):
    """When the subscription is made; dead letters need a group that has them."""
    with pytest.raises(error, match=said):
        subscribe(connector, **options)


class Registry:
    """What a deserializer asks; away at first."""

    away = True

    def __call__(self, value: bytes) -> object:
        """Decodes if the registry is there."""
        if self.away:
            raise ConnectionRefusedError("nobody listens")
        return json.loads(value)


@WAYS
@pytest.mark.parametrize("on_undecodable", ["raise", "skip", "dead_letter"])
async def test_an_outage_is_no_fault_of_the_record(
    broker: MemoryBroker, connector: MemoryConnector, way: Reading, on_undecodable: str
):
    """Whatever becomes of undecodable records, nothing is passed over: the next call asks again."""
    broker.create_topic(TopicSpec(DEAD_LETTERS.topic, 1))
    write(broker, b"0", b"1")
    registry = Registry()
    options = DEAD | {"on_undecodable": on_undecodable, "value_deserializer": registry}
    async with subscribe(connector, **options) as messages:
        for _ in range(2):
            with pytest.raises(SerializerError, match=r"^orders/0@0: what the deserializer of the"):
                await some(way(messages, 2), 1)
        registry.away = False
        assert await some(way(messages, 2), 2) == [0, 1]
        assert messages.statistics()[ORDERS].undecodable == 0


async def test_nothing_hidden_is_decoded(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
):
    """An aborted transaction's garbage reaches no deserializer."""
    async with client.transaction() as txn:
        await txn.send("orders", BAD, partition=0)
        await txn.abort()
    async with client.transaction() as txn:
        await txn.send("orders", b"1", partition=0)
    async with subscribe(connector) as messages:
        assert [it.value for it in await take(messages)] == [1]


class Gate:
    """A deserializer that waits until it is told to go on."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, value: bytes) -> object:
        """Waits, then decodes."""
        self.entered.set()
        await self.open.wait()
        return json.loads(value)


@pytest.mark.parametrize("acknowledgements", [False, True])
async def test_no_position_passes_a_record_that_is_being_decoded(
    broker: MemoryBroker,
    connector: MemoryConnector,
    acknowledgements: bool,  # noqa: FBT001 - a parameter of the test
):
    """A commit meanwhile is of what was returned, and a seek meanwhile is obeyed."""
    write(broker, b"0", b"1", b"2")
    gate = Gate()
    async with subscribe(
        connector, value_deserializer=gate, acknowledgements=acknowledgements
    ) as messages:
        reading = asyncio.create_task(anext(messages))
        await gate.entered.wait()
        assert messages.position(ORDERS) == 0
        await messages.commit()
        await messages.seek(ORDERS, 2)
        gate.open.set()
        message = await reading
        assert (message.offset, message.value) == (2, 2)
        assert messages.position(ORDERS) == 3


async def test_a_call_that_is_cancelled_while_it_decodes_takes_nothing(
    broker: MemoryBroker, connector: MemoryConnector
):
    """The next call returns the record."""
    write(broker, b"0")
    gate = Gate()
    async with subscribe(connector, value_deserializer=gate) as messages:
        reading = asyncio.create_task(anext(messages))
        await gate.entered.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        gate.open.set()
        assert [it.value for it in await take(messages)] == [0]


async def test_a_subscription_is_left_and_entered_again(
    broker: MemoryBroker, connector: MemoryConnector
):
    """What was decoded ahead is forgotten with the rest."""
    write(broker, b"0", b"1")
    messages = subscribe(connector)
    for _ in range(2):
        async with messages:
            assert [it.value for it in await take(messages)] == [0]


async def test_what_the_error_says_is_bounded(broker: MemoryBroker, connector: MemoryConnector):
    """A stranger's megabytes do not come into logs by the text of an exception."""

    def refuse(value: bytes) -> object:
        raise ValueError(value.decode())

    write(broker, b"x" * 100_000)
    async with subscribe(connector, value_deserializer=refuse) as messages:
        with pytest.raises(UndecodableError) as raised:
            await take(messages)
    assert len(str(raised.value)) < 2000
    with pytest.raises(AcknowledgementError):
        async with subscribe(connector, acknowledgements=True) as others:
            others.acknowledge(raised.value.record)
