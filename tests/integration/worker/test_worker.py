"""Worker processes on a real broker: serving, crashing, taking over, stopping."""

import asyncio
import json
import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from stilltide.pipeline.client import TransactionClient
from tests.support.processes.worker_process import (
    COORDINATORS,
    PARTITIONS,
    Load,
    WorkerProcess,
    await_all_ended,
)

SESSION_S = 2.0
"""After this a killed worker's coordinators go to the others."""

STOP_S = 15.0

CLIENT_TIMEOUT_S = 20.0
"""Of transactions."""


def worker(bootstrap: str, log_path: Path, *options: str) -> WorkerProcess:
    """A worker, not started."""
    session = ("--session-timeout-s", f"{SESSION_S:g}")
    return WorkerProcess(bootstrap, log_path, *session, *options, txn_timeout_ms_max=60_000)


@pytest.fixture
async def client(bootstrap: str) -> TransactionClient:
    """A client; made by the test once a worker has made the system topics."""
    return TransactionClient(bootstrap, resend_s=0.5, transaction_timeout_s=CLIENT_TIMEOUT_S)


async def test_a_worker_serves_transactions(
    bootstrap: str, client: TransactionClient, load: Load, log_path: Path
):
    """Every coordinator serves; commits are visible, aborts are not, and all end."""
    async with worker(bootstrap, log_path) as process:
        assert await process.serving() == list(range(COORDINATORS))
        async with client:
            await load.run(client, lambda _: None)
            assert len(load.outcomes.committed) == 480
            await await_all_ended(client)
        await load.check(bootstrap, "serves")


async def test_commits_do_not_linger_for_company_that_cannot_come(
    bootstrap: str, load: Load, log_path: Path
):
    """Two transactions at once commit long before the linger of their client is over."""
    lingering = TransactionClient(bootstrap, linger_ms=4000)
    both_have_sent = asyncio.Barrier(2)

    async def commit() -> None:
        async with lingering.transaction() as txn:
            await txn.send(load.topics[0], b"v", partition=0)
            await both_have_sent.wait()

    async with worker(bootstrap, log_path) as process, lingering:
        await process.serving()
        await asyncio.gather(commit(), commit())  # connects
        async with asyncio.timeout(2):
            await asyncio.gather(commit(), commit())


async def test_a_killed_worker_recovers_from_its_log(
    bootstrap: str, client: TransactionClient, load: Load, log_path: Path
):
    """B1, C1b: SIGKILL in the middle of transactions costs time; nothing is lost or done twice."""
    half = asyncio.Event()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(worker(bootstrap, log_path, "--instance-id", "one"))
        await first.serving()
        await stack.enter_async_context(client)
        running = asyncio.create_task(
            load.run(client, lambda ended: half.set() if ended >= 200 else None)
        )
        await half.wait()
        await first.kill()
        assert load.outcomes.count < 600
        second = await stack.enter_async_context(
            worker(bootstrap, log_path, "--instance-id", "one")
        )
        await second.serving()
        await running
        assert load.outcomes.unknown == set()
        assert len(load.outcomes.committed) == 480
        await await_all_ended(client)
        await load.check(bootstrap, "recovers")


async def test_another_worker_takes_over_from_a_killed_one(
    bootstrap: str, client: TransactionClient, load: Load, tmp_path: Path
):
    """B: two workers share the coordinators; when one dies the other serves them all."""
    third = asyncio.Event()
    async with AsyncExitStack() as stack:
        doomed = await stack.enter_async_context(worker(bootstrap, tmp_path / "doomed.log"))
        assert await doomed.serving() == list(range(COORDINATORS))
        other = await stack.enter_async_context(worker(bootstrap, tmp_path / "other.log"))
        shared = await other.serving()
        assert 0 < len(shared) < COORDINATORS
        await stack.enter_async_context(client)
        running = asyncio.create_task(
            load.run(client, lambda ended: third.set() if ended >= 200 else None)
        )
        await third.wait()
        await doomed.kill()
        await running
        assert load.outcomes.unknown == set()
        assert len(load.outcomes.committed) == 480
        await await_all_ended(client)
        await load.check(bootstrap, "takes-over")
        assert assigned_last(other.said) == list(range(COORDINATORS))


def assigned_last(said: str) -> list[int]:
    """The coordinators a worker said last that it was given."""
    return json.loads(re.findall(r"assigned\s+owner=coordinator partitions=(.*)", said)[-1])


async def test_a_terminated_worker_stops_in_good_order(
    bootstrap: str, client: TransactionClient, load: Load, log_path: Path
):
    """SIGTERM in the middle of transactions ends it soon and with exit code 0; all end later."""
    some = asyncio.Event()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(worker(bootstrap, log_path))
        await first.serving()
        await stack.enter_async_context(client)
        running = asyncio.create_task(
            load.run(client, lambda ended: some.set() if ended >= 100 else None)
        )
        await some.wait()
        first.terminate()
        assert await first.ended(STOP_S) == 0
        assert "Traceback" not in first.said
        second = await stack.enter_async_context(worker(bootstrap, log_path))
        await second.serving()
        await running
        assert len(load.outcomes.committed) == 480
        await load.check(bootstrap, "stops")


async def test_a_stock_of_transactions_outlives_the_worker_that_opened_it(
    bootstrap: str, client: TransactionClient, load: Load, log_path: Path
):
    """C9: what was opened ahead commits at the next owner; the unused ones are released."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(worker(bootstrap, log_path, "--instance-id", "one"))
        await first.serving()
        await stack.enter_async_context(client)
        await load.run(client, lambda _: None)
        async with client.transaction() as txn:
            for partition in range(PARTITIONS):
                await txn.send(load.topics[0], b"ahead", partition=partition)
            assert txn.id is not None, "none was in stock"
            await first.kill()
            second = await stack.enter_async_context(
                worker(bootstrap, log_path, "--instance-id", "one")
            )
            await second.serving()
        assert txn.state == "committed"
        async with asyncio.timeout(CLIENT_TIMEOUT_S / 2):
            await await_all_ended(client)
