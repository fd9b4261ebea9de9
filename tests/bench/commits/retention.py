"""What kept markers cost those who commit: two clusters in turn, one keeps markers (E9).

A transaction writes 10 records over 3 partitions and commits. Both clusters and their workers run
all the time; in each round one is loaded after the other, and the order alternates.
"""

from contextlib import AsyncExitStack
from statistics import median
from typing import Any

from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.pipeline.interpreter import tune
from stilltide.schemas.topics import TopicSpec
from tests.bench.commits.native_loops import PARTITIONS, RECORDS, TOPIC, VALUE
from tests.bench.commits.served import served
from tests.bench.harness import closed_loop, report, size

RETENTION_MS = {"kept": 24 * 3600 * 1000, "deleted": 0}
CONCURRENCY = (32, 256)
ROUNDS = size("ROUNDS", 10)
SECONDS = 3.0
WARM_UP_SECONDS = 30.0
RATIO_MIN = 0.97


async def run() -> None:
    """Measures, prints and writes the case."""
    async with AsyncExitStack() as stack:
        clients = {name: await _client(stack, name) for name in RETENTION_MS}
        for client in clients.values():
            await closed_loop(lambda at=client: _transaction(at), 256, WARM_UP_SECONDS)
        tune()
        ratios: dict[int, list[float]] = {it: [] for it in CONCURRENCY}
        for number in range(ROUNDS):
            names = list(clients) if number % 2 else list(reversed(clients))
            for concurrency in CONCURRENCY:
                per_s: dict[str, float] = {}
                for name in names:
                    done = await closed_loop(
                        lambda at=clients[name]: _transaction(at), concurrency, SECONDS
                    )
                    per_s[name] = done.per_s
                ratios[concurrency].append(per_s["kept"] / per_s["deleted"])
            say(f"retention: round {number + 1} of {ROUNDS}")
    report("retention", [_row(*one) for one in ratios.items()])


async def _client(stack: AsyncExitStack, name: str) -> TransactionClient:
    environment = {"STILLTIDE_MARKER_RETENTION_MS": str(RETENTION_MS[name])}
    connector = (await served(stack, TopicSpec(TOPIC, PARTITIONS), environment)).connector
    return await stack.enter_async_context(TransactionClient(connector=connector))


async def _transaction(client: TransactionClient) -> None:
    async with client.transaction() as txn:
        for number in range(RECORDS):
            await txn.send(TOPIC, VALUE, partition=number % PARTITIONS)


def _row(concurrency: int, ratios: list[float]) -> dict[str, Any]:
    ratio = median(ratios)
    return {
        "setting": f"commits, {concurrency} open: markers kept over deleted",
        "ours": ratio,
        "baseline": RATIO_MIN,
        "ratio": ratio / RATIO_MIN,
        "unit": "x",
        "lowest": min(ratios),
        "highest": max(ratios),
    }
