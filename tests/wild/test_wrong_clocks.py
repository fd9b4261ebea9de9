"""A wall clock is wrong, or jumps by hours, while workers, clients, links and groups run.

A user saw: after NTP had set a worker's clock back by two hours, retries and time-outs waited for
two hours; after a jump ahead, every open transaction was aborted at once.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.clock import WrongClock
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.core.coordinator.machine import Coordinator, Propose
from stilltide.pipeline.core.groups.controller import SyncMode
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.schemas.coordinator.transactions import Open, TimedOut, TxnLogRecord
from stilltide.schemas.replication.positions import beat_key
from stilltide.schemas.service.envelopes import Request
from stilltide.schemas.topics import REPLICATION_POSITIONS, TXN_SNAPSHOTS, TopicSpec
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.coordinator.worker_memory import MemoryWorker
from tests.support.groups.clusters import replicated
from tests.support.links.memory_link import OPTIONS, MemoryCluster, linked, until

TWO_HOURS_MS = 2 * 60 * 60 * 1000
JUMPS = [pytest.param(TWO_HOURS_MS, id="ahead"), pytest.param(-TWO_HOURS_MS, id="back")]
DATA = TopicPartition("orders", 0)
IN_TIME_S = 30.0
"""Far above what everything here takes, and far below the jump."""


@asynccontextmanager
async def working(clock: WrongClock) -> AsyncIterator[tuple[MemoryBroker, TransactionClient]]:
    """A worker with snapshot writers, and a client, on this clock."""
    broker = MemoryBroker()
    broker.create_topic(TopicSpec("orders", 1))
    connector = MemoryConnector(broker, clock=clock)
    limits = SnapshotLimits(interval_ms=50)
    async with (
        MemoryWorker(connector, snapshots=limits),
        TransactionClient(connector=connector) as client,
        asyncio.timeout(IN_TIME_S),
    ):
        yield broker, client


@pytest.mark.parametrize("jump_ms", JUMPS)
async def test_an_open_transaction_outlives_a_jump(jump_ms: int):
    """C7: its time-out counts time that has passed, not what the wall clock says."""
    clock = WrongClock()
    async with working(clock) as (_, client), client.transaction() as txn:
        await txn.send("orders", b"o")
        await txn.flush()
        clock.ahead_ms += jump_ms
        async with client.transaction() as another:  # the coordinator has ticked since
            await another.send("orders", b"p")
        await txn.commit(wait_visible=True)


@pytest.mark.parametrize("jump_ms", JUMPS)
async def test_a_transaction_times_out_in_time_after_a_jump(jump_ms: int):
    """C7: neither at once, nor two hours late; before the jump and after it."""
    clock = WrongClock()
    async with working(clock) as (_, client):
        before = await client.transaction(timeout_s=0.5).__aenter__()
        await before.send("orders", b"o")
        await before.flush()
        clock.ahead_ms += jump_ms
        after = await client.transaction(timeout_s=0.5).__aenter__()
        await after.send("orders", b"o")
        await after.flush()
        for txn in (before, after):
            assert txn.id is not None
            while await client.outcome(txn.id) != "aborted":
                pass


@pytest.mark.parametrize("ahead_ms", [TWO_HOURS_MS, -TWO_HOURS_MS])
def test_the_next_owner_does_not_believe_a_moment_to_come(ahead_ms: int):
    """C7: the former owner's clock was ahead or behind; nothing is open for two hours more."""
    opened_ms, now_ms, timeout_ms = 10_000_000, 5000, 60_000
    wall_ahead_ms = opened_ms - ahead_ms - now_ms
    next_owner = Coordinator(0, wall_ahead_ms=wall_ahead_ms)
    opening = TxnLogRecord(Request(bytes(16), 1, 0, 0, Open(timeout_ms, 1, ())), opened_ms)
    next_owner.applied(Offset(0), [opening], own=False, now_ms=now_ms)
    next_owner.serve(Offset(1), now_ms)
    assert Propose(TimedOut(0)) in next_owner.tick(now_ms + timeout_ms)


@pytest.mark.parametrize("jump_ms", JUMPS)
async def test_snapshots_go_on_after_a_jump(jump_ms: int):
    """E7: the next one is due `interval_ms` later, not two hours later."""
    clock = WrongClock()
    async with working(clock) as (broker, client):

        def snapshots() -> int:
            logs = (TopicPartition(TXN_SNAPSHOTS, number) for number in range(2))
            return sum(len(broker.records(it)) for it in logs)

        for _ in range(3):
            async with client.transaction() as txn:
                await txn.send("orders", b"o")
                await txn.flush()
                before = snapshots()
                await txn.abort()
            clock.ahead_ms += jump_ms
            await until(lambda: snapshots() > before)  # noqa: B023 - called before the next


@pytest.mark.parametrize("jump_ms", JUMPS)
async def test_a_link_goes_on_after_a_jump(jump_ms: int):
    """H4, I13: its transactions, positions and beats are due by time that passes."""
    a, b, clock = MemoryCluster("a"), MemoryCluster("b", orders=0), WrongClock()
    options = replace(OPTIONS, limits=replace(OPTIONS.limits, beat_interval_ms=50))

    def beats() -> int:
        records = b.broker.records(TopicPartition(REPLICATION_POSITIONS, 0))
        return sum(beat_key(it.key) is not None for it in records)

    async with asyncio.timeout(IN_TIME_S), linked(a, b, options, clock):
        for number in range(3):
            a.write(b"%d" % number)
            await until(lambda: len(b.values()) > number)  # noqa: B023 - called before the next
            before = beats()
            clock.ahead_ms += jump_ms
            await until(lambda: beats() > before)  # noqa: B023 - as above


@pytest.mark.parametrize("mode", [SyncMode.EXACT, SyncMode.SNAPSHOT])
@pytest.mark.parametrize("jump_ms", JUMPS)
async def test_a_group_is_carried_over_after_a_jump(jump_ms: int, mode: SyncMode):
    """I1, I8: rounds and position snapshots are due by time that passes, on either cluster."""
    async with asyncio.timeout(IN_TIME_S), replicated("ab", "g", mode=mode) as sites:
        a, b = sites["a"], sites["b"]
        for number, jumping in enumerate((a, b, a), 1):
            a.write(b"%d" % number)
            await sites.until(lambda: b.end() and b.values()[-1:] == a.values()[-1:])
            a.commit("g", a.stable_end())
            await sites.until(lambda: (b.committed("g") or 0) >= number)  # noqa: B023 - as above
            jumping.clock.ahead_ms += jump_ms
