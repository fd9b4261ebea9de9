"""Coordinated transactions through a worker process against native ones of Kafka.

A transaction writes 10 records over 3 partitions and commits. At each concurrency ours is compared
with the best that native reaches in the same run, with any number of producers up to the number of
callers, of librdkafka and of Java. Ours asks the coordinator by a direct line (J), and by topic.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.pipeline.demo.worker_process import WorkerProcess
from stilltide.pipeline.interpreter import tune
from stilltide.schemas.topics import TopicSpec
from tests.bench.commits.native_loops import (
    PARTITIONS,
    RECORDS,
    TOPIC,
    VALUE,
    NativeLoop,
    NativeRuns,
    best,
    native_loops,
    strongest,
)
from tests.bench.commits.served import served
from tests.bench.harness import Run, closed_loop, cpu_s, middle, report, size

CONCURRENCY = (1, 8, 32, 256, 1024)
PRODUCERS = (1, 8, 32, 128, 256)
SECONDS = 3.0
WARM_UP_SECONDS = 30.0

OurRuns = dict[str, dict[int, list[Run]]]
"""By the way to the coordinator, and by the number of callers."""


async def run() -> None:
    """Measures, prints and writes the case."""
    rounds = size("ROUNDS", 5)
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
        for number in range(rounds):
            for callers in CONCURRENCY:
                for way, transaction in ways.items():
                    used = _Used(cluster, worker)
                    done = await closed_loop(transaction, callers, SECONDS)
                    ours[way][callers].append(used.by(done))
            for count in PRODUCERS:
                for name, loop in loops.items():
                    native[name][count].append(await _native(loop, count, _Used(cluster, worker)))
            say(f"transactions: round {number + 1} of {rounds}")
    rows = [_row(ours, native, callers) for callers in CONCURRENCY]
    report(
        "transactions", rows, details=[_details(ours, native, callers) for callers in CONCURRENCY]
    )


def transaction_of(client: TransactionClient) -> Callable[[], Awaitable[None]]:
    """The transaction that is measured, as an operation of `closed_loop`."""

    async def transaction() -> None:
        async with client.transaction() as txn:
            for number in range(RECORDS):
                await txn.send(TOPIC, VALUE, partition=number % PARTITIONS)

    return transaction


async def _native(loop: NativeLoop, producers: int, used: "_Used") -> Run:
    done = await asyncio.to_thread(loop.run, producers, SECONDS)
    client_cpu_ms = done.extra["client_cpu_ms"]
    used.by(done).extra["client_cpu_ms"] = client_cpu_ms
    return done


class _Used:
    """Processor time of the broker, the worker and this process from now on."""

    def __init__(self, cluster: LocalCluster, worker: WorkerProcess) -> None:
        self._pids = {"broker_cpu_ms": cluster.pid, "worker_cpu_ms": worker.pid}
        self._before_s = self._now_s()

    def _now_s(self) -> dict[str, float]:
        own_s = sum(os.times()[:2])
        return {name: cpu_s(pid) for name, pid in self._pids.items()} | {"client_cpu_ms": own_s}

    def by(self, done: Run) -> Run:
        """The run, with the processor milliseconds of each process for one transaction."""
        now_s = self._now_s()
        for name, before_s in self._before_s.items():
            done.extra[name] = (now_s[name] - before_s) * 1000 / done.operations
        return done


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


def _details(ours: OurRuns, native: NativeRuns, callers: int) -> dict[str, float | int]:
    """Each client's best, and processor time, for the JSON file."""
    name, producers = strongest(native, callers)
    theirs = list(native[name][producers])
    by_line = ours["line"][callers]
    found: dict[str, float | int] = {"setting": callers}
    for client, runs in native.items():
        count = best(runs, callers)
        found[f"{client}_per_s"] = middle(list(runs[count]), "per_s")
        found[f"{client}_producers"] = count
    found["topic_per_s"] = middle(ours["topic"][callers], "per_s")
    for figure in ("broker_cpu_ms", "client_cpu_ms"):
        found[f"ours_{figure}"] = middle(by_line, figure)
        found[f"baseline_{figure}"] = middle(theirs, figure)
    found["worker_cpu_ms"] = middle(by_line, "worker_cpu_ms")
    return found
