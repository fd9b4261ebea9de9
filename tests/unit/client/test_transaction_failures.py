"""Transactions that cannot go on: what the application is told, and what readers see."""

# ruff: noqa: PT012 - an error is raised on leaving the transaction's block, not by one statement

import asyncio

import pytest

from stilltide.connectors.errors import FatalError, RetriableError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.errors import (
    OutcomeUnknownError,
    RefusedError,
    RequestTimeoutError,
    TransactionStateError,
)
from stilltide.schemas.headers import TXN
from stilltide.schemas.topics import TXN_REQUESTS, TXN_RESPONSES, TopicSpec
from stilltide.schemas.values import TxnId
from tests.support.coordinator.worker_client import markers_in, visible, written
from tests.support.coordinator.worker_memory import MemoryWorker, until

SOON_S = 0.1
"""A time-out that is meant to run out."""


async def test_a_lost_delivery_report_refuses_the_commit(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
):
    """C6: what is not known to be durable is never committed, though it may have landed."""
    broker.reports.lose("orders")
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


async def test_a_time_out_above_the_maximum_is_refused(
    connector: MemoryConnector, client: TransactionClient
):
    """C2: the coordinator refuses it with its limit, and nothing is written."""
    with pytest.raises(RefusedError, match="allowed are") as caught:
        async with client.transaction(timeout_s=121) as txn:
            await txn.send("orders", b"o")
    assert "121000 ms" in caught.value.primary
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
        worker.revoke()
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
