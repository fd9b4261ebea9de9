"""The read-committed filter on real fetches, look-ups in a large index, the indexer's memory.

Producers write batches of one record of 300 bytes in transactions, a third of which abort, to
several partitions of a broker. The whole of it is then fetched, parsed with checksums, and filtered
in one process: `fetched` from the broker, `filtered` once the headers are there. Look-ups are in a
million ranges, searches among a million entries. The indexer reads a million transactions.

Rates and costs are per second of this process's processor time, all its threads together, so that
the broker on the same cores does not count; what the clock on the wall says stands beside.
"""

import asyncio
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Producer

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.readers import FetchedBatches
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.core.native.batch_filter import AbortedRanges, BatchFilter, BatchVerdict
from stilltide.pipeline.core.native.indexer import IndexLimits, PartitionIndexer
from stilltide.schemas.native.transactions import AbortedTransaction, Batch, Control
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import EndOffset, Offset, Range, TopicPartition
from tests.bench.harness import report, rss_mib
from tests.support.native.open_transactions import AbortedEntry
from tests.support.native.transaction_index import TransactionIndex

TOPIC = "bench"
PARTITIONS = 10
PRODUCERS = 3
TRANSACTIONS = 60
BATCHES_EACH = 100
"""Of a transaction, in each partition."""
ROUNDS = 5
RANGES = 1_000_000
LOOKUPS = 500_000
INDEXED = 1_000_000
BATCHES_PER_S_MIN = 100_000.0
LOOKUP_US_MAX = 2.0
SEARCH_US_MAX = 20.0
GROWTH_MIB_MAX = 10.0

Fetch = tuple[Offset, FetchedBatches]
"""The position that was asked for, and the answer."""


def write(bootstrap: str) -> None:
    """Transactions of several producers, interleaved batch by batch."""
    rng = random.Random(1)
    producers = [
        Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"bench-{n}",
                "batch.num.messages": 1,
                "linger.ms": 0,
            }
        )
        for n in range(PRODUCERS)
    ]
    for producer in producers:
        producer.init_transactions(30)
    for _ in range(TRANSACTIONS // PRODUCERS):
        for producer in producers:
            producer.begin_transaction()
        for _ in range(BATCHES_EACH):
            for producer in producers:
                for partition in range(PARTITIONS):
                    producer.produce(TOPIC, rng.randbytes(300), partition=partition)
        for producer in producers:
            producer.flush(60)
            if rng.randrange(3):
                producer.commit_transaction(60)
            else:
                producer.abort_transaction(60)


async def fetch_all(connector: KafkaConnector) -> tuple[list[Fetch], float, float]:
    """All fetches of all partitions, filtered on the way; batches per processor and wall second."""
    reader = connector.batch_reader("bench")
    data = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
    await reader.fetch(data[0], Offset(0), bytes_max=1)  # connected
    fetches: list[Fetch] = []
    began_cpu, began, count = time.process_time(), time.perf_counter(), 0
    for one in data:
        position = Offset(0)
        while (answer := await reader.fetch(one, position)).batches:
            fetches.append((position, answer))
            position = filter_one(position, answer)[0]
            count += len(answer.batches)
            if position >= answer.last_stable_offset:
                break
    cpu_s, wall_s = time.process_time() - began_cpu, time.perf_counter() - began
    await reader.close()
    return fetches, count / cpu_s, count / wall_s


def filter_one(position: Offset, answer: FetchedBatches) -> tuple[Offset, int]:
    """The position after a fetch, and how many batches of it aborted."""
    filter_ = BatchFilter(position, answer.aborted)
    take, aborted = filter_.batch_read, 0
    for batch in answer.batches:
        aborted += take(batch) is BatchVerdict.ABORTED
    return filter_.position, aborted


def filter_all(fetches: list[Fetch]) -> tuple[float, float]:
    """Batches per second of the filter alone, and the share that aborted."""
    count = sum(len(answer.batches) for _, answer in fetches)
    began = time.process_time()
    aborted = sum(filter_one(position, answer)[1] for position, answer in fetches)
    return count / (time.process_time() - began), aborted / count


def lookup_us() -> float:
    """One question to a million ranges, half of them about aborted offsets."""
    ranges, end = AbortedRanges(), 0
    rng = random.Random(1)
    for _ in range(RANGES):
        first = end + rng.randrange(1, 100)
        end = first + rng.randrange(1, 100)
        ranges.append(Range(Offset(first), EndOffset(end)))
    asked = [rng.randrange(end) for _ in range(LOOKUPS)]
    return median(_us_each(lambda: sum(it in ranges for it in asked)) for _ in range(ROUNDS))


def search_us() -> float:
    """One search of ten offsets among a million entries, two of them open at any time."""
    index, rng = TransactionIndex(), random.Random(2)
    for number in range(RANGES):
        first = Offset(10 * number)
        index.append(AbortedEntry(number % 2, first, Offset(first + 19), EndOffset(first + 10)))
    asked = [Offset(rng.randrange(10 * RANGES)) for _ in range(LOOKUPS)]
    return _us_each(lambda: [index.search(it, EndOffset(it + 10)) for it in asked])


def _us_each(ask: Callable[[], object]) -> float:
    """Microseconds of one of the `LOOKUPS` questions that `ask` asks."""
    began = time.process_time()
    ask()
    return (time.process_time() - began) / LOOKUPS * 1e6


def index_many(answer: Any) -> None:
    """In a process of its own: a million transactions, each second one aborts, none merge."""
    indexer = PartitionIndexer(
        TopicPartition("t", 0), bytes(16), None, Offset(0), IndexLimits(delay_ms_max=10**9)
    )
    held: list[float] = []
    written = 0
    for start in range(0, INDEXED, 1000):
        batches: list[Batch] = []
        aborted: list[AbortedTransaction] = []
        for number in range(start, start + 1000):
            base, producer = Offset(2 * number), number % 50
            control = Control.COMMIT if number % 2 else Control.ABORT
            batches.append(Batch(base, base, producer, True, None, 1))
            batches.append(Batch(Offset(base + 1), Offset(base + 1), producer, True, control, 1))
            if control is Control.ABORT:
                aborted.append(AbortedTransaction(producer, base))
        end = EndOffset(2 * (start + 1000))
        for write_ in indexer.fetched(batches, aborted, Offset(0), end, 0):
            written += sum(len(value or b"") for _, value in write_.records)
        if start in (INDEXED // 10, INDEXED - 1000):
            held.append(rss_mib(os.getpid()))
    answer.send((held[1] - held[0], written))


def growth_mib() -> tuple[float, int]:
    """By how much the indexer grows from the first tenth to the end, and what it wrote."""
    context = multiprocessing.get_context("spawn")
    answer, other = context.Pipe(duplex=False)
    process = context.Process(target=index_many, args=(other,))
    process.start()
    found = answer.recv()
    process.join()
    return found


async def run() -> None:
    """Measures, prints and writes the case."""
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalCluster("bench", Path(directory), heap="512m") as cluster,
    ):
        connector = KafkaConnector(KafkaConfig(cluster.bootstrap))
        admin = connector.admin()
        await admin.ensure_topics([TopicSpec(TOPIC, PARTITIONS)])
        await admin.close()
        say(f"batch_filter: {TRANSACTIONS * BATCHES_EACH * PARTITIONS} batches are written")
        await asyncio.to_thread(write, cluster.bootstrap)
        fetched: list[tuple[float, float]] = []
        for _ in range(ROUNDS):
            fetches, *rates = await fetch_all(connector)
            fetched.append((rates[0], rates[1]))
    alone = [filter_all(fetches) for _ in range(ROUNDS)]
    growth, written = growth_mib()
    rows = [
        _row("fetched", median(it for it, _ in fetched), BATCHES_PER_S_MIN, "batches/s"),
        _row("filtered", median(it for it, _ in alone), BATCHES_PER_S_MIN, "batches/s"),
        _row("lookup", lookup_us(), LOOKUP_US_MAX, "us"),
        _row("search", search_us(), SEARCH_US_MAX, "us"),
        _row("indexer growth", max(growth, 0.01), GROWTH_MIB_MAX, "MiB"),
    ]
    more = {
        "batches": sum(len(answer.batches) for _, answer in fetches),
        "fetched_wall_per_s": round(median(it for _, it in fetched)),
        "aborted_share": round(alone[0][1], 3),
        "index_bytes": written,
    }
    report("batch_filter", rows, **more)
    say(f"batch_filter: {more}")


def _row(setting: str, ours: float, baseline: float, unit: str) -> dict[str, Any]:
    """The ratio is above 1 when the limit is kept, whether that is a rate or a cost."""
    ratio = ours / baseline if unit == "batches/s" else baseline / ours
    return {"setting": setting, "ours": ours, "baseline": baseline, "ratio": ratio, "unit": unit}
