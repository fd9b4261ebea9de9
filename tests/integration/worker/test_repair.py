"""Damage of effective records on a real broker: its owner says so, `stilltide repair` mends it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.schemas.headers import EntryStamp
from stilltide.schemas.native.aborted_index import coverage_key
from stilltide.schemas.replication.signals import AppliedKey, encode_key
from stilltide.schemas.settings import TXN_LOG_BATCHING_ENABLED
from stilltide.schemas.snapshots.snapshots import end_key
from stilltide.schemas.topics import (
    ABORTED_INDEX,
    PENDING_ACK_LOG,
    REPLICATION_MARKERS,
    SETTINGS,
    TXN_LOG,
    TXN_MARKERS,
    TXN_SNAPSHOTS,
    TopicSpec,
)
from stilltide.schemas.values import ClusterName, Offset, OffsetRange, TopicPartition
from tests.support.looks import between_looks
from tests.support.processes.operator import Operator, get
from tests.support.processes.worker_process import WorkerProcess, read_and_commit

ORDERS = TopicPartition("orders", 0)
LOG, ACKS = TopicPartition(TXN_LOG, 0), TopicPartition(PENDING_ACK_LOG, 0)
MARKERS, SNAPSHOTS = TopicPartition(TXN_MARKERS, 0), TopicPartition(TXN_SNAPSHOTS, 0)
INDEX, SIGNALS = TopicPartition(ABORTED_INDEX, 0), TopicPartition(REPLICATION_MARKERS, 0)
OF_ALL = TopicPartition(SETTINGS, 0)
GARBAGE = b"\xff damage \x1b[2J"
WAIT_S = 330.0
"""An owner is tried again a minute after its first end."""


@pytest.fixture
async def process(bootstrap: str, tmp_path: Path) -> AsyncIterator[WorkerProcess]:
    """A worker with one owner of each kind that serves `orders`, and a second coordinator."""
    made = WorkerProcess(
        bootstrap,
        tmp_path / "worker.log",
        *("--index-topics", "orders", "--session-timeout-s", "2"),
        coordinators=2,
        partitions=1,
        cluster="a",
        clusters=f"a={bootstrap} b=127.0.0.1:1",
    )
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.ensure_topics([TopicSpec("orders", 1)])
    await admin.close()
    async with made:
        await made.serving()
        yield made


@pytest.fixture
def operator(bootstrap: str, tmp_path: Path) -> Operator:
    """The command line of an operator."""
    return Operator(bootstrap, tmp_path)


async def first_key(connector: KafkaConnector, data: TopicPartition, kind: bytes) -> bytes:
    """The first key of a kind in a partition."""
    admin, reader = connector.admin(), connector.reader("test", committed=False)
    try:
        starts, ends = await admin.start_offsets([data]), await admin.end_offsets([data])
        async for records in scan(reader, [OffsetRange(data, starts[data], ends[data])]):
            for record in records:
                if record.key is not None and record.key.startswith(kind):
                    return record.key
        raise AssertionError(f"no key {kind!r} in {data}")
    finally:
        await reader.close()
        await admin.close()


async def damage(bootstrap: str, operator: Operator) -> None:
    """Writes garbage as the last value of a key, and as the next effective entry of both logs."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    stamps: dict[TopicPartition, list[tuple[str, bytes]]] = {}
    for data, command in ((LOG, "coordinator stats"), (ACKS, "pending-ack internal-stats")):
        rows = await operator.ask(command)
        (epoch,) = [it["epoch"] for it in rows if 0 in {it.get("coordinator"), it.get("store")}]
        stamps[data] = EntryStamp(Offset(epoch), 1 << 40).to_headers()
    keys = {
        MARKERS: await first_key(connector, MARKERS, b"m"),
        SNAPSHOTS: end_key(ORDERS),
        INDEX: coverage_key(ORDERS),
        SIGNALS: encode_key(AppliedKey(ORDERS, ClusterName("b"), "g")),
        OF_ALL: TXN_LOG_BATCHING_ENABLED.encode(),
    }
    producer = Producer({"bootstrap.servers": bootstrap})
    for data, headers in stamps.items():
        producer.produce(data.topic, GARBAGE, partition=0, headers=list(headers))
    for data, key in keys.items():
        producer.produce(data.topic, GARBAGE, key, 0)
    assert await asyncio.to_thread(producer.flush, 30) == 0


async def commit(client: TransactionClient, *values: bytes) -> None:
    """Commits each value in a transaction of its own, until one is answered for."""
    for value in values:
        async with client.transaction() as txn:
            await txn.send("orders", value)


async def until_ready(process: WorkerProcess, *texts: str, status: int) -> None:
    """Waits until `/readyz` has these texts."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await get(process, "/readyz")
            if found[0] == status and all(text in found[1] for text in texts):
                return
            await between_looks()


@pytest.mark.slow
async def test_damage_of_every_topic_is_repaired(
    bootstrap: str, process: WorkerProcess, operator: Operator
):
    """B10: shown, refused without `--apply`, repaired; the owners serve again by themselves."""
    async with TransactionClient(bootstrap, resend_s=0.5, request_timeout_s=120) as client:
        await commit(client, b"1", b"2")
        await operator.run("snapshot take orders --partition 0")
        await commit(client, b"3")
        await damage(bootstrap, operator)
        ended = ("coordinator 0 has ended", "pending-ack 0 has ended", "snapshots 0 has ended")
        await until_ready(process, *ended, "replication 0 has ended", status=503)
        assert f"stilltide repair {TXN_LOG} --partition 0 --offset" in process.said

        found: dict[str, Any] = {}
        for data in (LOG, ACKS, MARKERS, SNAPSHOTS, INDEX, SIGNALS, OF_ALL):
            shown = await operator.ask(f"repair {data.topic}", code=3)
            assert shown["repaired"] == []
            (found[data.topic],) = shown["damage"]
            assert r"\x1b" in found[data.topic]["begins"]
            assert found[data.topic]["repair"] != "not safe", found
            assert found[data.topic]["may_lose"]
            applied = await operator.ask(f"repair {data.topic} --apply --yes", code=0)
            assert len(applied["repaired"]) == 1
            assert await operator.ask(f"repair {data.topic}") == {"damage": [], "repaired": []}
        assert "again" in found[TXN_MARKERS]["repair"]
        assert "again" in found[TXN_SNAPSHOTS]["repair"]
        assert "tombstone" in found[SETTINGS]["repair"]

        await until_ready(process, status=200)
        await commit(client, b"4")
    connector = KafkaConnector(KafkaConfig(bootstrap))
    assert await read_and_commit(connector, "orders", "g", 4) == [1, 2, 3, 4]
    await operator.run("snapshot take orders --partition 0")
    assert process.running
    assert "Traceback" not in process.said


@pytest.mark.slow
async def test_what_is_not_safe_is_refused(bootstrap: str, operator: Operator):
    """B10: a bucket says how far a link has copied; nothing is written, and the reason is said."""
    key = b"\0" * 12 + b"\0\1\0\1" + b"ab" + b"orders"
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("stilltide.replication-positions", GARBAGE, key, 0)
    assert await asyncio.to_thread(producer.flush, 30) == 0
    done = await operator.run("repair replication-positions --apply --yes", code=3)
    assert "copied twice" in done.stdout
    assert "none of this can be repaired safely" in done.stderr
    shown = json.loads((await operator.run("repair replication-positions -o json", code=3)).stdout)
    assert shown["damage"][0]["repair"] == "not safe"
