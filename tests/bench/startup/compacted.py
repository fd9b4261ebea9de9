"""What compacted topics cost: the start of a worker on a long history, and their size.

`start`: 1 GiB of snapshot ends, of which the last one of each data partition counts, and a day of
buckets and updates of links and groups. A worker starts with nothing, with the topics as a worker
creates them (E10), and with the brokers' defaults; the time is until every partition is recovered.
`size`: an hour of the same traffic, written `FASTER` times as fast, with the times of E10 shortened
as much; 32 MiB segments are not.
"""

import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from aiohttp import ClientSession
from confluent_kafka import Producer

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.demo.worker_process import STATIC_MEMBER, WorkerProcess
from stilltide.schemas.replication import positions, signals
from stilltide.schemas.replication.origins import topic_incarnation
from stilltide.schemas.snapshots.snapshots import SnapshotEnd, encode_end, end_key
from stilltide.schemas.topics import (
    REPLICATION_MARKERS,
    REPLICATION_POSITIONS,
    TXN_SNAPSHOTS,
    TopicSpec,
    system_partition,
    system_topics,
)
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition
from tests.bench.harness import cpu_s, looks, report, size

TOPIC = "orders"
DATA = [TopicPartition(TOPIC, number) for number in range(16)]
LINKED = DATA[:4]
SYSTEM_PARTITIONS = 4
A, B = ClusterName("a"), ClusterName("b")
IDS = 2000
"""Aborted transactions in an end: about 8 KiB."""

BUCKET_SPAN = 10_000
HOUR_S, DAY_S = 3600, 86_400
SNAPSHOT_S = 5
MIB = 1024 * 1024
STEADY_S = 10.0
START_S_MAX = 10.0
BROKER_START_S_MAX = 300.0
"""On a machine that does other things, too."""

TIMES = ("segment.ms", "max.compaction.lag.ms", "delete.retention.ms")
WITH, WITHOUT = "E10", "the brokers' defaults"

Write = tuple[str, TopicPartition, bytes, bytes]
"""System topic, data partition, key and value."""


def ends(topic_id: bytes, count: int) -> Iterator[Write]:
    """Ends of all data partitions in turn, each replacing the last one of its partition."""
    rng = random.Random(1)
    values: list[bytes] = []
    for _ in range(64):
        ids = sorted(rng.sample(range(IDS * 10_000), IDS))
        end = SnapshotEnd(
            topic_id, EndOffset(0), EndOffset(0), 1, (), {0: ids}, {}, EndOffset(0), ()
        )
        values.append(encode_end(end))
    for number in range(count):
        data = DATA[number % len(DATA)]
        yield TXN_SNAPSHOTS, data, end_key(data), values[number % 61]


def replicated(topic_id: bytes, seconds: int, per_s: int) -> Iterator[Write]:
    """Each transaction of a link from b writes a bucket; each look at a group writes an update."""
    incarnation, source = topic_incarnation(topic_id), b"b" * 8
    for number in range(seconds * per_s):
        for data in LINKED:
            at, copied = number * 100 // BUCKET_SPAN, EndOffset(number * 100 + 100)
            first = Offset(at * BUCKET_SPAN)
            bucket = positions.Bucket(source, incarnation, first, copied, first, copied, {})
            key = positions.BucketKey(B, A, data, at)
            yield (
                REPLICATION_POSITIONS,
                data,
                positions.encode_key(key),
                positions.encode_bucket(bucket),
            )
            update = signals.Update(0, incarnation, Offset(copied), {})
            yield (
                REPLICATION_MARKERS,
                data,
                signals.encode_key(signals.UpdateKey(data, A, "billing")),
                signals.encode_value(update),
            )


def write(bootstrap: str, records: Iterator[Write]) -> dict[str, int]:
    """Writes records; the bytes of keys and values by topic."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.size": MIB})
    written: dict[str, int] = {}
    for topic, data, key, value in records:
        while True:
            try:
                producer.produce(topic, value, key, system_partition(data, SYSTEM_PARTITIONS))
                break
            except BufferError:
                producer.poll(0.1)
        written[topic] = written.get(topic, 0) + len(key) + len(value)
    assert producer.flush(120) == 0
    return written


def held_mib(directory: Path, topic: str) -> float:
    """The size of the segments of a topic."""
    folders = (directory / "kafka").glob(f"{topic}-[0-9]*")
    found = [file.stat().st_size for folder in folders for file in _files(folder)]
    return sum(found) / MIB


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*.log") if file.exists()]


async def cleaned(directory: Path) -> None:
    """Returns when the cleaner has left the size of txn-snapshots alone for some seconds."""
    last, since_s = -1.0, 0.0
    async for now_s in looks(1.0, wait_s=900):
        held = held_mib(directory, TXN_SNAPSHOTS)
        if held != last:
            last, since_s = held, now_s
        elif now_s - since_s > STEADY_S:
            return


@asynccontextmanager
async def cluster(
    directory: Path, *, bounded: bool, configs: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[str, bytes]]:
    """A broker with the system topics and a data topic; its address, and the data topic's id."""
    made = LocalCluster("a", directory, heap="512m", fast_start=True)
    made.start(BROKER_START_S_MAX)
    with made:
        admin = KafkaConnector(KafkaConfig(made.bootstrap)).admin()
        specs = system_topics(coordinators=SYSTEM_PARTITIONS, partitions=SYSTEM_PARTITIONS)
        if not bounded:
            specs = [replace(spec, wanted={}) for spec in specs]
        if configs is not None:
            specs = [
                replace(spec, wanted={**spec.wanted, **configs})
                if "segment.ms" in spec.wanted
                else spec
                for spec in specs
            ]
        await admin.ensure_topics([*specs, TopicSpec(TOPIC, len(DATA))])
        topic_id = (await admin.describe_topics([TOPIC]))[TOPIC].topic_id
        await admin.close()
        yield made.bootstrap, topic_id
    shutil.rmtree(directory)


async def start_s(bootstrap: str, log_path: Path) -> tuple[float, float]:
    """Seconds until a worker is ready, with every partition recovered; and its processor time."""
    worker = WorkerProcess(
        bootstrap, log_path, *STATIC_MEMBER, environment={"STILLTIDE_CLUSTERS": f"a={bootstrap}"}
    )
    began = time.perf_counter()
    await worker.start()
    try:
        async with ClientSession() as session:
            async for _ in looks(0.1, wait_s=600):
                async with session.get(f"{worker.web}/readyz") as answer:
                    if answer.status == 200:
                        return time.perf_counter() - began, cpu_s(worker.pid)
    finally:
        await worker.kill()
    raise AssertionError


async def starts(directory: Path, *, bounded: bool) -> list[dict[str, Any]]:
    """Rows of starts without and with history, on topics with E10 or with defaults."""
    rounds = size("ROUNDS", 3)
    name = WITH if bounded else WITHOUT
    rows: list[dict[str, Any]] = []
    async with cluster(directory, bounded=bounded) as (bootstrap, topic_id):

        async def measure(history: str) -> None:
            held = sum(held_mib(directory, it) for it in _WRITTEN)
            found = [await start_s(bootstrap, directory / "worker.log") for _ in range(rounds)]
            say(f"compacted: {name}, {history}: {held:.0f} MiB, {found} s")
            rows.append(
                {
                    "what": "start, s",
                    "topics": name,
                    "history": history,
                    "held_mib": held,
                    "measured": median(one for one, _ in found),
                    "processor_s": median(one for _, one in found),
                    "limit": START_S_MAX,
                }
            )

        await measure("none")
        one = len(next(ends(topic_id, 1))[3])
        count = size("ENDS_MIB", 1024) * MIB // one
        write(bootstrap, ends(topic_id, count))
        write(bootstrap, replicated(topic_id, size("DAY_S", DAY_S), size("PER_S", 2)))
        if bounded:
            await cleaned(directory)
        await measure("1 GiB of ends, a day of links")
    return rows


_WRITTEN: tuple[str, ...] = (TXN_SNAPSHOTS, REPLICATION_POSITIONS, REPLICATION_MARKERS)


async def sizes(directory: Path) -> list[dict[str, Any]]:
    """Rows of the sizes of the topics after an hour, and the bytes that were written."""
    faster, per_s = size("FASTER", 20), size("PER_S", 2)
    spec = next(
        it for it in system_topics(coordinators=1, partitions=1) if it.name == TXN_SNAPSHOTS
    )
    times = {name: str(int(spec.wanted[name]) // faster) for name in TIMES}
    written = dict.fromkeys(_WRITTEN, 0)
    peak = dict.fromkeys(_WRITTEN, 0.0)
    async with cluster(directory, bounded=True, configs=times) as (bootstrap, topic_id):
        simulated_s = 0
        links = replicated(topic_id, HOUR_S, per_s)
        snapshots = ends(topic_id, HOUR_S // SNAPSHOT_S * len(DATA))
        async for now_s in looks(SNAPSHOT_S / faster, wait_s=HOUR_S / faster * 4):
            due_s = min(int(now_s * faster), HOUR_S) // SNAPSHOT_S * SNAPSHOT_S
            for records, each in (
                (snapshots, (due_s - simulated_s) // SNAPSHOT_S * len(DATA)),
                (links, (due_s - simulated_s) * per_s * len(LINKED) * 2),
            ):
                taken = (next(records) for _ in range(each))
                more = await asyncio.to_thread(write, bootstrap, taken)
                for topic, count in more.items():
                    written[topic] += count
            simulated_s = due_s
            for topic in _WRITTEN:
                peak[topic] = max(peak[topic], held_mib(directory, topic))
            if simulated_s == HOUR_S:
                break
        return [
            {
                "what": f"size of {topic}, MiB",
                "topics": WITH,
                "history": f"an hour, {written[topic] / MIB:.1f} MiB written",
                "held_mib": held_mib(directory, topic),
                "measured": peak[topic],
                "processor_s": "-",
                "limit": "-",
            }
            for topic in _WRITTEN
        ]


async def run() -> None:
    """Measures, prints and writes the case."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        rows = await starts(directory / "with", bounded=True)
        if size("COMPARE", 1):
            rows += await starts(directory / "without", bounded=False)
        rows += await sizes(directory / "size")
    report("compacted", rows)
