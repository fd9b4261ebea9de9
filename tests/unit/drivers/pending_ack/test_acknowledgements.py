"""Messages acknowledged one by one, on the memory broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from stilltide.connectors.chance import SystemChance
from stilltide.connectors.errors import FencedError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.readers import Committed, Record
from stilltide.pipeline.core.pending_ack.cursor import decode
from stilltide.pipeline.core.pending_ack.redeliveries import RedeliveryPolicy
from stilltide.pipeline.drivers.pending_ack.acknowledgements import AcknowledgingDriver, AckOptions
from stilltide.pipeline.drivers.subscription.options import SubscriptionOptions
from stilltide.pipeline.drivers.subscription.subscription import SubscriptionDriver
from stilltide.pipeline.errors import (
    AlreadyAcknowledgedError,
    NotDeliveredError,
    PendingAcknowledgementError,
)
from stilltide.schemas.errors import UnknownVersionError
from stilltide.schemas.pending_ack.acknowledgements import (
    Acknowledge,
    Acks,
    Attach,
    CursorMoved,
    DescribeAcks,
)
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition, TxnId
from tests.support.coordinator.coordinated import CoordinatedTopic
from tests.support.coordinator.worker_memory import until
from tests.support.pending_ack.store import StateStore

X = TxnId(0, 1)
Y = TxnId(0, 2)
OWNER = bytes(16)
"""The id of the client of all transactions."""

DATA = TopicPartition("orders", 0)
SUBSCRIPTION = SubscriptionId(DATA, "billing")
THEIRS = b"t" * 16


@asynccontextmanager
async def member(
    connector: MemoryConnector, store: StateStore, **options: Any
) -> AsyncIterator[AcknowledgingDriver]:
    """A member of the group; it leaves without committing when the test has failed."""
    driver = SubscriptionDriver(connector, SubscriptionOptions(["orders"], "billing"))
    given = AckOptions(**{"redelivery": RedeliveryPolicy(20), "commit_interval_s": 0.02, **options})
    acknowledging = AcknowledgingDriver(driver, store, "billing", given, chance=SystemChance())
    await driver.start()
    acknowledging.start()
    try:
        yield acknowledging
        await acknowledging.close()
    finally:
        await driver.close()


async def take(driver: AcknowledgingDriver, count: int) -> list[Record]:
    """The next messages."""
    found: list[Record] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            queue = driver.next_queue()
            while queue and len(found) < count:
                found.append(queue.popleft())
            if len(found) < count:
                await driver._driver.changed()
    return found


async def nothing_more(driver: AcknowledgingDriver) -> None:
    """Lets everything happen that can, and asserts that no message comes of it."""
    for _ in range(50):
        assert not driver.next_queue()
        await asyncio.sleep(0)


def offsets(records: list[Record]) -> list[int]:
    """Offsets of messages."""
    return [it.offset for it in records]


def committed(broker: MemoryBroker) -> Committed | None:
    """What the group has committed."""
    return broker.group("billing").committed.get(DATA)


async def claimed_and_sent(
    driver: AcknowledgingDriver, txn: TxnId, *messages: Record, cumulative: bool = False
) -> None:
    """Acknowledges in a transaction, as a client's transaction does."""
    for message in messages:
        partition = driver.claim(txn, message, cumulative=cumulative)
    found = [it.offset for it in messages]
    if cumulative:
        await driver.send(partition, txn, OWNER, [], found[-1])
    else:
        await driver.send(partition, txn, OWNER, found, None)


def ended(driver: AcknowledgingDriver, txn: TxnId, *, committed: bool) -> None:
    """What a client's transaction says at its end."""
    driver.ended(driver._partitions[DATA], txn, None if committed else "aborted")


async def test_what_is_acknowledged_is_not_delivered_again(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """G: offset and ack set are committed; the next member gets the rest, gaps included."""
    await topic.write(0, None, 6)
    async with member(connector, store) as driver:
        messages = await take(driver, 6)
        for number in (0, 1, 3, 5):
            driver.acknowledge(messages[number])
        await until(lambda: committed(broker) == (2, "st1;a=bBQ"))
    async with member(connector, store) as driver:
        rest = await take(driver, 2)
        assert offsets(rest) == [2, 4]
        for message in rest:
            driver.acknowledge(message)
        await driver.commit()
        assert committed(broker) == (6, "")


async def test_leaving_commits_the_cursor(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """What was acknowledged a moment before the end is not lost."""
    await topic.write(0, None, 3)
    async with member(connector, store, commit_interval_s=60) as driver:
        for message in await take(driver, 2):
            driver.acknowledge(message)
        assert committed(broker) is None
    assert committed(broker) == (2, "")


async def test_nothing_is_begun_after_leaving(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """A rebalance may come, and transactions end, while the rest of the subscription closes."""
    await topic.write(0, None)
    async with member(connector, store) as driver:
        (message,) = await take(driver, 1)
        partition = driver.claim(X, message, cumulative=False)
        await driver.close()
        driver.ended(partition, X, "aborted")
        before = driver._driver.rebalance_count
        other = connector.group_reader("other", "billing")
        await other.subscribe(["orders"], assigned=lambda _: None, revoked=lambda _: None)
        await until(lambda: driver._driver.rebalance_count > before)
        await other.close()
        await until(lambda: driver._driver.rebalance_count > before + 1)
        assert not driver._tasks


async def test_the_cursor_passes_hidden_records(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """The position is followed, not the messages: records of an aborted transaction are passed."""
    await topic.write(0, None)
    await topic.write(0, X, 3)
    await topic.abort(0, X)
    async with member(connector, store) as driver:
        (message,) = await take(driver, 1)
        await nothing_more(driver)
        driver.acknowledge(message)
        await driver.commit()
        assert committed(broker) == (4, "")


async def test_cumulative_acknowledgements(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """All up to a message is done; what is behind it is not."""
    await topic.write(0, None, 5)
    async with member(connector, store) as driver:
        messages = await take(driver, 5)
        driver.acknowledge_cumulative(messages[3])
        with pytest.raises(AlreadyAcknowledgedError) as caught:
            driver.acknowledge(messages[1])
        assert caught.value.place == "orders/0@1"
        await driver.commit()
        assert committed(broker) == (4, "")


async def test_a_negative_acknowledgement_brings_the_message_again(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """It comes after the delay, from memory, and the cursor waits for it."""
    await topic.write(0, None, 3)
    async with member(connector, store) as driver:
        messages = await take(driver, 3)
        driver.negative_acknowledge(messages[1], "why")
        driver.acknowledge(messages[0])
        driver.acknowledge(messages[2])
        assert await take(driver, 1) == [messages[1]]
        await driver.commit()
        assert committed(broker) == (1, "st1;a=bAQ")
        driver.acknowledge(messages[1])
        await driver.commit()
        assert committed(broker) == (3, "")


async def test_what_is_acknowledged_meanwhile_does_not_come_again(
    connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """A message that was about to be delivered again is done when its acknowledgement comes."""
    await topic.write(0, None, 5)
    async with member(connector, store) as driver:
        messages = await take(driver, 5)
        for message in messages[:3]:
            driver.negative_acknowledge(message, "why")
        ready = driver._partitions[DATA].ready
        await until(lambda: len(ready) == 3)
        driver.acknowledge(messages[2])
        driver.acknowledge_cumulative(messages[0])
        assert await take(driver, 1) == messages[1:2]
        await nothing_more(driver)


async def test_delivery_waits_while_too_much_is_unacknowledged(
    connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """As many as the limit are out; each acknowledgement lets one more go."""
    await topic.write(0, None, 10)
    async with member(connector, store, unacknowledged_records_max=4) as driver:
        messages = await take(driver, 4)
        await nothing_more(driver)
        driver.acknowledge(messages[2])
        assert offsets(await take(driver, 1)) == [4]
        await nothing_more(driver)


async def test_what_was_never_delivered_cannot_be_acknowledged(
    connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """Beyond what was returned, in a partition of others, or twice: typed, nothing changed."""
    await topic.write(0, None, 2)
    async with member(connector, store, unacknowledged_records_max=1) as driver:
        (message,) = await take(driver, 1)
        for call in (
            driver.acknowledge,
            driver.acknowledge_cumulative,
            partial(driver.negative_acknowledge, error="why"),
        ):
            with pytest.raises(NotDeliveredError, match="orders/0@1"):
                call(message._replace(offset=Offset(1)))
            with pytest.raises(NotDeliveredError, match="orders/7@0"):
                call(message._replace(partition=7))
        driver.acknowledge(message)
        with pytest.raises(AlreadyAcknowledgedError):
            driver.acknowledge(message)


async def test_nothing_is_delivered_before_the_store_has_answered(
    connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """What is pending there is not known before."""
    await topic.write(0, None)
    store.present.clear()
    async with member(connector, store) as driver:
        await nothing_more(driver)
        store.present.set()
        assert offsets(await take(driver, 1)) == [0]


async def test_a_transaction_that_commits(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """Pending until its end; then in the cursor, and the store is told once that is durable."""
    await topic.write(0, None, 2)
    async with member(connector, store) as driver:
        messages = await take(driver, 2)
        await claimed_and_sent(driver, X, *messages)
        with pytest.raises(PendingAcknowledgementError):
            driver.acknowledge(messages[0])
        with pytest.raises(PendingAcknowledgementError):
            driver.claim(Y, messages[1], cumulative=True)
        await driver.commit()
        assert committed(broker) is None
        store.settle(SUBSCRIPTION, X, committed=True)
        ended(driver, X, committed=True)
        await until(lambda: any(isinstance(it, CursorMoved) for it in store.asked))
        assert committed(broker) == (2, "")
        with pytest.raises(AlreadyAcknowledgedError):
            driver.acknowledge(messages[0])


async def test_a_transaction_that_aborts(
    connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """Its messages come again, once the store has let them go."""
    await topic.write(0, None, 3)
    async with member(connector, store) as driver:
        messages = await take(driver, 3)
        await claimed_and_sent(driver, X, messages[1], cumulative=True)
        ended(driver, X, committed=False)
        await nothing_more(driver)
        store.settle(SUBSCRIPTION, X, committed=False)
        assert await take(driver, 2) == messages[:2]


async def test_an_unknown_outcome_is_left_to_the_store(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """Neither delivered nor passed until the store says what has become of it."""
    await topic.write(0, None, 2)
    async with member(connector, store) as driver:
        messages = await take(driver, 2)
        await claimed_and_sent(driver, X, messages[0])
        ended(driver, X, committed=False)
        await until(lambda: any(isinstance(it, DescribeAcks) for it in store.asked))
        store.settle(SUBSCRIPTION, X, committed=True)
        await until(lambda: committed(broker) == (1, ""))
        await nothing_more(driver)


async def test_what_is_pending_in_transactions_of_others_is_held_back(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """What a member left behind comes if its transaction aborts, and never if it commits."""
    await topic.write(0, None, 4)
    store.apply(SUBSCRIPTION, Attach(THEIRS, EndOffset(0), ()))
    store.apply(SUBSCRIPTION, Acknowledge(X, THEIRS, (Offset(1),)))
    store.apply(SUBSCRIPTION, Acknowledge(Y, THEIRS, (Offset(2),)))
    async with member(connector, store) as driver:
        assert offsets(await take(driver, 2)) == [0, 3]
        assert driver.position(DATA) == 1
        await nothing_more(driver)
        store.settle(SUBSCRIPTION, X, committed=False)
        store.settle(SUBSCRIPTION, Y, committed=True)
        assert offsets(await take(driver, 1)) == [1]
        await nothing_more(driver)
        assert driver.position(DATA) == 4


async def test_a_cumulative_acknowledgement_covers_nothing_unseen(
    connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """What is about to be returned, behind later messages, is not done because they are."""
    await topic.write(0, None, 3)
    store.apply(SUBSCRIPTION, Attach(THEIRS, EndOffset(0), ()))
    store.apply(SUBSCRIPTION, Acknowledge(X, THEIRS, (Offset(1),)))
    async with member(connector, store) as driver:
        messages = await take(driver, 2)
        store.settle(SUBSCRIPTION, X, committed=False)
        await until(lambda: driver._partitions[DATA].ready)
        with pytest.raises(NotDeliveredError):
            driver.acknowledge_cumulative(messages[1])
        with pytest.raises(NotDeliveredError):
            driver.claim(Y, messages[1], cumulative=True)
        assert offsets(await take(driver, 1)) == [1]
        driver.acknowledge_cumulative(messages[1])


async def test_what_transactions_of_others_acknowledged_is_skipped(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """A member died after the commit of its transaction and before that of its cursor."""
    await topic.write(0, None, 4)
    store.apply(SUBSCRIPTION, Attach(THEIRS, EndOffset(0), ()))
    store.apply(SUBSCRIPTION, Acknowledge(X, THEIRS, (Offset(2),), Offset(0)))
    store.settle(SUBSCRIPTION, X, committed=True)
    async with member(connector, store) as driver:
        messages = await take(driver, 2)
        assert offsets(messages) == [1, 3]
        driver.acknowledge_cumulative(messages[1])
        await until(lambda: any(isinstance(it, CursorMoved) for it in store.asked))
        assert committed(broker) == (4, "")
    acks = store.apply(SUBSCRIPTION, DescribeAcks())
    assert isinstance(acks, Acks)
    assert (acks.cursor, acks.acknowledged) == (4, ())


async def test_a_member_that_was_replaced_attaches_anew(
    connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """Whoever lost the subscription to a late zombie is refused once, and has it again then."""
    await topic.write(0, None, 3)
    async with member(connector, store) as driver:
        messages = await take(driver, 3)
        store.apply(SUBSCRIPTION, Attach(THEIRS, EndOffset(0), ()))
        with pytest.raises(NotDeliveredError, match="NOT_ATTACHED"):
            await claimed_and_sent(driver, X, messages[0])
        ended(driver, X, committed=False)
        assert await take(driver, 1) == messages[:1]
        await claimed_and_sent(driver, Y, messages[0])


async def test_a_rebalance_ends_what_was_delivered(
    connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """A message of a lost partition cannot be acknowledged; its transaction keeps it pending."""
    await topic.write(0, None, 3)
    async with member(connector, store) as first:
        messages = await take(first, 3)
        await claimed_and_sent(first, X, messages[1])
        partition = first._partitions[DATA]
        async with member(connector, store) as second:
            await until(lambda: first._partitions.get(DATA) is not partition)
            owner = first if DATA in first._partitions else second
            assert offsets(await take(owner, 2)) == [0, 2]
            with pytest.raises(NotDeliveredError):
                await first.send(partition, Y, OWNER, [Offset(0)], None)
            loser = second if owner is first else first
            with pytest.raises(NotDeliveredError, match="not assigned"):
                loser.acknowledge(messages[0])
            store.settle(SUBSCRIPTION, X, committed=False)
            assert offsets(await take(owner, 1)) == [1]


async def test_a_commit_does_not_outlive_its_assignment(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """Repeated after a rebalance it would take the cursor back behind another member's."""
    await topic.write(0, None, 2)
    async with member(connector, store, commit_interval_s=60) as driver:
        driver.acknowledge((await take(driver, 1))[0])
        broker.down()
        committing = asyncio.create_task(driver.commit())
        other = connector.group_reader("other", "billing")
        await other.subscribe(["orders"], assigned=lambda _: None, revoked=lambda _: None)
        await asyncio.sleep(0)
        broker.up()
        with pytest.raises(FencedError):
            await committing
        assert committed(broker) is None
        await other.close()


async def test_metadata_of_another_tool_is_no_ack_set(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """It is replaced by the next commit; its offset counts."""
    await topic.write(0, None, 3)
    broker.group("billing").committed[DATA] = Committed(Offset(1), "somebody's note")
    async with member(connector, store) as driver:
        messages = await take(driver, 2)
        assert offsets(messages) == [1, 2]
        driver.acknowledge(messages[1])
        await driver.commit()
        assert committed(broker) == (1, "st1;a=bAQ")


async def test_metadata_of_a_later_version_stops_the_subscription(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """What it acknowledges would come again: named by place, nothing is committed over it."""
    await topic.write(0, None)
    broker.group("billing").committed[DATA] = Committed(Offset(0), "st1;a=z")
    async with member(connector, store) as driver:
        with pytest.raises(UnknownVersionError, match="orders/0@0"):
            await take(driver, 1)
    assert committed(broker) == (0, "st1;a=z")


async def test_a_full_ack_set_stops_delivery(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic, store: StateStore
):
    """Beyond what a commit can say nothing is delivered until the cursor moves; nothing is lost."""
    count, step = 900, 60
    log = broker.log(DATA)
    assert log is not None
    log.records = [Record("orders", 0, Offset(step * it), None, b"x", None) for it in range(count)]
    log.end = EndOffset(step * count)
    async with member(connector, store) as driver:
        first = await take(driver, 479)
        await nothing_more(driver)
        for message in first[1::2]:
            driver.acknowledge(message)
        await driver.commit()
        said = committed(broker)
        assert said is not None
        cursor = decode(*said)
        assert cursor is not None
        assert (cursor.offset, len(cursor.acknowledged)) == (0, 240)
        driver.acknowledge_cumulative(first[-1])
        rest = await take(driver, count - len(first))
        assert offsets([*first, *rest]) == [step * it for it in range(count)]
