"""C16: a worker that holds as much as its settings allow stays within docker-compose's limit.

*Source*: rule C16; `coordinator_state_mib_max` and `mem_limit` of docker-compose.yml.
"""

import sys
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest
import yaml

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.schemas.coordinator.transactions import Open, Opened, Registered
from stilltide.schemas.service.envelopes import RefusalCode, Refused
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import EndOffset, TopicPartition
from tests.support.coordinator.asker import Asker
from tests.support.processes.worker_process import COORDINATORS, WorkerProcess

ROOT = Path(__file__).parents[2]
TIMEOUT_MS = 600_000
PARTITIONS = 50
EACH_MAX = 1000
"""Most transactions that one request opens."""

SHAPES = {"one partition each": (EACH_MAX, 1), "many partitions each": (20, PARTITIONS)}
"""Transactions of one request, and partitions of each."""


def limit_mib() -> int:
    """The memory of a worker's container."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    limit = compose["services"]["worker-a"]["mem_limit"]
    assert limit.endswith("m")
    return int(limit[:-1])


def highest_rss_mib(pid: int) -> int:
    """The most resident memory that a process has had."""
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return int(status["VmHWM"].split()[0]) // 1024


async def registered(connector: KafkaConnector) -> tuple[Registered, ...]:
    """The partitions of a new topic."""
    admin = connector.admin()
    await admin.ensure_topics([TopicSpec("orders", PARTITIONS)])
    topic_id = (await admin.describe_topics(["orders"]))["orders"].topic_id
    await admin.close()
    return tuple(
        Registered(TopicPartition("orders", it), EndOffset(0), topic_id) for it in range(PARTITIONS)
    )


async def fill(connector: KafkaConnector, opens: int, about: tuple[Registered, ...]) -> int:
    """Opens transactions until the worker takes no more; returns how many."""
    opened = 0
    async with AsyncExitStack() as stack:
        for number in count():
            asker = Asker(connector, name=f"a{number}", timeout_s=120)
            stack.push_async_callback(asker.close)
            await asker.open(partition_count=COORDINATORS, response_partition_count=4)
            while True:
                answer = await asker.ask(number % COORDINATORS, Open(TIMEOUT_MS, opens, about))
                if isinstance(answer, Refused):
                    break
                assert isinstance(answer, Opened)
                opened += opens
            assert answer.code is RefusalCode.LIMIT
            if "coordinator_state_mib_max" in answer.reason:
                return opened
    raise AssertionError


@pytest.mark.parametrize(("opens", "partitions"), SHAPES.values(), ids=SHAPES)
async def test_c16_a_full_worker_fits_into_its_container(
    tmp_path: Path, opens: int, partitions: int
):
    """While it takes what the settings allow, and when it reads all of that again."""
    with LocalCluster("m", tmp_path / "m", fast_start=True) as cluster:
        connector = KafkaConnector(KafkaConfig(cluster.bootstrap))
        options = "--instance-id", "one"
        async with WorkerProcess(cluster.bootstrap, tmp_path / "filled.log", *options) as filled:
            await filled.serving()
            about = await registered(connector)
            opened = await fill(connector, opens, about[:partitions])
            held_mib = highest_rss_mib(filled.pid)
            await filled.kill()
        async with WorkerProcess(cluster.bootstrap, tmp_path / "next.log", *options) as successor:
            await successor.serving()
            recovered_mib = highest_rss_mib(successor.pid)
    sys.stdout.write(f"{opened} transactions: {held_mib} MiB, recovered {recovered_mib} MiB\n")
    assert max(held_mib, recovered_mib) < limit_mib()
