"""C16: what one application does to a worker does not stop others, nor fill the worker's memory."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.client import TransactionClient
from stilltide.schemas.coordinator.transactions import (
    CoordinatorStats,
    DescribeCoordinator,
    Open,
    Opened,
    Registered,
)
from stilltide.schemas.framing import MAGIC, VERSION
from stilltide.schemas.service.envelopes import RefusalCode, Refused
from stilltide.schemas.topics import TXN_REQUESTS, TopicSpec
from stilltide.schemas.values import EndOffset, TopicPartition
from tests.support.coordinator.asker import Asker
from tests.support.looks import between_looks
from tests.support.processes.worker_process import WorkerProcess

CLIENTS = 3
"""Attackers, each with as many open transactions as a client may have."""

EACH = 2000
COMMIT_S_MAX = 30.0
"""Longest commit of another client on a machine that is busy; `-s` shows the p99."""

RSS_MIB_MAX = 448

OTHERS_MAX = 100
"""Transactions that the other client has opened ahead at the most."""


@pytest.fixture
async def worker(bootstrap: str, tmp_path: Path) -> AsyncIterator[WorkerProcess]:
    """A worker with one coordinator."""
    made = WorkerProcess(
        bootstrap,
        tmp_path / "worker.log",
        coordinators=1,
        client_transactions_max=EACH,
    )
    async with made:
        await made.serving()
        yield made


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [it for it in lines if it.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


async def commit_until(connector: Connector, stop: asyncio.Event) -> list[float]:
    """Commits one transaction after the other; returns how long each took, seconds."""
    took: list[float] = []
    async with TransactionClient(connector=connector, request_timeout_s=60) as client:
        while not stop.is_set():
            began = time.monotonic()
            async with client.transaction() as txn:
                await txn.send("orders", b"o", partition=0)
            took.append(time.monotonic() - began)
    return took


async def attacked(connector: Connector, about: Registered) -> None:
    """Transactions that time out together, requests beyond the bounds, and a hollow message."""
    askers = [Asker(connector, name=f"a{number}", timeout_s=120) for number in range(CLIENTS)]
    for one in askers:
        await one.open(partition_count=1, response_partition_count=4)
        for _ in range(EACH // 1000):
            opened = await one.ask(0, Open(3000, 1000, (about,)))
            assert isinstance(opened, Opened), opened
        refused = await one.ask(0, Open(3000, 1, (about,)))
        assert isinstance(refused, Refused)
        assert refused.code is RefusalCode.LIMIT
    many = tuple(about._replace(data=TopicPartition("orders", it)) for it in range(2000))
    refused = await askers[0].ask(0, Open(3000, 1000, many))
    assert isinstance(refused, Refused)
    assert refused.code is RefusalCode.LIMIT
    writer, sent = connector.writer("hollow"), asyncio.Event()
    hollow = MAGIC + VERSION + b"\x0a\x00" * 1_900_000
    writer.append(TopicPartition(TXN_REQUESTS, 0), hollow, lambda *_: sent.set(), key=b"k")
    await sent.wait()
    await writer.close()
    while True:
        stats = await askers[0].ask(0, DescribeCoordinator())
        assert isinstance(stats, CoordinatorStats)
        if stats.open_count + stats.aborting_count < OTHERS_MAX:
            break
        await between_looks()
    for one in askers:
        await one.close()


async def test_c16_others_commit_while_a_client_exceeds_its_share(
    bootstrap: str, worker: WorkerProcess
):
    """C16: refused by name, ended in slices, and counted before it is parsed."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    admin = connector.admin()
    await admin.ensure_topics([TopicSpec("orders", 1)])
    topic_id = (await admin.describe_topics(["orders"]))["orders"].topic_id
    await admin.close()
    stop = asyncio.Event()
    committing = asyncio.create_task(commit_until(connector, stop))
    try:
        await attacked(connector, Registered(TopicPartition("orders", 0), EndOffset(0), topic_id))
    finally:
        stop.set()
    took = await committing
    assert took
    p99_s = sorted(took)[len(took) * 99 // 100]
    sys.stdout.write(f"{len(took)} commits of another client: p99 {p99_s * 1000:.0f} ms\n")
    assert max(took) < COMMIT_S_MAX
    assert rss_mib(worker.pid) < RSS_MIB_MAX
