"""Writes events as concurrent coordinated transactions, some of them aborted on purpose."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.pipeline.demo.events import Event, parse, read_lines
from stilltide.pipeline.demo.views import View
from stilltide.schemas.digest import record_digest
from stilltide.schemas.values import TopicPartition


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
