"""A group that acknowledged beyond the end of its log got no message for ever.

A client had acknowledged "all up to 10^12" in a transaction, and a tool had committed an offset
beyond the end for a group whose members acknowledge: the pending-ack store counted every message
that would ever come as acknowledged, and no reset of the group changed that. In another group a
program of someone else had committed with the metadata `st2`, which ended the reader.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.errors import OffsetOutOfRangeError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.client import Subscription
from stilltide.pipeline.drivers.pending_ack.client import PendingAckStores
from stilltide.schemas.pending_ack.acknowledgements import Acknowledge, Acks, Attach, CursorMoved
from stilltide.schemas.service.envelopes import Done, RefusalCode, Refused
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition
from tests.support.coordinator.worker_memory import PARTITIONS, MemoryWorker, until
from tests.support.pending_ack.client import FIRST, MESSAGES, SECOND, AckClient

pytestmark = pytest.mark.topics(TopicSpec("orders", 1))

WAIT_S = 60
BEYOND = Offset(10**12)
DATA = TopicPartition("orders", 0)
GROUP = "billing"


@pytest.fixture
async def connector(broker: MemoryBroker) -> AsyncIterator[MemoryConnector]:
    """Its connector, while a worker serves."""
    connector = MemoryConnector(broker)
    async with MemoryWorker(connector):
        yield connector


@pytest.fixture
async def client(connector: MemoryConnector) -> AsyncIterator[AckClient]:
    """A client that sends any request; its first member is attached at the log start."""
    client = AckClient(connector, SubscriptionId(DATA, GROUP))
    await client.open(partitions=PARTITIONS)
    assert isinstance(await client.ask(Attach(FIRST, EndOffset(0), ())), Acks)
    yield client
    await client.close()


def subscribe(connector: MemoryConnector, **options: str) -> Subscription:
    """A member of the group that acknowledges."""
    return Subscription(
        ["orders"],
        group=GROUP,
        connector=connector,
        acknowledgements=True,
        **options,  # pyright: ignore[reportArgumentType] - names of options
    )


async def next_offset(subscription: Subscription) -> int:
    """The offset of the next message."""
    async with asyncio.timeout(WAIT_S):
        return (await anext(subscription)).offset


async def test_an_acknowledgement_counts_to_the_log_end_at_most(client: AckClient):
    """G4: a member that comes later gets every message that comes later."""
    txn = await client.begin()
    assert await client.ask(Acknowledge(txn, FIRST, (), BEYOND)) == Done()
    await client.end(txn, committed=True)
    taken = await client.ask(Attach(SECOND, EndOffset(0), ()))
    assert taken == Acks(EndOffset(MESSAGES), (), (), SECOND)


async def test_single_offsets_beyond_the_log_count_for_nothing(client: AckClient):
    """G4: those below the end are acknowledged by the same commit."""
    txn = await client.begin()
    assert await client.acknowledge(txn, 3, MESSAGES - 1, BEYOND) == Done()
    await client.end(txn, committed=True)
    taken = await client.ask(Attach(SECOND, EndOffset(0), ()))
    assert isinstance(taken, Acks)
    assert [*taken.acknowledged] == [(3, 4), (MESSAGES - 1, MESSAGES)]


async def test_a_cursor_beyond_the_log_is_refused(client: AckClient):
    """G4: of a claim, or of a commit of the group; the reason names the end of the log."""
    for body in (Attach(SECOND, EndOffset(BEYOND), ()), CursorMoved(FIRST, EndOffset(BEYOND), ())):
        refused = await client.ask(body)
        assert isinstance(refused, Refused)
        assert refused.code is RefusalCode.MALFORMED
        assert str(MESSAGES) in refused.reason
    taken = await client.ask(Attach(SECOND, EndOffset(0), ()))
    assert taken == Acks(EndOffset(0), (), (), SECOND)


async def test_a_member_whose_commit_lies_beyond_the_log(
    broker: MemoryBroker, connector: MemoryConnector
):
    """It fails with the command that helps, and the store has learnt nothing; or it goes on."""
    for number in range(4):
        broker.append(DATA, b"k", b"%d" % number, None)
    broker.group(GROUP).committed[DATA] = Committed(BEYOND, "")
    async with subscribe(connector) as subscription:
        with pytest.raises(OffsetOutOfRangeError, match="beyond the end") as raised:
            await next_offset(subscription)
    assert f"stilltide group reset orders {GROUP} --partition 0" in raised.value.hint
    async with subscribe(connector, out_of_range="earliest") as subscription:
        assert [await next_offset(subscription) for _ in range(4)] == [0, 1, 2, 3]
        assert broker.group(GROUP).committed[DATA].offset == 0
    broker.group(GROUP).committed[DATA] = Committed(BEYOND, "")
    async with subscribe(connector, out_of_range="latest") as subscription:
        await until(lambda: broker.group(GROUP).committed[DATA].offset == 4)
        broker.append(DATA, b"k", b"new", None)
        assert await next_offset(subscription) == 4


async def test_a_member_whose_commit_lies_below_the_log(
    broker: MemoryBroker, connector: MemoryConnector
):
    """Retention has overtaken the group; what it has acknowledged above the start stays so."""
    for number in range(8):
        broker.append(DATA, b"k", b"%d" % number, None)
    async with subscribe(connector) as subscription:
        async with asyncio.timeout(WAIT_S):
            taken = [await anext(subscription) for _ in range(8)]
        for number in (0, 6):
            subscription.acknowledge(taken[number])
        await subscription.commit()
    admin = connector.admin()
    await admin.delete_records({DATA: Offset(4)})
    async with subscribe(connector) as subscription:
        with pytest.raises(OffsetOutOfRangeError, match="below the start") as raised:
            await next_offset(subscription)
    assert "--to-earliest" in raised.value.hint
    async with subscribe(connector, out_of_range="earliest") as subscription:
        assert [await next_offset(subscription) for _ in range(3)] == [4, 5, 7]


async def test_a_member_of_a_topic_that_was_made_anew(
    broker: MemoryBroker, connector: MemoryConnector
):
    """A commit for the former topic lies beyond the new one, of which nothing is acknowledged."""
    for number in range(4):
        broker.append(DATA, b"k", b"%d" % number, None)
    async with subscribe(connector) as subscription:
        async with asyncio.timeout(WAIT_S):
            for _ in range(4):
                subscription.acknowledge(await anext(subscription))
        await subscription.commit()
    broker.delete_topic(DATA.topic)
    broker.create_topic(TopicSpec(DATA.topic, 1))
    for number in range(2):
        broker.append(DATA, b"k", b"new %d" % number, None)
    broker.group(GROUP).committed[DATA] = Committed(Offset(4), "")
    async with subscribe(connector) as subscription:
        with pytest.raises(OffsetOutOfRangeError, match="beyond the end"):
            await next_offset(subscription)
    async with subscribe(connector, out_of_range="earliest") as subscription:
        assert [await next_offset(subscription) for _ in range(2)] == [0, 1]


async def test_a_group_that_is_put_back_gets_its_messages_again(
    broker: MemoryBroker, connector: MemoryConnector
):
    """G4: an operator's reset has the store forget what was acknowledged; once, if repeated."""
    for number in range(4):
        broker.append(DATA, b"k", b"%d" % number, None)
    async with subscribe(connector) as subscription:
        async with asyncio.timeout(WAIT_S):
            for _ in range(4):
                subscription.acknowledge(await anext(subscription))
        await subscription.commit()
    assert broker.group(GROUP).committed[DATA].offset == 4
    async with PendingAckStores(connector, request_timeout_s=WAIT_S) as stores:
        for _ in range(2):
            await stores.reset(GROUP, {DATA: Offset(1)}, SECOND)
    broker.group(GROUP).committed[DATA] = Committed(Offset(1), "")
    async with subscribe(connector) as subscription:
        assert [await next_offset(subscription) for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("metadata", ["st2", "st2;a=rAQE", "checkpoint 7"])
async def test_another_programs_metadata_is_passed_over(
    broker: MemoryBroker, connector: MemoryConnector, metadata: str
):
    """G: the reader goes on at the committed offset, and counts the commit."""
    for number in range(2):
        broker.append(DATA, b"k", b"%d" % number, None)
    broker.group(GROUP).committed[DATA] = Committed(Offset(1), metadata)
    async with subscribe(connector) as subscription:
        assert await next_offset(subscription) == 1
        assert subscription.statistics()[DATA].foreign_commits == 1
