"""Messages acknowledged in transactions, on the memory broker with real owners of everything."""
# ruff: noqa: PT012 - an error is raised on leaving the transaction's block, not by one statement

import asyncio
from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import Message, Subscription, TransactionClient
from stilltide.pipeline.client.transaction_acks import TransactionAcks
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.errors import (
    AlreadyAcknowledgedError,
    ConfigError,
    NotDeliveredError,
    PendingAcknowledgementError,
    RefusedError,
    TransactionStateError,
)
from stilltide.schemas.coordinator import txn_log
from stilltide.schemas.coordinator.transactions import End, Ended, Listed, ListTransactions, Open
from stilltide.schemas.framing import decode_value
from stilltide.schemas.pending_ack import codec as pending_ack
from stilltide.schemas.pending_ack.acknowledgements import Attach, Settle
from stilltide.schemas.service.envelopes import Request
from stilltide.schemas.topics import (
    ACK_REQUESTS,
    PENDING_ACK_LOG,
    TXN_LOG,
    TXN_REQUESTS,
    TXN_RESPONSES,
)
from stilltide.schemas.values import EndOffset, SubscriptionId, TopicPartition, TxnId
from tests.support.coordinator.worker_client import TOPICS, requests_in, take, visible
from tests.support.coordinator.worker_memory import MemoryWorker, until

GROUP = "invoicing"
SUBSCRIPTION = SubscriptionId(TopicPartition(TOPICS[0], 0), GROUP)


def subscribe(connector: MemoryConnector) -> Subscription:
    """A member that reads the first topic."""
    return Subscription([TOPICS[0]], group=GROUP, connector=connector, acknowledgements=True)


@pytest.fixture
async def orders(
    connector: MemoryConnector, client: TransactionClient
) -> AsyncIterator[Subscription]:
    """A subscription with four messages in one partition."""
    async with client.transaction() as txn:
        for number in range(4):
            await txn.send(TOPICS[0], b"%d" % number, partition=0)
        await txn.commit(wait_visible=True)
    async with subscribe(connector) as subscription:
        yield subscription


def values(messages: list[Message]) -> list[bytes | None]:
    """Their values."""
    return [it.value for it in messages]


async def open_at(connector: MemoryConnector, coordinator: int) -> int:
    """How many transactions of a coordinator have not ended."""
    async with Coordinators(connector, request_timeout_s=10) as operator:
        listed = await operator.ask(coordinator, ListTransactions())
    assert isinstance(listed, Listed)
    return len(listed.transactions)


def logged(broker: MemoryBroker, topic: str) -> list[bytes]:
    """Every record of the entries of a log."""
    entries = [it for stored in broker.partitions([topic]) for it in broker.records(stored)]
    return [data for it in entries for data in decode_value(it.value)]


def settled(broker: MemoryBroker) -> int:
    """How often a pending-ack store was told of a transaction's end."""
    bodies = [pending_ack.decode(data).body for data in logged(broker, PENDING_ACK_LOG)]
    return sum(isinstance(it, Request) and isinstance(it.body.ask, Settle) for it in bodies)


def ended(broker: MemoryBroker) -> int:
    """How many transactions have told all their participants."""
    return sum(isinstance(txn_log.decode(it).body, Ended) for it in logged(broker, TXN_LOG))


def cursor(broker: MemoryBroker) -> int | None:
    """The offset that the group has committed of the messages' partition."""
    found = broker.group(GROUP).committed.get(TopicPartition(TOPICS[0], 0))
    return None if found is None else found.offset


async def test_a_commit_takes_output_and_acknowledgement_together(
    broker: MemoryBroker,
    connector: MemoryConnector,
    client: TransactionClient,
    orders: Subscription,
):
    """G: both or neither; what was acknowledged is in the group's cursor afterwards."""
    messages = await take(orders, 4)
    async with client.transaction() as txn:
        for message in messages[:2]:
            await txn.acknowledge(orders, message)
            await txn.send(TOPICS[1], message.value)
    await orders.commit()
    assert cursor(broker) == 2
    seen = await visible(connector)
    assert [seen[TOPICS[1], it.value] for it in messages] == [1, 1, 0, 0]
    with pytest.raises(AlreadyAcknowledgedError):
        orders.acknowledge(messages[0])


async def test_owners_in_one_process_ask_each_other_directly(
    broker: MemoryBroker, client: TransactionClient, orders: Subscription
):
    """C4: a settle is in the store's log; neither it nor its answer has passed a topic."""
    (message,) = await take(orders, 1)
    async with client.transaction() as txn:
        await txn.acknowledge(orders, message)
    await until(lambda: ended(broker) == 2)  # the first wrote the messages
    assert settled(broker) == 1
    topics = broker.partitions([ACK_REQUESTS, TXN_RESPONSES])
    senders = {it.key for data in topics for it in broker.records(data)}
    assert senders
    assert not [it for it in senders if it is None or it.startswith(b"worker")]


async def test_the_transaction_is_opened_with_everything_known(
    broker: MemoryBroker, client: TransactionClient, orders: Subscription
):
    """One round trip registers partition and subscription, before anything is sent there."""
    (message,) = await take(orders, 1)
    async with client.transaction() as txn:
        await txn.acknowledge(orders, message)
        await txn.send(TOPICS[1], message.value, partition=0)
    opened = [it.body for it in requests_in(broker) if isinstance(it.body, Open)][1]
    assert [str(it) for it in opened.subscriptions] == [f"{TOPICS[0]}/0 of {GROUP}"]
    assert [str(it.data) for it in opened.partitions] == [f"{TOPICS[1]}/0"]


async def test_a_transaction_from_stock_acknowledges_at_once(
    broker: MemoryBroker, client: TransactionClient, orders: Subscription
):
    """C9: it is registered with subscription and partition already; its end is all it asks for."""
    for message in await take(orders, 4):
        async with client.transaction() as txn:
            await txn.acknowledge(orders, message)
            await txn.send(TOPICS[1], message.value, partition=0)
    asked = [type(it.body).__name__ for it in requests_in(broker)]
    assert asked == ["Open", "End", "Open", "End", "Open", *["End", "Open"] * 3]
    await orders.commit()
    assert cursor(broker) == 4


async def test_only_where_it_acknowledged_a_transaction_is_settled(
    broker: MemoryBroker, client: TransactionClient, orders: Subscription
):
    """C9: a store hears nothing of one that was only registered with it, ahead."""
    for message in await take(orders, 3):
        async with client.transaction() as txn:
            await txn.acknowledge(orders, message)
            await txn.send(TOPICS[1], b"o", partition=0)
    await until(lambda: settled(broker) == 3)
    async with client.transaction() as txn:
        await txn.send(TOPICS[1], b"from stock", partition=0)
        await txn.commit(wait_visible=True)
    ends = [it.body for it in requests_in(broker) if isinstance(it.body, End)]
    assert [it.acknowledged_in for it in ends[-2:]] == [(SUBSCRIPTION,), ()]
    assert settled(broker) == 3


async def test_an_end_names_no_subscription_whose_registration_was_not_answered(
    client: TransactionClient, orders: Subscription
):
    """The coordinator may never have heard of it, and would refuse the end; nothing was sent."""
    (message,) = await take(orders, 1)
    acks = TransactionAcks(orders.acknowledging.cluster_id, bytes(16))
    elsewhere = SubscriptionId(TopicPartition(TOPICS[1], 0), GROUP)
    acks.registered_ahead(TxnId(0, 7), frozenset({elsewhere}))
    acks.claim(orders.acknowledging, message, cumulative=False)
    assert acks.unregistered == acks.subscriptions == (SUBSCRIPTION,)
    assert acks.ended_in == ()
    acks.registered(TxnId(0, 7), (SUBSCRIPTION,))
    assert acks.ended_in == (SUBSCRIPTION,)
    acks.ended("aborted")


async def test_an_abort_from_stock_brings_the_messages_again(
    broker: MemoryBroker, client: TransactionClient, orders: Subscription
):
    """Also where the subscription was registered before anything was acknowledged."""
    first, second, *_ = await take(orders, 4)
    async with client.transaction() as txn:
        await txn.acknowledge(orders, first)
        await txn.send(TOPICS[1], b"o", partition=0)
    async with client.transaction() as txn:
        await txn.acknowledge(orders, second)
        await txn.flush()
        await txn.abort()
    opened = [it.body for it in requests_in(broker) if isinstance(it.body, Open)]
    assert opened[-2].subscriptions == (SUBSCRIPTION,), "it was not taken from stock"
    (again,) = await take(orders, 1)
    assert again == second


async def test_an_abort_brings_the_messages_again(
    broker: MemoryBroker, client: TransactionClient, orders: Subscription
):
    """They come to this member from memory, and may be acknowledged in another transaction."""
    messages = await take(orders, 4)
    async with client.transaction() as txn:
        await txn.acknowledge(orders, messages[0])
        await txn.acknowledge(orders, messages[2])
        await txn.flush()
        await txn.abort()
    again = await take(orders, 2)
    assert again == [messages[0], messages[2]]
    async with client.transaction() as txn:
        await txn.acknowledge_cumulative(orders, messages[3])
    await orders.commit()
    assert cursor(broker) == 4


async def test_an_exception_brings_the_messages_again(
    client: TransactionClient, orders: Subscription
):
    """As an abort; the application's own error passes."""
    messages = await take(orders, 4)
    with pytest.raises(KeyError):
        async with client.transaction() as txn:
            await txn.acknowledge_cumulative(orders, messages[1])
            raise KeyError
    assert await take(orders, 2) == messages[:2]


async def test_a_message_belongs_to_one_transaction(
    client: TransactionClient, orders: Subscription
):
    """The second is refused, with nothing changed: it can still commit other messages."""
    messages = await take(orders, 4)
    async with client.transaction() as one, client.transaction() as other:
        await one.acknowledge(orders, messages[1])
        with pytest.raises(PendingAcknowledgementError, match="orders/0@1"):
            await other.acknowledge(orders, messages[1])
        with pytest.raises(PendingAcknowledgementError):
            await other.acknowledge_cumulative(orders, messages[3])
        with pytest.raises(PendingAcknowledgementError):
            orders.acknowledge(messages[1])
        await other.acknowledge(orders, messages[3])
    assert (one.state, other.state) == ("committed", "committed")


async def test_acknowledgements_alone_are_a_transaction(
    broker: MemoryBroker, client: TransactionClient, orders: Subscription
):
    """Nothing needs to be written for them to take effect together."""
    messages = await take(orders, 4)
    async with client.transaction() as txn:
        for message in messages:
            await txn.acknowledge(orders, message)
    await orders.commit()
    assert cursor(broker) == 4


async def test_a_refusal_aborts_the_transaction(
    connector: MemoryConnector, client: TransactionClient, orders: Subscription
):
    """Another member has the subscription by now: nothing becomes visible, the error says why."""
    messages = await take(orders, 4)
    subscription = SubscriptionId(TopicPartition(TOPICS[0], 0), GROUP)
    store = orders.acknowledging._store
    assert orders._driver is not None
    member = orders._driver.identity().group_member
    await store.ask_about(subscription, Attach(b"another member's", EndOffset(0), (), member))
    with pytest.raises(NotDeliveredError, match="NOT_ATTACHED"):
        async with client.transaction() as txn:
            await txn.send(TOPICS[1], b"invoice")
            await txn.acknowledge(orders, messages[0])
    assert txn.state == "aborted"
    assert (TOPICS[1], b"invoice") not in await visible(connector)
    assert await take(orders, 1) == messages[:1]
    async with client.transaction() as txn:
        await txn.acknowledge(orders, messages[0])


async def test_a_transaction_out_of_time_acknowledges_nothing(
    connector: MemoryConnector, client: TransactionClient, orders: Subscription
):
    """Its commit is refused, and its messages come again."""
    messages = await take(orders, 4)
    with pytest.raises(RefusedError):
        async with client.transaction(timeout_s=0.05) as txn:
            await txn.acknowledge(orders, messages[0])
            await txn.flush()
            assert txn.id is not None
            while await open_at(connector, txn.id.coordinator):
                assert txn.state == "open"
    assert await take(orders, 1) == messages[:1]


async def test_what_has_ended_acknowledges_nothing(client: TransactionClient, orders: Subscription):
    """After a commit the message is still the application's to acknowledge."""
    (message,) = await take(orders, 1)
    async with client.transaction() as txn:
        await txn.commit()
        with pytest.raises(TransactionStateError):
            await txn.acknowledge(orders, message)
    orders.acknowledge(message)


async def test_a_plain_subscription_takes_no_acknowledgements(
    connector: MemoryConnector, client: TransactionClient, orders: Subscription
):
    """It commits positions: the error says how to make the other kind."""
    (message,) = await take(orders, 1)
    async with Subscription([TOPICS[0]], group="plain", connector=connector) as plain:
        with pytest.raises(ConfigError, match="acknowledgements=True"):
            plain.acknowledge(message)
        async with client.transaction() as txn:
            with pytest.raises(ConfigError):
                await txn.acknowledge(plain, message)


async def test_an_outcome_that_is_unknown_is_settled_by_the_store(
    broker: MemoryBroker, worker: MemoryWorker, client: TransactionClient, orders: Subscription
):
    """A commit that was cancelled may have taken place: its message is never acknowledged twice."""
    messages = await take(orders, 4)
    async with client.transaction() as txn:
        await txn.acknowledge(orders, messages[0])
        await txn.flush()
        broker.hold(TXN_REQUESTS)
        committing = asyncio.create_task(txn.commit())
        await until(lambda: txn.state == "unknown")
        committing.cancel()
        await asyncio.wait([committing])
        broker.release()
    await orders.commit()
    await until(lambda: cursor(broker) == 1 or not orders.acknowledging._partitions)
    with pytest.raises(AlreadyAcknowledgedError):
        orders.acknowledge(messages[0])


async def test_whoever_holds_messages_can_tell_that_another_member_may_have_had_them(
    connector: MemoryConnector, orders: Subscription
):
    """A rebalance shows, whichever member has the partition afterwards; nothing else does."""
    await take(orders, 1)
    before = orders.rebalance_count
    await take(orders, 1)
    assert orders.rebalance_count == before
    async with subscribe(connector):
        await until(lambda: orders.rebalance_count > before)
