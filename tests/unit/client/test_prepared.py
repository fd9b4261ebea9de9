"""L: an application prepares a transaction, and ends it by its token, on the memory broker."""
# ruff: noqa: PT012 - an error is raised on leaving the transaction's block, not by one statement

import asyncio

import pytest
from structlog.testing import capture_logs

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.errors import (
    ArgumentError,
    DecidedOtherwiseError,
    NotOpenError,
    RefusedError,
    TransactionStateError,
)
from stilltide.schemas.coordinator.prepared_tokens import decode_token, encode_token
from stilltide.schemas.coordinator.transactions import EndPrepared
from stilltide.schemas.errors import PreparedTokenError
from stilltide.schemas.topics import TXN_REQUESTS, is_system_topic
from tests.support.coordinator.worker_client import TOPICS, requests_in, take, visible
from tests.support.coordinator.worker_memory import MemoryWorker, until

ORDERS = TOPICS[0]


async def prepared(client: TransactionClient, value: bytes = b"o") -> str:
    """The token of a transaction with one record."""
    async with client.transaction() as txn:
        await txn.send(ORDERS, value)
        token = await txn.prepare(decider="orders-db")
    assert txn.state == "prepared"
    return token


async def test_l2_a_token_commits_in_another_process(
    connector: MemoryConnector, client: TransactionClient
):
    """L2, L3: another client ends the transaction; the same again is done, the opposite is not."""
    token = await prepared(client)
    async with TransactionClient(connector=connector) as other:
        resumed = other.resume(token)
        assert await client.outcome(resumed.id) == "prepared"
        outcome, prepared_at_ms, decider = await resumed.describe()
        assert (outcome, decider) == ("prepared", "orders-db")
        assert prepared_at_ms
        await resumed.commit(wait_visible=True)
        await resumed.commit()
        with pytest.raises(DecidedOtherwiseError) as caught:
            await client.resume(token).abort()
        assert caught.value.committed
        assert await other.outcome(resumed.id) == "committed"
        assert await resumed.describe() == ("committed", None, "")
    assert await visible(connector) == {(ORDERS, b"o"): 1}


async def test_l2_a_token_aborts(connector: MemoryConnector, client: TransactionClient):
    """L2: nothing of the transaction is seen."""
    token = await prepared(client)
    await client.resume(token).abort(wait_visible=True)
    with pytest.raises(DecidedOtherwiseError) as caught:
        await client.resume(token).commit()
    assert not caught.value.committed
    assert await visible(connector) == {}


@pytest.mark.parametrize("committed", [True, False])
async def test_l3_the_transaction_itself_ends_what_it_has_prepared(
    connector: MemoryConnector, client: TransactionClient, *, committed: bool
):
    """L3: `commit` and `abort` of the same object, within the block."""
    async with client.transaction() as txn:
        await txn.send(ORDERS, b"o")
        token = await txn.prepare()
        await (txn.commit(wait_visible=True) if committed else txn.abort())
    assert txn.state == ("committed" if committed else "aborted")
    resumed = client.resume(token)
    await (resumed.commit() if committed else resumed.abort(wait_visible=True))
    assert sum((await visible(connector)).values()) == committed


async def test_l3_a_transaction_that_was_decided_elsewhere_says_so(client: TransactionClient):
    """L3: `commit` raises what stands, and the state says it."""
    async with client.transaction() as txn:
        await txn.send(ORDERS, b"o")
        await client.resume(await txn.prepare()).abort()
        with pytest.raises(DecidedOtherwiseError):
            await txn.commit()
    assert txn.state == "aborted"


async def test_l1_a_prepared_transaction_takes_nothing_more(client: TransactionClient):
    """L1: `send`, and a second `prepare`, are refused, and change nothing."""
    async with client.transaction() as txn:
        await txn.send(ORDERS, b"o")
        token = await txn.prepare()
        with pytest.raises(TransactionStateError, match="is prepared"):
            await txn.send(ORDERS, b"more")
        with pytest.raises(TransactionStateError, match="is prepared"):
            await txn.prepare()
    await client.resume(token).commit()


async def test_l1_an_error_leaves_a_prepared_transaction_prepared(client: TransactionClient):
    """L1: the token may be stored already, so that leaving decides nothing, which the log says."""
    with capture_logs() as lines, pytest.raises(ZeroDivisionError):
        async with client.transaction() as txn:
            await txn.send(ORDERS, b"o")
            token = await txn.prepare()
            raise ZeroDivisionError
    assert txn.id is not None
    assert await client.outcome(txn.id) == "prepared"
    assert "transaction_stays_prepared" in [line["event"] for line in lines]
    assert token not in str(lines)
    await client.resume(token).commit()


async def test_l4_its_name_is_known_before_it_is_prepared(client: TransactionClient):
    """L4: for a row that decides; a decider of the program's own decides nothing on leaving."""
    async with client.transaction() as txn:
        await txn.send(ORDERS, b"o")
        name = await txn.token_id()
        token = decode_token(text := await txn.prepare(decider="orders-db"))
        assert token.id == name
    with pytest.raises(ArgumentError, match="`wait_visible`"):
        await client.resume(text).commit(wait_visible="yes")  # type: ignore[arg-type]
    assert await client.outcome(token.txn) == "prepared"
    await client.resume(text).commit()


async def test_l4_what_a_row_names_does_not_commit_unprepared(
    connector: MemoryConnector, client: TransactionClient
):
    """L4: the row may have been refused, and its database roll back in silence afterwards."""
    with pytest.raises(TransactionStateError, match="was to be prepared, and was not"):
        async with client.transaction() as txn:
            await txn.send(ORDERS, b"o")
            await txn.token_id()
    assert txn.state == "aborted"
    assert await visible(connector) == {}


async def test_an_empty_transaction_is_not_prepared(client: TransactionClient):
    """There is no token for nothing; the transaction goes on."""
    async with client.transaction() as txn:
        for asked in (txn.prepare, txn.token_id):
            with pytest.raises(TransactionStateError, match="nothing to prepare"):
                await asked()
        await txn.send(ORDERS, b"o")
    assert txn.state == "committed"


async def test_prepared_transactions_take_no_place_among_open_ones(connector: MemoryConnector):
    """A program that keeps tokens for later opens further transactions."""
    async with (
        MemoryWorker(connector),
        TransactionClient(connector=connector, open_transactions_max=1) as client,
    ):
        tokens = [await prepared(client) for _ in range(3)]
        for token in tokens:
            await client.resume(token).commit()


async def test_l2_what_is_no_token_of_this_cluster(
    connector: MemoryConnector, client: TransactionClient
):
    """L2: a token that is cut, altered, of another cluster, or wrong: nobody's transaction ends."""
    text = await prepared(client)
    token = decode_token(text)
    for wrong in (text[:-1], text.replace("stp_", "stp-"), text[:20] + "x" + text[21:], ""):
        with pytest.raises(PreparedTokenError):
            client.resume(wrong)
    with pytest.raises(PreparedTokenError, match="not of this client's"):
        client.resume(encode_token(token._replace(cluster_id="another")))
    elsewhere = token._replace(txn=token.txn._replace(coordinator=9))
    for other in (token._replace(secret=bytes(32)), elsewhere):
        with pytest.raises(RefusedError):
            await client.resume(encode_token(other)).abort()
    async with TransactionClient(connector=connector) as stranger:
        for other in (token._replace(secret=bytes(32)), elsewhere):
            with pytest.raises(RefusedError):
                await stranger.resume(encode_token(other)).describe()
    with pytest.raises(ArgumentError, match="`wait_visible`"):
        await client.resume(text).commit(wait_visible="yes")  # type: ignore[arg-type]
    assert await client.outcome(token.txn) == "prepared"
    await client.resume(text).commit()


async def test_l2_a_token_of_before_the_topics_were_made_again(
    broker: MemoryBroker, connector: MemoryConnector
):
    """L2: coordinators count from 0 again; nothing is decided about their transactions of now."""
    async with MemoryWorker(connector), TransactionClient(connector=connector) as client:
        before = await prepared(client)
        await client.resume(before).commit()
    for name in [name for name in broker.topics if is_system_topic(name)]:
        broker.delete_topic(name)
    async with MemoryWorker(connector), TransactionClient(connector=connector) as client:
        token = await prepared(client)
        assert decode_token(token).txn == decode_token(before).txn
        resumed = client.resume(before)
        for call in (resumed.commit, resumed.abort, resumed.describe):
            with pytest.raises(PreparedTokenError, match="older than the topics"):
                await call()
        assert (await client.resume(token).describe()).outcome == "prepared"
        await client.resume(token).abort()
        with pytest.raises(PreparedTokenError):
            await resumed.commit()


async def test_l2_brokers_that_name_no_ids_of_topics(
    broker: MemoryBroker, connector: MemoryConnector
):
    """L2: nothing is prepared for a token that would be safe no longer than these topics are."""
    async with MemoryWorker(connector), TransactionClient(connector=connector) as client:
        broker.topics[TXN_REQUESTS]._id = bytes(16)
        await client._cluster.topics.look()
        txn = client.transaction()
        await txn.send(ORDERS, b"o")
        with pytest.raises(RefusedError, match="ids of topics"):
            await txn.prepare()
        assert txn.state == "open"
        await txn.abort()


async def test_a_client_that_is_closed_resumes_nothing(
    connector: MemoryConnector, client: TransactionClient
):
    """A typed error, and the transaction waits for another client."""
    token = await prepared(client)
    other = TransactionClient(connector=connector)
    async with other:
        resumed = other.resume(token)
    for call in (resumed.commit, resumed.abort, resumed.describe):
        with pytest.raises(NotOpenError):
            await call()
    with pytest.raises(NotOpenError):
        other.resume(token)
    assert (await client.resume(token).describe()).outcome == "prepared"


@pytest.mark.parametrize("committed", [True, False])
async def test_l1_acknowledgements_are_part_of_what_is_prepared(
    connector: MemoryConnector, client: TransactionClient, *, committed: bool
):
    """G1, L1: a message stays pending until the decision, and comes again after an abort."""
    async with client.transaction() as txn:
        await txn.send(ORDERS, b"in", partition=0)
        await txn.commit(wait_visible=True)
    async with Subscription(
        [ORDERS], group="g", connector=connector, acknowledgements=True
    ) as orders:
        (message,) = await take(orders)
        async with client.transaction() as txn:
            await txn.acknowledge(orders, message)
            await txn.send(TOPICS[1], b"out")
            await txn.prepare()
            await (txn.commit(wait_visible=True) if committed else txn.abort())
        async with client.transaction() as txn:
            await txn.send(ORDERS, b"next", partition=0)
        again = await take(orders, 1 if committed else 2)
        assert sorted(it.value or b"" for it in again) == [b"in", b"next"][committed:]


async def test_l1_a_cancelled_prepare_is_given_up(broker: MemoryBroker, client: TransactionClient):
    """L1: nobody has the token, so that the client asks for the abort."""
    txn = await client.transaction().__aenter__()
    await txn.send(ORDERS, b"o")
    await txn.flush()
    preparing = asyncio.create_task(txn.prepare())
    await until(lambda: txn.state == "unknown")
    preparing.cancel()
    await asyncio.gather(preparing, return_exceptions=True)
    await until(lambda: [it for it in requests_in(broker) if isinstance(it.body, EndPrepared)])
    assert txn.id is not None
    async with asyncio.timeout(10):
        while await client.outcome(txn.id) != "aborted":
            pass
    await txn.__aexit__(None, None, None)


async def test_l4_a_cancelled_prepare_with_a_decider_is_left_to_it(
    broker: MemoryBroker, client: TransactionClient
):
    """L4: the row may stand, so that the client asks for nothing, and the transaction waits."""
    txn = await client.transaction().__aenter__()
    await txn.send(ORDERS, b"o")
    await txn.flush()
    preparing = asyncio.create_task(txn.prepare(decider="orders-db"))
    await until(lambda: txn.state == "unknown")
    preparing.cancel()
    await asyncio.gather(preparing, return_exceptions=True)
    await txn.__aexit__(None, None, None)
    assert txn.id is not None
    async with asyncio.timeout(10):
        while await client.outcome(txn.id) != "prepared":
            pass
    assert not [it for it in requests_in(broker) if isinstance(it.body, EndPrepared)]
