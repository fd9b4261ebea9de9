"""A publish against a link to another cluster, and how soon a committed record is published.

Rates: both copy a topic of a million records of 100 bytes in one partition, in turn within one run,
into topics of their own: the publish within cluster a, the link from a to b. Rates are of the
target's log, from a tenth of the records on to the last, as in `replication.link`.

Latency: from the return of a commit of one record to the moment at which a consumer of committed
records has it from the published topic, one transaction at a time, with a worker of its own.

Sizes: RECORDS, ROUNDS, COMMITS.
"""

import asyncio
import sys
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.client import TransactionClient
from stilltide.schemas import values
from tests.bench.harness import Run, middle, report, rotated, size, summary
from tests.bench.replication.copiers import (
    WAIT_S,
    Pair,
    create,
    fill,
    link_command,
    running,
    running_pair,
)
from tests.bench.replication.link import COPIER, copied_per_s
from tests.bench.spent import cpu_us
from tests.support.processes.worker_process import WorkerProcess

PUBLISH, LINK = "publish", "link"


async def run() -> None:
    """Measures and reports."""
    records, rounds = size("RECORDS", 1_000_000), size("ROUNDS", 3)
    with running_pair() as pair:
        results = await _rounds(pair, records, rounds)
        latency = await _latency(pair, size("COMMITS", 300))
    report("publish", [_row(results, latency)])


def publish_command(pair: Pair, source: str, target: str) -> list[str]:
    """A publish on cluster a."""
    publish = [sys.executable, "-m", "stilltide", "publish", source, "--to", target]
    return [*publish, "--bootstrap-servers", pair.a.bootstrap]


async def _rounds(pair: Pair, records: int, rounds: int) -> dict[str, list[Run]]:
    results: dict[str, list[Run]] = {name: [] for name in (PUBLISH, LINK)}
    admins = {
        name: KafkaConnector(KafkaConfig(cluster.bootstrap)).admin()
        for name, cluster in ((PUBLISH, pair.a), (LINK, pair.b))
    }
    for turn in range(rounds):
        for name in rotated(list(results), turn):
            topic = f"bench-{turn}-{name}"
            await create(pair.a.bootstrap, topic)
            await asyncio.to_thread(fill, pair.a.bootstrap, topic, 0, records)
            copied = topic if name == LINK else f"{topic}.committed"
            command = link_command(pair, topic)
            if name == PUBLISH:
                command = publish_command(pair, topic, copied)
            copies = [values.TopicPartition(copied, 0)]
            found, _ = await copied_per_s(admins[name], pair, command, copies, records)
            say(f"round {turn + 1} of {rounds}: {name}: {found.per_s:,.0f}/s, {found.cpu_us}")
            results[name].append(found)
    for admin in admins.values():
        await admin.close()
    return results


async def _latency(pair: Pair, commits: int) -> Run:
    """Commits one record after the other, each as soon as the one before is published."""
    source, target = "latency", "latency.committed"
    await create(pair.a.bootstrap, source)
    async with WorkerProcess(pair.a.bootstrap, pair.directory / "worker.log") as worker:
        await worker.serving()
        with running(publish_command(pair, source, target), pair.directory / "latency.log"):
            return await asyncio.to_thread(asyncio.run, _commits(pair, source, target, commits))


async def _commits(pair: Pair, source: str, target: str, commits: int) -> Run:
    latencies: list[float] = []
    async with TransactionClient(pair.a.bootstrap) as client:
        await _commit(client, source)
        consumer = await asyncio.to_thread(_at_first_record, pair, target)
        began = time.perf_counter()
        for _ in range(commits):
            await _commit(client, source)
            committed = time.perf_counter()
            await asyncio.to_thread(_next, consumer)
            latencies.append(time.perf_counter() - committed)
        consumer.close()
    return summary(latencies, time.perf_counter() - began)


async def _commit(client: TransactionClient, topic: str) -> None:
    async with client.transaction() as txn:
        await txn.send(topic, b"1", partition=0)


def _at_first_record(pair: Pair, topic: str) -> Consumer:
    """A consumer of committed records that has read the first one; waits for the topic."""
    options = {
        "bootstrap.servers": pair.a.bootstrap,
        "group.id": "latency",
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 500,
        "allow.auto.create.topics": False,
    }
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        consumer = Consumer(options)
        if topic in consumer.list_topics(timeout=WAIT_S).topics:
            consumer.assign([TopicPartition(topic, 0, 0)])
            _next(consumer)
            return consumer
        consumer.close()
    raise AssertionError(f"nobody has made {topic}")


def _next(consumer: Consumer) -> None:
    message = consumer.poll(WAIT_S)
    assert message is not None, "nothing was published"
    assert message.error() is None, message.error()


def _row(results: Mapping[str, list[Run]], latency: Run) -> dict[str, Any]:
    publish, link = results[PUBLISH], results[LINK]
    rates = [ours.per_s / theirs.per_s for ours, theirs in zip(publish, link, strict=True)]
    return {
        "publish_per_s": middle(publish, "per_s"),
        "link_per_s": middle(link, "per_s"),
        "ratio": median(rates),
        "publish_cpu_us": cpu_us(publish, COPIER),
        "link_cpu_us": cpu_us(link, COPIER),
        "commit_to_published_p50_ms": latency.p50_ms,
        "commit_to_published_p99_ms": latency.p99_ms,
    }
