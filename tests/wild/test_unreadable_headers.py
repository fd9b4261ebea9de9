"""Header names that are not UTF-8, where the client library does not show their bytes.

What a user saw: on a system with another build of the client library, a subscription raised
`FatalError` at such a record, as documented. The next read raised `AssertionError`, without a
place, and records that were fetched together with that record, in front of it, were never
delivered.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest
from confluent_kafka import Producer, cimpl

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.kafka.consumer import header_library
from stilltide.connectors.kafka.consumer.groups import KafkaGroupReader
from stilltide.connectors.ports.copying import Columns
from stilltide.connectors.ports.readers import Record, Run
from stilltide.pipeline.client.subscription import Subscription
from stilltide.schemas.values import Offset, TopicPartition, TxnId
from tests.support.coordinator.coordinated import CoordinatedTopic
from tests.support.foreign_producer import ForeignRecord, write_foreign
from tests.support.looks import between_looks

WAIT_S = 90.0
ODD = (5, 8)
COUNT = 12
RECORDS = [
    ForeignRecord(b"%d" % n, headers=[(b"stra\xdfe" if n in ODD else b"plain", b"1")])
    for n in range(COUNT)
]


@pytest.fixture(autouse=True)
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A client whose library cannot be loaded a second time, to read its memory."""
    monkeypatch.setattr(cimpl, "__file__", "/absent/cimpl.so")
    header_library._library.cache_clear()
    assert not header_library.is_readable()
    yield
    monkeypatch.undo()
    header_library._library.cache_clear()


@pytest.fixture
async def topic(bootstrap: str, topic_name: str) -> AsyncIterator[CoordinatedTopic]:
    """A topic with odd records among others."""
    made = await CoordinatedTopic.create(KafkaConnector(KafkaConfig(bootstrap)), topic_name, 1)
    write_foreign(bootstrap, topic_name, RECORDS)
    yield made
    await made.close()


def offsets(items: Sequence[object]) -> list[int]:
    """The offsets of records, in any form that a reader returns them."""
    found: list[int] = []
    for item in items:
        if isinstance(item, Record):
            found.append(item.offset)
        elif isinstance(item, Columns | Run):
            found += item.offsets
    return found


@pytest.mark.parametrize("kind", ["reader", "column_reader", "group_reader"])
async def test_a_reader_stops_at_the_record_and_goes_on_behind_it(
    bootstrap: str, topic: CoordinatedTopic, kind: str
):
    """D9: what is in front is returned, each read names the place, `assign` leads past it."""
    connector, data = KafkaConnector(KafkaConfig(bootstrap)), topic.at(0)
    assigned = asyncio.Event()
    if kind == "group_reader":
        reader = connector.group_reader("test", topic.name)
        await reader.subscribe(
            [topic.name], assigned=lambda _: assigned.set(), revoked=lambda _: None
        )
    else:
        reader = getattr(connector, kind)("test")
        await reader.assign({data: Offset(0)})
    try:
        async with asyncio.timeout(WAIT_S):
            for first, odd in ((0, ODD[0]), (ODD[0] + 1, ODD[1])):
                seen: list[int] = []
                while len(seen) < odd - first:
                    seen += offsets(await reader.read())
                assert seen == [*range(first, odd)]
                for _ in range(3):
                    if isinstance(reader, KafkaGroupReader):
                        assert reader.read_now() == []
                    with pytest.raises(FatalError, match="not UTF-8") as raised:
                        await reader.read()
                    assert raised.value.place == f"{data}@{odd}"
                await reader.assign({data: Offset(odd + 1)})
            assert offsets(await reader.read()) == [*range(ODD[1] + 1, COUNT)]
    finally:
        await reader.close()


@asynccontextmanager
async def failing(bootstrap: str, topic: CoordinatedTopic, odd: int) -> AsyncIterator[Subscription]:
    """A subscription of a group, until it raises the error of an odd record."""
    subscription = Subscription([topic.name], group=topic.name, bootstrap_servers=bootstrap)
    with pytest.raises(FatalError, match="not UTF-8") as raised:
        async with asyncio.timeout(WAIT_S), subscription:
            yield subscription
    assert raised.value.place == f"{topic.at(0)}@{odd}"


async def test_a_subscription_delivers_what_is_in_front(bootstrap: str, topic: CoordinatedTopic):
    """D9: then it raises, again at each start; a member that moves behind the record goes on."""
    seen: list[bytes | None] = []
    async with failing(bootstrap, topic, ODD[0]) as subscription:
        async for message in subscription:
            seen.append(message.value)
            await subscription.commit()
    assert seen == [b"%d" % n for n in range(ODD[0])]
    async with failing(bootstrap, topic, ODD[0]) as subscription:
        await anext(subscription)
    async with failing(bootstrap, topic, ODD[1]) as subscription:
        while subscription.position(topic.at(0)) is None:
            await between_looks()
        await subscription.seek(topic.at(0), ODD[0] + 1)
        while True:
            seen.append((await anext(subscription)).value)
    assert seen == [b"%d" % n for n in range(ODD[1]) if n not in ODD]


async def test_what_is_undecided_in_front_is_delivered_first(
    bootstrap: str, topic: CoordinatedTopic
):
    """D2, D9: an open transaction in front of the record ends first, and is delivered.

    Records of Kafka's own transactions lie between.
    """
    data, txn = TopicPartition(f"{topic.name}-other", 0), TxnId(0, 1)
    connector = KafkaConnector(KafkaConfig(bootstrap))
    other, admin = await CoordinatedTopic.create(connector, data.topic, 1), connector.admin()
    await other.write(0, txn, 3)
    native = Producer({"bootstrap.servers": bootstrap, "transactional.id": data.topic})
    native.init_transactions(30)
    native.begin_transaction()
    native.produce(data.topic, b"native")
    native.commit_transaction(30)
    while (await admin.end_offsets([data], committed=True))[data] < 5:  # until it has its marker
        await between_looks()
    odd = await other.write(0, None)
    write_foreign(bootstrap, data.topic, RECORDS[ODD[0] :])
    seen: list[bytes | None] = []
    async with failing(bootstrap, other, odd) as subscription:
        reading = asyncio.ensure_future(anext(subscription))
        while not subscription.blocked:
            await between_looks()
        await other.commit(0, txn, 3)
        seen.append((await reading).value)
        while True:
            seen.append((await anext(subscription)).value)
    assert seen == [b"0", b"1", b"2", b"native", b"0"]
    await asyncio.gather(other.close(), admin.close())
