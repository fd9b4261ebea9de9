"""A cluster takes nothing that a client writes, for a reason that lasts.

A user saw: the clock of a client was ahead, or an administrator had lowered `max.message.bytes` of
a topic. The client waited out its time-out, and was asked whether a worker ran.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.pending_ack.client import PendingAckStores
from stilltide.pipeline.drivers.snapshots.client import SnapshotLine
from stilltide.pipeline.errors import RequestTimeoutError
from stilltide.schemas.coordinator.transactions import ListTransactions
from stilltide.schemas.topics import (
    ACK_REQUESTS,
    OPERATOR_ACK_REQUESTS,
    OPERATOR_REQUESTS,
    SNAPSHOT_REQUESTS,
    TXN_REQUESTS,
    TopicSpec,
    system_topics,
)
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.coordinator.worker_memory import PARTITIONS, MemoryWorker, until
from tests.support.refused_writes import (
    FULL_DISK,
    NO_RIGHT,
    POLICY,
    TOO_LARGE,
    WRONG_TIME,
    reason_id,
    refused,
)

IN_TIME_S = 60.0
AT_ONCE_S = 20.0
"""Far below the time-out of a request."""

LASTING = (WRONG_TIME, TOO_LARGE, POLICY, NO_RIGHT)
ORDERS = TopicPartition("orders", 0)


@asynccontextmanager
async def working() -> AsyncIterator[tuple[MemoryBroker, MemoryConnector]]:
    """A worker with a topic of applications."""
    broker = MemoryBroker()
    broker.create_topic(TopicSpec("orders", 1))
    connector = MemoryConnector(broker)
    async with asyncio.timeout(2 * IN_TIME_S), MemoryWorker(connector):
        yield broker, connector


async def transact(connector: MemoryConnector) -> None:
    """Transactions that write a record each, at the same time."""
    async with TransactionClient(connector=connector, request_timeout_s=IN_TIME_S) as client:

        async def one() -> None:
            async with client.transaction() as txn:
                await txn.send("orders", b"o")

        await asyncio.gather(*(one() for _ in range(5)))


async def read(connector: MemoryConnector) -> None:
    """A member of a group that acknowledges in transactions."""
    async with Subscription(
        ["orders"], group="billing", connector=connector, acknowledgements=True
    ) as orders:
        await anext(orders)


async def ask_coordinator(connector: MemoryConnector) -> None:
    """What an operator asks."""
    async with Coordinators(connector, request_timeout_s=IN_TIME_S) as operator:
        await operator.ask(0, ListTransactions())


async def reset(connector: MemoryConnector) -> None:
    """What an operator has a store forget."""
    async with PendingAckStores(connector, request_timeout_s=IN_TIME_S) as stores:
        await stores.reset("billing", {ORDERS: Offset(0)}, bytes(16))


async def take_snapshot(connector: MemoryConnector) -> None:
    """What a reader asks for, and `stilltide snapshot take`."""
    async with SnapshotLine(connector, "reader", timeout_s=IN_TIME_S) as snapshots:
        await snapshots.take(ORDERS)


CALLS: dict[str, Callable[[MemoryConnector], Awaitable[None]]] = {
    TXN_REQUESTS: transact,
    "orders": transact,
    ACK_REQUESTS: read,
    OPERATOR_REQUESTS: ask_coordinator,
    OPERATOR_ACK_REQUESTS: reset,
    SNAPSHOT_REQUESTS: take_snapshot,
}


@pytest.mark.parametrize("topic", CALLS)
@pytest.mark.parametrize("cause", LASTING, ids=reason_id)
async def test_a_lasting_refusal_is_told_at_once(topic: str, cause: ConnectorError):
    """C17: with what the broker said and the next step, from each kind of client.

    The log of the client has one line, and the next call works as soon as the cause is mended.
    """
    async with working() as (broker, connector):
        with (
            capture_logs() as said,
            refused(broker, cause, topic),
            pytest.raises(type(cause)) as raised,
        ):
            async with asyncio.timeout(AT_ONCE_S):
                await CALLS[topic](connector)
        assert raised.value.reason == cause.reason
        assert raised.value.detail == cause.detail
        assert raised.value.hint == cause.hint
        assert sum(it["event"] == "requests_not_delivered" for it in said) <= 1
        await transact(connector)


async def written(client: TransactionClient) -> None:
    """A transaction that is opened for its first record."""
    txn = await client.transaction().__aenter__()
    await txn.send("orders", b"o")
    await txn.flush()


@pytest.mark.parametrize("cause", [FULL_DISK, WRONG_TIME, TOO_LARGE, POLICY], ids=reason_id)
async def test_a_time_out_carries_what_the_broker_said_last(cause: ConnectorError):
    """A copy of the request was taken before, so it may have an effect: the client asks on."""
    broker = MemoryBroker()
    connector = MemoryConnector(broker)
    for spec in (*system_topics(coordinators=1, partitions=PARTITIONS), TopicSpec("orders", 1)):
        broker.create_topic(spec)
    async with (
        asyncio.timeout(IN_TIME_S),
        TransactionClient(connector=connector, request_timeout_s=0.5, resend_s=0.05) as client,
    ):
        asking = asyncio.create_task(written(client))
        await until(lambda: broker.records(TopicPartition(TXN_REQUESTS, 0)))
        with refused(broker, cause, TXN_REQUESTS), pytest.raises(RequestTimeoutError) as raised:
            await asking
        assert cause.primary in raised.value.detail
        assert cause.detail in raised.value.detail
        assert raised.value.hint == cause.hint
