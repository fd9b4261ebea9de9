"""What a worker or one of its owners cannot go on with: it says what, where and what next."""

import asyncio
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.databases import Decisions
from stilltide.pipeline.client import TransactionClient
from stilltide.schemas.decisions import DDL
from stilltide.schemas.headers import EntryStamp
from stilltide.schemas.topics import TXN_LOG, system_topics
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.coordinator.repair import FENCE, entries_behind
from tests.support.looks import between_looks
from tests.support.processes.local import STILLTIDE, delete_topics
from tests.support.processes.operator import Operator, get
from tests.support.processes.worker_process import COORDINATORS, Load, WorkerProcess, create_topics

WAIT_S = 270.0
"""For a rebalance and a replay on a busy machine."""

END_S = 270.0
"""From the cause to the end of the process."""

GIVE_UP_S_MAX = 50.0
"""A start on a busy machine, and the time-out of 3 s; the default patience is 60 s."""

LINES_MAX = 50
"""More than this on stderr is an explosion."""

STAMP = EntryStamp(Offset(0), 1).to_headers()

DAMAGE = b"\x0e\x01\x00\x01\xff\xff"


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


def write(
    bootstrap: str,
    topic: str,
    partition: int,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes]] = (),
) -> str:
    """Appends a record as anybody may; its place."""
    places: list[str] = []

    def delivered(error: object, message: Message) -> None:
        assert error is None
        places.append(f"{message.topic()}/{message.partition()}@{message.offset()}")

    producer = Producer({"bootstrap.servers": bootstrap})
    given: list[tuple[str, str | bytes | None]] = [*headers]
    producer.produce(topic, value, partition=partition, headers=given, on_delivery=delivered)
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


async def test_damage_ends_one_coordinator_and_a_repair_brings_it_back(
    cluster: LocalCluster, bootstrap: str, log_path: Path, tmp_path: Path
):
    """B6, B8: the others commit; probe, metric and `coordinator stats` name the place.

    After a repair of the log, the coordinator serves again without a restart.
    """
    operator = Operator(bootstrap, tmp_path)
    await create_topics(bootstrap, "orders")
    async with (
        worker(bootstrap, log_path, coordinators=2) as process,
        AsyncExitStack() as stack,
    ):
        await process.serving()
        client = await stack.enter_async_context(TransactionClient(bootstrap))
        assert client._cluster is not None
        whole = client._cluster.coordinator
        damaged = 1 - whole
        place = await asyncio.to_thread(write, bootstrap, TXN_LOG, damaged, DAMAGE, STAMP)
        offset = place.rpartition("@")[2]
        status, _ = await until(process, "/readyz", f"coordinator {damaged} has ended: {place}")
        assert status == 503
        _, metrics = await get(process, "/metrics")
        ended = [it for it in metrics.splitlines() if it.startswith("stilltide_owner_ended_")]
        assert len(ended) == 1
        for label in (f'topic="{TXN_LOG}"', f'partition="{damaged}"', f'offset="{offset}"'):
            assert label in ended[0]
        rows = await operator.ask("coordinator stats", code=4)
        problems = {row["coordinator"]: row["problem"] for row in rows}
        assert problems[whole] is None
        assert problems[damaged].startswith(f"{place}: not a batch behind magic and version")
        async with client.transaction() as txn:
            await txn.send("orders", b"1")

        await repair(bootstrap, damaged)
        second = worker(bootstrap, tmp_path / "second.log", coordinators=2)
        async with second:  # a rebalance
            await second.serving()
        await until_serving(operator)
        assert process.running
        assert len(process.said.splitlines()) <= LINES_MAX


async def until(process: WorkerProcess, path: str, text: str) -> tuple[int, str]:
    """Waits until a page of the worker has a text; status and page."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await get(process, path)
            if text in found[1]:
                return found
            await between_looks()


async def until_serving(operator: Operator) -> None:
    """Waits until no coordinator has a problem."""
    async with asyncio.timeout(WAIT_S):
        while True:
            done = await operator.try_ask("coordinator stats")
            if len(done) == 2 and not any(row["problem"] for row in done):
                return
            await between_looks()


async def repair(bootstrap: str, coordinator: int) -> None:
    """Writes a base behind the damage, and deletes everything before it."""
    place = await asyncio.to_thread(write, bootstrap, TXN_LOG, coordinator, *FENCE)
    fence = int(place.rpartition("@")[2])
    for entry in entries_behind(coordinator, fence):
        await asyncio.to_thread(write, bootstrap, TXN_LOG, coordinator, *entry)
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.delete_records({TopicPartition(TXN_LOG, coordinator): Offset(fence + 1)})
    await admin.close()


async def test_a_broker_that_is_unreachable_at_start(log_path: Path):
    """B9: the worker gives up after `broker_away_s_max` and names the address."""
    began = time.monotonic()
    settings = {"request_timeout_s": 1, "broker_away_s_max": 3}
    async with worker("127.0.0.1:9", log_path, **settings) as process:
        text = await failed(process)
    assert time.monotonic() - began < GIVE_UP_S_MAX
    assert text.startswith("the cluster was away for 3 s")
    assert "127.0.0.1:9" in text
    assert "hint: correct the address, or start the broker" in text


STARTING = """
import asyncio, sys
from stilltide.pipeline.agents.worker import Worker
from stilltide.pipeline.cli.program import main

run_apps = Worker._run_apps

async def halted(self, *apps):
    print("starting", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await run_apps(self, *apps)

Worker._run_apps = halted
main()
"""
"""A worker that waits for a line before Faust's Apps begin."""


async def test_a_broker_that_dies_before_faust_begins(cluster: LocalCluster, bootstrap: str):
    """The worker names the address and the next step in one error, and shows no traceback."""
    options = ("worker", "--bootstrap-servers", bootstrap, "--web-port", "0")
    command = (sys.executable, "-c", STARTING, *options)
    child = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    assert child.stdout is not None
    async with asyncio.timeout(WAIT_S):
        assert await child.stdout.readline() == b"starting\n"
        await asyncio.to_thread(cluster.kill)
        _, said = await child.communicate(b"\n")
    text = said.decode()
    assert child.returncode == 1, text
    assert "Traceback" not in text
    assert f"error: the worker cannot go on at {bootstrap}" in text
    assert "hint: check that its brokers run" in text


async def test_a_resolver_that_waits_for_its_broker(
    cluster: LocalCluster, bootstrap: str, log_path: Path, tmp_path: Path
):
    """B9, L6: started while the broker is away, it says so once, and resolves when it is back."""
    await create_topics(bootstrap, "orders")
    async with worker(bootstrap, log_path) as process:
        await process.serving()
    database = tmp_path / "orders.sqlite"
    await asyncio.to_thread(cluster.kill)
    decider = ("--decider", f"orders-db=sqlite:///{database}", "--after-s", "0", "--follow")
    command = (STILLTIDE, "txn", "resolve", *decider, "--bootstrap-servers", bootstrap)
    child = await asyncio.create_subprocess_exec(*command, stderr=PIPE)
    assert child.stderr is not None
    said = ""
    async with asyncio.timeout(WAIT_S):
        while "cluster_away" not in said:
            line = (await child.stderr.readline()).decode()
            assert line, said
            said += line
        await asyncio.to_thread(cluster.start)
        async with worker(bootstrap, log_path) as process:
            await process.serving()
            await leave_prepared(bootstrap, database)
            while "is aborted, as orders-db says" not in said:
                line = (await child.stderr.readline()).decode()
                assert line, said
                said += line
        child.terminate()
        assert await child.wait() == 0
    assert said.count(" cluster_away ") == 1
    assert "Traceback" not in said


async def leave_prepared(bootstrap: str, path: Path) -> None:
    """Prepares a transaction whose row the database rolls back, and leaves it."""
    with closing(sqlite3.connect(path)) as db:
        for statement in DDL["sqlite"]:
            db.execute(statement)
        db.commit()
        async with (
            Decisions("orders-db", f"sqlite:///{path}") as decisions,
            TransactionClient(bootstrap) as client,
        ):
            txn = client.transaction()
            await txn.send("orders", b"1")
            await decisions.enlist(txn, db)
        db.rollback()


async def test_a_broker_that_comes_back(cluster: LocalCluster, bootstrap: str, log_path: Path):
    """Transactions under way when the broker is killed end after it was started again."""
    load = Load(("orders", "payments"), 300)
    third = asyncio.Event()
    await create_topics(bootstrap, *load.topics)
    patient = KafkaConnector(KafkaConfig(bootstrap, delivery_timeout_s=120))
    async with worker(bootstrap, log_path) as process:
        await process.serving()
        async with TransactionClient(
            connector=patient, resend_s=0.5, request_timeout_s=60
        ) as client:
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


async def test_fewer_coordinators(bootstrap: str, log_path: Path):
    """C14: a worker that was told a lower number than the cluster has does not serve."""
    async with worker(bootstrap, log_path) as process:
        await process.serving()
    async with worker(bootstrap, log_path, "--coordinators", str(COORDINATORS - 1)) as process:
        text = await failed(process)
    assert f"the cluster has {COORDINATORS} coordinators" in text


async def test_an_unknown_setting(log_path: Path):
    """A misspelt setting is refused with the nearest name, before anything is connected to."""
    async with worker("127.0.0.1:9", log_path, sesion_timeout_s=1) as process:
        text = await failed(process)
    assert "STILLTIDE_SESION_TIMEOUT_S" in text
    assert "STILLTIDE_SESSION_TIMEOUT_S" in text
