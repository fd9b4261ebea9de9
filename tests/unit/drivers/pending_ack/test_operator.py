"""What an operator asks of pending-ack stores on the memory broker."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits
from stilltide.pipeline.drivers.pending_ack import owner as module
from stilltide.pipeline.drivers.pending_ack.client import PendingAckStores
from stilltide.schemas.pending_ack.acknowledgements import (
    Acknowledge,
    Attach,
    CursorMoved,
    StoreStats,
    SubscriptionStats,
)
from stilltide.schemas.service.envelopes import Done, client_key
from stilltide.schemas.topics import PENDING_ACK_LOG, TopicSpec, system_partition
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition
from tests.support.coordinator.worker_memory import PARTITIONS, WAIT_S, MemoryWorker, until
from tests.support.pending_ack.client import FIRST, AckClient, one

READ = SubscriptionId(TopicPartition("orders", 0), "billing")
PARTITION = system_partition(READ.data, PARTITIONS)
LOG = TopicPartition(PENDING_ACK_LOG, PARTITION)
ELSEWHERE = SubscriptionId(READ.data, "shipping")
"""Another group of the same data partition, thus in the same log."""

SOON_S = 0.5
"""A time-out that is meant to run out."""

ATTACHED = SubscriptionStats(
    subscription=READ,
    attached=True,
    cursor=EndOffset(5),
    committed=EndOffset(5),
    acknowledged_ranges=0,
    pending_transactions=0,
    pending_individual=0,
    pending_cumulative_offset=None,
    locked_offsets=0,
    has_served=False,
)


@pytest.fixture
async def worker(broker: MemoryBroker) -> AsyncIterator[MemoryWorker]:
    """A worker with one coordinator, and the topic that the group reads."""
    broker.create_topic(TopicSpec(READ.data.topic, 1))
    async with MemoryWorker(MemoryConnector(broker)) as made:
        yield made


@pytest.fixture
async def stores(broker: MemoryBroker, worker: MemoryWorker) -> AsyncIterator[PendingAckStores]:
    """Who asks them."""
    async with PendingAckStores(MemoryConnector(broker), request_timeout_s=WAIT_S) as made:
        yield made


@pytest.fixture
async def client(broker: MemoryBroker, worker: MemoryWorker) -> AsyncIterator[AckClient]:
    """A client whose first member is attached at offset 5."""
    made = AckClient(MemoryConnector(broker), READ)
    await made.open(partitions=PARTITIONS)
    await made.ask(Attach(FIRST, EndOffset(5), ()))
    yield made
    await made.close()


def attached(client: AckClient) -> SubscriptionStats:
    """The figures of the subscription to which the client's first member is attached."""
    return ATTACHED._replace(client_key=client_key(client.client_id))


async def stats(stores: PendingAckStores, **asked: str) -> StoreStats:
    """The figures of the store that holds the subscription."""
    answer = (await stores.stats(**asked))[PARTITION]
    assert answer is not None
    return answer


async def test_figures_of_an_idle_store(stores: PendingAckStores):
    """B1: its epoch is its fence, and the only record is the question's own no-op (C1)."""
    idle = await stats(stores)
    assert (idle.log.epoch, idle.log_records, idle.log.records_written) == (0, 1, 1)
    assert (idle.subscription_count, idle.subscriptions, idle.base_as_of) == (0, (), None)
    assert (idle.log.appends_in_flight, idle.buffered_records, idle.buffered_bytes) == (0, 0, 0)


async def test_figures_follow_the_acknowledgements(client: AckClient, stores: PendingAckStores):
    """G: transactions, single and cumulative acknowledgements, and the offsets that they lock."""
    assert (await stats(stores)).subscriptions == (attached(client),)
    first, second = await client.begin(), await client.begin()
    await client.ask(CursorMoved(FIRST, EndOffset(5), (one(7, 8),)))
    await client.acknowledge(first, 20, 22)
    await client.ask(Acknowledge(second, FIRST, (), Offset(9)))
    busy = await stats(stores)
    assert busy.subscriptions == (
        attached(client)._replace(
            acknowledged_ranges=1,
            pending_transactions=2,
            pending_individual=2,
            pending_cumulative_offset=Offset(9),
            locked_offsets=6,  # 5, 6, 8, 9; 20, 22
            has_served=True,
        ),
    )
    assert (busy.subscription_count, busy.transaction_count) == (1, 2)
    assert (busy.pending_individual, busy.pending_cumulative) == (2, 1)
    await client.end(second, committed=True)
    await client.end(first, committed=False)
    done = await stats(stores)
    assert (done.transaction_count, done.pending_individual, done.pending_cumulative) == (0, 0, 0)
    assert done.subscriptions == (attached(client)._replace(cursor=EndOffset(10), has_served=True),)


async def test_a_transaction_counts_once(client: AckClient, stores: PendingAckStores):
    """However many subscriptions of a store it acknowledges in, it is one transaction."""
    txn = await client.begin()
    await client.acknowledge(txn, 7)
    client.subscription = ELSEWHERE
    await client.ask(Attach(FIRST, EndOffset(0), ()))
    await client.acknowledge(txn, 7)
    busy = await stats(stores)
    assert (busy.subscription_count, busy.transaction_count, busy.pending_individual) == (2, 1, 2)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, {READ, ELSEWHERE}),
        ({"group": "shipping"}, {ELSEWHERE}),
        ({"topic": "orders"}, {READ, ELSEWHERE}),
        ({"topic": "orders", "group": "billing"}, {READ}),
        ({"topic": "order"}, set()),
    ],
)
async def test_subscriptions_are_asked_for_by_name(
    client: AckClient, stores: PendingAckStores, asked: dict[str, str], found: set[SubscriptionId]
):
    """Those of a topic, of a group, of both; the counts are of the whole store all the same."""
    client.subscription = ELSEWHERE
    await client.ask(Attach(FIRST, EndOffset(0), ()))
    answer = await stats(stores, **asked)
    assert {it.subscription for it in answer.subscriptions} == found
    assert (answer.subscription_count, answer.subscriptions_omitted) == (2, 0)


async def test_an_answer_is_bounded_and_says_so(
    client: AckClient, stores: PendingAckStores, monkeypatch: pytest.MonkeyPatch
):
    """What is left out is counted; the subscriptions with most pending transactions are told."""
    monkeypatch.setattr(module, "SUBSCRIPTIONS_SHOWN_MAX", 1)
    client.subscription = ELSEWHERE
    await client.ask(Attach(FIRST, EndOffset(0), ()))
    await client.acknowledge(await client.begin(), 7)
    answer = await stats(stores)
    assert [it.subscription for it in answer.subscriptions] == [ELSEWHERE]
    assert answer.subscriptions_omitted == 1


async def test_a_new_owner_has_served_nothing(
    broker: MemoryBroker, worker: MemoryWorker, client: AckClient, stores: PendingAckStores
):
    """PIP-160: after a restart nothing is listed until a transaction acknowledges there again."""
    txn = await client.begin()
    await client.acknowledge(txn, 7)
    broker.append(LOG, None, broker.records(LOG)[0].value, None)  # a fence: it begins anew
    await until(lambda: not worker.pending_acks[PARTITION].serving)
    (again,) = (await stats(stores)).subscriptions
    assert (again.has_served, again.pending_individual) == (False, 1)
    assert await client.acknowledge(txn, 8) == Done()
    (again,) = (await stats(stores)).subscriptions
    assert (again.has_served, again.pending_individual) == (True, 2)


async def test_a_refused_acknowledgement_is_no_service(client: AckClient, stores: PendingAckStores):
    """What changed nothing does not make a subscription one that was served."""
    await client.acknowledge(await client.begin(), 4)
    assert (await stats(stores)).subscriptions == (attached(client),)


async def test_the_base_is_the_newest_there_is(
    broker: MemoryBroker, worker: MemoryWorker, client: AckClient, stores: PendingAckStores
):
    """C8: of the base this owner wrote, then of that which the next one begins from."""
    await until(lambda: broker.log(LOG).start > 0)  # pyright: ignore[reportOptionalMemberAccess]
    wrote = await stats(stores)
    start, end = (await stores.log_bounds())[PARTITION]
    assert wrote.base_as_of is not None
    assert 0 < start <= wrote.base_as_of < end
    worker.revoke()
    async with MemoryWorker(MemoryConnector(broker)):
        await until(lambda: not worker.pending_acks[PARTITION].serving)
        assert (await stats(stores)).base_as_of == wrote.base_as_of


async def test_what_the_buffered_writer_holds_is_told(
    broker: MemoryBroker, worker: MemoryWorker, client: AckClient
):
    """A3: records wait behind the entry that is on its way, until that is acknowledged."""
    store = worker.pending_acks[PARTITION]
    store.limits_changed(BatchLimits(delay_ms_max=WAIT_S * 1000))
    txn = await client.begin()
    broker.hold(PENDING_ACK_LOG)
    asking = [asyncio.create_task(client.acknowledge(txn, 7))]
    await until(lambda: store.stats().log.appends_in_flight == 1)
    asking += [asyncio.create_task(client.acknowledge(txn, it)) for it in (8, 9)]
    await until(lambda: store.stats().log.appends_in_flight == 3)
    busy = store.stats()
    assert busy.buffered_records == 2
    assert busy.buffered_bytes > 2 * len(FIRST)
    broker.release()
    await asyncio.gather(*asking)
    assert (store.stats().buffered_records, store.stats().log.appends_in_flight) == (0, 0)


async def test_batching_in_force_is_reported(worker: MemoryWorker, stores: PendingAckStores):
    """A7: figures tell the thresholds the owner goes by now, not those it began with."""
    assert (await stats(stores)).log.batching_enabled is True
    for driver in worker.pending_acks:
        driver.limits_changed(BatchLimits(batching=False, delay_ms_max=2.5))
    changed = await stats(stores)
    assert (changed.log.batching_enabled, changed.log.batch_delay_us_max) == (False, 2500)


async def test_one_that_does_not_answer_is_named(broker: MemoryBroker, worker: MemoryWorker):
    """The others' answers are there, and its place says that it gave none."""
    await worker.owners.pending_acks.assign({*range(PARTITIONS)} - {PARTITION})
    async with PendingAckStores(MemoryConnector(broker), request_timeout_s=SOON_S) as stores:
        answers = await stores.stats()
    assert [it for it, answer in answers.items() if answer is None] == [PARTITION]


async def test_metrics_count_what_the_store_did(
    broker: MemoryBroker, worker: MemoryWorker, client: AckClient
):
    """Requests, answers and entries of a store; a fence counts when it is met."""
    await client.acknowledge(await client.begin(), 7)
    value = worker.metrics.registry.get_sample_value
    labels = {"cluster": "test", "partition": str(PARTITION)}
    assert value("stilltide_pending_ack_requests_total", labels) == 2
    assert value("stilltide_pending_ack_answers_total", labels) == 2
    assert value("stilltide_pending_ack_entry_records_sum", labels) == 2
    assert value("stilltide_pending_ack_fenced_total", labels) == 0
    broker.append(LOG, None, broker.records(LOG)[0].value, None)
    await until(lambda: not worker.pending_acks[PARTITION].serving)
    await until(lambda: value("stilltide_pending_ack_fenced_total", labels) == 1)
