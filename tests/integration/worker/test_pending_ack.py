"""Pending acknowledgements on a real broker: a killed worker, two members, and an operator."""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.drivers.pending_ack.client import PendingAckStores
from stilltide.schemas.pending_ack.acknowledgements import (
    Acknowledge,
    Acks,
    Attach,
    CursorMoved,
    DescribeAcks,
    PendingAcks,
    SubscriptionStats,
)
from stilltide.schemas.service.envelopes import Done, RefusalCode, Refused, client_key
from stilltide.schemas.topics import TopicSpec, system_partition
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition
from tests.support.looks import between_looks
from tests.support.pending_ack.client import AckClient, one
from tests.support.processes.operator import Operator, get
from tests.support.processes.worker_process import COORDINATORS, WorkerProcess, create_topics

PARTITIONS = 4
"""The default of the setting."""


@pytest.fixture
async def client(bootstrap: str) -> AsyncIterator[AckClient]:
    """A client of a subscription of the test's own; opened by the test."""
    connector = KafkaConnector(KafkaConfig(bootstrap_servers=bootstrap))
    subscription = SubscriptionId(TopicPartition(f"orders-{uuid4().hex[:8]}", 0), "billing")
    admin = connector.admin()
    await admin.ensure_topics([TopicSpec(subscription.data.topic, 1)])
    await admin.close()
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
        pending = (PendingAcks(lost, (one(12, 13),), None, client_key(client.txn_client_id)),)
        taken = await client.ask(Attach(follower, EndOffset(5), ()))
        assert taken == Acks(EndOffset(5), (one(7, 9),), pending, follower)
        refused = await client.acknowledge(lost, 13, member=member)
        assert isinstance(refused, Refused)
        assert refused.code == RefusalCode.NOT_ATTACHED
        again = await client.begin()
        assert await client.acknowledge(again, 10, member=follower) == Done()
        await client.end(lost, committed=False)
        assert await client.ask(Acknowledge(again, follower, (), Offset(12))) == Done()
        await client.end(again, committed=True)
        assert await client.ask(CursorMoved(follower, EndOffset(13), ())) == Done()
        assert await client.ask(DescribeAcks()) == Acks(EndOffset(13), (), (), follower)


async def test_operators_see_what_is_pending(bootstrap: str, log_path: Path, tmp_path: Path):
    """Stats, states and metrics while transactions acknowledge; nothing before, nothing after."""
    data = TopicPartition(f"payments-{uuid4().hex[:8]}", 0)
    read, log = SubscriptionId(data, "billing"), system_partition(data, PARTITIONS)
    connector, operator = KafkaConnector(KafkaConfig(bootstrap)), Operator(bootstrap, tmp_path)
    await create_topics(bootstrap, data.topic)
    async with worker(bootstrap, log_path) as serving:
        await serving.serving()
        shown = {"pending_ack_batching_enabled": None, "subscriptions": []}
        assert await operator.ask("pending-ack batching show") == shown
        async with (
            TransactionClient(bootstrap) as client,
            Subscription(
                [data.topic], group=read.group, connector=connector, acknowledgements=True
            ) as subscription,
            PendingAckStores(connector, request_timeout_s=10) as stores,
        ):
            async with client.transaction() as txn:
                for _ in range(4):
                    await txn.send(data.topic, b"paid", partition=0)
            messages = [await anext(subscription) for _ in range(4)]
            async with client.transaction() as txn:
                await txn.acknowledge(subscription, messages[2])
            async with client.transaction() as one, client.transaction() as other:
                await one.acknowledge_cumulative(subscription, messages[1])
                await other.acknowledge(subscription, messages[3])
                await _until(stores, read, pending=2, acknowledged=1)
                await _see_pending(operator, read, log)
                await _see_metrics(serving, log)
                await one.abort()
                await other.abort()
            done = await _until(stores, read, pending=0, acknowledged=1)
            assert (done.cursor, done.locked_offsets, done.has_served) == (0, 0, True)


async def _until(
    stores: PendingAckStores, read: SubscriptionId, *, pending: int, acknowledged: int
) -> SubscriptionStats:
    """Asks until so many transactions are pending and ranges acknowledged; all figures."""
    while True:
        answers = await stores.stats(topic=read.data.topic, group=read.group)
        found = [it for one in answers.values() if one is not None for it in one.subscriptions]
        one = next(it for it in found if it.subscription == read)
        if (one.pending_transactions, one.acknowledged_ranges) == (pending, acknowledged):
            return one
        await between_looks()


async def _see_pending(operator: Operator, read: SubscriptionId, log: int) -> None:
    """Offsets 0 and 1 are pending cumulatively, 3 individually, and 2 is acknowledged."""
    rows = await operator.ask(f"pending-ack stats --topic {read.data.topic}")
    assert [it["partition"] for it in rows] == [0, 1, 2]
    assert rows[0] == {
        "topic": read.data.topic,
        "partition": 0,
        "group": read.group,
        "attached": True,
        "cursor": 0,
        "committed": 0,
        "acknowledged_ranges": 1,
        "pending_transactions": 2,
        "pending_individual": 1,
        "pending_cumulative_offset": 1,
        "locked_offsets": 3,
        "log": log,
    }
    internals = await operator.ask("pending-ack internal-stats")
    assert [it["store"] for it in internals] == list(range(PARTITIONS))
    one = internals[log]
    assert (one["transactions"], one["pending_individual"], one["pending_cumulative"]) == (2, 1, 1)
    assert one["batching_enabled"]
    assert one["entries"] == one["log_end_offset"] - one["log_start_offset"] > 0
    assert one["records_written"] >= one["entries_written"] > 0
    shown = await operator.ask("pending-ack batching show")
    assert shown["subscriptions"] == [{str(read): True}]


async def _see_metrics(serving: WorkerProcess, log: int) -> None:
    """PIP-160's families of the log, and the gauges of its owner, under their labels."""
    _, text = await get(serving, "/metrics")
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for it in family.samples:
            labels = dict(it.labels)
            if labels.pop("cluster", "") == "a" and labels.pop("partition", "") == str(log):
                extra = labels.get("trigger") or labels.get("kind") or labels.get("le") or ""
                found[it.name.removeprefix("stilltide_pending_ack_"), extra] = it.value
    entries = found["entry_records_count", ""]
    assert entries > 0
    assert found["entry_records_sum", ""] >= entries
    assert found["entry_size_bytes_sum", ""] > entries
    assert found["oldest_record_delay_seconds_count", ""] == entries
    assert found["oldest_record_delay_seconds_sum", ""] > 0
    assert sum(value for (name, _), value in found.items() if name == "flushes_total") == entries
    assert found["requests_total", ""] > 0
    assert found["answers_total", ""] > 0
    assert found["subscriptions", ""] >= 1
    assert found["transactions", ""] == 2
    assert found["acknowledgements", "individual"] == 1
    assert found["acknowledgements", "cumulative"] == 1
    assert found["recovery_seconds", ""] > 0
