"""Workers that index native transactions: they share, move and lose partitions of aborted-index."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import TopicPartition
from tests.support.looks import between_looks
from tests.support.native.topics import read_index, transactional, until_stable, write
from tests.support.processes.operator import get
from tests.support.processes.worker_process import WorkerProcess

COUNT = 4
"""Partitions of the data topic."""

PARTITIONS = 2
"""Of aborted-index: one for each worker."""

WAIT_S = 180
"""For a rebalance on a busy machine."""

ORDERS = [TopicPartition("orders", number) for number in range(COUNT)]
LATER = TopicPartition("later", 0)


@pytest.fixture(scope="module")
def bootstrap(empty_kafka: LocalCluster) -> str:
    """Address of a broker whose system topics are the module's own."""
    return empty_kafka.bootstrap


def worker(bootstrap: str, log_path: Path) -> WorkerProcess:
    """A worker, not started."""
    return WorkerProcess(
        bootstrap,
        log_path,
        "--index-topics",
        "orders,later",
        "--session-timeout-s",
        "2",
        coordinators=2,
        partitions=PARTITIONS,
    )


async def abort_in(producer: Producer, admin: LogAdmin, partitions: list[TopicPartition]) -> None:
    """A transaction of two records that aborts, in each partition; three offsets."""
    ends = await admin.end_offsets(partitions)
    for data in partitions:
        await asyncio.to_thread(write, producer, data, 2, commit=False)
        await until_stable(admin, data, ends.get(data, 0) + 3)


async def until_indexed(bootstrap: str, data: TopicPartition, rounds: int) -> None:
    """Waits until the index tells every record of so many such transactions."""
    aborted = {3 * turn + record for turn in range(rounds) for record in range(2)}
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await read_index(bootstrap, data, PARTITIONS)
            if found is not None and found.covers(0, 3 * rounds):
                break
            await between_looks()
    assert {offset for offset in aborted if offset in found.ranges} == aborted


async def until_ready(made: WorkerProcess, text: str) -> None:
    """Waits until the worker is ready and says so."""
    async with asyncio.timeout(WAIT_S):
        while text not in (await get(made, "/readyz"))[1]:
            await between_looks()


async def until_measured(made: WorkerProcess) -> None:
    """Waits until every indexer of the worker has no lag; one that starts over shows none."""
    async with asyncio.timeout(WAIT_S):
        while True:
            lines = (await get(made, "/metrics"))[1].splitlines()
            lags = [it for it in lines if it.startswith("stilltide_aborted_index_lag{")]
            if len(lags) == PARTITIONS and all(it.endswith(" 0.0") for it in lags):
                return
            await between_looks()


async def test_workers_share_the_index(bootstrap: str, tmp_path: Path):
    """Together, after the SIGKILL of one, and for a topic that comes later."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.ensure_topics([TopicSpec("orders", COUNT)])
    producer = await asyncio.to_thread(transactional, bootstrap, "app")
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(worker(bootstrap, tmp_path / "one.log"))
        two = await stack.enter_async_context(worker(bootstrap, tmp_path / "two.log"))
        await asyncio.gather(one.serving(), two.serving())
        await abort_in(producer, admin, ORDERS)
        for data in ORDERS:
            await until_indexed(bootstrap, data, 1)
        await one.kill()
        await abort_in(producer, admin, ORDERS)
        for data in ORDERS:
            await until_indexed(bootstrap, data, 2)
        await until_ready(two, "indexers: [0, 1]")
        await admin.ensure_topics([TopicSpec("later", 1)])
        await abort_in(producer, admin, [LATER])
        await until_indexed(bootstrap, LATER, 1)
        await until_measured(two)
        assert "topic_to_index_missing" in two.said
        assert "aborted_indexer_serving" in two.said
    await admin.close()
