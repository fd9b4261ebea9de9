"""Events from a file of newline-delimited JSON, grouped into transactions.

Any NDJSON is accepted: `type`, if present, decides the topic, and `order_id` or `id` the key.

Writes events as concurrent coordinated transactions, some of them aborted on purpose.

Reads the demo's records with a read-committed subscription.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from stilltide.connectors.ports.connector import Connector, closing
from stilltide.pipeline.client.subscription import Subscription
from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.pipeline.demo.views import View
from stilltide.schemas.digest import record_digest
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.values import TopicPartition, TxnId

ORDERS = "orders"
PAYMENTS = "payments"

SAMPLE = Path(__file__).with_name("events.ndjson")
"""3600 events of a shop's orders and their payments."""


class EventsFileError(StilltideError):
    """A file of events that cannot be read, or a line that is no JSON object."""


class Event(NamedTuple):
    """One event and its destination."""

    topic: str
    key: bytes | None
    value: bytes


def read_lines(path: Path, per_transaction: int) -> Generator[list[tuple[int, bytes]]]:
    """Numbered lines, `per_transaction` at a time; blank lines are left out.

    Raises:
        EventsFileError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
            while group := list(islice(lines, per_transaction)):
                yield group
    except OSError as error:
        raise EventsFileError(
            f"cannot read {path}", detail=error.strerror or str(error), hint="check --file"
        ) from error


def parse(path: Path, number: int, line: bytes) -> Event:
    """The event of one line.

    Events whose type begins with `payment` go to the topic payments, others to orders; without a
    type, odd lines go to orders and even ones to payments.

    Raises:
        EventsFileError: the line is not a JSON object; names the line.
    """
    try:
        event = json.loads(line)
    except ValueError as error:
        raise EventsFileError(
            f"{path.name} line {number} is not JSON",
            detail=str(error),
            hint="its transaction was aborted and reading stopped there; mend the line",
        ) from error
    if not isinstance(event, dict):
        raise EventsFileError(
            f"{path.name} line {number} is not a JSON object",
            hint="its transaction was aborted and reading stopped there; mend the line",
        )
    kind = event.get("type")
    payment = str(kind).startswith("payment") if kind is not None else number % 2 == 0
    key = event.get("order_id", event.get("id"))
    return Event(
        PAYMENTS if payment else ORDERS,
        None if key is None else str(key).encode(),
        line.rstrip(b"\r\n"),
    )


@dataclass(frozen=True)
class Plan:
    """The way in which a file becomes transactions.

    Attributes:
        path: the file of events.
        events_per_transaction: number of lines of one transaction, >= 1.
        abort_share: share of the transactions that abort, 0..1.
        concurrency: number of transactions open at once, >= 1.
        seed: seed of the random choice of transactions that abort.
    """

    path: Path
    events_per_transaction: int
    abort_share: float
    concurrency: int
    seed: int = 1


async def produce(client: TransactionClient, plan: Plan, ended: Callable[[int], None]) -> View:
    """Writes every event; returns the producer's view, made from its delivery reports.

    Args:
        client: a connected client.
        plan: the events and their transactions.
        ended: called after each transaction with the number of transactions that have ended.

    Raises:
        EventsFileError: a line is no JSON object; its transaction is aborted, earlier transactions
            end as planned, and no later one begins.
        StilltideError: a transaction failed.
    """
    view = View("producer")
    states = Counter[str]()
    groups = read_lines(plan.path, plan.events_per_transaction)
    choice = random.Random(plan.seed)  # noqa: S311 - repeatable, no secret

    async def work() -> None:
        for group in groups:
            aborts = choice.random() < plan.abort_share
            states[await _one(client, plan.path, group, aborts, view)] += 1
            ended(states.total())

    workers = [asyncio.create_task(work()) for _ in range(plan.concurrency)]
    done, others = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
    groups.close()  # no transaction begins after a failure; open ones end
    for finished in await asyncio.gather(*done, *others, return_exceptions=True):
        if isinstance(finished, BaseException):
            raise finished
    view.aborted = states.pop("aborted", 0)
    view.committed = states.total()
    return view


async def _one(
    client: TransactionClient,
    path: Path,
    group: list[tuple[int, bytes]],
    abort: bool,  # noqa: FBT001 - the one call is above
    view: View,
) -> str:
    """Writes one transaction; returns how it ended."""
    sent: list[tuple[TopicPartition, Event]] = []
    async with client.transaction() as txn:
        for number, line in group:
            event = parse(path, number, line)
            sent.append((await txn.send(event.topic, event.value, key=event.key), event))
        await txn.flush()
        if abort:
            await txn.abort()
    for data, event in sent:
        partition = view.partition(data)
        if txn.state == "aborted":
            partition.hidden += 1
        else:
            partition.visible += 1
            partition.digest += record_digest(event.key, event.value)
    return txn.state


async def consume(connector: Connector, topics: Sequence[str], group: str) -> View:
    """Reads every partition to its present end; returns the consumer's view."""
    async with closing(connector.admin()) as admin:
        described = await admin.describe_topics(topics)
        partitions = [
            TopicPartition(topic.name, number)
            for topic in described.values()
            for number in range(topic.partition_count)
        ]
        ends = await admin.end_offsets(partitions, committed=True)
    view = View("consumer", aborted=None)  # a reader does not count the records that it hides
    committed: set[TxnId | None] = {None}
    async with Subscription(topics, group=group, connector=connector) as subscription:
        async for message in subscription.read_to(ends):
            partition = view.partition(TopicPartition(message.topic, message.partition))
            partition.visible += 1
            committed.add(message.txn)
            partition.digest += record_digest(message.key, message.value)
        for data, statistics in subscription.statistics().items():
            view.partition(data).hidden = statistics.hidden
        await subscription.commit()
    view.committed = len(committed) - 1
    return view
