"""The way of a commit: processor time of each process and thread for one transaction.

The transactions of `transactions`, by a direct line (J) and by topic, with one open and with many.
A row is one group of threads: those of a process that have the same name but for a number.

Sizes: LOOP_S, OPEN (how many are open when many are).
"""

import os
from contextlib import AsyncExitStack

from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.pipeline.interpreter import tune
from stilltide.schemas.topics import TopicSpec
from tests.bench.commits.native_loops import PARTITIONS, TOPIC
from tests.bench.commits.served import served
from tests.bench.commits.transactions import WARM_UP_SECONDS, transaction_of
from tests.bench.harness import closed_loop, report, size
from tests.bench.threads import ThreadTimes, thread_rows, thread_times

LEAST_US = 5.0
"""Threads that use less are one row, `others`."""


async def run() -> None:
    """Measures and reports."""
    seconds, many = float(size("LOOP_S", 10)), size("OPEN", 256)
    columns: dict[str, ThreadTimes] = {}
    figures: dict[str, dict[str, float]] = {}
    async with AsyncExitStack() as stack:
        _, cluster, connector, worker = await served(stack, TopicSpec(TOPIC, PARTITIONS))
        tune()
        pids = {"client": os.getpid(), "worker": worker.pid, "broker": cluster.pid}
        for way in ("topic", "line"):
            async with TransactionClient(connector=connector, direct_line=way == "line") as client:
                transaction = transaction_of(client)
                await closed_loop(transaction, many, WARM_UP_SECONDS)
                for callers in (1, many):
                    before = thread_times(pids)
                    done = await closed_loop(transaction, callers, seconds)
                    after = thread_times(pids)
                    name = f"{callers} by {way}, µs"
                    columns[name] = {
                        at: 1e6 * (after[at] - before.get(at, 0.0)) / done.operations
                        for at in after
                    }
                    figures[name] = {"per_s": done.per_s, "p50_ms": done.p50_ms}
                    say(f"way: {name}: {done.per_s:.0f} a second, {done.p50_ms:.1f} ms")
    report("way", thread_rows(columns, LEAST_US), figures=figures)
