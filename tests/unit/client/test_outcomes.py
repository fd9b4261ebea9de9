"""C12: a client asks how a transaction ended, and `commit` asks by itself."""

import asyncio

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.client.transaction import Transaction
from stilltide.pipeline.core.coordinator.client_transaction import AskOutcome
from stilltide.pipeline.errors import RefusedError, RequestTimeoutError, TransactionStateError
from stilltide.schemas.topics import TXN_RESPONSES
from stilltide.schemas.values import TxnId
from tests.support.coordinator.worker_client import visible
from tests.support.coordinator.worker_memory import MemoryWorker

LONG_S, SOON_S = 10.0, 0.1


async def ended(client: TransactionClient, *, committed: bool) -> Transaction:
    """A transaction with one record."""
    txn = await client.transaction().__aenter__()
    await txn.send("orders", b"o")
    await txn.flush()
    await (txn.commit(wait_visible=True) if committed else txn.abort())
    return txn


def forget(worker: MemoryWorker, client: TransactionClient) -> None:
    """What coordinators do with a client after an hour without its requests (C1b)."""
    assert client._cluster is not None
    for driver in worker.coordinators:
        driver._machine.state.clients.clear()


async def test_a_client_is_told_how_a_transaction_ended(
    connector: MemoryConnector, client: TransactionClient
):
    """Open, committed or aborted; another client is told once it has ended."""
    done, undone = await ended(client, committed=True), await ended(client, committed=False)
    txn = await client.transaction().__aenter__()
    await txn.send("orders", b"o")
    await txn.flush()
    assert done.id is not None
    assert undone.id is not None
    assert txn.id is not None
    assert await client.outcome(txn.id) == "open"
    async with TransactionClient(connector=connector) as other:
        with pytest.raises(RefusedError):
            await other.outcome(txn.id)
        for one in (client, other):
            assert await one.outcome(done.id) == "committed"
            while await one.outcome(undone.id) != "aborted":
                pass
    await txn.abort()


@pytest.mark.parametrize("txn", [TxnId(0, 1_000_000), TxnId(9, 0), TxnId(-1, 0)], ids=str)
async def test_a_transaction_that_never_was_is_refused(client: TransactionClient, txn: TxnId):
    """No outcome is made up for it."""
    with pytest.raises(RefusedError):
        await client.outcome(txn)


async def test_a_forgotten_client_commits(
    connector: MemoryConnector, worker: MemoryWorker, client: TransactionClient
):
    """The coordinator does not know any more whether it took the request; `commit` asks again."""
    await ended(client, committed=True)
    async with client.transaction() as txn:
        await txn.send("orders", b"late")
        await txn.flush()
        forget(worker, client)
    assert txn.state == "committed"
    assert (await visible(connector))["orders", b"late"] == 1


async def test_an_outcome_that_is_forgotten_is_not_guessed(connector: MemoryConnector):
    """Below the history there is no answer but `forgotten`."""
    async with (
        MemoryWorker(connector, outcome_history=0),
        TransactionClient(connector=connector) as client,
    ):
        txn = (await ended(client, committed=True)).id
        assert txn is not None
        assert await client.outcome(txn) == "forgotten"


async def test_a_coordinator_that_does_not_say_is_asked_for_the_time_of_a_request(
    broker: MemoryBroker, client: TransactionClient
):
    """`commit` asks no longer than its own deadline, which began with its request."""
    txn = await ended(client, committed=True)
    broker.hold(TXN_RESPONSES)
    txn._end._asked_s -= 30 - SOON_S
    async with asyncio.timeout(LONG_S):
        with pytest.raises(RequestTimeoutError, match="did not say"):
            await txn._end._result(AskOutcome())
    broker.release()


async def test_an_abort_while_a_commit_waits_leaves_nothing(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker
):
    """C6: records that the abort gave up are not committed without: the commit raises."""
    async with TransactionClient(connector=connector, resend_s=SOON_S) as client:
        txn = client.transaction()
        broker.hold(TXN_RESPONSES)
        await txn.send("orders", b"o")
        committing = asyncio.create_task(txn.commit())
        aborting = asyncio.create_task(txn.abort())
        await asyncio.sleep(0)
        broker.release()
        with pytest.raises(TransactionStateError, match="ended: aborted"):
            await committing
        await aborting
    assert txn.state == "aborted"
    assert await visible(connector) == {}
