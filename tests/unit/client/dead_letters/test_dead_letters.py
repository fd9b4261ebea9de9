"""G2: messages that fail too often, on the memory broker with real owners of everything."""
# ruff: noqa: PT012 - an error is raised on leaving the transaction's block, not by one statement

from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.errors import FatalError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import Message, Subscription, TransactionClient
from stilltide.pipeline.errors import AlreadyAcknowledgedError, ConfigError, SystemTopicError
from stilltide.schemas.pending_ack.dead_letters import DeadLetterHeaders, decode
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.coordinator.worker_client import TOPICS, take
from tests.support.coordinator.worker_memory import until

GROUP = "invoicing"
DATA = TopicPartition(TOPICS[0], 0)
DEAD_LETTERS = f"{TOPICS[0]}-{GROUP}-DLQ"


def subscribe(connector: MemoryConnector, **options: float) -> Subscription:
    """A member whose messages are delivered twice."""
    given = {"deliveries_max": 2, "redelivery_delay_s": 0.01, **options}
    return Subscription(
        [TOPICS[0]], group=GROUP, connector=connector, acknowledgements=True, **given
    )


@pytest.fixture
async def orders(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
) -> AsyncIterator[Subscription]:
    """A subscription with two messages in one partition."""
    broker.create_topic(TopicSpec(DEAD_LETTERS, 2))
    async with client.transaction() as txn:
        await txn.send(TOPICS[0], b"bad", key=b"k", headers=[("h", b"1"), ("n", None)], partition=0)
        await txn.send(TOPICS[0], b"good", partition=0)
        await txn.commit(wait_visible=True)
    async with subscribe(connector) as subscription:
        yield subscription


async def dead_letters(connector: MemoryConnector) -> list[Message]:
    """All that can be seen in the dead-letter topic."""
    admin = connector.admin()
    ends = await admin.end_offsets([TopicPartition(DEAD_LETTERS, it) for it in range(2)])
    async with Subscription([DEAD_LETTERS], group="look", connector=connector) as subscription:
        return [it async for it in subscription.read_to(ends)]


def dead_lettered(subscription: Subscription) -> int:
    """How many messages of the partition were moved."""
    found = subscription.statistics().get(DATA)
    return found.dead_lettered if found else 0


async def test_a_message_that_fails_too_often_is_a_dead_letter(
    broker: MemoryBroker, connector: MemoryConnector, orders: Subscription
):
    """Deliveries are counted; the dead letter says where from, how often and why; all is done."""
    bad, good = await take(orders, 2)
    orders.acknowledge(good)
    assert bad.deliveries == good.deliveries == 1
    orders.negative_acknowledge(bad)
    (again,) = await take(orders)
    assert (again, again.deliveries) == (bad, 2)
    orders.negative_acknowledge(again, ValueError("no such customer"))
    await until(lambda: dead_lettered(orders) == 1)
    (letter,) = await dead_letters(connector)
    assert (letter.key, letter.value) == (b"k", b"bad")
    assert letter.headers is not None
    assert [it for it in letter.headers if it[0] in "hn"] == [("h", b"1"), ("n", None)]
    assert decode(letter.headers) == DeadLetterHeaders(
        DATA, Offset(0), 0, GROUP, 2, "ValueError: no such customer"
    )
    with pytest.raises(AlreadyAcknowledgedError):
        orders.acknowledge(bad)
    await orders.commit()
    assert broker.group(GROUP).committed[DATA].offset >= 2
    assert orders.statistics()[DATA].redelivered == 1


async def test_an_aborted_transaction_counts_as_a_failure(
    connector: MemoryConnector, client: TransactionClient, orders: Subscription
):
    """The exception that aborted the transaction is the reason in the dead letter."""
    bad, good = await take(orders, 2)
    orders.acknowledge(good)
    for deliveries in (1, 2):
        assert bad.deliveries == deliveries
        with pytest.raises(LookupError):
            async with client.transaction() as txn:
                await txn.acknowledge(orders, bad)
                raise LookupError("no such account")
        if deliveries == 1:
            (bad,) = await take(orders)
    await until(lambda: dead_lettered(orders) == 1)
    (letter,) = await dead_letters(connector)
    found = decode(letter.headers)
    assert found is not None
    assert found.error == "LookupError: no such account"


async def test_an_acknowledgement_in_time_keeps_a_message_from_being_a_dead_letter(
    connector: MemoryConnector, orders: Subscription
):
    """A message is acknowledged or a dead letter, never both."""
    bad, good = await take(orders, 2)
    orders.negative_acknowledge(bad)
    (bad,) = await take(orders)
    orders.negative_acknowledge(bad)
    orders.acknowledge(bad)  # before the event loop runs, so the dead letter is not sent yet
    orders.negative_acknowledge(good)
    (good,) = await take(orders)
    orders.negative_acknowledge(good)
    await until(lambda: dead_lettered(orders) == 1)
    assert [it.value for it in await dead_letters(connector)] == [b"good"]


async def test_a_dead_letter_that_cannot_be_sent_is_tried_again(
    broker: MemoryBroker, connector: MemoryConnector, orders: Subscription
):
    """Without its topic nothing is lost: the message waits, and moves once the topic is back."""
    bad, good = await take(orders, 2)
    orders.acknowledge(good)
    orders.negative_acknowledge(bad)
    (bad,) = await take(orders)
    broker.delete_topic(DEAD_LETTERS)
    orders.negative_acknowledge(bad)
    await until(lambda: not orders.acknowledging._partitions[DATA].tracker._delivered)
    assert dead_lettered(orders) == 0
    broker.create_topic(TopicSpec(DEAD_LETTERS, 2))
    await until(lambda: dead_lettered(orders) == 1)
    assert [it.value for it in await dead_letters(connector)] == [b"bad"]


@pytest.mark.usefixtures("worker")
async def test_the_dead_letter_topic_must_exist(connector: MemoryConnector):
    """The error names the topic that is missing, before any message is read."""
    with pytest.raises(FatalError, match="dead-letter topic") as missing:
        async with subscribe(connector):
            pass
    assert missing.value.topic == DEAD_LETTERS


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dead_letter_topic": "d", "acknowledgements": True}, "no effect"),
        ({"deliveries_max": 3}, "acknowledgements"),
        ({"deliveries_max": 0, "acknowledgements": True}, "deliveries_max"),
        ({"redelivery_factor": 0.5, "acknowledgements": True}, "redelivery_factor"),
        (
            {"deliveries_max": 3, "dead_letter_topic": "orders", "acknowledgements": True},
            "reads itself",
        ),
        ({"deliveries_max": 3, "dead_letter_topic": "a b", "acknowledgements": True}, "'a b'"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    connector: MemoryConnector, options: dict[str, object], said: str
):
    """Nothing is opened; the error names the option."""
    with pytest.raises(ConfigError, match=said):
        Subscription(["orders"], group="g", connector=connector, **options)  # pyright: ignore[reportArgumentType]


def test_a_group_whose_name_fits_no_topic_needs_a_name_for_its_dead_letters(
    connector: MemoryConnector,
):
    """Kafka allows more in the name of a group than in that of a topic."""
    with pytest.raises(ConfigError, match="no topic of the name"):
        Subscription(
            ["orders"],
            group="the billing/group",
            connector=connector,
            acknowledgements=True,
            deliveries_max=3,
        )
    with pytest.raises(SystemTopicError):
        Subscription(
            ["orders"],
            group="g",
            connector=connector,
            acknowledgements=True,
            deliveries_max=3,
            dead_letter_topic="stilltide.settings",
        )
