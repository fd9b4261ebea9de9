"""What kept markers cost at a start: of a worker, a subscription, a batch read, an audit (E9).

One cluster keeps no markers, the other `MARKERS` that snapshots have absorbed. An audit reads the
latest 2 000 000 of them, for their record counts; the others read none.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.cli.snapshot import take_all
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.demo.worker_process import STATIC_MEMBER, WorkerProcess
from stilltide.pipeline.drivers.snapshots.outcomes import gather_evidence
from stilltide.pipeline.jobs.audits.plan import KEPT_MARKERS_MAX
from stilltide.schemas.coordinator.markers import Marker, encode_key, encode_value
from stilltide.schemas.topics import TXN_MARKERS
from stilltide.schemas.values import EndOffset, TxnId
from tests.bench.harness import report, size
from tests.bench.startup.compacted import DATA, MIB, TOPIC, Write, cluster, held_mib, start_s, write

FIRST_SEQUENCE = 10**12
"""Above every sequence that a coordinator gives here."""

ABSORBED_S_MAX = 900.0


def kept(topic_id: bytes, count: int) -> Iterator[Write]:
    """Commit markers of transactions with one record each, over all data partitions."""
    for number in range(count):
        data = DATA[number % len(DATA)]
        txn = TxnId(number % 4, FIRST_SEQUENCE + number)
        marker = Marker(data, txn, True, EndOffset(0), EndOffset(1), 1, topic_id)
        yield TXN_MARKERS, data, encode_key(data, txn), encode_value(marker)


async def prepare(bootstrap: str, log_path: Path, topic_id: bytes, count: int) -> None:
    """Commits a record on each data partition, writes markers, and has snapshots absorb them."""
    worker = WorkerProcess(bootstrap, log_path, *STATIC_MEMBER)
    await worker.start()
    try:
        async with TransactionClient(bootstrap) as client, client.transaction() as txn:
            for data in DATA:
                await txn.send(TOPIC, b"record", partition=data.partition)
        await asyncio.to_thread(write, bootstrap, kept(topic_id, count))
        connector = KafkaConnector(KafkaConfig(bootstrap))
        taken, _ = await take_all(connector, TOPIC, (), ABSORBED_S_MAX)
        assert None not in taken.values()
        evidence = await gather_evidence(connector, [TOPIC])
        assert len(evidence.markers) == 0, "not absorbed"
    finally:
        await worker.kill()


async def timed(work: Callable[[], Awaitable[object]], rounds: int) -> tuple[float, float]:
    """Median seconds on the clock, and of this process's processor time."""
    found: list[tuple[float, float]] = []
    for _ in range(rounds):
        began, began_cpu = time.perf_counter(), time.process_time()
        await work()
        found.append((time.perf_counter() - began, time.process_time() - began_cpu))
    return median(one for one, _ in found), median(one for _, one in found)


async def read_all(bootstrap: str) -> None:
    """A new group reads the one record of each partition."""
    group = f"bench-{time.time_ns()}"
    async with Subscription([TOPIC], group=group, bootstrap_servers=bootstrap) as orders:
        seen = 0
        async for _ in orders:
            seen += 1
            if seen == len(DATA):
                return


async def starts(directory: Path, count: int) -> list[dict[str, Any]]:
    """A row for each program that starts."""
    rounds = size("ROUNDS", 3)
    async with cluster(directory, bounded=True) as (bootstrap, topic_id):
        log_path = directory / "worker.log"
        await prepare(bootstrap, log_path, topic_id, count)
        held = held_mib(directory, TXN_MARKERS)
        say(f"startup_markers: {count} markers, {held:.0f} MiB")
        connector = KafkaConnector(KafkaConfig(bootstrap))
        workers = [await start_s(bootstrap, log_path) for _ in range(rounds)]
        found = {
            "worker": (median(one for one, _ in workers), median(one for _, one in workers)),
            "subscription": await timed(lambda: read_all(bootstrap), rounds),
            "batch read": await timed(lambda: gather_evidence(connector, [TOPIC]), rounds),
            "audit": await timed(
                lambda: gather_evidence(connector, [TOPIC], kept_markers_max=KEPT_MARKERS_MAX), 1
            ),
        }
        return [
            {
                "markers": count,
                "starts": name,
                "wall_s": wall_s,
                "processor_s": processor_s,
                "held_mib": held,
                "bytes_each": held * MIB / count if count else 0.0,
            }
            for name, (wall_s, processor_s) in found.items()
        ]


async def run() -> None:
    """Without and with kept markers, one cluster after the other."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as made:
        for count in (0, size("MARKERS", 10_000_000)):
            rows += await starts(Path(made) / str(count), count)
    report("startup_markers", rows)
