"""The log of coordinators on a real broker: trimmed behind bases, and recovered from them."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.schemas.coordinator.transactions import End, Listed, ListTransactions, Open, Opened
from stilltide.schemas.service.envelopes import Done, Refused
from stilltide.schemas.topics import TXN_LOG
from stilltide.schemas.values import TopicPartition
from tests.support.coordinator.asker import Asker
from tests.support.processes.worker_process import COORDINATORS, WorkerProcess

TRIM_S_MAX = 60.0
"""On a busy machine; `make bench CASE=recovery` measures the time that is promised."""

DEADLINE_S = 240.0
POOL = 200
COORDINATOR = 2
LOG = TopicPartition(TXN_LOG, COORDINATOR)


@pytest.fixture
async def admin(bootstrap: str) -> AsyncIterator[LogAdmin]:
    """What is asked about the log."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    yield admin
    await admin.close()


async def bounds(admin: LogAdmin) -> tuple[int, int]:
    """Start and end of the log."""
    return (await admin.start_offsets([LOG]))[LOG], (await admin.end_offsets([LOG]))[LOG]


async def requests_to(bootstrap: str, stack: AsyncExitStack) -> Asker:
    """A client without anything but requests."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    made = Asker(connector, name="test", timeout_s=DEADLINE_S, resend_s=0.5)
    await made.open(partition_count=COORDINATORS, response_partition_count=COORDINATORS)
    stack.push_async_callback(made.close)
    return made


async def open_pool(requests: Asker) -> range:
    """Opens transactions; their sequences."""
    opened = await requests.ask(COORDINATOR, Open(600_000, POOL, ()))
    assert isinstance(opened, Opened)
    return range(opened.first_sequence, sum(opened))


async def end(requests: Asker, sequences: range) -> None:
    """Commits them all; returns when they have ended."""
    ends = [End(it, committed=True, written=(), wait_visible=True) for it in sequences]
    answers = await asyncio.gather(*(requests.ask(COORDINATOR, it) for it in ends))
    assert set(answers) == {Done()}


async def test_a_log_is_trimmed_and_recovered_from(bootstrap: str, admin: LogAdmin, tmp_path: Path):
    """C8: its start moves under load; SIGKILL costs nothing; idle, its last entry is left."""
    options = ("--instance-id", "trimming")
    async with AsyncExitStack() as stack:
        first = WorkerProcess(bootstrap, tmp_path / "first.log", *options)
        await stack.enter_async_context(first)
        await first.serving()
        requests = await requests_to(bootstrap, stack)
        held = await open_pool(requests)
        ended = 0
        async with asyncio.timeout(DEADLINE_S):
            while (await bounds(admin))[0] == 0:
                await end(requests, await open_pool(requests))
                ended += POOL
        await first.kill()
        second = WorkerProcess(bootstrap, tmp_path / "second.log", *options)
        await stack.enter_async_context(second)
        await second.serving()
        listed = await requests.ask(COORDINATOR, ListTransactions())
        assert isinstance(listed, Listed)
        left_open = [it.sequence for it in listed.transactions if it.state == "OPEN"]
        assert left_open == list(held)
        assert await open_pool(requests) == range(POOL + ended, 2 * POOL + ended)
        late = await requests.ask(COORDINATOR, End(POOL, True, (), False))
        assert late == Refused(f"transaction {POOL} has ended")
        await end(requests, held)
        await end(requests, range(POOL + ended, 2 * POOL + ended))
        began = time.monotonic()
        while (log := await bounds(admin))[0] < log[1] - 1:
            assert time.monotonic() - began < TRIM_S_MAX, log
