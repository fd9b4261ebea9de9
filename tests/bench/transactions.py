"""Coordinated transactions through a worker process against native ones of Kafka.

A transaction writes 10 records over 3 partitions and commits. At each concurrency ours is compared
with the best that native reaches in the same run with 1, 8 or 32 producers, as far as there are
callers to use them.
"""

import asyncio
import os
import tempfile
import threading
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.pipeline.demo.worker_process import STATIC_MEMBER, WorkerProcess
from stilltide.pipeline.interpreter import tune
from stilltide.schemas.topics import TopicSpec
from tests.bench.harness import Run, closed_loop, cpu_s, middle, report, summary

CONCURRENCY = (1, 8, 32, 256, 1024)
PRODUCERS = (1, 8, 32)
ROUNDS = 5
SECONDS = 3.0
WARM_UP_SECONDS = 30.0
TOPIC = "bench"
PARTITIONS = 3
RECORDS = 10
VALUE = b"x" * 100


async def run() -> None:
    """Measures, prints and writes the case."""
    ours: dict[int, list[Run]] = {}
    native: dict[int, list[Run]] = {}
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(LocalCluster("a", directory / "a", heap="512m"))
        connector = KafkaConnector(KafkaConfig(bootstrap_servers=cluster.bootstrap))
        await connector.admin().ensure_topics([TopicSpec(TOPIC, PARTITIONS)])
        worker = WorkerProcess(cluster.bootstrap, directory / "worker.log", *STATIC_MEMBER)
        stack.push_async_callback(worker.stop)
        await worker.start()
        client = await stack.enter_async_context(TransactionClient(connector=connector))
        producers = await asyncio.to_thread(native_producers, cluster.bootstrap)

        async def transaction() -> None:
            async with client.transaction() as txn:
                for number in range(RECORDS):
                    await txn.send(TOPIC, VALUE, partition=number % PARTITIONS)

        # The broker compiles its code for half a minute; neither side shall pay for it alone.
        await closed_loop(transaction, 256, WARM_UP_SECONDS)
        await asyncio.to_thread(native_loop, producers, WARM_UP_SECONDS)
        tune()
        for number in range(ROUNDS):
            for concurrency in CONCURRENCY:
                used_s = cpu_s(cluster.pid), _worker_cpu_s(worker), sum(os.times()[:2])
                done = await closed_loop(transaction, concurrency, SECONDS)
                done.extra.update(_cpu_ms(done, cluster, worker, used_s))
                ours.setdefault(concurrency, []).append(done)
                if concurrency in PRODUCERS:
                    used_s = cpu_s(cluster.pid), _worker_cpu_s(worker), sum(os.times()[:2])
                    done = await asyncio.to_thread(native_loop, producers[:concurrency], SECONDS)
                    done.extra.update(_cpu_ms(done, cluster, worker, used_s))
                    native.setdefault(concurrency, []).append(done)
            say(f"transactions: round {number + 1} of {ROUNDS}")
    report("transactions", [_row(ours, native, concurrency) for concurrency in CONCURRENCY])


def _worker_cpu_s(worker: WorkerProcess) -> float:
    return cpu_s(worker.pid)


def _cpu_ms(
    done: Run, cluster: LocalCluster, worker: WorkerProcess, before_s: tuple[float, ...]
) -> dict[str, float]:
    """Processor milliseconds of each process for one transaction."""
    now_s = cpu_s(cluster.pid), _worker_cpu_s(worker), sum(os.times()[:2])
    names = ("broker_cpu_ms", "worker_cpu_ms", "client_cpu_ms")
    return {
        name: (after - before) * 1000 / done.operations
        for name, before, after in zip(names, before_s, now_s, strict=True)
    }


def native_producers(bootstrap: str) -> list[Producer]:
    """Producers with transactional ids; blocks until the brokers know all of them."""
    producers: list[Producer] = []
    for number in range(max(PRODUCERS)):
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"bench-{number}",
                "linger.ms": 0,
            }
        )
        producer.init_transactions(30)
        producers.append(producer)
    return producers


def native_loop(producers: list[Producer], seconds: float) -> Run:
    """Each producer commits one transaction after the other, in a thread of its own."""
    latencies: list[list[float]] = [[] for _ in producers]
    began = time.perf_counter()
    until = began + seconds

    def commit(producer: Producer, took: list[float]) -> None:
        while (start := time.perf_counter()) < until:
            producer.begin_transaction()
            for number in range(RECORDS):
                producer.produce(TOPIC, VALUE, partition=number % PARTITIONS)
            producer.commit_transaction(30)
            took.append(time.perf_counter() - start)

    threads = [
        threading.Thread(target=commit, args=pair)
        for pair in zip(producers, latencies, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return summary([one for took in latencies for one in took], time.perf_counter() - began)


def _row(
    ours: dict[int, list[Run]], native: dict[int, list[Run]], concurrency: int
) -> dict[str, Any]:
    usable = [count for count in PRODUCERS if count <= concurrency]
    best = max(usable, key=lambda count: middle(native[count], "per_s"))
    mine, baseline = middle(ours[concurrency], "per_s"), middle(native[best], "per_s")
    broker = middle(ours[concurrency], "broker_cpu_ms") / middle(native[best], "broker_cpu_ms")
    return {
        "setting": concurrency,
        "ours": mine,
        "baseline": baseline,
        "ratio": mine / baseline,
        "unit": "transactions/s",
        "native_producers": best,
        "broker_cpu_ratio": broker,
        "ours_p50_ms": middle(ours[concurrency], "p50_ms"),
        "baseline_p50_ms": middle(native[best], "p50_ms"),
        "worker_cpu_ms": middle(ours[concurrency], "worker_cpu_ms"),
        "client_cpu_ms": middle(ours[concurrency], "client_cpu_ms"),
    }
