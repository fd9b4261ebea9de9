"""Every kind of bad record in every system topic of a broker: no worker ends (B6, B10, C10)."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.drivers.snapshots.client import SnapshotLine
from stilltide.schemas.topics import (
    ABORTED_INDEX,
    REPLICATION_MARKERS,
    REPLICATION_POSITIONS,
    SETTINGS,
    TXN_MARKERS,
    TXN_SNAPSHOTS,
    TopicSpec,
    system_topics,
)
from stilltide.schemas.values import TopicPartition
from tests.support.intruders.kinds import LARGE, Kind, kinds
from tests.support.native.topics import transactional
from tests.support.processes.operator import get
from tests.support.processes.worker_process import (
    COORDINATORS,
    Load,
    WorkerProcess,
    await_all_ended,
    create_topics,
)

FLUSH_S = 180
PARTITIONS = 2
SPECS = system_topics(coordinators=COORDINATORS, partitions=PARTITIONS)
NATIVE = {TXN_SNAPSHOTS, REPLICATION_MARKERS, REPLICATION_POSITIONS, ABORTED_INDEX}
"""Read at read_committed, so that what lies behind an open transaction is read when it ends."""


@pytest.fixture
async def process(bootstrap: str, tmp_path: Path) -> AsyncIterator[WorkerProcess]:
    """A worker with owners of every kind."""
    made = WorkerProcess(
        bootstrap,
        tmp_path / "worker.log",
        "--session-timeout-s",
        "2",
        "--index-topics",
        "orders-before",
        partitions=PARTITIONS,
        cluster="a",
        clusters=f"a={bootstrap} b=127.0.0.1:1",
    )
    async with made:
        await made.serving()
        yield made


def of(spec: TopicSpec) -> list[Kind]:
    """The kinds of records for a topic."""
    return kinds(spec.name, compacted="compact" in spec.configs["cleanup.policy"])


def write(producer: Producer, specs: Iterable[TopicSpec], *, large: bool = False) -> int:
    """Writes every kind to every partition of these topics; returns the number of records."""
    count = 0
    for spec in specs:
        made = [kind for kind in of(spec) if large or len(kind.value or b"") < LARGE]
        for partition in range(spec.partition_count):
            for kind in made:
                headers = list(kind.headers or ())
                while True:
                    try:
                        producer.produce(
                            spec.name, kind.value, kind.key, partition, headers=headers
                        )
                        break
                    except BufferError:
                        producer.poll(0.1)
            count += len(made)
    assert producer.flush(FLUSH_S) == 0
    return count


def intrude(bootstrap: str) -> tuple[int, list[Producer]]:
    """In every way: plainly, and in native transactions; returns those that are left open."""
    plain = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 2 * LARGE})
    count = write(plain, SPECS, large=True)
    native = transactional(bootstrap, "stranger")
    for committed in (True, False):
        native.begin_transaction()
        count += write(native, SPECS)
        (native.commit_transaction if committed else native.abort_transaction)(FLUSH_S)
    left_open: list[Producer] = []
    for name, chosen in (("open", lambda it: it not in NATIVE), ("held", lambda it: it in NATIVE)):
        left_open.append(transactional(bootstrap, name))
        left_open[-1].begin_transaction()
        count += write(left_open[-1], [spec for spec in SPECS if chosen(spec.name)])
    return count, left_open


async def commits(bootstrap: str, name: str) -> Load:
    """Transactions of several clients commit."""
    load = Load((f"orders-{name}", f"payments-{name}"), 20, concurrency=8)
    await create_topics(bootstrap, *load.topics)
    async with TransactionClient(bootstrap, resend_s=0.5) as client:
        await load.run(client, lambda _: None)
        await await_all_ended(client)  # asks every coordinator
    assert len(load.outcomes.committed) == 16
    return load


async def is_visible(bootstrap: str, load: Load, name: str) -> None:
    """A reader sees what has committed, and a snapshot is taken."""
    await load.check(bootstrap, name)
    connector = KafkaConnector(KafkaConfig(bootstrap))
    async with SnapshotLine(connector, "test", timeout_s=30) as line:
        for topic in load.topics:
            await line.take(TopicPartition(topic, 0))


async def counted(process: WorkerProcess) -> set[str]:
    """The compacted topics of which the worker has passed over records."""
    _, text = await get(process, "/metrics")
    lines = [it for it in text.splitlines() if it.startswith("stilltide_foreign_records_total{")]
    return {line.partition('topic="')[2].partition('"')[0] for line in lines}


async def test_no_record_ends_a_worker(bootstrap: str, process: WorkerProcess):
    """While the worker runs, and after it was killed; others are served throughout."""
    assert min(len(of(spec)) for spec in SPECS) >= 80
    during = asyncio.create_task(commits(bootstrap, "during"))
    count, left_open = await asyncio.to_thread(intrude, bootstrap)
    assert count > 10_000
    load = await during
    before = await commits(bootstrap, "before")
    await asyncio.to_thread(left_open[1].abort_transaction, FLUSH_S)
    await is_visible(bootstrap, load, "during")
    await is_visible(bootstrap, before, "before")
    assert process.running
    tailed = {TXN_MARKERS, SETTINGS, REPLICATION_MARKERS, REPLICATION_POSITIONS}
    assert tailed <= await counted(process)

    await process.kill()
    await process.spawn()
    assert await process.serving() == list(range(COORDINATORS))
    await is_visible(bootstrap, await commits(bootstrap, "after"), "after")
    await asyncio.to_thread(left_open[0].abort_transaction, FLUSH_S)
    await is_visible(bootstrap, before, "again")
    assert NATIVE | {SETTINGS} <= await counted(process)
    assert "owner_ended" not in process.said
    assert "Traceback" not in process.said
