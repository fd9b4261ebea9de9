"""What a worker logs, at rest and while its cluster is away under load: what is away, once.

A worker whose broker was killed logged 44 tracebacks of callbacks, and 69 times that a task was
blocking the event loop.
"""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.client import TransactionClient
from stilltide.schemas.errors import StilltideError
from tests.support.outages.scene import Scene
from tests.support.processes.worker_process import create_topics

OUTAGE_S = 20.0
WAIT_S = 240.0
CLIENTS = 4

NOISE = ("Traceback", "blocking the event loop", "is overlapping", "never retrieved", "GETPID")


async def written(address: str, topics: tuple[str, str], stop: asyncio.Event) -> None:
    """Transactions of a client, eight at a time, until `stop`, whatever becomes of them."""
    connector = KafkaConnector(KafkaConfig(address))
    async with TransactionClient(connector=connector, name="shop") as client:

        async def write() -> None:
            while not stop.is_set():
                with suppress(StilltideError):
                    async with client.transaction() as txn:
                        for topic in topics:
                            await txn.send(topic, b"value")

        await asyncio.gather(*(write() for _ in range(8)))


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_a_log_names_what_is_away_and_has_no_tracebacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """With owners of all kinds, and clients that write, read and acknowledge meanwhile.

    One line says that the cluster is away, and one that it is back, in each process.
    """
    with (
        LocalCluster("a", tmp_path / "a", fast_start=True) as source,
        LocalCluster("b", tmp_path / "b", fast_start=True) as own,
    ):
        await create_topics(own.bootstrap, "left", "right")
        async with Scene(source, own, tmp_path, broker_away_s_max=60, wait_s=WAIT_S) as scene:
            await scene.use(20)
            stop = asyncio.Event()
            writing = [
                asyncio.create_task(written(own.bootstrap, ("left", "right"), stop))
                for _ in range(CLIENTS)
            ]
            await scene.use(20)
            await asyncio.to_thread(own.kill)
            await asyncio.wait([scene.applications.writing], timeout=OUTAGE_S)
            await asyncio.to_thread(own.start, WAIT_S)
            stop.set()
            await asyncio.gather(*writing)
            await scene.use(20)
            assert all(child.running for child in scene.children.values())
        logs = {name: child.said.splitlines() for name, child in scene.children.items()}
    for name, lines in logs.items():
        assert [it for it in lines if any(noise in it for noise in NOISE)] == [], name
        away = [it for it in lines if "cluster_away" in it]
        assert len(away) == 1, name
        assert f"address={own.bootstrap} cluster=b" in away[0]
        assert sum("cluster_back" in it for it in lines) == 1, name
    assert [it for it in caplog.records if it.exc_info and it.levelno >= logging.WARNING] == []
