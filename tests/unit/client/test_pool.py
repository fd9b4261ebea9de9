"""Transactions opened ahead, on the memory broker with a real coordinator (C9)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.core.coordinator import pool
from stilltide.schemas.coordinator.transactions import AddPartitions, End, Open, Release
from stilltide.schemas.topics import TXN_REQUESTS, TXN_RESPONSES
from tests.support.coordinator.worker_client import markers_in, requests_in, visible, written
from tests.support.coordinator.worker_memory import MemoryWorker, until

ORDERS, PAYMENTS = "orders", "payments"
SOON_MS = 50
"""An age that is meant to be reached."""


@pytest.fixture
async def worker(connector: MemoryConnector) -> AsyncIterator[MemoryWorker]:
    """A worker with one coordinator, so that requests are found in the order of asking."""
    async with MemoryWorker(connector) as made:
        yield made


async def commit(client: TransactionClient, topic: str = ORDERS, *, partition: int = 0) -> None:
    """A transaction of one record."""
    async with client.transaction() as txn:
        await txn.send(topic, b"o", partition=partition)


async def stocked(client: TransactionClient) -> None:
    """Transactions in turn, until the next one will find one in stock."""
    for _ in range(2):
        await commit(client)


def asked(broker: MemoryBroker) -> list[str]:
    """The kinds of requests, in order."""
    return [type(it.body).__name__ for it in requests_in(broker)]


def held(worker: MemoryWorker) -> int:
    """Transactions that have not ended."""
    return sum(len(it._machine.state.transactions) for it in worker.coordinators)


async def test_a_lone_caller_in_a_loop_pays_one_round_trip(
    broker: MemoryBroker, client: TransactionClient
):
    """From the third transaction on each finds one in stock, which came with the commit before."""
    for _ in range(5):
        await commit(client)
    assert asked(broker) == ["Open", "End", "Open", "End", "Open", *["End", "Open"] * 3]
    sent = len(broker.records(broker.partitions([TXN_REQUESTS])[0]))
    assert sent == 7, "an end and the opening of its successor share a record"


async def test_a_prepared_transaction_asks_for_its_successor_when_it_is_prepared(
    broker: MemoryBroker, client: TransactionClient
):
    """C9, L1: nothing else joins it, so a loop finds the next one in stock."""
    for _ in range(4):
        async with client.transaction() as txn:
            await txn.send(ORDERS, b"o", partition=0)
            await txn.prepare()
            await txn.commit()
    alone, ahead = ["Open", "Prepare", "EndPrepared"], ["Prepare", "Open", "EndPrepared"]
    assert asked(broker) == [*alone, "Open", *ahead, *ahead, *ahead]


async def test_the_first_record_is_sent_at_once(broker: MemoryBroker, client: TransactionClient):
    """C2: a transaction from stock is registered already, so its record leaves within `send`."""
    await stocked(client)
    before = len(written(broker, ORDERS))
    broker.hold(TXN_RESPONSES)
    async with client.transaction() as txn:
        await txn.send(ORDERS, b"at once", partition=0)
        await txn.flush()
        assert len(written(broker, ORDERS)) == before + 1
        broker.release()


async def test_a_partition_it_was_not_opened_on_is_added(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
):
    """C2, D6: the guess of partitions may be wrong; what is missing is registered as ever."""
    await stocked(client)
    async with client.transaction() as txn:
        await txn.send(ORDERS, b"o", partition=0)
        await txn.send(PAYMENTS, b"p", partition=2)
    assert [len(it.body.partitions) for it in requests_in(broker)
            if isinstance(it.body, AddPartitions)] == [1]  # fmt: skip
    assert (await visible(connector))[PAYMENTS, b"p"] == 1


async def test_a_transaction_elsewhere_leaves_the_stock_alone(
    broker: MemoryBroker, client: TransactionClient
):
    """It would have to register its partition anyway, so it opens one of its own."""
    await stocked(client)
    await commit(client, PAYMENTS)
    assert asked(broker).count("AddPartitions") == 0
    async with client.transaction() as txn:
        await txn.send(PAYMENTS, b"p", partition=0)
        await txn.send(ORDERS, b"o", partition=0)
    assert asked(broker).count("AddPartitions") == 0, "the next ones are opened on both"


async def test_markers_go_only_where_it_wrote(broker: MemoryBroker, client: TransactionClient):
    """C4, C6: a partition it was only opened on needs no marker of a commit."""
    await stocked(client)
    await commit(client, PAYMENTS)
    async with client.transaction() as txn:
        await txn.send(ORDERS, b"o", partition=0)
        await txn.commit(wait_visible=True)
    assert [it.data.topic for it in markers_in(broker) if it.txn == txn.id] == [ORDERS]


async def test_an_abort_marks_every_partition_it_was_opened_on(
    broker: MemoryBroker, client: TransactionClient
):
    """C3, C4: the coordinator knows only where records may lie."""
    await stocked(client)
    await commit(client, PAYMENTS)
    async with client.transaction() as txn:
        await txn.send(ORDERS, b"o", partition=0)
        await txn.abort()
    await until(lambda: len([it for it in markers_in(broker) if it.txn == txn.id]) == 2)


async def test_callers_at_once_find_one_each(broker: MemoryBroker, client: TransactionClient):
    """Each that ends asks for its successor, and all of one moment share a request."""

    async def call() -> None:
        for _ in range(10):
            await commit(client)

    await asyncio.gather(*[call() for _ in range(50)])
    opening = [it.body for it in requests_in(broker) if isinstance(it.body, Open)]
    assert sum(it.transaction_count == 1 for it in opening) < 150, "of 500 transactions"
    assert sum(isinstance(it.body, End) for it in requests_in(broker)) == 500


async def test_a_client_that_begins_seldom_has_no_stock(
    broker: MemoryBroker, client: TransactionClient, monkeypatch: pytest.MonkeyPatch
):
    """What nobody is expected to take is not opened."""
    monkeypatch.setattr(pool, "POOLED_MS_MAX", 0)
    for _ in range(3):
        await commit(client)
    assert asked(broker) == ["Open", "End"] * 3


async def test_what_is_not_used_is_released_while_the_client_rests(
    broker: MemoryBroker,
    worker: MemoryWorker,
    client: TransactionClient,
    monkeypatch: pytest.MonkeyPatch,
):
    """It ends without markers, and nothing is opened in its place."""
    monkeypatch.setattr(pool, "POOLED_MS_MAX", SOON_MS)
    await stocked(client)
    await until(lambda: "Release" in asked(broker))
    await until(lambda: not held(worker))
    assert {it.txn.sequence for it in markers_in(broker)} == {0, 1}
    assert asked(broker)[-1] == "Release"


async def test_closing_the_client_releases_its_stock(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker
):
    """Nobody waits for a time-out of what was never used."""
    async with TransactionClient(connector=connector) as client:
        await stocked(client)
    await until(lambda: not held(worker))
    assert [it.body for it in requests_in(broker)][-1] == Release((2,))


async def test_a_time_out_that_leaves_no_room_is_not_pooled(
    broker: MemoryBroker, connector: MemoryConnector
):
    """C2: the coordinator's maximum is not passed; that client goes on without a stock."""
    async with (
        MemoryWorker(connector, txn_timeout_ms_max=60_000),
        TransactionClient(connector=connector, transaction_timeout_s=60) as client,
    ):
        for _ in range(5):
            await commit(client)
    assert asked(broker) == ["Open", "End", "Open", "End", "Open", *["Open", "End"] * 3]


async def test_a_stock_survives_its_coordinator(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker
):
    """B1: what the last owner opened, the next one commits."""
    async with TransactionClient(connector=connector, resend_s=0.05) as client:
        await stocked(client)
        worker.revoke()
        async with MemoryWorker(connector):
            async with client.transaction() as txn:
                await txn.send(ORDERS, b"survived", partition=0)
            assert txn.id is not None
            assert txn.id.sequence == 2
            assert (await visible(connector))[ORDERS, b"survived"] == 1
