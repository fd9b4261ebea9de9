"""The memory of `stilltide console` on a real cluster, whatever its viewers look at."""

import asyncio
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.schemas.topics import TopicSpec, system_topics
from stilltide.schemas.values import TopicPartition
from tests.support.processes.child import Child

MIB = 1024 * 1024
SHOWN = re.compile("Offsets [\\d,]+ to [\\d,]+ of|Producers of|Partitions of")
"""What a page has once its window was read; others come without a read in between."""
BOUND_MIB = 128
WINDOWS = 1520
AT_ONCE = 12
TOPICS = 8
LARGE = "large"
LARGE_RECORDS = 40
SMALL_RECORDS = 2500


async def written(bootstrap: str) -> None:
    """Topics of small records, and one whose windows are as large as windows may be."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    admin = connector.admin()
    large = TopicSpec(LARGE, 1, {"max.message.bytes": str(2 * MIB)})
    small = [TopicSpec(f"t{number}", 2) for number in range(TOPICS)]
    await admin.ensure_topics([*system_topics(coordinators=1, partitions=1), large, *small])
    await admin.close()
    writer = connector.writer("fill")

    async def append(data: TopicPartition, value: bytes, count: int) -> None:
        for _ in range(count):
            await writer.room()
            writer.append(data, value, lambda _error, _offset: None, key=b"k" * 100)
        assert await writer.flush(120)

    await append(TopicPartition(LARGE, 0), bytes(MIB), LARGE_RECORDS)
    for one in small:
        for partition in range(2):
            await append(TopicPartition(one.name, partition), bytes(1000), SMALL_RECORDS)
    await writer.close()


def windows() -> Iterator[str]:
    """Addresses of pages, each another window; the topic is another one after some windows."""
    for number in itertools.count():
        topic, partition, start = (
            f"t{number // 10 % TOPICS}",
            number % 2,
            number * 7 % SMALL_RECORDS,
        )
        if number % 10 == 0:
            topic, partition, start = LARGE, 0, number // 10 % LARGE_RECORDS
        if number % 50 == 1:
            yield f"native?cluster=a&topic={topic}&first={number}"
        elif number % 50 == 2:
            yield f"topic?cluster=a&topic={topic}&first={number}"
        else:
            yield f"topic?cluster=a&topic={topic}&partition={partition}&from={start}"


def peak_mib(pid: int) -> float:
    """The most memory that a process has taken so far."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


@pytest.mark.slow
async def test_the_memory_of_many_windows_is_bounded(tmp_path: Path):
    """The process stays below the bound that docs/console.md names, also at its peak."""
    with LocalCluster("a", tmp_path / "a", fast_start=True) as cluster:
        await written(cluster.bootstrap)
        words = ("console", "--port", "0", "--clusters", f"a={cluster.bootstrap}")
        async with (
            Child([sys.executable, "-m", "stilltide", *words]) as console,
            aiohttp.ClientSession() as viewer,
        ):
            url = (await console.announced())["web"]
            wanted = itertools.islice(windows(), WINDOWS)
            shown = 0

            async def look() -> None:
                nonlocal shown
                for window in wanted:
                    text = ""
                    while not SHOWN.search(text):
                        async with viewer.get(f"{url}{window}") as answer:
                            assert answer.status == 200
                            text = await answer.text()
                    shown += 1

            await asyncio.gather(*(look() for _ in range(AT_ONCE)))
            assert shown == WINDOWS
            assert peak_mib(console.pid) < BOUND_MIB
