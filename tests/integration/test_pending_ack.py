"""Pending acknowledgements on a real broker: a worker that is killed, and two members."""

import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from connectors.kafka.config import KafkaConfig
from connectors.kafka.connector import KafkaConnector
from connectors.local.cluster import LocalCluster
from schemas.acknowledgements import (
    Acknowledge,
    AckRefusalCode,
    AckRefused,
    Acks,
    Attach,
    CursorMoved,
    DescribeAcks,
    PendingAcks,
)
from schemas.transactions import Done
from schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition
from tests.support.ack_client import AckClient, one
from tests.support.worker_process import COORDINATORS, WorkerProcess

PARTITIONS = 4
"""The default of the setting."""


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker of this module's own, because the system topics are the whole cluster's."""
    with LocalCluster("k", tmp_path_factory.mktemp("acks"), fast_start=True) as cluster:
        yield cluster.bootstrap


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    """Where workers talk to."""
    return tmp_path / "worker.log"


@pytest.fixture
async def client(bootstrap: str) -> AsyncIterator[AckClient]:
    """A client of a subscription of the test's own; opened by the test."""
    connector = KafkaConnector(KafkaConfig(bootstrap_servers=bootstrap))
    subscription = SubscriptionId(TopicPartition(f"orders-{uuid4().hex[:8]}", 0), "billing")
    made = AckClient(connector, subscription, resend_s=0.5)
    yield made
    await made.close()


def worker(bootstrap: str, log_path: Path) -> WorkerProcess:
    """A worker that comes back under its name, without waiting for a session to end."""
    return WorkerProcess(bootstrap, log_path, "--instance-id", "one")


async def test_acknowledgements_outlive_a_killed_worker(
    bootstrap: str, client: AckClient, log_path: Path
):
    """G, B1: committed ones are acknowledged and aborted ones free, with SIGKILL in between."""
    member, follower = secrets.token_bytes(16), secrets.token_bytes(16)
    async with worker(bootstrap, log_path) as doomed:
        await doomed.serving()
        await client.open(coordinators=COORDINATORS, partitions=PARTITIONS)
        attached = await client.ask(Attach(member, EndOffset(5), ()))
        assert attached == Acks(EndOffset(5), (), (), member)
        kept, dropped, lost = [await client.begin() for _ in range(3)]
        assert await client.acknowledge(kept, 7, 8, member=member) == Done()
        assert await client.acknowledge(dropped, 10, member=member) == Done()
        assert await client.acknowledge(lost, 12, member=member) == Done()
        await client.end(dropped, committed=False)
        await client.end(kept, committed=True, wait_visible=False)
        await doomed.kill()
    async with worker(bootstrap, log_path) as successor:
        await successor.serving()
        while await client.state(kept) != "ENDED":  # the successor settles it
            pass
        pending = (PendingAcks(lost, (one(12, 13),), None),)
        taken = await client.ask(Attach(follower, EndOffset(5), ()))
        assert taken == Acks(EndOffset(5), (one(7, 9),), pending, follower)
        refused = await client.acknowledge(lost, 13, member=member)
        assert isinstance(refused, AckRefused)
        assert refused.code == AckRefusalCode.NOT_ATTACHED
        again = await client.begin()
        assert await client.acknowledge(again, 10, member=follower) == Done()
        await client.end(lost, committed=False)
        assert await client.ask(Acknowledge(again, follower, (), Offset(12))) == Done()
        await client.end(again, committed=True)
        assert await client.ask(CursorMoved(follower, EndOffset(13), ())) == Done()
        assert await client.ask(DescribeAcks()) == Acks(EndOffset(13), (), (), follower)
