"""Batches of messages: columns, waits, acknowledgement as a whole, Arrow."""

import asyncio
import sys
from typing import Any

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.readers import Record, TimedRecord
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.client.batches import MessageBatch
from stilltide.pipeline.errors import (
    AcknowledgementError,
    ArgumentError,
    ConfigError,
    MissingExtraError,
    UsageError,
)
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.coordinator.worker_memory import until

pytestmark = pytest.mark.usefixtures("worker")

ORDERS = TopicPartition("orders", 0)
OTHERS = TopicPartition("orders", 1)
HEADERS = (("by", b"web"),)
PATIENT_S = 120.0
"""A wait that only a whole batch ends."""

READERS: dict[str, dict[str, Any]] = {
    "positions": {},
    "acknowledgements": {"acknowledgements": True},
    "deserializer": {"value_deserializer": bytes.decode},
}


def subscribe(connector: MemoryConnector, **options: Any) -> Subscription:
    """A member of the group."""
    return Subscription(["orders"], group="billing", connector=connector, **options)


def write(broker: MemoryBroker, count: int, data: TopicPartition = ORDERS) -> None:
    """Records of a producer without transactions."""
    for number in range(count):
        broker.append(data, b"k%d" % number, b"v%d" % number, HEADERS if number else None)


async def first(subscription: Subscription, *sizes: float) -> MessageBatch:
    """The first batch."""
    batches = subscription.batches(*sizes)  # type: ignore[arg-type]
    try:
        return await anext(batches)
    finally:
        await batches.aclose()


@pytest.mark.parametrize("reader", READERS)
async def test_columns_are_those_of_the_messages(
    connector: MemoryConnector, broker: MemoryBroker, reader: str
):
    """Whatever has made the messages; each of them with its timestamp."""
    write(broker, 5)
    async with subscribe(connector, **READERS[reader]) as subscription:
        batch = await first(subscription, 5, PATIENT_S)
    assert batch.data == ORDERS
    assert batch.offsets == [message.offset for message in batch] == list(range(5))
    assert batch.keys == [message.key for message in batch] == [b"k%d" % it for it in range(5)]
    assert batch.values == [message.value for message in batch]
    assert batch.values[4] == ("v4" if reader == "deserializer" else b"v4")
    assert batch.headers == [message.headers for message in batch] == [None, *[HEADERS] * 4]
    assert batch.timestamps_ms == [0] * 5  # of a broker without a clock
    assert batch[1:3] == [batch[1], batch[2]]
    assert len(batch) == 5


@pytest.mark.parametrize("reader", READERS)
async def test_a_batch_waits_for_its_records(
    connector: MemoryConnector, broker: MemoryBroker, reader: str
):
    """More than one turn of a partition, written while the reader waits."""
    write(broker, 300)
    async with subscribe(connector, **READERS[reader]) as subscription:
        waiting = asyncio.ensure_future(first(subscription, 900, PATIENT_S))
        await until(lambda: _read(subscription))
        write(broker, 700)
        batch = await waiting
        offsets = batch.offsets
        while len(offsets) < 1000:
            offsets = [*offsets, *(await first(subscription, 900, 0.001)).offsets]
    assert offsets == list(range(1000))
    # What a store has let through waits beside what comes later, and is returned first.
    assert len(batch) == (300 if reader == "acknowledgements" else 900)


def _read(subscription: Subscription) -> bool:
    driver, _ = subscription._checked()
    return driver.joined.intake.positions.get(ORDERS, 0) == 300


async def test_a_wait_that_is_over_returns_each_partition_with_what_it_has(
    connector: MemoryConnector, broker: MemoryBroker
):
    """A partition with few records does not wait for one that always has enough."""
    write(broker, 3, OTHERS)
    write(broker, 1000)
    seen: list[TopicPartition] = []
    async with subscribe(connector) as subscription:
        async for batch in subscription.batches(10, 0.02):
            seen.append(batch.data)
            if batch.data == OTHERS:
                assert batch.offsets == [0, 1, 2]
                break
            write(broker, 10)
    assert OTHERS in seen


@pytest.mark.parametrize("reader", READERS)
async def test_a_full_buffer_ends_the_wait(
    connector: MemoryConnector, broker: MemoryBroker, reader: str
):
    """Partitions share the buffer, and none of them can have a whole batch in it."""
    write(broker, 15)
    write(broker, 15, OTHERS)
    taken: list[int] = []
    options = {"buffer_records_max": 20, **READERS[reader]}
    async with asyncio.timeout(PATIENT_S / 4), subscribe(connector, **options) as subscription:
        async for batch in subscription.batches(20, PATIENT_S):
            taken.append(len(batch))
            if len(taken) == 2:
                break
    assert taken == [15, 15]


async def test_batches_go_on_where_single_messages_ended(
    connector: MemoryConnector, broker: MemoryBroker
):
    """And the other way round: what was made for single messages is neither lost nor doubled."""
    write(broker, 600)
    offsets: list[int] = []
    async with subscribe(connector) as subscription:
        for _ in range(2):
            offsets += [(await anext(subscription)).offset for _ in range(10)]
            assert subscription.position(ORDERS) == len(offsets)
            offsets += (await first(subscription, 270)).offsets
            assert subscription.position(ORDERS) == len(offsets)
        while len(offsets) < 600:
            offsets += (await first(subscription, 270)).offsets
        await subscription.commit()
    assert offsets == list(range(600))
    async with subscribe(connector) as subscription:
        write(broker, 1)
        assert (await first(subscription, 10)).offsets == [600]


async def test_a_batch_is_acknowledged_as_a_whole(connector: MemoryConnector, broker: MemoryBroker):
    """One by one, up to its last message, and in a transaction; never twice."""
    write(broker, 9)
    options = {"acknowledgements": True, "unacknowledged_records_max": 3}
    async with (
        TransactionClient(connector=connector) as client,
        subscribe(connector, **options) as orders,
    ):
        batch = await first(orders, 3, PATIENT_S)
        orders.acknowledge(batch)
        with pytest.raises(AcknowledgementError):
            orders.acknowledge(batch)
        orders.acknowledge_cumulative(await first(orders, 3, PATIENT_S))
        async with client.transaction() as txn:
            await txn.acknowledge(orders, await first(orders, 3, PATIENT_S))
        await orders.commit()
        assert orders.position(ORDERS) == 9
    async with subscribe(connector, **options) as orders:
        write(broker, 1)
        assert (await first(orders, 3)).offsets == [9]


async def test_sizes_are_checked_before_anything_is_taken(connector: MemoryConnector):
    """Typed errors that name the argument."""
    async with subscribe(connector) as subscription:
        with pytest.raises(ConfigError, match="wait_s_max"):
            await first(subscription, 10, -1)
        with pytest.raises(ArgumentError, match="wait_s_max"):
            await first(subscription, 10, "1")  # type: ignore[arg-type]


def batch_of(*values: Any, headers: Any = None) -> MessageBatch:
    """Messages with these values, at 1.7 s."""
    records = [
        TimedRecord.at(Record(*ORDERS, Offset(at), None, value, headers), 1700 + at)
        for at, value in enumerate(values)
    ]
    return MessageBatch.of(records)


def test_arrow_has_the_types_that_the_page_names():
    """Also where all keys are None; a record read without its timestamp has none."""
    batch = batch_of(b"a", None, headers=[("by", b"web"), ("by", None)]).to_arrow()
    assert [str(it.type) for it in batch.schema] == [
        "dictionary<values=string, indices=int32, ordered=0>",
        "int32",
        "int64",
        "timestamp[ms, tz=UTC]",
        "binary",
        "binary",
        "list<item: struct<name: string, value: binary>>",
    ]
    first_row, second_row = batch.to_pylist()
    assert (first_row["topic"], first_row["partition"], second_row["offset"]) == (*ORDERS, 1)
    assert first_row["timestamp"].timestamp() == 1.7
    assert (first_row["value"], second_row["value"], first_row["key"]) == (b"a", None, None)
    both = [{"name": "by", "value": b"web"}, {"name": "by", "value": None}]
    assert first_row["headers"] == both
    plain = MessageBatch.of([Record(*ORDERS, Offset(0), None, None, None)]).to_arrow()
    assert plain.to_pylist()[0] | {"headers": [], "timestamp": None} == plain.to_pylist()[0]


def test_arrow_shows_a_header_name_of_any_bytes():
    """Which a stranger's producer may write."""
    name = b"\xff\xfeby".decode(errors="surrogateescape")
    (row,) = batch_of(b"a", headers=[(name, b"1")]).to_arrow().to_pylist()
    assert row["headers"] == [{"name": "\ufffd\ufffdby", "value": b"1"}]


def test_what_deserializers_make_has_the_type_that_arrow_finds():
    """Dictionaries become structs; what has no common type is refused by name."""
    batch = batch_of({"cents": 1}, {"cents": 2}).to_arrow()
    assert str(batch.schema.field("value").type) == "struct<cents: int64>"
    for values in ((1, "two"), (2**80, 1), (object(), object())):
        with pytest.raises(UsageError, match="orders/0: the messages fit no column"):
            batch_of(*values).to_arrow()


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    """The columns themselves need nothing."""
    monkeypatch.delitem(sys.modules, "pyarrow", raising=False)
    monkeypatch.setattr(sys, "meta_path", [])
    batch = batch_of(b"a")
    assert batch.values == [b"a"]
    with pytest.raises(MissingExtraError, match=r"pip install 'stilltide\[arrow\]'"):
        batch.to_arrow()
