"""Coordinated transactions through a worker process against native ones of Kafka.

A transaction writes 10 records over 3 partitions and commits. At each concurrency ours is compared
with the best that native reaches in the same run, with any number of producers up to the number of
callers, of librdkafka and of Java. Ours asks the coordinator by a direct line (J), and by topic.

The second table has the processor time of client, worker and broker for one transaction, beside
that of the native producers with the highest rate and of those with the least processor time.

Sizes: ROUNDS, LOOP_S.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.pipeline.interpreter import tune
from stilltide.schemas.topics import TopicSpec
from tests.bench.commits.native_loops import (
    PARTITIONS,
    RECORDS,
    TOPIC,
    VALUE,
    NativeRuns,
    best,
    native_loops,
    strongest,
)
from tests.bench.commits.served import served
from tests.bench.harness import Run, closed_loop, middle, report, size
from tests.bench.spent import Spent, cpu_rows, cpu_us

CONCURRENCY = (1, 8, 32, 256, 1024)
PRODUCERS = (1, 8, 32, 128, 256)
WARM_UP_SECONDS = 30.0

OurRuns = dict[str, dict[int, list[Run]]]
"""By the way to the coordinator, and by the number of callers."""


async def run() -> None:
    """Measures, prints and writes the case."""
    rounds, seconds = size("ROUNDS", 5), float(size("LOOP_S", 3))
    async with AsyncExitStack() as stack:
        directory, cluster, connector, worker = await served(stack, TopicSpec(TOPIC, PARTITIONS))
        ways: dict[str, Callable[[], Awaitable[None]]] = {}
        for way in ("line", "topic"):
            made = TransactionClient(connector=connector, name=way, direct_line=way == "line")
            ways[way] = transaction_of(await stack.enter_async_context(made))
        loops = await asyncio.to_thread(
            native_loops,
            stack.enter_context(ExitStack()),
            cluster.bootstrap,
            directory,
            max(PRODUCERS),
        )
        ours: OurRuns = {way: {callers: [] for callers in CONCURRENCY} for way in ways}
        native = {name: {count: list[Run]() for count in PRODUCERS} for name in loops}

        # Brokers and JVMs compile their code for half a minute; no side shall pay for it alone.
        for transaction in ways.values():
            await closed_loop(transaction, 256, WARM_UP_SECONDS)
        for loop in loops.values():
            await asyncio.to_thread(loop.run, PRODUCERS[2], WARM_UP_SECONDS)
        tune()
        processes = {"client": os.getpid(), "worker": worker.pid, "broker": cluster.pid}
        for number in range(rounds):
            for callers in CONCURRENCY:
                for way, transaction in ways.items():
                    spent = Spent(processes)
                    done = await closed_loop(transaction, callers, seconds)
                    ours[way][callers].append(spent.by(done))
            for count in PRODUCERS:
                for name, loop in loops.items():
                    spent = Spent({"client": loop.pid, "broker": cluster.pid})
                    done = await asyncio.to_thread(loop.run, count, seconds)
                    native[name][count].append(spent.by(done))
            say(f"transactions: round {number + 1} of {rounds}")
    rows = [_row(ours, native, callers) for callers in CONCURRENCY]
    report(
        "transactions",
        rows,
        [row for callers in CONCURRENCY for row in used_rows(ours, native, callers)],
        details=[_details(native, ours["topic"], callers) for callers in CONCURRENCY],
    )


def transaction_of(client: TransactionClient) -> Callable[[], Awaitable[None]]:
    """The transaction that is measured, as an operation of `closed_loop`."""

    async def transaction() -> None:
        async with client.transaction() as txn:
            for number in range(RECORDS):
                await txn.send(TOPIC, VALUE, partition=number % PARTITIONS)

    return transaction


def _row(ours: OurRuns, native: NativeRuns, callers: int) -> dict[str, Any]:
    by_line, by_topic = ours["line"][callers], ours["topic"][callers]
    mine = middle(by_line, "per_s")
    name, producers = strongest(native, callers)
    theirs = list(native[name][producers])
    baseline = middle(theirs, "per_s")
    return {
        "setting": callers,
        "ours": mine,
        "baseline": baseline,
        "ratio": mine / baseline,
        "unit": "transactions/s",
        "strongest": f"{name} x {producers}",
        "topic_ratio": middle(by_topic, "per_s") / baseline,
        "ours_p50_ms": middle(by_line, "p50_ms"),
        "topic_p50_ms": middle(by_topic, "p50_ms"),
        "baseline_p50_ms": middle(theirs, "p50_ms"),
        "ours_p99_ms": middle(by_line, "p99_ms"),
        "topic_p99_ms": middle(by_topic, "p99_ms"),
        "baseline_p99_ms": middle(theirs, "p99_ms"),
    }


def used_rows(ours: OurRuns, native: NativeRuns, callers: int) -> list[dict[str, Any]]:
    """Ours by both ways, the native one of the highest rate, and that of the least time."""
    mine = {f"by {way}": runs[callers] for way, runs in ours.items()}
    usable = {
        (name, count): runs
        for name, by_count in native.items()
        for count, runs in by_count.items()
        if count <= callers
    }
    cheapest = min(usable, key=lambda it: cpu_us(usable[it]))
    peers = (strongest(native, callers), cheapest)
    theirs = {f"{name} x {count}": usable[name, count] for name, count in peers}
    return cpu_rows(callers, mine, theirs)


def _details(
    native: NativeRuns, by_topic: Mapping[int, list[Run]], callers: int
) -> dict[str, float | int]:
    """The best of each client, for the JSON file."""
    found: dict[str, float | int] = {"setting": callers}
    for client, runs in native.items():
        count = best(runs, callers)
        found[f"{client}_per_s"] = middle(list(runs[count]), "per_s")
        found[f"{client}_producers"] = count
    found["topic_per_s"] = middle(by_topic[callers], "per_s")
    return found
