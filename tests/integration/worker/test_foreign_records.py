"""Anybody's records in logs and topics of requests of a real broker: a worker serves on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession
from confluent_kafka import Producer

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.drivers.buffered_log.batch_scan import scan_for_batches
from stilltide.schemas.headers import EntryStamp
from stilltide.schemas.topics import (
    ACK_REQUESTS,
    PENDING_ACK_LOG,
    SNAPSHOT_REQUESTS,
    TXN_LOG,
    TXN_REQUESTS,
)
from stilltide.schemas.values import Offset
from tests.support.native.topics import transactional
from tests.support.processes.worker_process import (
    COORDINATORS,
    Load,
    WorkerProcess,
    await_all_ended,
    create_topics,
)

FLUSH_S = 240
GARBAGE = b"\xff garbage\n"
STALE = EntryStamp(Offset(1 << 40), 1).to_headers()
LOGS, REQUESTS = (TXN_LOG, PENDING_ACK_LOG), (TXN_REQUESTS, ACK_REQUESTS, SNAPSHOT_REQUESTS)

Produce = Callable[..., None]


@pytest.fixture
async def process(bootstrap: str, tmp_path: Path) -> AsyncIterator[WorkerProcess]:
    """A worker that serves; the test ends it and starts it again."""
    session = ("--session-timeout-s", "2")
    async with WorkerProcess(bootstrap, tmp_path / "worker.log", *session) as made:
        await made.serving()
        yield made


@contextmanager
def native_transaction(producer: Producer) -> Iterator[None]:
    """What is produced within is committed with control records behind it."""
    producer.begin_transaction()
    yield
    producer.commit_transaction(FLUSH_S)


def intrude(produce: Produce) -> None:
    """Writes what no worker and no client writes to every log and topic of requests."""
    for partition in range(COORDINATORS):
        for topic in LOGS:
            produce(topic, b"x", partition=partition)
            produce(topic, b"\x0e\x01\x00\x02", partition=partition, headers=STALE)
        for topic in REQUESTS:
            produce(topic, GARBAGE, partition=partition)


def intrude_in_every_way(bootstrap: str) -> Producer:
    """As anybody may: plainly, in transactions that end and in one that stays open, returned."""
    plain = Producer({"bootstrap.servers": bootstrap})
    intrude(plain.produce)
    assert plain.flush(FLUSH_S) == 0
    native = transactional(bootstrap, "stranger")
    with native_transaction(native):
        intrude(native.produce)
    native.begin_transaction()
    intrude(native.produce)
    assert native.flush(FLUSH_S) == 0
    native.abort_transaction(FLUSH_S)
    left_open = transactional(bootstrap, "stranger-with-time")
    left_open.begin_transaction()
    intrude(left_open.produce)
    assert left_open.flush(FLUSH_S) == 0
    return left_open


async def serves(bootstrap: str, name: str) -> None:
    """Transactions of several clients commit, and what they wrote is visible."""
    load = Load((f"orders-{name}", f"payments-{name}"), 40, concurrency=8)
    await create_topics(bootstrap, *load.topics)
    async with TransactionClient(bootstrap, resend_s=0.5) as client:
        await load.run(client, lambda _: None)
        await await_all_ended(client)  # asks every coordinator
    await load.check(bootstrap, name)
    assert len(load.outcomes.committed) == 32


async def passed_over(process: WorkerProcess) -> dict[str, float]:
    """What the worker counts, by topic."""
    found: dict[str, float] = {}
    async with ClientSession() as session, session.get(f"{process.web}/metrics") as response:
        for line in (await response.text()).splitlines():
            if line.startswith(("stilltide_log_foreign_entries_total{", "stilltide_request_rec")):
                topic = line.partition('topic="')[2].partition('"')[0]
                found[topic] = found.get(topic, 0) + float(line.rpartition(" ")[2])
    return found


@pytest.mark.slow
async def test_a_worker_serves_whatever_others_write(bootstrap: str, process: WorkerProcess):
    """B6, B7, C10: before and after a restart; each record is counted, and said with its place."""
    left_open = await asyncio.to_thread(intrude_in_every_way, bootstrap)
    await serves(bootstrap, "before")
    ways = 4
    counted = await passed_over(process)
    assert {topic: counted[topic] for topic in LOGS} == dict.fromkeys(LOGS, 2 * ways * COORDINATORS)
    assert {it: counted[it] for it in REQUESTS} == dict.fromkeys(REQUESTS, ways * COORDINATORS)
    assert f"begins={repr(GARBAGE)!r}" in process.said
    assert f"topic={TXN_LOG}" in process.said
    connector = KafkaConnector(KafkaConfig(bootstrap))
    for topic in LOGS:
        assert all(scan.done for scan in await scan_for_batches(connector, topic))

    process.terminate()
    assert await process.ended(FLUSH_S) == 0
    await process.spawn()
    assert await process.serving() == list(range(COORDINATORS))
    await serves(bootstrap, "after")
    await process.kill()
    await process.spawn()
    assert await process.serving() == list(range(COORDINATORS))
    await serves(bootstrap, "after-a-crash")
    await asyncio.to_thread(left_open.abort_transaction, FLUSH_S)
    await serves(bootstrap, "at-last")
    assert "Traceback" not in process.said
