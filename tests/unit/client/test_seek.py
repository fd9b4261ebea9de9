"""A subscription that moves to another offset, on the memory broker with real owners."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.errors import OffsetOutOfRangeError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import Message, Subscription, TransactionClient
from stilltide.pipeline.client.transaction_acks import TransactionAcks
from stilltide.pipeline.errors import (
    AlreadyAcknowledgedError,
    NotAssignedError,
    NotDeliveredError,
)
from stilltide.schemas.values import EndOffset, TopicPartition, TxnId
from tests.support.coordinator.worker_client import TOPICS
from tests.support.coordinator.worker_memory import until

GROUP = "billing"
COUNT = 6
FIRST, SECOND = TopicPartition(TOPICS[0], 0), TopicPartition(TOPICS[0], 1)


def subscribe(connector: MemoryConnector, *, acknowledgements: bool) -> Subscription:
    """A member of the group."""
    return Subscription(
        [TOPICS[0]],
        group=GROUP,
        connector=connector,
        acknowledgements=acknowledgements,
        redelivery_delay_s=60,
    )


@pytest.fixture(autouse=True)
async def _written(client: TransactionClient) -> None:
    async with client.transaction() as txn:
        for number in range(COUNT):
            await txn.send(TOPICS[0], b"%d" % number, partition=0)
            await txn.send(TOPICS[0], b"%d" % number, partition=1)
        await txn.commit(wait_visible=True)


@pytest.fixture
async def plain(connector: MemoryConnector) -> AsyncIterator[Subscription]:
    """A member without acknowledgements."""
    async with subscribe(connector, acknowledgements=False) as subscription:
        yield subscription


@pytest.fixture
async def orders(connector: MemoryConnector) -> AsyncIterator[Subscription]:
    """A member with acknowledgements."""
    async with subscribe(connector, acknowledgements=True) as subscription:
        yield subscription


async def take(subscription: Subscription, count: int) -> list[Message]:
    """The next messages, in the order of partition and offset."""
    async with asyncio.timeout(10):
        return sorted([await anext(subscription) for _ in range(count)], key=lambda it: it[:3])


def offsets(messages: list[Message], data: TopicPartition = FIRST) -> list[int]:
    """Their offsets in a partition."""
    return [it.offset for it in messages if it.data == data]


async def test_records_are_read_from_the_offset_on(broker: MemoryBroker, plain: Subscription):
    """Back and forth; other partitions neither lose nor repeat a record; commit takes it over."""
    assert offsets(await take(plain, 2 * COUNT)) == [*range(COUNT)]
    await plain.seek(FIRST, 2)
    assert plain.position(FIRST) == 2
    await plain.commit()
    assert broker.group(GROUP).committed[FIRST].offset == 2
    again = await take(plain, COUNT - 2)
    assert offsets(again) == [2, 3, 4, 5]
    assert not offsets(again, SECOND)
    await plain.seek(FIRST, 0)
    await plain.seek(FIRST, 5)
    await plain.seek(SECOND, 4)
    last = await take(plain, 3)
    assert (offsets(last), offsets(last, SECOND)) == ([5], [4, 5])
    await plain.commit()
    assert broker.group(GROUP).committed[FIRST].offset >= COUNT
    assert plain.rebalance_count == 1


async def test_buffered_records_of_other_partitions_stay(plain: Subscription):
    """A record that was read and not returned is returned once, whichever partition moves."""
    (first,) = await take(plain, 1)
    other = SECOND if first.data == FIRST else FIRST
    await plain.seek(first.data, 3)
    found = await take(plain, COUNT + 3)
    assert offsets(found, first.data) == [3, 4, 5]
    assert offsets(found, other) == [*range(COUNT)]


async def test_a_wrong_place_is_refused_and_changes_nothing(plain: Subscription):
    """The error names place and bounds."""
    await take(plain, 1)
    before = plain.position(FIRST)
    with pytest.raises(OffsetOutOfRangeError, match="offsets 0 to") as beyond:
        await plain.seek(FIRST, 1000)
    assert beyond.value.place == f"{TOPICS[0]}/0@1000"
    with pytest.raises(NotAssignedError):
        await plain.seek(TopicPartition("elsewhere", 0), 0)
    assert plain.position(FIRST) == before
    assert len(await take(plain, 2 * COUNT - 1)) == 2 * COUNT - 1


async def test_acknowledged_messages_do_not_come_again(
    broker: MemoryBroker, connector: MemoryConnector, orders: Subscription
):
    """G: what is not acknowledged comes again, counted from 1; the next member begins there."""
    messages = await take(orders, 2 * COUNT)
    first = [it for it in messages if it.data == FIRST]
    for number in (0, 1, 3):
        orders.acknowledge(first[number])
    orders.negative_acknowledge(first[4])
    with pytest.raises(AlreadyAcknowledgedError, match="below offset 2"):
        await orders.seek(FIRST, 1)
    await orders.seek(FIRST, 2)
    with pytest.raises(NotDeliveredError):
        orders.acknowledge(first[2])
    again = await take(orders, 3)
    assert offsets(again) == [2, 4, 5]
    assert [it.deliveries for it in again] == [1, 1, 1]
    for message in again:
        orders.acknowledge(message)
    await orders.commit()
    assert broker.group(GROUP).committed[FIRST].offset >= COUNT


async def test_messages_below_the_offset_are_given_up(
    broker: MemoryBroker, connector: MemoryConnector, orders: Subscription
):
    """G: forwards, the cursor passes them, whatever state they are in."""
    messages = await take(orders, 2 * COUNT)
    orders.negative_acknowledge(messages[1])
    await orders.seek(FIRST, 4)
    await until(lambda: orders.acknowledging._partitions[FIRST].attached)
    await orders.commit()
    assert broker.group(GROUP).committed[FIRST].offset == 4
    assert offsets(await take(orders, 2)) == [4, 5]


async def test_a_transaction_that_acknowledges_goes_on(
    connector: MemoryConnector, client: TransactionClient, orders: Subscription
):
    """G: its messages come again only if it aborts; a message is never in two transactions."""
    messages = await take(orders, 2 * COUNT)
    first = [it for it in messages if it.data == FIRST]
    async with client.transaction() as kept, client.transaction() as dropped:
        await kept.acknowledge(orders, first[1])
        await dropped.acknowledge(orders, first[2])
        await kept.flush()
        await dropped.flush()
        await kept._acks.gathered()
        await dropped._acks.gathered()
        await orders.seek(FIRST, 0)
        found = await take(orders, 4)
        assert offsets(found) == [0, 3, 4, 5]
        await dropped.abort()
        (again,) = await take(orders, 1)
        assert (again.offset, again.deliveries) == (2, 1)
    assert kept.state == "committed"
    async with client.transaction() as txn:
        for message in [*found, again]:
            await txn.acknowledge(orders, message)
    await orders.commit()


async def test_an_acknowledgement_that_was_not_stored_before_a_seek_is_refused(
    orders: Subscription,
):
    """G: its transaction cannot commit, and the message is delivered again."""
    messages = await take(orders, 2 * COUNT)
    acks = TransactionAcks(orders.acknowledging.cluster_id, bytes(16))
    acks.claim(orders.acknowledging, messages[2], cumulative=False)
    await orders.seek(FIRST, 2)
    acks.registered(TxnId(0, 7), acks.subscriptions)
    with pytest.raises(NotDeliveredError):
        await acks.gathered()
    acks.ended("aborted")
    assert offsets(await take(orders, 4)) == [2, 3, 4, 5]


async def test_a_time_is_looked_up_for_each_partition(plain: Subscription):
    """All assigned partitions, or those that are named; later than all records is the end."""
    await take(plain, 2 * COUNT)
    assert set(await plain.seek_to_time(0)) >= {FIRST, SECOND}
    assert len(await take(plain, 2 * COUNT)) == 2 * COUNT
    assert await plain.seek_to_time(0, [SECOND]) == {SECOND: 0}
    again = await take(plain, COUNT)
    assert offsets(again, SECOND) == [*range(COUNT)]
    end = await plain.seek_to_time(1, [FIRST])
    assert plain.position(FIRST) == end[FIRST] >= COUNT


async def test_partitions_that_nobody_reads_do_not_hold_up_read_to(
    connector: MemoryConnector, client: TransactionClient
):
    """`read_to` one partition ends, although another holds more than the buffer takes."""
    async with Subscription(
        [TOPICS[0]], group="few", connector=connector, buffer_records_max=10
    ) as few:
        await take(few, 2 * COUNT)
        await write(client, 2, 200)
        await take(few, 1)
        await write(client, 0, 50)
        async with asyncio.timeout(10):
            found = [it async for it in few.read_to({FIRST: EndOffset(COUNT + 50)})]
        assert len(found) == 50
        assert {it.partition for it in await take(few, 199)} == {2}


async def write(client: TransactionClient, partition: int, count: int) -> None:
    """More records."""
    async with client.transaction() as txn:
        for number in range(count):
            await txn.send(TOPICS[0], b"%d" % number, partition=partition)
        await txn.commit(wait_visible=True)
