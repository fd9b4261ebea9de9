"""E9 on a real broker: markers outlast the snapshots that absorb them, and readers skip them."""

import asyncio
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.client import Subscription
from stilltide.pipeline.drivers.coordinator.history import ended_transactions
from stilltide.schemas.topics import TXN_MARKERS, TopicSpec
from stilltide.schemas.values import EndOffset, TopicPartition
from tests.support.processes.worker_process import running_worker
from tests.support.snapshots.client import snapshot_client

COUNT = 40
PARTITIONS = 1
SETTINGS = {"coordinators": 2, "partitions": PARTITIONS, "snapshot_interval_ms": 600_000}


@pytest.fixture(scope="module")
def bootstrap(empty_kafka: LocalCluster) -> str:
    """Address of a broker whose system topics are the module's own."""
    return empty_kafka.bootstrap


async def test_markers_stay_for_their_time_and_nobody_reads_them_again(
    bootstrap: str, tmp_path: Path
):
    """The history tells all; a new reader takes none; without retention they go at once."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    data = TopicPartition(f"orders-{uuid4().hex[:8]}", 0)
    admin = connector.admin()
    await admin.ensure_topics([TopicSpec(data.topic, 1)])
    with running_worker(bootstrap, tmp_path / "one.log", **SETTINGS):
        async with snapshot_client(connector, data, partitions=PARTITIONS) as client:
            committed = [await client.committed(it % 2) for it in range(COUNT)]
            aborted = [await client.aborted(it % 2) for it in range(COUNT)]
            summary = await client.take()
            assert summary.max_read_position == aborted[-1].offset + 1
            assert len(await client.outcomes()) == 2 * COUNT
            configs = (await admin.topic_configs([client.markers.topic]))[client.markers.topic]
            assert configs["message.timestamp.type"] == "LogAppendTime"
        async with Subscription([data.topic], group="new", connector=connector) as orders:
            ends = {data: EndOffset(summary.max_read_position)}
            seen = [it.offset async for it in orders.read_to(ends)]
            assert seen == [it.offset for it in committed]
            assert orders.statistics()[data].outcomes == 0
        found = await ended_transactions(connector, 3 * COUNT)
        assert found.cut is None
        assert [it.txn for it in found.transactions] == [
            it.txn for it in reversed([*committed, *aborted])
        ]
        assert [it.outcome for it in found.transactions] == ["aborted"] * COUNT + [
            "committed"
        ] * COUNT
        last = await ended_transactions(connector, 3, "committed")
        assert [it.txn for it in last.transactions] == [it.txn for it in committed[:-4:-1]]
        shown = await asyncio.to_thread(history_command, bootstrap)
        assert f"{aborted[-1].txn.coordinator}:{aborted[-1].txn.sequence}" in shown
    with running_worker(bootstrap, tmp_path / "two.log", **SETTINGS, marker_retention_ms=0):
        async with snapshot_client(connector, data, partitions=PARTITIONS) as client:
            late = await client.committed()
            await client.take()
            async with asyncio.timeout(240):
                while await client.outcomes():
                    await client.take()
        found = await ended_transactions(connector, COUNT)
        assert found.transactions == []
        assert str(found.cut).startswith(f"{TXN_MARKERS}: 0 of {COUNT} transactions are known")
        assert "marker_retention_ms" in str(found.cut)
        assert late.offset == aborted[-1].offset + 1
    await admin.close()


def history_command(bootstrap: str) -> str:
    """The table of `stilltide txn history`."""
    command = [sys.executable, "-m", "stilltide", "txn", "history", "--last", "5"]
    command += ["--bootstrap-servers", bootstrap]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
