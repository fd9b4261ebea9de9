"""Data partitions with transactions: what they cost a worker at rest and at work.

One cluster with one worker. A transaction has written to every partition of a topic, and snapshots
have absorbed what was aborted.

- `rest_*`: processor time in ms/s once nothing happens any more.
- `load_*`: the same under 100 transactions a second of three records each, over all partitions.
- `start_s`: from the start of another worker until it serves.
- `worker_mib`: memory of the worker.
"""

import asyncio
import random
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.client import TransactionClient
from stilltide.schemas.topics import TopicSpec
from tests.bench.harness import looks, rss_mib
from tests.bench.spent import Spent, resting
from tests.support.processes.worker_process import WorkerProcess

TOPIC = "scale"
EACH = 50
"""Partitions of one of the first transactions."""

SETTLE_S, REST_S, LOAD_S = 20.0, 20.0, 20.0
PER_S = 100


async def measured(partitions: int) -> dict[str, Any]:
    """One row of the report."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(LocalCluster("a", directory / "a", heap="1g"))
        admin = KafkaConnector(KafkaConfig(cluster.bootstrap)).admin()
        await admin.ensure_topics([TopicSpec(TOPIC, partitions)])
        await admin.close()
        worker = await stack.enter_async_context(_worker(cluster, directory))
        await worker.serving()
        pids = {"worker": worker.pid, "broker": cluster.pid}
        client = await stack.enter_async_context(TransactionClient(cluster.bootstrap))
        began = time.perf_counter()
        for first in range(0, partitions, EACH):
            await _write(
                client, range(first, min(first + EACH, partitions)), abort=first % 100 == 0
            )
        say(f"scale: {partitions} partitions written in {time.perf_counter() - began:.1f} s")
        rest = await resting(pids, SETTLE_S, REST_S)
        say(f"scale: {partitions} partitions at rest: {rest}")
        spent = Spent(pids)
        done = await _load(client, partitions)
        load = spent.ms_per_s()
        memory_mib = rss_mib(worker.pid)
        await worker.kill()
        began = time.perf_counter()
        async with _worker(cluster, directory) as again:
            await again.serving()
            start_s = time.perf_counter() - began
        return {
            "partitions": partitions,
            **{f"rest_{name}": value for name, value in rest.items()},
            **{f"load_{name}": value for name, value in load.items()},
            "transactions_per_s": done / LOAD_S,
            "start_s": start_s,
            "worker_mib": memory_mib,
        }


def _worker(cluster: LocalCluster, directory: Path) -> WorkerProcess:
    log_path = directory / "worker.log"
    return WorkerProcess(cluster.bootstrap, log_path, "--instance-id", "scale")


async def _write(client: TransactionClient, partitions: range | list[int], *, abort: bool) -> None:
    async with client.transaction() as txn:
        await asyncio.gather(*(txn.send(TOPIC, b"x" * 100, partition=it) for it in partitions))
        if abort:
            await txn.abort()


async def _load(client: TransactionClient, partitions: int) -> int:
    """So many transactions at an even rate, a tenth of them aborted; returns how many ended."""
    rng = random.Random(partitions)
    under_way: list[asyncio.Task[None]] = []
    async for elapsed_s in looks(0.01):
        if elapsed_s >= LOAD_S:
            break
        while len(under_way) < elapsed_s * PER_S:
            places = [rng.randrange(partitions) for _ in range(3)]
            work = _write(client, places, abort=len(under_way) % 10 == 0)
            under_way.append(asyncio.create_task(work))
    await asyncio.gather(*under_way)
    return len(under_way)
