"""Direct lines between a client and real workers: killed, frozen, replaced (J)."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client import TransactionClient
from stilltide.schemas.topics import TXN_REQUESTS, TXN_RESPONSES
from stilltide.schemas.values import TopicPartition
from tests.support.processes.operator import get
from tests.support.processes.worker_process import (
    COORDINATORS,
    Load,
    WorkerProcess,
    await_all_ended,
    create_topics,
)

HOST = "127.0.0.1"
ALONE = "alone"
"""A topic beside those of the load."""


@pytest.fixture
async def load(bootstrap: str, load: Load) -> Load:
    """Work on topics of the test's own, and the topic of a transaction beside the load."""
    await create_topics(bootstrap, ALONE)
    return load


@pytest.fixture
async def client(bootstrap: str) -> TransactionClient:
    """A client that looks for lines; entered by the test once a worker has made the topics."""
    return TransactionClient(bootstrap, direct_line=True)


def worker(bootstrap: str, log_path: Path) -> WorkerProcess:
    """A worker that takes lines, not started."""
    session = ("--session-timeout-s", "2")
    return WorkerProcess(bootstrap, log_path, *session, line_host=HOST)


async def asked(bootstrap: str) -> int:
    """How many records of requests and answers there are."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    places = [TopicPartition(TXN_REQUESTS, it) for it in range(COORDINATORS)]
    places += [TopicPartition(TXN_RESPONSES, it) for it in range(4)]
    found = sum((await admin.end_offsets(places)).values())
    await admin.close()
    return found


async def lines(process: WorkerProcess) -> float:
    """How many lines the worker says that there are."""
    _, text = await get(process, "/metrics")
    found = {it.name: it.samples for it in text_string_to_metric_families(text)}
    return sum(it.value for it in found["stilltide_direct_lines"])


async def with_line(client: TransactionClient, *workers: WorkerProcess) -> WorkerProcess:
    """Commits until the client has a line; returns the worker at its other end."""
    while True:
        async with client.transaction() as txn:
            await txn.send(ALONE, b"value", partition=0)
        for one in workers:
            if await lines(one):
                return one


async def test_transactions_go_by_line(
    bootstrap: str, client: TransactionClient, load: Load, tmp_path: Path
):
    """J1: after the greeting nothing more is written to the topics of requests and answers."""
    async with worker(bootstrap, tmp_path / "worker.log") as process:
        await process.serving()
        async with client:
            await with_line(client, process)
            before = await asked(bootstrap)
            await load.run(client, lambda _: None)
            assert await asked(bootstrap) == before
            assert len(load.outcomes.committed) == 480
            await await_all_ended(client)
        assert "Traceback" not in process.said


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [False, True])
async def test_another_worker_takes_over(
    bootstrap: str, client: TransactionClient, load: Load, tmp_path: Path, *, frozen: bool
):
    """J3, B: SIGKILL, or SIGSTOP, which leaves the line open; nothing is lost or done twice."""
    some = asyncio.Event()
    async with AsyncExitStack() as stack:
        two = [worker(bootstrap, tmp_path / f"{name}.log") for name in ("one", "two")]
        for process in two:
            await stack.enter_async_context(process)
            await process.serving()
        await stack.enter_async_context(client)
        doomed = await with_line(client, *two)
        running = asyncio.create_task(
            load.run(client, lambda ended: some.set() if ended >= 200 else None)
        )
        await some.wait()
        if frozen:
            doomed.pause()
        else:
            await doomed.kill()
        await running
        assert load.outcomes.unknown == set()
        assert len(load.outcomes.committed) == 480
        if frozen:
            doomed.resume()
        await with_line(client, *(one for one in two if one.running))
        await await_all_ended(client)
        await load.check(bootstrap, f"takes-over-{frozen}")
