"""Coordinated transactions on three brokers against native ones of Kafka: rates and gaps.

Rates and processor time: as in the case `transactions`, by topic, with three replicas of every
partition and two in sync. Gaps:
the longest time between two commits of a steady load while brokers restart one after the other, and
while each of them is killed; both sides have the same number of callers, in the same moments. A
transaction of the gaps writes 3 records: ours over 2 topics, a native one over 3 partitions.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.pipeline.demo.worker_process import STATIC_MEMBER, WorkerProcess
from stilltide.pipeline.interpreter import tune
from stilltide.schemas.topics import Replicas, TopicSpec
from tests.bench.commits.native_loops import (
    PARTITIONS,
    TOPIC,
    NativeLoop,
    NativeRuns,
    native_loops,
    strongest,
)
from tests.bench.commits.transactions import transaction_of, used_rows
from tests.bench.harness import Run, closed_loop, middle, report, size
from tests.bench.spent import Spent
from tests.support.brokers.faults import Brokers
from tests.support.brokers.native import NativeTransactions
from tests.support.brokers.transactions import CALLERS, Transactions

CONCURRENCY = (32, 256)
PRODUCERS = (8, 32)
SECONDS = 3.0
WARM_UP_SECONDS = 20.0
REPLICAS = Replicas(3, 2)
GAP_TOPICS = ("orders", "payments", "native")
EVERY_S = 0.02
"""Pause of a caller between two transactions while gaps are measured."""

STEPS = 100
"""Commits that show that a side works again."""


async def run() -> None:
    """Measures, prints and writes the case."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(LocalCluster("a", directory / "a", brokers=3, heap="512m"))
        connector = KafkaConnector(KafkaConfig(bootstrap_servers=cluster.bootstrap))
        admin = connector.admin()
        await admin.ensure_topics(
            [TopicSpec(it, PARTITIONS, replicas=REPLICAS) for it in (TOPIC, *GAP_TOPICS)]
        )
        await admin.close()
        worker = WorkerProcess(cluster.bootstrap, directory / "worker.log", *STATIC_MEMBER)
        stack.push_async_callback(worker.stop)
        await worker.start()
        tune()
        loops = await asyncio.to_thread(
            native_loops,
            stack.enter_context(ExitStack()),
            cluster.bootstrap,
            directory,
            max(PRODUCERS),
        )
        pids = {f"broker {number}": broker.pid for number, broker in cluster.brokers.items()}
        rows, used = await _rates(connector, loops, worker.pid, pids)
        rows += await _gaps(Brokers(cluster), cluster.bootstrap)
    report("brokers", rows, used)


async def _rates(
    connector: KafkaConnector,
    loops: Mapping[str, NativeLoop],
    worker: int,
    brokers: Mapping[str, int],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rates, and processor time; `worker` and `brokers` are ids of processes."""
    rounds = size("ROUNDS", 5)
    ours: dict[int, list[Run]] = {it: [] for it in CONCURRENCY}
    native = {name: {count: list[Run]() for count in PRODUCERS} for name in loops}
    async with TransactionClient(connector=connector) as client:
        transaction = transaction_of(client)
        # Brokers compile their code for half a minute; neither side shall pay for it alone.
        await closed_loop(transaction, max(CONCURRENCY), WARM_UP_SECONDS)
        for loop in loops.values():
            await asyncio.to_thread(loop.run, max(PRODUCERS), WARM_UP_SECONDS)
        for number in range(rounds):
            for concurrency in CONCURRENCY:
                spent = Spent({"client": os.getpid(), "worker": worker, **brokers})
                done = await closed_loop(transaction, concurrency, SECONDS)
                ours[concurrency].append(spent.by(done))
            for count in PRODUCERS:
                for name, loop in loops.items():
                    spent = Spent({"client": loop.pid, **brokers})
                    done = await asyncio.to_thread(loop.run, count, SECONDS)
                    native[name][count].append(spent.by(done))
            say(f"brokers: round {number + 1} of {rounds}")
    rates = [_rate_row(ours[callers], native, callers) for callers in CONCURRENCY]
    used = [row for callers in CONCURRENCY for row in used_rows({"topic": ours}, native, callers)]
    return rates, used


def _rate_row(ours: list[Run], native: NativeRuns, callers: int) -> dict[str, Any]:
    name, count = strongest(native, callers)
    theirs = middle(list(native[name][count]), "per_s")
    return _row(
        f"{callers} at once, native by {name}",
        middle(ours, "per_s"),
        theirs,
        "transactions/s",
        count,
    )


async def _gaps(brokers: Brokers, bootstrap: str) -> list[dict[str, Any]]:
    """The longest gap of each side in each fault."""
    orders, payments, topic = GAP_TOPICS
    ours = Transactions(bootstrap, orders, payments, every_s=EVERY_S)
    native = NativeTransactions(bootstrap, topic, "gaps", every_s=EVERY_S)
    running = [asyncio.create_task(it.run()) for it in (ours, native)]
    rows: list[dict[str, Any]] = []

    async def commit() -> None:
        await asyncio.gather(ours.progress.more(STEPS), native.progress.more(STEPS))

    try:
        await commit()
        for name, fault in _faults(brokers, commit).items():
            await brokers.in_order()
            began_s = time.monotonic()
            await fault()
            until_s = time.monotonic()
            mine, theirs = (it.progress.gap_s(began_s, until_s) for it in (ours, native))
            rows.append(_row(f"gap: {name}", mine, theirs, "s", CALLERS))
            say(f"brokers: {name}: {mine:.2f} s, native {theirs:.2f} s")
    finally:
        ours.stop()
        native.stop()
        await asyncio.gather(*running)
    return rows


def _faults(
    brokers: Brokers, commit: Callable[[], Awaitable[None]]
) -> dict[str, Callable[[], Awaitable[None]]]:
    """What befalls the brokers, by name; both sides commit again when a fault is over."""

    async def rolling_restart() -> None:
        for node in brokers.ids:
            await brokers.stop(node)
            await commit()
            await brokers.start()
            await commit()

    def killed(node: int) -> Callable[[], Awaitable[None]]:
        async def kill() -> None:
            await brokers.kill(node)
            await commit()
            await brokers.start()
            await commit()

        return kill

    kills = {f"SIGKILL of broker {node}": killed(node) for node in brokers.ids}
    return {"rolling restart": rolling_restart, **kills}


def _row(setting: str, ours: float, native: float, unit: str, producers: int) -> dict[str, Any]:
    return {
        "setting": setting,
        "ours": ours,
        "baseline": native,
        "ratio": ours / native,
        "unit": unit,
        "native_producers": producers,
    }
