"""The programs of a world: what applications do, written into the history as they see it."""

import asyncio
import itertools
import random

from stilltide.pipeline.client.subscription import Subscription
from stilltide.pipeline.client.transaction import Transaction as ProductTransaction
from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.values import TopicPartition
from tests.simulation.history import Acknowledged, History, Place, Poll, Transaction, Write
from tests.simulation.network import NetworkConnector
from tests.simulation.plan import OUTPUT, Client, Operation, Reader

CLUSTER = "a"
AGAIN_S = 0.5


class _LeftError(Exception):
    """What an application raises within a transaction."""


def _now_s() -> float:
    return asyncio.get_running_loop().time()


async def run_client(
    client: Client, connector: NetworkConnector, history: History, begun: set[int]
) -> None:
    """Does the operations of a client that were not begun before; returns when all are over."""
    while True:
        try:
            async with TransactionClient(
                connector=connector,
                name=client.name,
                transaction_timeout_s=client.timeout_s,
                metadata_max_age_s=20.0,
            ) as transactions:
                queue = iter([it for it in client.operations if it.number not in begun])
                writer = connector.writer(client.name)
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(client.width):
                        tasks.create_task(_operations(queue, transactions, writer, history, begun))
            return
        except* StilltideError:
            pass
        await asyncio.sleep(AGAIN_S)


async def _operations(queue, transactions, writer, history: History, begun: set[int]) -> None:  # noqa: ANN001
    for operation in queue:
        begun.add(operation.number)
        if operation.is_plain:
            await _plain(operation, writer, history)
        else:
            await _transaction(operation, transactions, history)


def _value(operation: Operation, number: int) -> bytes:
    return b"%d.%d" % (operation.number, number)


async def _plain(operation: Operation, writer, history: History) -> None:  # noqa: ANN001
    for number, (topic, partition) in enumerate(operation.writes):
        txn = Transaction(f"plain {operation.number}.{number}", _now_s(), is_plain=True)
        place = Place(CLUSTER, topic, partition or 0)
        txn.writes.append(Write(place, _value(operation, number)))
        txn.outcome = "unknown"
        history.transactions.append(txn)
        reported: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def delivered(error: Exception | None, _offset: int, reported=reported) -> None:  # noqa: ANN001
            if not reported.done():
                reported.set_result(error is None)

        data = TopicPartition(topic, partition or 0)
        writer.append(data, _value(operation, number), delivered)
        if await reported:
            txn.outcome, txn.ended_s = "committed", _now_s()


async def _transaction(
    operation: Operation, transactions: TransactionClient, history: History
) -> None:
    txn = Transaction(f"transaction {operation.number}", _now_s())
    history.transactions.append(txn)
    pauses_s = iter(operation.pauses_s)
    try:
        async with transactions.transaction() as product:
            for number, (topic, partition) in enumerate(operation.writes):
                await asyncio.sleep(next(pauses_s))
                await _send(product, txn, topic, partition, _value(operation, number))
            await asyncio.sleep(next(pauses_s))
            if operation.end == "raise":
                raise _LeftError
            if operation.end == "abort":
                await product.abort()
            elif operation.end == "commit":
                await _commit(product, txn)
            else:
                await asyncio.sleep(8)  # the coordinator aborts it first
                await product.abort()
    except (StilltideError, _LeftError):
        pass


async def _send(
    product: ProductTransaction, txn: Transaction, topic: str, partition: int | None, value: bytes
) -> None:
    """Sends a record; the history has the write even if the call fails."""
    key = value if partition is None else None
    try:
        data = await product.send(topic, value, key=key, partition=partition)
    except StilltideError:
        txn.writes.append(Write(Place(CLUSTER, topic, partition or 0), value))
        raise
    txn.writes.append(Write(Place(CLUSTER, *data), value))


async def _commit(product: ProductTransaction, txn: Transaction) -> None:
    txn.outcome = "unknown"
    try:
        await product.commit()
    finally:
        if product.state in {"committed", "aborted"}:
            txn.outcome = "committed" if product.state == "committed" else "aborted"
            txn.ended_s = _now_s()


async def run_reader(
    reader: Reader,
    connector: NetworkConnector,
    history: History,
    chance: random.Random,
    numbers: "itertools.count[int]",
) -> None:
    """Reads as a member of a group, until the process ends."""
    if reader.mode == "positions":
        history.ordered_groups.add(reader.group)
    while True:
        try:
            async with Subscription(
                reader.topics,
                group=reader.group,
                connector=connector,
                client_id=reader.name,
                acknowledgements=reader.mode != "positions",
                redelivery_delay_s=0.5,
                metadata_max_age_s=20.0,
            ) as subscription:
                member = f"{reader.name}.{next(numbers)}"
                await _READ[reader.mode](member, reader, subscription, connector, history, chance)
        except* StilltideError:
            pass
        await asyncio.sleep(AGAIN_S)


def _polled(member: str, reader: Reader, subscription: Subscription, message) -> Poll:  # noqa: ANN001
    return Poll(
        _now_s(),
        reader.group,
        member,
        subscription.rebalance_count,
        Place(CLUSTER, message.topic, message.partition),
        message.offset,
        message.value or b"",
    )


async def _read_positions(member, reader, subscription, _connector, history, chance) -> None:  # noqa: ANN001
    polled: list[Poll] = []
    async for message in subscription:
        poll = _polled(member, reader, subscription, message)
        history.polls.append(poll)
        history.handled.add((reader.group, poll.value))
        polled = [it for it in polled if it.session == poll.session]
        polled.append(poll)
        if chance.random() < 0.2:
            session = subscription.rebalance_count
            await subscription.commit()
            if session == subscription.rebalance_count:
                now_s = _now_s()
                history.acknowledged += [
                    Acknowledged(now_s, reader.group, it.value)
                    for it in polled
                    if it.session == session
                ]
                polled = []


async def _read_acknowledging(member, reader, subscription, _connector, history, chance) -> None:  # noqa: ANN001
    acknowledged: list[bytes] = []
    session = -1
    async for message in subscription:
        poll = _polled(member, reader, subscription, message)
        history.polls.append(poll)
        if session != poll.session:
            session, acknowledged = poll.session, []
        choice = chance.random()
        if choice < 0.1:
            subscription.negative_acknowledge(message)
        else:
            subscription.acknowledge(message)
            history.handled.add((reader.group, poll.value))
            acknowledged.append(poll.value)
        if choice > 0.8:
            await subscription.commit()
            if subscription.rebalance_count == session:
                now_s = _now_s()
                history.acknowledged += [
                    Acknowledged(now_s, reader.group, value) for value in acknowledged
                ]
                acknowledged = []


async def _read_transactions(member, reader, subscription, connector, history, chance) -> None:  # noqa: ANN001
    async with TransactionClient(
        connector=connector, name=member, transaction_timeout_s=8.0, metadata_max_age_s=20.0
    ) as transactions:
        numbers = itertools.count()
        async for message in subscription:
            poll = _polled(member, reader, subscription, message)
            history.polls.append(poll)
            number = next(numbers)
            txn = Transaction(f"{member} transaction {number}", _now_s())
            history.transactions.append(txn)
            try:
                async with transactions.transaction() as product:
                    await product.acknowledge(subscription, message)
                    txn.acknowledged.append((reader.group, poll.value))
                    await asyncio.sleep(chance.choice((0.0, 0.0, 0.05, chance.expovariate(2))))
                    value = b"%s of %s.%d" % (poll.value, member.encode(), number)
                    await _send(product, txn, OUTPUT, None, value)
                    if chance.random() < 0.15:
                        await product.abort()
                    else:
                        await _commit(product, txn)
                        history.handled.add((reader.group, poll.value))
            except StilltideError:
                pass


_READ = {
    "positions": _read_positions,
    "acknowledgements": _read_acknowledging,
    "transactions": _read_transactions,
}


async def read_all(connector: NetworkConnector, topics: list[str], history: History) -> None:
    """Reads all topics from their starts to their ends, with a group of its own."""
    admin = connector.admin()
    described = await admin.describe_topics(topics)
    partitions = [
        TopicPartition(topic, number)
        for topic in topics
        for number in range(described[topic].partition_count)
    ]
    ends = await admin.end_offsets(partitions)
    final: dict[Place, list[tuple[int, bytes]]] = {Place(CLUSTER, *data): [] for data in partitions}
    group = f"final-{len(history.final)}"
    async with Subscription(topics, group=group, connector=connector) as subscription:
        async for message in subscription.read_to(ends):
            place = Place(CLUSTER, message.topic, message.partition)
            final[place].append((message.offset, message.value or b""))
    history.final.update(final)
