import asyncio
from itertools import groupby
from typing import Any

import pytest

from stilltide.connectors.errors import FatalError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client.subscription import Message, Subscription
from stilltide.pipeline.drivers.subscription.deliveries import TURN_RECORDS
from stilltide.pipeline.drivers.subscription.options import SubscriptionOptions
from stilltide.pipeline.drivers.subscription.subscription import SubscriptionDriver
from stilltide.pipeline.errors import (
    ConfigError,
    MarkerConflictError,
    NotAssignedError,
    UnavailableError,
    UndecidedError,
)
from stilltide.schemas.coordinator.markers import encode_key
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import EndOffset, TxnId
from tests.support.coordinator.coordinated import CoordinatedTopic
from tests.support.coordinator.worker_client import take
from tests.support.coordinator.worker_memory import until

X = TxnId(0, 1)
Y = TxnId(0, 2)
SOON_S = 0.05
"""A time-out that is meant to run out."""


def subscribe(connector: MemoryConnector, **options: Any) -> Subscription:
    """A subscription to the topic."""
    return Subscription(["orders"], **{"group": "billing", "connector": connector, **options})


async def read_to(
    subscription: Subscription, topic: CoordinatedTopic, **end_offsets: int
) -> list[Message]:
    """What `read_to` yields; partitions as `p0`, `p1`."""
    ends = {topic.at(int(name[1:])): EndOffset(end) for name, end in end_offsets.items()}
    return [message async for message in subscription.read_to(ends)]


def offsets(messages: list[Message]) -> list[int]:
    """Offsets of messages."""
    return [message.offset for message in messages]


async def test_delivers_what_committed_and_hides_what_aborted(
    connector: MemoryConnector, topic: CoordinatedTopic
):
    """D1, D3: plain and committed records in offset order, aborted ones not."""
    await topic.write(0, None)
    await topic.write(0, X, 2)
    await topic.write(0, Y, 2)
    await topic.write(0, None)
    await topic.commit(0, X, 3)
    await topic.abort(0, Y)
    async with subscribe(connector) as subscription:
        messages = await read_to(subscription, topic, p0=6)
    assert offsets(messages) == [0, 1, 2, 5]
    assert [message.txn for message in messages] == [None, X, X, None]
    assert messages[1] == ("orders", 0, 1, None, b"0", [("txn", X.to_bytes())])


async def test_stops_at_an_undecided_record_until_its_marker_comes(
    connector: MemoryConnector, topic: CoordinatedTopic
):
    """D2: nothing behind an undecided record is delivered before it is decided."""
    await topic.write(0, None)
    await topic.write(0, X)
    await topic.write(0, None)
    async with subscribe(connector, undecided_timeout_s=SOON_S) as subscription:
        with pytest.raises(UndecidedError) as caught:
            await read_to(subscription, topic, p0=3)
        assert (caught.value.place, str(X) in caught.value.primary) == ("orders/0@1", True)
        (blocked,) = subscription.blocked
        assert (blocked.data, blocked.offset, blocked.txn) == (topic.at(0), 1, X)
        assert blocked.waited_s >= SOON_S
        assert subscription.position(topic.at(0)) == 1
        await topic.commit(0, X, 2)
        assert offsets(await take(subscription, 2)) == [1, 2]
        assert subscription.blocked == []


async def test_an_undecided_record_past_the_end_offset_does_not_matter(
    connector: MemoryConnector, topic: CoordinatedTopic
):
    """`read_to` answers for what lies below its end offsets only."""
    await topic.write(0, None, 2)
    await topic.write(0, X)
    async with subscribe(connector, undecided_timeout_s=SOON_S) as subscription:
        assert offsets(await read_to(subscription, topic, p0=2)) == [0, 1]


async def test_reading_to_an_end_leaves_later_records_for_later(
    connector: MemoryConnector, topic: CoordinatedTopic
):
    """Records past an end offset, or of another partition, are neither yielded nor lost."""
    await topic.write(0, None, 4)
    await topic.write(1, None, 2)
    async with subscribe(connector) as subscription:
        assert offsets(await read_to(subscription, topic, p0=3)) == [0, 1, 2]
        assert subscription.position(topic.at(0)) == 3
        rest = await take(subscription, 3)
        assert sorted((m.partition, m.offset) for m in rest) == [(0, 3), (1, 0), (1, 1)]


async def test_reading_to_an_end_passes_hidden_records(
    connector: MemoryConnector, topic: CoordinatedTopic
):
    """A partition that ends in hidden records is read to its end, and may be committed so."""
    await topic.write(0, None)
    await topic.write(0, X, 3)
    await topic.abort(0, X)
    async with subscribe(connector) as subscription:
        assert offsets(await read_to(subscription, topic, p0=4)) == [0]
        assert subscription.position(topic.at(0)) == 4


async def test_markers_are_read_from_the_start_whatever_the_position(
    connector: MemoryConnector, topic: CoordinatedTopic
):
    """D5: a group that goes on in the middle still knows outcomes written before."""
    await topic.write(0, X, 4)
    await topic.commit(0, X, 4)
    async with subscribe(connector) as subscription:
        await take(subscription, 2)
        await subscription.commit()
    async with subscribe(connector) as subscription:
        assert offsets(await read_to(subscription, topic, p0=4)) == [2, 3]


async def test_commits_what_was_returned_not_what_is_buffered(
    connector: MemoryConnector, topic: CoordinatedTopic
):
    """At least once: what the application was not given comes again."""
    await topic.write(0, None, 5)
    async with subscribe(connector) as subscription:
        await take(subscription, 2)
        await subscription.commit()
        await take(subscription, 2)
    async with subscribe(connector) as subscription:
        assert offsets(await read_to(subscription, topic, p0=5)) == [2, 3, 4]


async def test_a_group_may_begin_at_the_end(connector: MemoryConnector, topic: CoordinatedTopic):
    """`from_start=False`: a new group gets only what is written after it joined."""
    await topic.write(0, None, 3)
    async with subscribe(connector, from_start=False) as subscription:
        await read_to(subscription, topic, p0=3)
        await topic.write(0, None)
        assert offsets(await take(subscription, 1)) == [3]


async def test_withheld_records_are_counted(connector: MemoryConnector, topic: CoordinatedTopic):
    """D1: late, malformed and hidden records are told apart, and none is delivered."""
    await topic.write(0, b"short")
    await topic.write(0, X, 2)
    await topic.write(0, Y)
    await topic.write(0, None)
    await topic.commit(0, X, 2)
    await topic.abort(0, Y)
    async with subscribe(connector) as subscription:
        assert offsets(await read_to(subscription, topic, p0=5)) == [1, 4]
        counts = subscription.statistics()[topic.at(0)]
    assert (counts.delivered, counts.hidden, counts.late, counts.malformed) == (2, 1, 1, 1)
    assert (counts.position, counts.waiting, counts.outcomes) == (5, 0, 2)


async def test_statistics_count_what_was_returned(
    connector: MemoryConnector, topic: CoordinatedTopic
):
    """What is merely buffered is not counted as delivered."""
    await topic.write(0, None, 5)
    async with subscribe(connector) as subscription:
        await take(subscription, 2)
        counts = subscription.statistics()[topic.at(0)]
    assert (counts.delivered, counts.position) == (2, 2)


async def test_fetching_stops_behind_an_undecided_record(
    connector: MemoryConnector, topic: CoordinatedTopic
):
    """D7: a partition that waits is not read on for ever, loses nothing, and goes on later."""
    await topic.write(0, X)
    await topic.write(0, None, 19)
    async with subscribe(
        connector, undecided_records_max=10, undecided_timeout_s=SOON_S
    ) as subscription:
        with pytest.raises(UndecidedError):
            await read_to(subscription, topic, p0=20)
        await topic.write(0, None, 500)
        await topic.write(1, None)
        await read_to(subscription, topic, p1=1)
        assert subscription.statistics()[topic.at(0)].waiting <= 20
        await topic.commit(0, X, 1)
        assert offsets(await read_to(subscription, topic, p0=520)) == list(range(520))


async def test_fetching_stops_while_the_application_is_slow(
    connector: MemoryConnector, broker: MemoryBroker, topic: CoordinatedTopic
):
    """Visible records not taken are bounded too, and taking them starts fetching again."""
    await topic.write(0, None, 20)
    async with subscribe(connector, buffer_records_max=10) as subscription:
        await take(subscription, 1)
        await topic.write(0, None, 500)
        await topic.write(1, None, 500)
        await take(subscription, 1)
        driver = subscription._driver
        assert driver is not None
        assert driver._deliveries.count < 20
        messages = await read_to(subscription, topic, p0=520, p1=500)
    assert len(messages) == 1018


@pytest.mark.parametrize("turn", [0, 1])
async def test_nothing_of_a_revoked_partition_is_delivered(
    connector: MemoryConnector, topic: CoordinatedTopic, turn: int
):
    """A rebalance takes buffered records away, even in their turn.

    The new member begins at the committed position.
    """
    await topic.write(turn, None, 5)
    async with subscribe(connector) as first:
        await take(first, 2)
        await topic.write(1 - turn, None, 5)
        await first.commit()
        async with subscribe(connector) as second:
            theirs = await take(second, 3)
            (lost,) = {message.partition for message in theirs}
            assert first.position(topic.at(lost)) is None
            mine = await take(first, 5 if lost == turn else 3)
            assert {message.partition for message in mine} == {1 - lost}
            left = {turn: [2, 3, 4], 1 - turn: [0, 1, 2, 3, 4]}
            assert offsets(theirs) == left[lost][:3]
            assert offsets(mine) == left[1 - lost]


async def test_a_partition_of_another_member_is_not_waited_for_endlessly(
    connector: MemoryConnector, topic: CoordinatedTopic
):
    """`read_to` of a partition that does not exist fails and names it."""
    await topic.write(0, None)
    async with subscribe(connector, assignment_timeout_s=SOON_S) as subscription:
        with pytest.raises(NotAssignedError) as caught:
            await read_to(subscription, topic, p0=1, p7=1)
    assert caught.value.place == "orders/7"


async def test_a_damaged_marker_stops_the_subscription(
    connector: MemoryConnector, topic: CoordinatedTopic
):
    """B10: topic, partition and offset are named; a foreign record is passed over."""
    await topic.write(0, X)
    await topic.abort(0, Y)
    await topic.write_marker_bytes(0, b"what?", b"?")
    key = encode_key(topic.at(0), X)
    offset = await topic.write_marker_bytes(0, key, b"?")
    async with subscribe(connector) as subscription:
        with pytest.raises(DecodeError) as caught:
            await anext(subscription)
    source = topic.markers_of(0)
    assert caught.value.place == f"{source}@{offset}"


async def test_a_commit_without_end_offset_stops_the_subscription(
    connector: MemoryConnector, topic: CoordinatedTopic
):
    """Such a marker says nothing about its records: nothing is guessed."""
    await topic._mark(0, X, committed=True, end_offset=None)
    async with subscribe(connector) as subscription:
        with pytest.raises(DecodeError, match="without end offset"):
            await anext(subscription)


async def test_contradicting_markers_stop_the_subscription(
    connector: MemoryConnector, topic: CoordinatedTopic
):
    """A commit that turns into an abort is reported with the later marker's place."""
    await topic.write(0, X)
    await topic.commit(0, X, 1)
    async with subscribe(connector) as subscription:
        await take(subscription, 1)
        await topic.abort(0, X)
        with pytest.raises(MarkerConflictError, match="orders/0") as caught:
            await anext(subscription)
    assert caught.value.place == f"{topic.markers_of(0)}@1"


async def test_a_tombstone_among_the_markers_is_passed(
    connector: MemoryConnector, topic: CoordinatedTopic
):
    """A marker that was trimmed decides nothing and stops nothing."""
    await topic.write_marker_bytes(0, encode_key(topic.at(0), Y), None)
    await topic.write(0, X)
    await topic.commit(0, X, 1)
    async with subscribe(connector) as subscription:
        assert offsets(await take(subscription, 1)) == [0]


async def test_rides_out_an_outage(
    connector: MemoryConnector, broker: MemoryBroker, topic: CoordinatedTopic
):
    """A broker that comes back in time is not noticed by the application."""
    await topic.write(0, None)
    async with subscribe(connector) as subscription:
        await take(subscription, 1)
        broker.down()
        waiting = asyncio.create_task(take(subscription, 1))
        await asyncio.sleep(0)
        broker.up()
        await topic.write(0, X)
        await topic.commit(0, X, 2)
        assert offsets(await waiting) == [1]


async def test_gives_up_after_a_long_outage(
    connector: MemoryConnector, broker: MemoryBroker, topic: CoordinatedTopic
):
    """An outage beyond the time-out fails the subscription and says what the broker said."""
    async with subscribe(connector, unavailable_timeout_s=SOON_S) as subscription:
        broker.down()
        with pytest.raises(UnavailableError, match=r"away for 0\.05 s") as caught:
            await anext(subscription)
        assert caught.value.detail
        with pytest.raises(UnavailableError):
            await subscription.commit()


async def test_a_broker_that_is_down_at_start_fails_in_time(
    connector: MemoryConnector, broker: MemoryBroker
):
    """Entering the subscription fails, with retries but not for ever."""
    broker.down()
    with pytest.raises(UnavailableError):
        async with subscribe(connector, unavailable_timeout_s=SOON_S):
            pass


async def test_an_unknown_topic_is_named(connector: MemoryConnector, topic: CoordinatedTopic):
    """Reading a topic that does not exist fails at once."""
    with pytest.raises(FatalError, match="does not exist") as caught:
        async with Subscription(["orders", "ordres"], group="g", connector=connector):
            pass
    assert caught.value.topic == "ordres"


async def test_missing_system_topics_are_named(connector: MemoryConnector):
    """Without the marker topic no record can be decided: the hint says how it comes to be."""
    admin = connector.admin()
    await admin.ensure_topics([TopicSpec("orders", 1)])
    await admin.close()
    with pytest.raises(FatalError, match="start a worker"):
        async with subscribe(connector):
            pass


async def test_closing_wakes_whoever_waits(connector: MemoryConnector, topic: CoordinatedTopic):
    """An iteration in another task ends when the subscription is closed."""
    async with subscribe(connector) as subscription:
        waiting = asyncio.create_task(take(subscription, 1))
        await asyncio.sleep(0)
    with pytest.raises(FatalError, match="closed"):
        await waiting


async def test_closing_leaves_no_task_behind(connector: MemoryConnector, topic: CoordinatedTopic):
    """Also when another member comes just then, so that markers would be read anew."""
    before = asyncio.all_tasks()
    driver = SubscriptionDriver(connector, SubscriptionOptions(["orders"], "billing"))
    await driver.start()
    await until(lambda: driver.rebalance_count == 1)
    other = connector.group_reader("other", "billing")
    await asyncio.gather(
        driver.close(),
        other.subscribe(["orders"], assigned=lambda _: None, revoked=lambda _: None),
    )
    await other.close()
    assert asyncio.all_tasks() == before


async def test_who_takes_all_at_once_lets_others_have_their_turn(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic
):
    """A long backlog is read without waiting, and the loop runs nevertheless."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    data = topic.at(0)
    for _ in range(200):
        broker.append(data, b"v", None, None)
    async with subscribe(connector) as subscription:
        await anext(subscription)
        counting = asyncio.create_task(count())
        found: list[Message] = []
        for _ in range(
            60
        ):  # each batch is answered by as many records, so that there is always one
            found += await anext(batches := subscription.batches())
            await batches.aclose()
            for _ in range(200):
                broker.append(data, b"v", None, None)
        counting.cancel()
    assert offsets(found) == list(range(1, len(found) + 1))
    assert len(found) > 60 * 100
    assert turns >= 2


async def test_one_at_a_time_partitions_have_turns_as_in_iterating(
    connector: MemoryConnector, topic: CoordinatedTopic
):
    """What is acknowledged or written next has the same owner as what went before."""
    for partition in (0, 1):
        await topic.write(partition, None, TURN_RECORDS + 1)
    async with subscribe(connector) as subscription:
        taken = await take(subscription, 2 * TURN_RECORDS + 2)
    runs = [partition for partition, _ in groupby(it.partition for it in taken)]
    assert runs in ([0, 1, 0, 1], [1, 0, 1, 0])


async def test_what_was_left_of_a_turn_ends_with_the_subscription(
    connector: MemoryConnector, topic: CoordinatedTopic
):
    """Opened again it begins at the committed position."""
    await topic.write(0, None, 3)
    subscription = subscribe(connector)
    for _ in range(2):
        async with subscription:
            assert offsets(await take(subscription, 2)) == [0, 1]


async def test_batches_are_of_one_partition_and_bounded(
    connector: MemoryConnector, topic: CoordinatedTopic
):
    """And are committed as a whole."""
    await topic.write(0, None, 5)
    await topic.write(1, None, 2)
    async with subscribe(connector) as subscription:
        found: list[list[int]] = []
        async for batch in subscription.batches(3):
            (partition,) = {it.partition for it in batch}
            found.append([partition, *offsets(list(batch))])
            if len(found) == 3:
                break
        assert sorted(found) == [[0, 0, 1, 2], [0, 3, 4], [1, 0, 1]]
        await subscription.commit()
        assert subscription.position(topic.at(0)) == 5
    async with subscribe(connector) as subscription:
        await topic.write(0, None)
        assert offsets(await take(subscription, 1)) == [5]


async def test_a_batch_has_room_for_a_record(connector: MemoryConnector, topic: CoordinatedTopic):
    """Refused before anything is taken."""
    await topic.write(0, None)
    async with subscribe(connector) as subscription:
        with pytest.raises(ConfigError, match="records_max"):
            await anext(subscription.batches(0))
