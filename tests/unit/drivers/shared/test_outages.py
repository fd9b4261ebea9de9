"""Calls that are repeated while the cluster is away."""

import asyncio

import pytest

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.drivers.shared import outages
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.errors import UnavailableError
from stilltide.schemas.retry import Retry
from stilltide.schemas.topics import TXN_MARKERS

RETRY = Retry(0.001)


async def test_a_call_without_a_limit_waits_for_the_cluster():
    """B9: it has its result when the cluster is back, however many tries that takes."""
    broker = MemoryBroker()
    admin = MemoryConnector(broker).admin()
    guard = OutageGuard(admin, retry=RETRY)
    tries = 0

    async def attempt() -> int:
        nonlocal tries
        tries += 1
        await admin.describe_topics([TXN_MARKERS])
        return tries

    broker.down()
    waiting = asyncio.create_task(guard.call(attempt))
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    broker.up()
    assert await waiting == 2


async def test_a_limit_ends_the_wait_and_names_the_cause():
    """A wrong address must be told."""
    broker = MemoryBroker()
    admin = MemoryConnector(broker).admin()
    broker.down()
    guard = OutageGuard(admin, timeout_s=0.05, retry=RETRY)
    with pytest.raises(UnavailableError, match=r"away for 0\.05 s") as caught:
        await guard.call(admin.describe_topics, [TXN_MARKERS])
    assert "no answer from memory" in caught.value.detail


async def test_a_call_that_fails_while_the_cluster_answers_ends(monkeypatch: pytest.MonkeyPatch):
    """A client that has lost its brokers for good is not waited for; a read may rest."""
    monkeypatch.setattr(outages, "STUCK_S", 0.05)
    guard = OutageGuard(MemoryConnector(MemoryBroker()).admin(), retry=RETRY)

    async def lost() -> None:
        raise RetriableError("no brokers")

    with pytest.raises(UnavailableError, match="the cluster answers"):
        await guard.call(lost)
    reading = asyncio.create_task(guard.read(lost))
    done, _ = await asyncio.wait([reading], timeout=0.2)
    assert not done
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
