"""C13, C14 on a real broker: coordinators and partitions are added while clients work."""
# ruff: noqa: PT012 - an error is raised on leaving the transaction's block, not by one statement

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.drivers.service.ask.requests import home_of
from stilltide.pipeline.drivers.snapshots.client import SnapshotLine
from stilltide.pipeline.drivers.snapshots.verify import verify_topic
from stilltide.pipeline.errors import TopicRecreatedError
from stilltide.schemas.values import TopicPartition, TxnId
from tests.support.processes.worker_process import (
    PARTITIONS,
    Load,
    WorkerProcess,
    await_all_ended,
    create_topics,
)

T = TypeVar("T")

AGE_S = 1.0
WAIT_S = 360.0
RECREATED_OR_GONE = "another one was created|cannot read"
"""A reader may notice the deletion before there is another topic."""

FEW, MANY = 1, 3
"""Coordinators before and after the growth."""


def worker(bootstrap: str, log_path: Path, coordinators: int) -> WorkerProcess:
    """A worker that takes a snapshot soon after each outcome; not started."""
    options = ("--coordinators", f"{coordinators}", "--session-timeout-s", "2")
    return WorkerProcess(bootstrap, log_path, *options, snapshot_interval_ms=500)


@asynccontextmanager
async def moving_client(bootstrap: str) -> AsyncIterator[TransactionClient]:
    """A client that has another coordinator when there are `MANY`."""
    while True:
        client = TransactionClient(bootstrap, resend_s=0.5, metadata_max_age_s=AGE_S)
        async with client:
            assert client._cluster is not None
            if home_of(client._cluster._requests.client_id, MANY) != 0:
                yield client
                return


def coordinator_of(client: TransactionClient) -> int:
    """The coordinator of the client's next transactions."""
    assert client._cluster is not None
    return client._cluster.coordinator


async def committed(client: TransactionClient, topic: str, value: bytes) -> TxnId:
    """Commits a transaction of one record to partition 0."""
    async with client.transaction() as txn:
        await txn.send(topic, value, partition=0)
    assert txn.id is not None
    return txn.id


async def differences(bootstrap: str, topic: str) -> list[object]:
    """Takes a snapshot of each partition; returns what it says against the logs."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    async with SnapshotLine(connector, "growth", timeout_s=WAIT_S) as snapshots:
        for number in range(PARTITIONS):
            await snapshots.take(TopicPartition(topic, number))
    verified = await verify_topic(connector, topic, evidence_max=10)
    assert len(verified.checked) == PARTITIONS
    return list(verified.differences)


@pytest.mark.slow
async def test_coordinators_are_added_by_a_rolling_restart(bootstrap: str, tmp_path: Path):
    """C14: transactions run on, nothing is lost or doubled, and later snapshots are right."""
    load = Load(("orders-growth", "payments-growth"), 1_000_000, concurrency=8)
    await create_topics(bootstrap, *load.topics, "other-growth")
    async with AsyncExitStack() as stack:
        workers = [worker(bootstrap, tmp_path / f"{it}.log", FEW) for it in range(2)]
        await stack.enter_async_context(workers[0])
        await workers[0].serving()  # before the other worker can take the only coordinator
        await stack.enter_async_context(workers[1])
        client = await stack.enter_async_context(moving_client(bootstrap))
        progress = asyncio.Event()
        running = asyncio.create_task(load.run(client, lambda _: progress.set()))
        running.add_done_callback(lambda _: progress.set())

        async def until(holds: Callable[[], bool]) -> None:
            async with asyncio.timeout(WAIT_S):
                while not holds():
                    assert not running.done(), running
                    progress.clear()
                    await progress.wait()

        async def goes_on(count: int = 20) -> None:
            before = load.outcomes.count
            await until(lambda: load.outcomes.count > before + count)

        await goes_on()
        for number, one in enumerate(workers):
            await one.stop()
            grown = worker(bootstrap, tmp_path / f"grown-{number}.log", MANY)
            await stack.enter_async_context(grown)
            await goes_on()
        await until(lambda: coordinator_of(client) != 0)
        await goes_on(200)
        load.stop()
        await running
        assert (await committed(client, "other-growth", b"x")).coordinator == coordinator_of(client)
        assert coordinator_of(client) != 0
        await await_all_ended(client)
        assert load.outcomes.unknown == set()
        assert await differences(bootstrap, load.topics[1]) == []
        await load.check(bootstrap, "growth")
        late = worker(bootstrap, tmp_path / "late.log", FEW)
        await stack.enter_async_context(late)
        async with asyncio.timeout(WAIT_S):
            assert await late.ended() != 0
        assert "has 3 coordinators, and the setting coordinators is 1" in late.said


async def test_topics_change_under_a_client_and_a_subscription(bootstrap: str, tmp_path: Path):
    """C13: an added partition is written and read; a topic created again fails what used it."""
    topic, connector = "changing", KafkaConnector(KafkaConfig(bootstrap))
    admin = connector.admin()
    await create_topics(bootstrap, topic)
    async with AsyncExitStack() as stack:
        process = await stack.enter_async_context(worker(bootstrap, tmp_path / "w.log", MANY))
        await process.serving()
        client = await stack.enter_async_context(
            TransactionClient(bootstrap, metadata_max_age_s=AGE_S)
        )
        subscription = await stack.enter_async_context(
            Subscription(
                [topic], group=topic, bootstrap_servers=bootstrap, metadata_max_age_s=AGE_S
            )
        )
        await committed(client, topic, b"first")
        assert (await within(anext(subscription))).value == b"first"
        await subscription.commit()  # else the rebalance delivers the message again
        await admin.add_partitions(topic, PARTITIONS + 1)
        async with client.transaction() as txn:  # looks at once: the partition is unknown
            await txn.send(topic, b"added", partition=PARTITIONS)
        assert (await within(anext(subscription))).value == b"added"
        await subscription.commit()
        txn = client.transaction()
        with pytest.raises(TopicRecreatedError, match="changing"):
            async with txn:
                await txn.send(topic, b"lost", partition=0)
                await txn.flush()
                await asyncio.to_thread(create_again, bootstrap, topic)
                assert client._cluster is not None
                while txn._machine.failure is None:
                    await client._cluster.topics.look()
        assert txn.state == "aborted"
        await committed(client, topic, b"next")
        with pytest.raises((TopicRecreatedError, FatalError), match=RECREATED_OR_GONE):
            await within(anext(subscription))
    await admin.close()


def create_again(bootstrap: str, topic: str) -> None:
    """Deletes the topic and creates another of its name."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    while topic in admin.list_topics(timeout=30).topics:
        continue
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(30)


async def within(waited: Awaitable[T]) -> T:
    """The result, which comes within the time that a slow machine needs."""
    async with asyncio.timeout(WAIT_S):
        return await waited
