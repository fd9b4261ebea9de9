"""Replicated pairs of a group and a partition: what they cost at rest and at work.

Two clusters, a worker on each and a link; ten groups read a topic that has a tenth as many
partitions as there are pairs. Every group commits every partition on `a`.

- `carried_s`: from the first commit until every pair stands at the same place on `b`.
- `rest_*`: processor time in ms/s once nothing happens any more.
- `load_*`: the same while ten pairs a second, at random, advance by a record.
- `advance_p50_s`: from a commit on `a` until it is applied on `b`, of single pairs under that load.
- `start_s`: from the start of another worker on `b` until it serves.
- `worker_*_mib`: memory of the workers.
"""

import asyncio
import random
import time
from contextlib import AsyncExitStack
from statistics import median
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.errors import RetriableError
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.drivers.shared.dynamic_settings import write_setting
from stilltide.schemas.settings import subscription_setting
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import ClusterName, TopicPartition
from tests.bench.harness import looks, rss_mib
from tests.bench.replication.copiers import WAIT_S, Pair, link_command, running, running_pair
from tests.bench.spent import Spent, resting
from tests.support.processes.local import commit
from tests.support.processes.worker_process import WorkerProcess

GROUPS = 10
SETTLE_S, REST_S, LOAD_S = 15.0, 20.0, 20.0
PER_S = 10
CARRIED_S_MAX = 900.0


async def measured(pairs: int) -> dict[str, Any]:
    """One row of the report."""
    topic, partitions = f"scale-{pairs}", pairs // GROUPS
    groups = [f"{topic}-group-{number}" for number in range(GROUPS)]
    with running_pair() as pair:
        async with AsyncExitStack() as stack:
            for connector in pair.connectors.values():
                admin = connector.admin()
                await admin.ensure_topics([TopicSpec(topic, partitions)])
                await admin.close()
            workers = {name: replicated_worker(pair, name) for name in "ab"}
            for worker in workers.values():
                await stack.enter_async_context(worker)
                await worker.serving()
            link = stack.enter_context(running(link_command(pair, topic), pair.directory / "link"))
            pids = {
                "worker_a": workers["a"].pid,
                "worker_b": workers["b"].pid,
                "link": link.pid,
                "broker_a": pair.a.pid,
                "broker_b": pair.b.pid,
            }
            carried_s = await carry(pair, topic, groups, partitions)
            say(f"scale: {pairs} pairs carried after {carried_s:.1f} s")
            rest = await resting(pids, SETTLE_S, REST_S)
            say(f"scale: {pairs} pairs at rest: {rest}")
            spent = Spent(pids)
            advances_s = await _advances(pair, topic, groups, partitions)
            load = spent.ms_per_s()
            memory = {name: rss_mib(workers[name].pid) for name in "ab"}
            await workers["b"].kill()
            began = time.perf_counter()
            async with replicated_worker(pair, "b") as again:
                await again.serving()
                start_s = time.perf_counter() - began
            return {
                "pairs": pairs,
                "carried_s": carried_s,
                **{f"rest_{name}": value for name, value in rest.items()},
                **{f"load_{name}": value for name, value in load.items()},
                "advance_p50_s": median(advances_s),
                "advances": len(advances_s),
                "start_s": start_s,
                **{f"worker_{name}_mib": value for name, value in memory.items()},
            }


def replicated_worker(pair: Pair, name: str) -> WorkerProcess:
    """The worker of one of the clusters, which has its partitions back at once after a kill."""
    log_path = pair.directory / f"worker-{name}.log"
    return WorkerProcess(
        pair.bootstrap(name),
        log_path,
        *("--cluster", name, "--instance-id", f"scale-{name}"),
        clusters=pair.named,
    )


async def carry(pair: Pair, topic: str, groups: list[str], partitions: int) -> float:
    """Writes a record to each partition, commits all pairs, and waits for them on `b`."""
    await asyncio.to_thread(_write, pair.a.bootstrap, topic, range(partitions))
    for connector in pair.connectors.values():
        setting = subscription_setting(topic, f"{topic}-group-*")
        await write_setting(connector, setting, value=True, at_ms=SystemClock().now_ms())
    began = time.perf_counter()
    for group in groups:
        await asyncio.to_thread(commit, pair.a.bootstrap, topic, group, 1, partitions=partitions)
    places = [TopicPartition(topic, number) for number in range(partitions)]
    asked = pair.connectors[ClusterName("b")].group_admin()
    try:
        async for _ in looks(0.5, wait_s=CARRIED_S_MAX):
            try:
                found = await asked.committed(groups, places)
            except RetriableError:  # a coordinator of a new cluster is still beginning
                continue
            if all(len(found[group]) == partitions for group in groups):
                return time.perf_counter() - began
    finally:
        await asked.close()
    raise AssertionError


async def _advances(pair: Pair, topic: str, groups: list[str], partitions: int) -> list[float]:
    """Seconds that each advance of a pair took, for `LOAD_S` at an even rate."""
    rng = random.Random(partitions)
    took: list[float] = []
    under_way: set[asyncio.Task[None]] = set()

    async def advance(partition: int, group: str, offset: int) -> None:
        began = time.perf_counter()
        await asyncio.to_thread(
            _commit_one, pair.a.bootstrap, group, Place(topic, partition, offset)
        )
        there = Consumer({"bootstrap.servers": pair.b.bootstrap, "group.id": group})
        try:
            async for _ in looks(0.02):
                found = await asyncio.to_thread(there.committed, [Place(topic, partition)], WAIT_S)
                if found[0].offset >= offset:
                    took.append(time.perf_counter() - began)
                    return
        finally:
            await asyncio.to_thread(there.close)

    places = [rng.randrange(partitions) for _ in range(int(LOAD_S * PER_S))]
    written: dict[int, int] = {}
    async for elapsed_s in looks(1 / PER_S):
        number = int(elapsed_s * PER_S)
        if number >= len(places):
            break
        partition = places[number]
        await asyncio.to_thread(_write, pair.a.bootstrap, topic, [partition])
        written[partition] = written.get(partition, 1) + 1
        if len(under_way) < 2:  # each look of these is a load, too
            work = advance(partition, rng.choice(groups), written[partition])
            task = asyncio.create_task(work)
            under_way.add(task)
            task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)
    return took


_producers: dict[str, Producer] = {}


def _write(bootstrap: str, topic: str, partitions: Any) -> None:
    producer = _producers.setdefault(bootstrap, Producer({"bootstrap.servers": bootstrap}))
    for partition in partitions:
        producer.produce(topic, b"x" * 100, partition=partition)
    assert producer.flush(WAIT_S) == 0


def _commit_one(bootstrap: str, group: str, place: Place) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()
