"""Buffered writer on against off: same owner, same read-back, same agent, one log.

Off is measured with the producer's own linger of 0, 1 and 5 ms; the best of the three counts.
"""

import asyncio
import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.agents.apps import BufferedWriter, writer_app
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits
from stilltide.pipeline.drivers.buffered_log.owned_log import OwnedLog
from stilltide.schemas.topics import TXN_LOG, system_topics
from stilltide.schemas.values import TopicPartition
from tests.bench.harness import Run, closed_loop, middle, report, rotated
from tests.support.buffered_log.appending import append_and_wait
from tests.support.buffered_log.owner import BYTES, Listener

CALLERS = (1, 16, 64, 256, 2048)
ROUNDS = 5
SECONDS = 1.5
WARM_UP_SECONDS = 12.0
RECORD = b"\x7a\x5f" + b"x" * 95  # 97 bytes; any valid field will do

SETTINGS: dict[str, tuple[BatchLimits, float]] = {
    "eager": (BatchLimits(), 0.0),
    "timer": (BatchLimits(eager=False), 0.0),
    "linger 0": (BatchLimits(batching=False), 0.0),
    "linger 1": (BatchLimits(batching=False), 1.0),
    "linger 5": (BatchLimits(batching=False), 5.0),
}
UNBATCHED = ("linger 0", "linger 1", "linger 5")


async def run() -> None:
    """Measures, prints and writes the case."""
    runs: dict[tuple[str, int], list[Run]] = {}
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(LocalCluster("a", directory / "a", heap="512m"))
        connector = KafkaConnector(KafkaConfig(bootstrap_servers=cluster.bootstrap))
        admin = connector.admin()
        await admin.ensure_topics(system_topics(coordinators=len(SETTINGS), partitions=1))
        app = writer_app(load_settings(), directory)
        agent = BufferedWriter(app)
        app.finalize()
        await app.start()
        pump = asyncio.create_task(agent.run())
        logs = {name: await _open_log(stack, connector, agent, name) for name in SETTINGS}
        for log in logs.values():  # the broker compiles its code; nobody shall pay for it alone
            for callers in (1, 64):
                seconds = WARM_UP_SECONDS / len(logs)
                await closed_loop(partial(append_and_wait, log, RECORD), callers, seconds)
        for number in range(ROUNDS):
            for callers in CALLERS:
                for name in rotated(list(SETTINGS), number + callers):
                    log, data = logs[name], logs[name].partition
                    before = (await admin.end_offsets([data]))[data]
                    append = partial(append_and_wait, log, RECORD)
                    done = await closed_loop(append, callers, SECONDS)
                    entries = (await admin.end_offsets([data]))[data] - before
                    done.extra["records_per_entry"] = done.operations / entries
                    runs.setdefault((name, callers), []).append(done)
            say(f"writer: round {number + 1} of {ROUNDS}")
        pump.cancel()
        await app.stop()
    report("writer", [_row(runs, callers) for callers in CALLERS])


async def _open_log(
    stack: AsyncExitStack,
    connector: KafkaConnector,
    agent: BufferedWriter,
    name: str,
) -> OwnedLog:
    partition = list(SETTINGS).index(name)
    limits, linger_ms = SETTINGS[name]
    listener = Listener()
    log = OwnedLog(
        connector,
        TopicPartition(TXN_LOG, partition),
        BYTES,
        limits,
        writer=connector.writer(f"bench-{partition}", linger_ms=linger_ms),
        entries=agent,
        listener=listener,
    )
    task = asyncio.create_task(log.run())
    stack.callback(task.cancel)
    await listener.serving.wait()
    return log


def _row(runs: dict[tuple[str, int], list[Run]], callers: int) -> dict[str, Any]:
    rates = {name: middle(runs[name, callers], "per_s") for name in SETTINGS}
    best = max(UNBATCHED, key=rates.__getitem__)
    eager = runs["eager", callers]
    return {
        "setting": callers,
        "ours": rates["eager"],
        "baseline": rates[best],
        "ratio": rates["eager"] / rates[best],
        "unit": "records/s",
        "best_unbatched": best,
        "ours_p99_ms": middle(eager, "p99_ms"),
        "baseline_p99_ms": middle(runs[best, callers], "p99_ms"),
        "records_per_entry": middle(eager, "records_per_entry"),
        "timer": rates["timer"],
    }
