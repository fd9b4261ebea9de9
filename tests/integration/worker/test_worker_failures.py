"""What a worker cannot go on with: it ends with exit code 1, and says what, where and what next."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.client import TransactionClient
from stilltide.schemas.headers import EntryStamp
from stilltide.schemas.topics import TXN_LOG, system_topics
from stilltide.schemas.values import Offset
from tests.support.processes.local import delete_topics
from tests.support.processes.worker_process import COORDINATORS, Load, WorkerProcess, create_topics

END_S = 30.0
"""From the cause to the end of the process."""

GIVE_UP_S_MAX = 25.0
"""A start on a busy machine, and the time-out of 3 s; the default patience is 60 s."""

LINES_MAX = 50
"""More than this on stderr is an explosion."""

STAMP = EntryStamp(Offset(0), 1).to_headers()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker of this module's own, which its tests poison and kill."""
    with LocalCluster("f", tmp_path_factory.mktemp("failures"), fast_start=True) as cluster:
        yield cluster


@pytest.fixture
async def bootstrap(cluster: LocalCluster) -> AsyncIterator[str]:
    """Its address; the broker runs, and has no topics left after the test."""
    await asyncio.to_thread(cluster.start)
    yield cluster.bootstrap
    await asyncio.to_thread(cluster.start)
    await asyncio.to_thread(delete_topics, cluster.bootstrap)


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    """Where the worker talks to."""
    return tmp_path / "worker.log"


def write(
    bootstrap: str,
    topic: str,
    partition: int,
    value: bytes | None,
    headers: list[tuple[str, bytes]] | None = None,
) -> str:
    """Appends a record as anybody may; its place."""
    places: list[str] = []

    def delivered(error: object, message: Message) -> None:
        assert error is None
        places.append(f"{message.topic()}/{message.partition()}@{message.offset()}")

    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value, partition=partition, headers=headers, on_delivery=delivered)
    assert producer.flush(END_S) == 0
    return places[0]


async def failed(process: WorkerProcess) -> str:
    """Waits for the end of a worker that fails; what it said at last."""
    assert await process.ended(END_S) == 1, process.said
    assert "Traceback" not in process.said
    assert len(process.said.splitlines()) <= LINES_MAX
    _, error, text = process.said.partition("error: ")
    assert error, process.said
    return text


def worker(bootstrap: str, log_path: Path, *options: str, **settings: object) -> WorkerProcess:
    """A worker, not started; the group forgets a dead one soon."""
    session = ("--session-timeout-s", "2")
    return WorkerProcess(bootstrap, log_path, *session, *options, **settings)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"\x0e\x01\x00\x01\xff\xff", "not a batch behind magic and version"),
        (b"\x0e\x01\x00\x02\x0a\x00", "batch version 0002 is unknown"),
    ],
    ids=["corrupt", "later version"],
)
async def test_an_effective_log_entry_that_cannot_be_understood(
    bootstrap: str, log_path: Path, value: bytes, said: str
):
    """B6: the worker stops with topic, partition and offset, and again when it is restarted."""
    async with worker(bootstrap, log_path) as process:
        await process.serving()
        place = await asyncio.to_thread(write, bootstrap, TXN_LOG, 2, value, STAMP)
        assert (await failed(process)).startswith(f"{place}: {said}")
    async with worker(bootstrap, log_path) as process:
        assert (await failed(process)).startswith(f"{place}: {said}")


async def test_a_broker_that_is_unreachable_at_start(log_path: Path):
    """The worker gives up in time and names the address."""
    began = time.monotonic()
    async with worker("127.0.0.1:9", log_path, request_timeout_s=3) as process:
        text = await failed(process)
    assert time.monotonic() - began < GIVE_UP_S_MAX
    assert "127.0.0.1:9" in text.splitlines()[0]
    assert "hint: check that the broker runs" in text


async def test_a_broker_that_stays_away(cluster: LocalCluster, bootstrap: str, log_path: Path):
    """The worker waits for so long and no longer, says little meanwhile, and names the address."""
    async with worker(bootstrap, log_path, broker_away_s_max=3) as process:
        await process.serving()
        await asyncio.to_thread(cluster.kill)
        text = await failed(process)
    assert text.startswith("the cluster was away for 3 s")
    assert bootstrap in text
    assert "hint: check that its brokers run" in text


async def test_a_broker_that_comes_back(cluster: LocalCluster, bootstrap: str, log_path: Path):
    """Transactions under way when the broker is killed end after it was started again."""
    load = Load(("orders", "payments"), 300)
    third = asyncio.Event()
    await create_topics(bootstrap, *load.topics)
    async with worker(bootstrap, log_path) as process:
        await process.serving()
        async with TransactionClient(bootstrap, resend_s=0.5, request_timeout_s=60) as client:
            running = asyncio.create_task(
                load.run(client, lambda ended: third.set() if ended >= 100 else None)
            )
            await third.wait()
            await asyncio.to_thread(cluster.kill)
            await asyncio.to_thread(cluster.start)
            await running
        await load.check(bootstrap, "comes-back")
        assert len(load.outcomes.committed) > 200
        process.terminate()
        assert await process.ended(END_S) == 0


async def test_a_system_topic_of_another_policy(bootstrap: str, log_path: Path):
    """A topic that would lose data is refused: its name, the config, what it is and must be."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(TXN_LOG, COORDINATORS, 1, config={"retention.ms": "1000"})
    admin.create_topics([topic])[TXN_LOG].result(END_S)
    async with worker(bootstrap, log_path) as process:
        text = await failed(process)
    assert TXN_LOG in text
    assert "retention.ms=1000, not -1" in text
    assert "hint: " in text


async def test_more_replicas_than_brokers(bootstrap: str, log_path: Path):
    """The worker says how many brokers are missing; with existing topics it serves and warns."""
    three = {"replication_factor": 3}
    async with worker(bootstrap, log_path, **three) as process:
        text = await failed(process)
    assert "3 replicas, but the cluster has 1 broker" in text
    assert "2 brokers missing" in text
    async with worker(bootstrap, log_path) as process:
        await process.serving()
    async with worker(bootstrap, log_path, **three) as process:
        await process.serving()
    warnings = [line for line in process.said.splitlines() if "topic_has_few_replicas" in line]
    assert len(warnings) == len(system_topics(coordinators=1, partitions=1))
    assert f"--topic {TXN_LOG} --add-config min.insync.replicas=2" in process.said


async def test_another_number_of_coordinators(bootstrap: str, log_path: Path):
    """A worker that was told another number than the cluster has does not serve."""
    async with worker(bootstrap, log_path) as process:
        await process.serving()
    async with worker(bootstrap, log_path, "--coordinators", "8") as process:
        text = await failed(process)
    assert f"topic {TXN_LOG} has {COORDINATORS} partitions, not 8" in text


async def test_an_unknown_setting(log_path: Path):
    """A misspelt setting is refused with the nearest name, before anything is connected to."""
    async with worker("127.0.0.1:9", log_path, sesion_timeout_s=1) as process:
        text = await failed(process)
    assert "STILLTIDE_SESION_TIMEOUT_S" in text
    assert "STILLTIDE_SESSION_TIMEOUT_S" in text
