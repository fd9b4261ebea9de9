"""Transactions of an application on the memory broker, with a real coordinator."""
# ruff: noqa: PT012 - an error is raised on leaving the transaction's block, not by one statement

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from connectors.errors import FatalError, RetriableError
from connectors.memory.broker import MemoryBroker
from connectors.memory.connector import MemoryConnector
from pipeline.client import Subscription, TransactionClient
from pipeline.client.partitioner import partition_for
from pipeline.errors import (
    OutcomeUnknownError,
    RefusedError,
    RequestTimeoutError,
    TransactionStateError,
)
from schemas import markers
from schemas.framing import decode_value
from schemas.headers import TXN
from schemas.markers import Marker
from schemas.requests import decode_request
from schemas.topics import TXN_LOG, TXN_MARKERS, TXN_REQUESTS, TXN_RESPONSES, TopicSpec
from schemas.transactions import AddPartitions, Open, Request
from schemas.values import TopicPartition, TxnId
from tests.support.worker_memory import MemoryWorker, until

TOPICS = ("orders", "payments")
SOON_S = 0.1
"""A time-out that is meant to run out."""


@pytest.fixture
async def broker() -> MemoryBroker:
    """A broker with two topics of three partitions."""
    broker = MemoryBroker()
    for topic in TOPICS:
        broker.create_topic(TopicSpec(topic, 3))
    return broker


@pytest.fixture
async def connector(broker: MemoryBroker) -> MemoryConnector:
    """Its connector."""
    return MemoryConnector(broker)


@pytest.fixture
async def worker(connector: MemoryConnector) -> AsyncIterator[MemoryWorker]:
    """A worker with two coordinators."""
    async with MemoryWorker(connector, coordinators=2) as made:
        yield made


@pytest.fixture
async def client(
    connector: MemoryConnector, worker: MemoryWorker
) -> AsyncIterator[TransactionClient]:
    """A client."""
    async with TransactionClient(connector=connector) as made:
        yield made


async def visible(connector: MemoryConnector) -> Counter[tuple[str, bytes | None]]:
    """What readers of the two topics see, once everything is decided: (topic, value)."""
    admin = connector.admin()
    ends = await admin.end_offsets(
        [TopicPartition(topic, number) for topic in TOPICS for number in range(3)]
    )
    async with Subscription(TOPICS, group="test", connector=connector) as subscription:
        return Counter([(it.topic, it.value) async for it in subscription.read_to(ends)])


def written(broker: MemoryBroker, topic: str) -> list[tuple[int, bytes | None, list[Any]]]:
    """Every record of a topic, visible or not: partition, value and headers."""
    return [
        (number, it.value, list(it.headers or ()))
        for number in range(3)
        for it in broker.records(TopicPartition(topic, number))
    ]


def requests_in(broker: MemoryBroker) -> list[Request]:
    """Everything that coordinators were asked."""
    return [
        decode_request(data)
        for number in range(2)
        for it in broker.records(TopicPartition(TXN_REQUESTS, number))
        for data in decode_value(it.value)
    ]


def markers_in(broker: MemoryBroker) -> list[Marker]:
    """Every outcome there is."""
    found = [
        markers.decode(it.key, it.value)
        for number in range(2)
        for it in broker.records(TopicPartition(TXN_MARKERS, number))
    ]
    return [it for it in found if it is not None]


async def test_leaving_the_block_commits(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
):
    """Records of a committed transaction are visible; its header stands before their own."""
    async with client.transaction() as txn:
        await txn.send("orders", b"o", key=b"1", headers=[("trace", b"t")])
        await txn.send("payments", None, key=b"1")
    assert txn.state == "committed"
    assert txn.id is not None
    assert written(broker, "orders")[0][2] == [(TXN, txn.id.to_bytes()), ("trace", b"t")]
    assert await visible(connector) == {("orders", b"o"): 1, ("payments", None): 1}


async def test_an_exception_aborts_and_passes(
    connector: MemoryConnector, client: TransactionClient
):
    """What leaves the block is the application's own error, and nothing becomes visible."""
    with pytest.raises(KeyError, match="theirs"):
        async with client.transaction() as txn:
            await txn.send("orders", b"o")
            await txn.flush()
            raise KeyError("theirs")
    assert txn.state == "aborted"
    assert await visible(connector) == {}


async def test_an_abort_hides_every_record(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
):
    """An abort in the middle of a block is final; leaving the block adds nothing."""
    async with client.transaction() as txn:
        for number in range(10):
            await txn.send("orders", b"%d" % number, key=b"%d" % number)
        await txn.flush()
        await txn.abort()
    assert (txn.state, len(written(broker, "orders"))) == ("aborted", 10)
    assert await visible(connector) == {}


async def test_an_empty_transaction_asks_nobody(broker: MemoryBroker, client: TransactionClient):
    """Without a record there is nothing to decide: no request is sent, on commit or abort."""
    async with client.transaction() as txn:
        pass
    async with client.transaction() as other:
        await other.abort()
    assert (txn.state, other.state, txn.id) == ("committed", "aborted", None)
    assert requests_in(broker) == []


async def test_a_commit_that_waits_finds_its_markers(
    broker: MemoryBroker, client: TransactionClient
):
    """C5: with `wait_visible` the outcome can be known by readers when commit returns."""
    async with client.transaction() as txn:
        await txn.send("orders", b"o", partition=0)
        await txn.send("orders", b"p", partition=0)
        await txn.commit(wait_visible=True)
    (marker,) = markers_in(broker)
    assert (marker.txn, marker.committed) == (txn.id, True)
    assert (marker.start_offset, marker.end_offset, marker.record_count) == (0, 2, 2)


async def test_partitions_are_registered_from_their_end(
    broker: MemoryBroker, client: TransactionClient
):
    """C2: the start offset is an end offset known before, and follows the client's own writes."""
    for expected in (0, 1, 2):
        async with client.transaction() as txn:
            await txn.send("orders", b"o", partition=1)
        opening = [it.body for it in requests_in(broker) if isinstance(it.body, Open)][-1]
        assert [it.start_offset for it in opening.partitions] == [expected]


async def test_a_record_leaves_only_after_its_partition_is_registered(
    broker: MemoryBroker, client: TransactionClient
):
    """C2, D6: while the registration is under way its records wait, and keep their order."""
    broker.hold(TXN_RESPONSES)
    async with client.transaction() as txn:
        for number in range(5):
            await txn.send("orders", b"%d" % number, partition=0)
        await until(lambda: requests_in(broker))
        assert written(broker, "orders") == []
        broker.release()
        await txn.flush()
        values = [value for _, value, _ in written(broker, "orders")]
    assert values == [b"%d" % number for number in range(5)]


async def test_partitions_met_while_one_is_registered_are_registered_together(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
):
    """One request is under way at a time; what gathers meanwhile goes with the next."""
    async with client.transaction() as txn:
        broker.hold(TXN_RESPONSES)
        await txn.send("orders", b"first", partition=0)
        await until(lambda: requests_in(broker))
        await txn.send("orders", b"second", partition=1)
        await txn.send("payments", b"third", partition=2)
        broker.release()
        await txn.send("orders", b"fourth", partition=0)
    added = [it.body for it in requests_in(broker) if isinstance(it.body, AddPartitions)]
    assert [len(it.partitions) for it in added] == [2]
    assert sum((await visible(connector)).values()) == 4


async def test_a_lost_delivery_report_refuses_the_commit(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
):
    """C6: what is not known to be durable is never committed, though it may have landed."""
    broker.lose_report("orders")
    with pytest.raises(RetriableError, match="no answer"):
        async with client.transaction() as txn:
            await txn.send("orders", b"landed")
            await txn.send("payments", b"p")
    assert txn.state == "aborted"
    assert len(written(broker, "orders")) == 1
    assert await visible(connector) == {}


async def test_a_refused_record_refuses_the_commit(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
):
    """A record that a topic does not take aborts the transaction with the topic's reason."""
    broker.create_topic(TopicSpec("small", 1, {"max.message.bytes": "100"}))
    with pytest.raises(FatalError, match="the most is 100"):
        async with client.transaction() as txn:
            await txn.send("small", bytes(101))
            await txn.send("orders", b"o")
    assert txn.state == "aborted"
    assert await visible(connector) == {}


@pytest.mark.parametrize("first", [True, False])
async def test_a_record_too_large_for_any_topic_aborts(
    connector: MemoryConnector,
    client: TransactionClient,
    first: bool,  # noqa: FBT001 - a parameter of the test
):
    """A record the producer never takes ends the transaction, held back or not."""
    with pytest.raises(FatalError, match="a record of 7000000 bytes"):
        async with client.transaction() as txn:
            if not first:
                await txn.send("orders", b"o", partition=0)
                await txn.flush()
            await txn.send("orders", bytes(7_000_000), partition=0)
    assert txn.state == "aborted"
    assert await visible(connector) == {}


async def test_a_report_without_offset_commits(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
):
    """C3: a durable record at an unknown offset lies below an end offset read after it."""
    broker.append(TopicPartition("orders", 0), None, b"before", None)
    broker.hide_offset("orders")
    async with client.transaction() as txn:
        await txn.send("orders", b"somewhere", partition=0)
        await txn.commit(wait_visible=True)
    (marker,) = markers_in(broker)
    assert (marker.committed, marker.end_offset, marker.record_count) == (True, 2, 1)
    assert (await visible(connector))["orders", b"somewhere"] == 1


async def test_an_ended_transaction_takes_no_call(client: TransactionClient):
    """Every call after the end is refused, and says how it ended."""
    async with client.transaction() as txn:
        await txn.send("orders", b"o")
        await txn.commit()
        for call in (txn.send("orders", b"late"), txn.commit(), txn.abort()):
            with pytest.raises(TransactionStateError, match="ended: committed"):
                await call


async def test_the_header_is_reserved(client: TransactionClient):
    """An application cannot put its record into another transaction, or into two."""
    async with client.transaction() as txn:
        with pytest.raises(TransactionStateError, match="`txn` belongs to Stilltide"):
            await txn.send("orders", b"o", headers=[("a", b""), (TXN, TxnId(0, 0).to_bytes())])


async def test_an_unknown_topic_is_named(connector: MemoryConnector, client: TransactionClient):
    """A topic that does not exist fails its `send` only; the transaction can go on."""
    async with client.transaction() as txn:
        with pytest.raises(FatalError, match="does not exist") as caught:
            await txn.send("ordres", b"o")
        await txn.send("orders", b"o")
    assert caught.value.topic == "ordres"
    assert await visible(connector) == {("orders", b"o"): 1}


@pytest.mark.parametrize("partition", [-1, 3])
async def test_a_partition_out_of_range_is_refused(client: TransactionClient, partition: int):
    """A partition the topic does not have is refused by its number."""
    async with client.transaction() as txn:
        with pytest.raises(FatalError, match=rf"partition {partition} is not in 0\.\.2"):
            await txn.send("orders", b"o", partition=partition)


async def test_records_without_key_stay_together(broker: MemoryBroker, client: TransactionClient):
    """Without key a transaction has one partition of a topic, and the next one another."""
    used: list[set[TopicPartition]] = []
    for _ in range(3):
        async with client.transaction() as txn:
            used.append({await txn.send("orders", b"o") for _ in range(4)})
    assert [len(it) for it in used] == [1, 1, 1]
    assert len(set.union(*used)) == 3


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_go_where_other_producers_send_them(key: bytes, hashed: int):
    """The vectors of Kafka's own test of murmur2: a key's partition is that of any producer."""
    for count in (1, 3, 7, 1000):
        assert partition_for(key, count, turn=5) == (hashed & 0x7FFFFFFF) % count


async def test_delivered_counts_what_is_durable(client: TransactionClient):
    """Counts are by partition, and stay when the transaction aborts."""
    async with client.transaction() as txn:
        for number in (0, 0, 2):
            await txn.send("orders", b"o", partition=number)
        await txn.flush()
        await txn.abort()
    assert txn.delivered == {TopicPartition("orders", 0): 2, TopicPartition("orders", 2): 1}


async def test_several_may_wait_for_delivery(broker: MemoryBroker, client: TransactionClient):
    """Every waiting `flush` returns, also when another was cancelled."""
    async with client.transaction() as txn:
        await txn.send("orders", b"first", partition=0)
        await txn.flush()
        broker.hold("orders")
        await txn.send("orders", b"second", partition=0)
        flushing = [asyncio.create_task(txn.flush()) for _ in range(3)]
        for _ in range(3):
            await asyncio.sleep(0)
        flushing[0].cancel()
        broker.release()
        await asyncio.wait_for(asyncio.gather(*flushing[1:]), 10)


async def test_several_tasks_may_send(connector: MemoryConnector, client: TransactionClient):
    """Sends of one transaction may overlap."""
    async with client.transaction() as txn:
        sends = (
            txn.send(topic, b"%d" % number, key=b"%d" % number)
            for number in range(200)
            for topic in TOPICS
        )
        await asyncio.gather(*sends)
    found = await visible(connector)
    assert len(found) == 400
    assert set(found.values()) == {1}


async def test_thousands_are_open_at_once(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
):
    """Concurrent transactions share log entries, end each by itself, and none is mixed up."""

    async def one(number: int) -> None:
        async with client.transaction() as txn:
            for topic in TOPICS:
                await txn.send(topic, b"%d" % number, key=b"%d" % number)
            if number % 10 == 0:
                await txn.abort()

    await asyncio.gather(*(one(number) for number in range(2000)))
    expected = {(topic, b"%d" % it) for it in range(2000) if it % 10 for topic in TOPICS}
    assert set(await visible(connector)) == expected
    entries = sum(len(broker.records(TopicPartition(TXN_LOG, it))) for it in range(2))
    assert entries < 1000, "6000 requests have shared entries"


async def test_no_more_are_open_than_allowed(connector: MemoryConnector, worker: MemoryWorker):
    """Entering one more waits until another has ended, however it ended."""
    async with TransactionClient(connector=connector, open_transactions_max=2) as client:
        first, second = client.transaction(), client.transaction()
        await first.__aenter__()
        await second.__aenter__()
        third = asyncio.create_task(client.transaction().__aenter__())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not third.done()
        await first.__aexit__(None, None, None)
        await asyncio.wait_for(third, 10)


async def test_a_time_out_above_the_maximum_is_refused(
    connector: MemoryConnector, client: TransactionClient
):
    """C2: the coordinator refuses it with its limit, and nothing is written."""
    with pytest.raises(RefusedError, match="allowed are") as caught:
        async with client.transaction(timeout_s=61) as txn:
            await txn.send("orders", b"o")
    assert "61000 ms" in caught.value.detail
    assert (txn.state, await visible(connector)) == ("aborted", {})


async def test_a_commit_after_its_time_is_refused(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
):
    """C7: a transaction that was aborted by its time-out cannot be committed any more."""
    with pytest.raises(RefusedError, match="transaction"):
        async with client.transaction(timeout_s=0.05) as txn:
            await txn.send("orders", b"o")
            await until(lambda: markers_in(broker))
    assert txn.state == "aborted"
    assert await visible(connector) == {}


async def test_nobody_serving_is_a_time_out_with_a_hint(
    broker: MemoryBroker, connector: MemoryConnector
):
    """Without a worker the first registration runs out of time, and nothing was written."""
    async with MemoryWorker(connector):
        pass
    async with TransactionClient(connector=connector, request_timeout_s=SOON_S) as client:
        with pytest.raises(RequestTimeoutError) as caught:
            async with client.transaction() as txn:
                await txn.send("orders", b"o")
    assert "stilltide worker" in caught.value.hint
    assert (txn.state, written(broker, "orders")) == ("aborted", [])


async def test_an_unanswered_commit_is_unknown(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker
):
    """A commit whose answer does not come is neither called done nor undone."""
    async with TransactionClient(connector=connector, request_timeout_s=SOON_S) as client:
        with pytest.raises(OutcomeUnknownError, match="unknown") as caught:
            async with client.transaction() as txn:
                await txn.send("orders", b"o")
                await txn.flush()
                broker.hold(TXN_RESPONSES)
        broker.release()
    assert txn.state == "unknown"
    assert str(txn.id) in caught.value.primary
    assert caught.value.hint
    assert await visible(connector) == {("orders", b"o"): 1}


async def test_a_commit_whose_answer_cannot_be_read_is_unknown(
    broker: MemoryBroker, client: TransactionClient
):
    """Whatever keeps the answer away, a commit that was sent is never called failed."""
    with pytest.raises(OutcomeUnknownError, match="unknown") as caught:
        async with client.transaction() as txn:
            await txn.send("orders", b"o")
            await txn.flush()
            broker.delete_topic(TXN_RESPONSES)
    assert txn.state == "unknown"
    assert "does not exist" in caught.value.detail


async def test_the_next_owner_answers_a_commit_once(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker
):
    """B1, C1b: a commit that one coordinator left unanswered is answered by the next."""
    async with (
        TransactionClient(connector=connector, resend_s=SOON_S) as client,
        client.transaction() as txn,
    ):
        await txn.send("orders", b"o")
        await txn.flush()
        broker.hold(TXN_RESPONSES)
        committing = asyncio.create_task(txn.commit(wait_visible=True))
        await until(lambda: markers_in(broker))
        for driver in worker.drivers:
            driver.assigned = False
        async with MemoryWorker(connector, coordinators=2):
            broker.release()
            await committing
    assert txn.state == "committed"
    assert await visible(connector) == {("orders", b"o"): 1}


async def test_a_full_queue_of_the_producer_loses_nothing(broker: MemoryBroker):
    """Sends wait for room; every record is written once and in order."""
    connector = MemoryConnector(broker)
    async with (
        MemoryWorker(connector, coordinators=2),
        TransactionClient(
            connector=MemoryConnector(broker, writer_records_max=5), resend_s=SOON_S
        ) as client,
    ):
        async with client.transaction() as txn:
            for number in range(100):
                await txn.send("orders", b"%d" % number, partition=0)
        assert [it[1] for it in written(broker, "orders")] == [b"%d" % it for it in range(100)]
        assert txn.state == "committed"


async def test_without_system_topics_the_client_says_what_to_start(connector: MemoryConnector):
    """A cluster that no worker has ever served is told by the missing topic."""
    with pytest.raises(FatalError) as caught:
        async with TransactionClient(connector=connector):
            pass
    assert caught.value.topic == TXN_REQUESTS
    assert "stilltide worker" in caught.value.hint


async def test_a_broker_that_is_down_fails_the_entry(
    broker: MemoryBroker, connector: MemoryConnector
):
    """A cluster that cannot be reached is named at once."""
    broker.down()
    with pytest.raises(RetriableError, match="memory"):
        async with TransactionClient(connector=connector):
            pass


async def test_wrong_use_is_told_apart(connector: MemoryConnector):
    """Neither cluster, both, or a client that was not entered are mistakes of the caller."""
    with pytest.raises(TypeError, match="either"):
        TransactionClient()
    with pytest.raises(TypeError, match="either"):
        TransactionClient("b:1", connector=connector)
    with pytest.raises(TypeError, match="context manager"):
        TransactionClient(connector=connector).transaction()
