"""What history leaves behind: recovery, the log on the broker, and the worker's memory.

One coordinator finishes a million transactions, with a marker on one partition each, then holds
10 000 open ones, beside which others finish; its worker is killed and started again, and the open
ones end. Requests go to the
coordinator in bulk, as pools of clients send them; every `End` is answered when it is visible.

The outcomes of the million (C12) are part of what is recovered: the worker is killed and started
some times with them, and then without them.

Sizes: FINISHED, OPEN.
"""

import asyncio
import re
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.demo.worker_process import STATIC_MEMBER, WorkerProcess
from stilltide.pipeline.drivers.service.ask.requests import COORDINATOR_SERVICE, Requests
from stilltide.schemas.coordinator.transactions import (
    Describe,
    Description,
    End,
    Open,
    Opened,
    Registered,
    Written,
)
from stilltide.schemas.service.envelopes import Done
from stilltide.schemas.topics import TXN_LOG, TopicSpec
from stilltide.schemas.values import EndOffset, Offset, TopicPartition
from tests.bench.harness import report, rss_mib, size

TOPIC = "bench"
COORDINATORS = PARTITIONS = 4
FIRST = 100_000
FINISHED = size("FINISHED", 1_000_000)
OPEN = size("OPEN", 10_000)
POOL = 1000
BOUNDS = {
    "STILLTIDE_CLIENT_TRANSACTIONS_MAX": str(2 * OPEN),
    "STILLTIDE_CLIENT_PARTITIONS_MAX": str(2 * OPEN),
}
"""One client has all of the open transactions (C16)."""

AT_ONCE = 4
"""Pools under way together."""

TIMEOUT_MS = 15 * 60 * 1000
BESIDE = 100_000
"""Transactions that finish beside the open ones, and as many before that."""

SLOWED_MAX = 1.1
OPEN_MIB_MAX = 500.0
RECOVERY_S_MAX = 5.0
TRIM_S_MAX = 5.0
GROWTH_MAX = 1.2
DEADLINE_S = 60.0
RESTARTS = 3
OUTCOMES_MAX = 1.1
DESCRIBES = 200
DESCRIBE_MS_MAX = 20.0


class Pools:
    """Opens and ends transactions at one coordinator, a pool at a time."""

    def __init__(self, requests: Requests, registered: Registered) -> None:
        self._requests = requests
        self._open = Open(TIMEOUT_MS, POOL, (registered,))
        self._written = (Written(registered.data, Offset(0), EndOffset(1), 1),)

    async def open(self) -> list[int]:
        """One pool; its sequences."""
        answer = await self._requests.ask(self._requests.home, self._open)
        assert isinstance(answer, Opened)
        return list(range(answer.first_sequence, sum(answer)))

    async def end(self, sequences: list[int]) -> None:
        """Commits them; returns when every marker is written."""
        ask, home = self._requests.ask, self._requests.home
        ends = [End(it, True, self._written, wait_visible=True) for it in sequences]
        answers = await asyncio.gather(*(ask(home, end) for end in ends))
        assert all(isinstance(answer, Done) for answer in answers)

    async def finish(self, count: int) -> None:
        """Opens and ends so many."""
        pools = iter(range(count // POOL))

        async def work() -> None:
            for number in pools:
                await self.end(await self.open())
                if number % 100 == 99:
                    say(f"recovery: {(number + 1) * POOL} of {count} finished")

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))

    async def end_all(self, held: Sequence[list[int]]) -> None:
        """Commits all of these pools."""
        pools = iter(held)

        async def work() -> None:
            for sequences in pools:
                await self.end(sequences)

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))

    async def describe_ms(self, sequences: Sequence[int]) -> float:
        """The median time of an answer about one of these."""
        took: list[float] = []
        for number in range(DESCRIBES):
            began = time.perf_counter()
            body = Describe(sequences[number % len(sequences)])
            answer = await self._requests.ask(self._requests.home, body)
            took.append((time.perf_counter() - began) * 1000)
            assert isinstance(answer, Description)
        return median(took)


async def run() -> None:
    """Measures, prints and writes the case."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(LocalCluster("a", directory / "a", heap="512m"))
        connector = KafkaConnector(KafkaConfig(bootstrap_servers=cluster.bootstrap))
        admin = connector.admin()
        stack.push_async_callback(admin.close)
        await admin.ensure_topics([TopicSpec(TOPIC, 1)])
        worker = WorkerProcess(
            cluster.bootstrap, directory / "worker.log", *STATIC_MEMBER, environment=BOUNDS
        )
        stack.push_async_callback(worker.stop)
        await worker.start()
        writer = connector.writer("bench")
        stack.push_async_callback(writer.close)
        requests = Requests(
            COORDINATOR_SERVICE,
            connector,
            writer,
            name="bench",
            request_timeout_s=DEADLINE_S,
            resend_s=10,
        )
        await requests.open(partition_count=COORDINATORS, response_partition_count=PARTITIONS)
        stack.push_async_callback(requests.close)
        topic_id = (await admin.describe_topics([TOPIC]))[TOPIC].topic_id
        pools = Pools(requests, Registered(TopicPartition(TOPIC, 0), EndOffset(0), topic_id))
        log = TopicPartition(TXN_LOG, requests.home)
        plain = BOUNDS | {"STILLTIDE_OUTCOME_HISTORY": "0"}
        forgetful = WorkerProcess(
            cluster.bootstrap, directory / "plain.log", *STATIC_MEMBER, environment=plain
        )
        stack.push_async_callback(forgetful.stop)
        rows, more = await _measure(pools, worker, forgetful, admin, log)
    report("recovery", rows, **more)
    say(f"recovery: {more}")


async def _measure(
    pools: Pools,
    worker: WorkerProcess,
    forgetful: WorkerProcess,
    admin: LogAdmin,
    log: TopicPartition,
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    await pools.finish(FIRST)
    early_mib = rss_mib(worker.pid)
    began = time.perf_counter()
    await pools.finish(FINISHED - FIRST)
    per_s = (FINISHED - FIRST) / (time.perf_counter() - began)
    late_mib = rss_mib(worker.pid)
    alone_s = await _finish_s(pools)
    held = [await pools.open() for _ in range(OPEN // POOL)]
    beside_s = await _finish_s(pools)
    newest = FINISHED + 2 * BESIDE + OPEN
    ended, still_open = range(newest - POOL, newest), [one for pool in held for one in pool]
    open_mib = rss_mib(worker.pid)
    more_ms = await pools.describe_ms(ended) - await pools.describe_ms(still_open)
    await worker.kill()
    replayed = (await admin.end_offsets([log]))[log] - (await admin.start_offsets([log]))[log]
    began = time.perf_counter()
    await worker.start()
    restart_s = time.perf_counter() - began
    recovered_s = _recovered_s(worker.log_path, log.partition)
    with_s = await _restarted_s(worker, log.partition)
    await worker.stop()
    await forgetful.start()
    without_s = await _restarted_s(forgetful, log.partition)
    await pools.end_all(held)
    trimmed_s = await _trimmed_s(admin, log)
    rows = [
        _row("recovery", recovered_s, RECOVERY_S_MAX, "s"),
        _row("worker RSS with the open ones", open_mib, OPEN_MIB_MAX, "MiB"),
        _row("others beside the open ones over alone", beside_s / alone_s, SLOWED_MAX, "x"),
        _row("trimmed to the last entry", trimmed_s, TRIM_S_MAX, "s"),
        _row("worker RSS, late over early", late_mib / early_mib, GROWTH_MAX, "x"),
        _row("recovery with outcomes over without", with_s / without_s, OUTCOMES_MAX, "x"),
        _row("describe of an ended one, more than open", more_ms, DESCRIBE_MS_MAX, "ms"),
    ]
    return rows, {
        "worker_restart_s": round(restart_s, 3),
        "recovered_with_outcomes_s": with_s,
        "recovered_without_s": without_s,
        "entries_replayed": replayed,
        "worker_rss_early_mib": round(early_mib),
        "worker_rss_late_mib": round(late_mib),
        "transactions_per_s": round(per_s),
    }


async def _finish_s(pools: Pools) -> float:
    began = time.perf_counter()
    await pools.finish(BESIDE)
    return time.perf_counter() - began


def _recovered_s(log_path: Path, coordinator: int) -> float:
    """What the worker said last about its coordinator's recovery."""
    line = rf"owner_serving\s+.*log={TXN_LOG}/{coordinator}\b.*replayed_ms=(\d+)"
    return int(re.findall(line, log_path.read_text())[-1]) / 1000


async def _restarted_s(worker: WorkerProcess, coordinator: int) -> float:
    """The median time of the coordinator's recovery, of some kills of its worker."""
    took: list[float] = []
    for _ in range(RESTARTS):
        await worker.kill()
        await worker.start()
        took.append(_recovered_s(worker.log_path, coordinator))
    return median(took)


async def _trimmed_s(admin: LogAdmin, log: TopicPartition) -> float:
    """How long until the log holds one entry."""
    began = time.perf_counter()
    async with asyncio.timeout(DEADLINE_S):
        while True:
            start = (await admin.start_offsets([log]))[log]
            if start == (await admin.end_offsets([log]))[log] - 1:
                return time.perf_counter() - began


def _row(setting: str, ours: float, limit: float, unit: str) -> dict[str, Any]:
    return {
        "setting": setting,
        "ours": ours,
        "baseline": limit,
        "ratio": limit / ours,
        "unit": unit,
    }
