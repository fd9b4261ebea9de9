"""The last error of `stilltide replicate`, told by the clusters after its process has gone (H9)."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.ports.readers import Fetching
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.schemas.replication.positions import LastErrorKey, encode_last_error_key
from stilltide.schemas.topics import REPLICATION_POSITIONS
from stilltide.schemas.values import ClusterName, Offset, OffsetRange, TopicPartition
from tests.support.links.link_process import Clusters, LinkProcess
from tests.support.links.numbered import numbers, produced
from tests.support.looks import between_looks
from tests.support.processes.operator import fetch

PLACE = TopicPartition(REPLICATION_POSITIONS, 0)
KEY = encode_last_error_key(LastErrorKey(ClusterName("a"), ClusterName("b")))


@pytest.mark.slow
async def test_a_link_that_is_killed_and_started_again_keeps_its_last_error(
    clusters: Clusters, topic_name: str, tmp_path: Path
):
    """What ended one process is told by status while none runs, and with its time while one does.

    The site of the link that runs again tells it, too.
    """
    await clusters.create("a", topic_name, 1)
    await clusters.create("b", topic_name, 2)
    produced(clusters, "a", topic_name, 0, 100)
    options = ("--topics", topic_name, "--web-port", "0")

    def link() -> LinkProcess:
        return LinkProcess(clusters.addresses, "a", "b", tmp_path / "link.log", *options)

    before = await error_count(clusters)
    began_ms = SystemClock().now_ms()
    async with link() as refused:
        assert await refused.ended() == 1
    told = await status_of(clusters)
    assert told["last_error"] == f"topic {topic_name} has 1 partitions on a and 2 on b"
    assert told["running"] is False
    assert began_ms <= told["last_error_ms"] <= SystemClock().now_ms()
    assert told["last_error_hint"]
    admin = AdminClient({"bootstrap.servers": clusters.addresses["b"]})
    for deleted in admin.delete_topics([topic_name]).values():
        deleted.result(60)
    for _ in range(2):
        async with link() as running:
            await running.serving()
            copies = await clusters.records("b", TopicPartition(topic_name, 0), 100)
            assert [it.value for it in copies] == numbers(0, 100)
            again = await status_of(clusters)
            while not again["running"]:
                await between_looks()
                again = await status_of(clusters)
            # A link may meet another error while it starts, as a broker may say "not yet".
            assert again["last_error_ms"] >= told["last_error_ms"]
            _, ready = await fetch(f"{running.web}/readyz")
            assert f"s ago: {again['last_error']}" in ready
            await running.kill()
        told = await status_of(clusters)
        assert told["last_error"]
    assert await error_count(clusters) > before


async def status_of(clusters: Clusters) -> dict[str, Any]:
    """The link from a to b as `stilltide status -o json` shows it."""
    named = " ".join(f"{name}={address}" for name, address in clusters.addresses.items())
    command = [sys.executable, "-m", "stilltide", "status", "--clusters", named, "-o", "json"]
    run = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, check=False, timeout=240
    )
    shown = json.loads(run.stdout)["links"]["b"]
    return next(it for it in shown["value"] if it["source"] == "a")


async def error_count(clusters: Clusters) -> int:
    """How many records of the link's last error are in the topic of b, compacted or not."""
    connector = clusters.connector("b")
    admin, reader = connector.admin(), connector.reader("test", fetching=Fetching.SCANNING)
    try:
        ends = await admin.end_offsets([PLACE], committed=True)
        ranges = [OffsetRange(PLACE, Offset(0), ends[PLACE])] if PLACE in ends else []
        return sum([sum(it.key == KEY for it in some) async for some in scan(reader, ranges)])
    finally:
        await reader.close()
        await admin.close()
