"""The programs of a world: what applications do, written into the history as they see it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import cast

from stilltide.pipeline.client.subscription import Subscription
from stilltide.pipeline.client.transaction import Transaction as ProductTransaction
from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.values import TopicPartition, TxnId
from tests.simulation.databases.database import DatabaseError
from tests.simulation.history import History, Outcome, Place, Transaction, Write
from tests.simulation.network.connector import NetworkConnector
from tests.simulation.network.writers import NetworkWriter
from tests.simulation.plan import FAULTS_END_S, Client, Operation

AGAIN_S = 0.5
"""Time after which a program tries again to reach its cluster."""

ASKED_EVERY = 5
"""Of so many transactions one is asked for its outcome, by its client."""

CALM_S = FAULTS_END_S + 40
"""Time from which members commit each message."""

LEFT_OPEN_S = 8.0
"""How long a transaction is left open that its coordinator is to abort first."""


Connect = Callable[[str], NetworkConnector]
"""The connector of a process to a cluster."""

Prepare = Callable[[Operation, TransactionClient], Awaitable[None]]
"""Does an operation that is prepared."""


class LeftError(Exception):
    """What an application raises within a transaction."""


def now_s() -> float:
    """The virtual time."""
    return asyncio.get_running_loop().time()


class Writing:
    """A program that writes: each operation of a client once, whatever becomes of it.

    Args:
        client: the client.
        history: the history of the world.
    """

    def __init__(self, client: Client, history: History) -> None:
        self._client = client
        self._history = history
        self._begun: set[int] = set()
        self._unsettled: dict[str, TxnId] = {}  # ids of transactions whose outcomes nobody knows

    async def run(self, connector: NetworkConnector, prepare: Prepare) -> None:
        """Does the operations that no earlier process has begun; returns when all are over."""
        done = False
        while not done:
            try:
                async with TransactionClient(
                    connector=connector,
                    name=self._client.name,
                    transaction_timeout_s=self._client.timeout_s,
                    metadata_max_age_s=20.0,
                    direct_line=self._client.direct_line,
                ) as transactions:
                    writer = connector.writer(self._client.name)
                    await self._operations(transactions, writer, prepare)
                    done = True
            except* StilltideError:
                await asyncio.sleep(AGAIN_S)

    async def _operations(
        self, transactions: TransactionClient, writer: NetworkWriter, prepare: Prepare
    ) -> None:
        left = iter([it for it in self._client.operations if it.number not in self._begun])
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._ask_for_outcomes(transactions))
            for _ in range(self._client.width):
                tasks.create_task(self._work(left, transactions, writer, prepare))
        await self._ask_for_outcomes(transactions)

    async def _ask_for_outcomes(self, transactions: TransactionClient) -> None:
        """Asks how the transactions have ended that an earlier process, or commit, left unknown."""
        for name, txn in [*self._unsettled.items()]:
            outcome: Outcome | str = "open"
            while outcome == "open":
                with suppress(StilltideError):  # it has not ended, or there is no answer
                    outcome = await transactions.outcome(txn)
                await asyncio.sleep(AGAIN_S)
            self._told(name, outcome)
            del self._unsettled[name]

    def _told(self, name: str, outcome: str) -> None:
        if outcome in {"committed", "aborted"}:
            self._history.told.append((name, cast("Outcome", outcome)))

    async def _work(
        self,
        left: Iterator[Operation],
        transactions: TransactionClient,
        writer: NetworkWriter,
        prepare: Prepare,
    ) -> None:
        for operation in left:
            self._begun.add(operation.number)
            if operation.is_plain:
                await self._plain(operation, writer)
                continue
            with suppress(StilltideError, LeftError, DatabaseError):
                if operation.preparation is not None:
                    await prepare(operation, transactions)
                else:
                    await self._transaction(operation, transactions)

    async def _plain(self, operation: Operation, writer: NetworkWriter) -> None:
        for number, (topic, partition) in enumerate(operation.writes):
            data = TopicPartition(topic, partition or 0)
            txn = Transaction(
                f"plain {operation.number}.{number}",
                now_s(),
                is_plain=True,
                cluster=self._client.cluster,
            )
            place = Place(self._client.cluster, *data)
            txn.writes.append(Write(place, value_of(operation, number)))
            txn.outcome = "unknown"
            self._history.transactions.append(txn)
            report: asyncio.Queue[Exception | None] = asyncio.Queue()
            writer.append(
                data, value_of(operation, number), lambda error, _, to=report: to.put_nowait(error)
            )
            if await report.get() is None:
                txn.outcome, txn.ended_s = "committed", now_s()

    async def _transaction(self, operation: Operation, transactions: TransactionClient) -> None:
        txn = Transaction(f"transaction {operation.number}", now_s(), cluster=self._client.cluster)
        self._history.transactions.append(txn)
        pauses_s = iter(operation.pauses_s)
        # A time-out of its own: no transaction of the pool, which has more time, is taken.
        timeout_s = 2.0 + operation.number / 1000 if operation.end == "late" else None
        late_s = 0.0
        async with transactions.transaction(timeout_s=timeout_s) as product:
            for number, to in enumerate(operation.writes):
                await asyncio.sleep(0.0 if timeout_s else next(pauses_s))
                late_s = late_s or now_s() + (timeout_s or 0.0)
                value = value_of(operation, number)
                await send(product, txn, self._client.cluster, to, value)
            if product.id is not None:
                self._unsettled[txn.name] = product.id
            await asyncio.sleep(0.0 if timeout_s else next(pauses_s))
            match operation.end:
                case "raise":
                    raise LeftError
                case "commit":
                    await commit(product, txn)
                case "abort":
                    await product.abort()
                case "late":
                    jitter_s = (operation.number % 13 - 3) * 0.001
                    await asyncio.sleep(max(0.0, late_s + jitter_s - now_s()))
                    await commit(product, txn)
                case "leave":
                    await asyncio.sleep(LEFT_OPEN_S)
                    await product.abort()
        self._unsettled.pop(txn.name, None)
        if product.id is not None and operation.number % ASKED_EVERY == 0:
            self._told(txn.name, await transactions.outcome(product.id))


def value_of(operation: Operation, number: int) -> bytes:
    """The value of a write."""
    return b"%d.%d" % (operation.number, number)


async def send(
    product: ProductTransaction,
    txn: Transaction,
    cluster: str,
    to: tuple[str, int | None],
    value: bytes,
) -> None:
    """Sends a record; the history has the write even if the call fails."""
    topic, partition = to
    key = value if partition is None else None
    data = TopicPartition(topic, partition or 0)
    try:
        data = await product.send(topic, value, key=key, partition=partition)
    finally:
        txn.writes.append(Write(Place(cluster, *data), value))


async def commit(product: ProductTransaction, txn: Transaction) -> None:
    """Commits, and writes down what the application was told."""
    txn.outcome = "unknown"
    try:
        await product.commit()
    finally:
        if product.state in {"committed", "aborted"}:
            txn.outcome = "committed" if product.state == "committed" else "aborted"
            txn.ended_s = now_s()


async def read_all(
    connector: NetworkConnector, topics: list[str], into: dict[Place, list[tuple[int, bytes]]]
) -> None:
    """Reads all topics from their starts to their ends, with a group of its own."""
    admin = connector.admin()
    described = await admin.describe_topics(topics)
    partitions = [
        TopicPartition(topic, number)
        for topic in topics
        for number in range(described[topic].partition_count)
    ]
    ends = await admin.end_offsets(partitions)
    cluster = connector.cluster
    final: dict[Place, list[tuple[int, bytes]]] = {Place(cluster, *data): [] for data in partitions}
    group = f"final-{len(into)}"
    async with Subscription(topics, group=group, connector=connector) as subscription:
        async for message in subscription.read_to(ends):
            place = Place(cluster, message.topic, message.partition)
            final[place].append((message.offset, message.value or b""))
    into.update(final)
