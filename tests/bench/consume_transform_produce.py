"""Consume, transform, produce: coordinated transactions against Kafka's own.

A transaction consumes one message, writes one, and acknowledges or commits what it consumed.
Ours: one process, 256 in flight. Native: the best of 8, 32 or 64 producers, each in a thread with a
consumer of its own, and `send_offsets_to_transaction`.
"""

import asyncio
import tempfile
import threading
import time
from contextlib import AsyncExitStack
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.demo.worker_process import STATIC_MEMBER, WorkerProcess
from stilltide.pipeline.interpreter import tune
from stilltide.schemas.topics import TopicSpec
from tests.bench.harness import Run, closed_loop, middle, report, summary

CONCURRENCY = 256
PRODUCERS = (8, 32, 64)
ROUNDS = 3
SECONDS = 5.0
WARM_UP_SECONDS = 30.0
SOURCE, TARGET = "bench-in", "bench-out"
SOURCE_PARTITIONS = 32
TARGET_PARTITIONS = 3
RETRY_BACKOFF_MS = 5
"""A producer's next transaction often finds the last one not complete. At the client's default of
100 ms one producer commits ten a second, and 128 are needed for what 32 commit that try sooner."""
INPUT_RECORDS = 500_000
VALUE = b"x" * 100


async def run() -> None:
    """Measures, prints and writes the case."""
    ours: list[Run] = []
    native: dict[int, list[Run]] = {}
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(LocalCluster("a", directory / "a", heap="512m"))
        connector = KafkaConnector(KafkaConfig(bootstrap_servers=cluster.bootstrap))
        topics = [TopicSpec(SOURCE, SOURCE_PARTITIONS), TopicSpec(TARGET, TARGET_PARTITIONS)]
        await connector.admin().ensure_topics(topics)
        worker = WorkerProcess(cluster.bootstrap, directory / "worker.log", *STATIC_MEMBER)
        stack.push_async_callback(worker.stop)
        await worker.start()
        await asyncio.to_thread(_fill, cluster.bootstrap)
        client = await stack.enter_async_context(TransactionClient(connector=connector))
        subscription = await stack.enter_async_context(
            Subscription([SOURCE], group="ours", connector=connector, acknowledgements=True)
        )
        turn = asyncio.Lock()

        async def transform() -> None:
            async with turn:
                message = await anext(subscription)
            async with client.transaction() as txn:
                await txn.acknowledge(subscription, message)
                await txn.send(
                    TARGET, message.value, partition=message.partition % TARGET_PARTITIONS
                )

        say("consume_transform_produce: connecting native producers")
        pairs = await asyncio.to_thread(_pairs, cluster.bootstrap)
        stack.callback(_close, pairs)
        say("consume_transform_produce: warming up")
        # The broker compiles its code for half a minute; neither side shall pay for it alone.
        await closed_loop(transform, CONCURRENCY, WARM_UP_SECONDS)
        await asyncio.to_thread(_native, pairs, WARM_UP_SECONDS)
        tune()
        for number in range(ROUNDS):
            ours.append(await closed_loop(transform, CONCURRENCY, SECONDS))
            for count in PRODUCERS:
                done = await asyncio.to_thread(_native, pairs[:count], SECONDS)
                native.setdefault(count, []).append(done)
            say(f"consume_transform_produce: round {number + 1} of {ROUNDS}")
    best = max(PRODUCERS, key=lambda count: middle(native[count], "per_s"))
    mine, baseline = middle(ours, "per_s"), middle(native[best], "per_s")
    row = {
        "setting": CONCURRENCY,
        "ours": mine,
        "baseline": baseline,
        "ratio": mine / baseline,
        "unit": "messages/s",
        "native_producers": best,
        "ours_p50_ms": middle(ours, "p50_ms"),
        "baseline_p50_ms": middle(native[best], "p50_ms"),
    }
    report("consume_transform_produce", [row])


def _fill(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in range(INPUT_RECORDS):
        producer.produce(SOURCE, VALUE, partition=number % SOURCE_PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
            producer.flush()
    producer.flush()


def _pairs(bootstrap: str) -> list[tuple[Consumer, Producer]]:
    """A consumer with one partition's records, and the producer of its transactions, each."""
    found: list[tuple[Consumer, Producer]] = []
    for number in range(max(PRODUCERS)):
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"native-{number}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.assign([TopicPartition(SOURCE, number % SOURCE_PARTITIONS, 0)])
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"ctp-{number}",
                "linger.ms": 0,
                "retry.backoff.ms": RETRY_BACKOFF_MS,
            }
        )
        producer.init_transactions(30)
        found.append((consumer, producer))
    return found


def _close(pairs: list[tuple[Consumer, Producer]]) -> None:
    """Before the broker ends, or each of them complains of its absence."""
    for consumer, _ in pairs:
        consumer.close()
    pairs.clear()  # a producer ends when nobody has it


def _native(pairs: list[tuple[Consumer, Producer]], seconds: float) -> Run:
    latencies: list[list[float]] = [[] for _ in pairs]
    began = time.perf_counter()
    until = began + seconds

    def transform(consumer: Consumer, producer: Producer, took: list[float]) -> None:
        while (start := time.perf_counter()) < until:
            message = consumer.poll(1.0)
            if message is None or message.error():
                continue
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            producer.begin_transaction()
            producer.produce(TARGET, message.value(), partition=partition % TARGET_PARTITIONS)
            position = TopicPartition(SOURCE, partition, offset + 1)
            producer.send_offsets_to_transaction([position], consumer.consumer_group_metadata(), 30)
            producer.commit_transaction(30)
            took.append(time.perf_counter() - start)

    threads = [
        threading.Thread(target=transform, args=(*pair, took))
        for pair, took in zip(pairs, latencies, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return summary([one for took in latencies for one in took], time.perf_counter() - began)
