"""A user saw: alice's balance was committed, and is gone.

The balance was in a topic with `cleanup.policy=compact`. A later transaction wrote another balance
and aborted. Kafka's cleaner kept the newest record of the key, which no reader may see, and deleted
the committed one. Native transactions keep alice, because the cleaner knows their aborted records.
"""

from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.ports.admin import TopicDescription
from stilltide.pipeline.client import Subscription, Transaction, TransactionClient
from stilltide.pipeline.client.topics import ClientTopics
from stilltide.pipeline.drivers.coordinator import known_topics
from stilltide.pipeline.errors import CompactedTopicError
from stilltide.pipeline.testing.cluster import MemoryCluster
from stilltide.schemas.coordinator.requests import decode_response, encode_request
from stilltide.schemas.coordinator.transactions import AddPartitions, Open, Registered
from stilltide.schemas.framing import decode_value, encode_batch
from stilltide.schemas.replication.origins import PublishRoute
from stilltide.schemas.service.envelopes import RefusalCode, Refused, Request, client_key
from stilltide.schemas.topics import (
    CLEANUP_POLICY,
    TXN_REQUESTS,
    TXN_RESPONSES,
    TopicSpec,
)
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId
from tests.support.coordinator.worker_client import requests_in
from tests.support.coordinator.worker_memory import until
from tests.support.links.memory_link import MemoryCluster as LinkedCluster
from tests.support.links.memory_link import published

ACCOUNTS, ORDERS = "accounts", "orders"
FIRST = TopicPartition(ACCOUNTS, 0)
OLD_CLIENT = b"older-0123456789"


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """A cluster with a topic that compacts and one that does not."""
    made = MemoryCluster({ORDERS: 1})
    made.broker.create_topic(TopicSpec(ACCOUNTS, 1, {CLEANUP_POLICY: "compact"}))
    async with made:
        yield made


def policy(cluster: MemoryCluster, topic: str, value: str) -> None:
    """Sets the policy of a topic."""
    cluster.broker.topics[topic].alter({CLEANUP_POLICY: value})


def sent(broker: MemoryBroker) -> int:
    """How many requests and data records there are."""
    return sum(map(len, (broker.records(it) for it in broker.partitions([TXN_REQUESTS, ACCOUNTS]))))


async def written(txn: Transaction, *topics: str) -> None:
    """A transaction that writes to topics, one after the other."""
    async with txn:
        for topic in topics:
            await txn.send(topic, b"100", key=b"alice")
            await txn.flush()


@pytest.mark.parametrize("value", [b"100", None], ids=["value", "tombstone"])
@pytest.mark.parametrize("kept", ["compact", "compact,delete"])
async def test_nothing_is_sent_to_a_topic_that_compacts(
    cluster: MemoryCluster, kept: str, value: bytes | None
):
    """C18: the first `send` raises and says where to write; a tombstone is no exception."""
    policy(cluster, ACCOUNTS, kept)
    before = sent(cluster.broker)
    async with TransactionClient(connector=cluster.connector) as client:
        with pytest.raises(CompactedTopicError) as refused:
            async with client.transaction() as txn:
                await txn.send(ACCOUNTS, value, key=b"alice")
    assert refused.value.topic == ACCOUNTS
    assert "stilltide publish" in refused.value.hint
    assert sent(cluster.broker) == before


async def test_a_transaction_that_began_elsewhere_is_aborted(cluster: MemoryCluster):
    """C18: what it wrote to other topics stays hidden."""
    async with TransactionClient(connector=cluster.connector) as client:
        txn = client.transaction()
        with pytest.raises(CompactedTopicError):
            await written(txn, ORDERS, ACCOUNTS)
        assert txn.state == "aborted"
    assert await cluster.committed(ORDERS) == []


async def test_a_topic_that_deletes_may_be_written_again(cluster: MemoryCluster):
    """C18: the client looks again at each `send`, so a policy that was mended counts at once."""
    async with TransactionClient(connector=cluster.connector) as client:
        with pytest.raises(CompactedTopicError):
            async with client.transaction() as txn:
                await txn.send(ACCOUNTS, b"100", key=b"alice")
        policy(cluster, ACCOUNTS, "delete")
        async with client.transaction() as txn:
            await txn.send(ACCOUNTS, b"100", key=b"alice")
    assert [it.value for it in await cluster.committed(ACCOUNTS)] == [b"100"]


async def test_an_older_client_does_not_get_through(cluster: MemoryCluster):
    """C18: its registration is refused by the coordinator, in words that it can show."""
    topic_id = cluster.broker.topics[ACCOUNTS].description.topic_id
    asked = Open(60_000, 1, (Registered(FIRST, EndOffset(0), topic_id),))
    request = encode_request(Request(OLD_CLIENT, 1, 0, 1, asked))
    value = encode_batch([request])
    cluster.broker.append(TopicPartition(TXN_REQUESTS, 0), OLD_CLIENT, value, None)
    answers = TopicPartition(TXN_RESPONSES, 1)
    await until(lambda: cluster.broker.records(answers))
    (record,) = cluster.broker.records(answers)
    assert record.key == client_key(OLD_CLIENT)
    (answer,) = [decode_response(it).answer for it in decode_value(record.value)]
    assert isinstance(answer, Refused)
    assert answer.code is RefusalCode.COMPACTED
    assert answer.reason.startswith(f"{ACCOUNTS}: the topic compacts")
    assert "stilltide publish" in answer.reason


async def test_a_client_that_answers_for_its_keys_may(cluster: MemoryCluster):
    """C18: `allow_compacted` is for topics whose keys are never written again."""
    async with (
        TransactionClient(connector=cluster.connector, allow_compacted=True) as client,
        client.transaction() as txn,
    ):
        await txn.send(ORDERS, b"1", key=b"alice")
        await txn.flush()
        await txn.send(ACCOUNTS, b"100", key=b"alice")
    assert [it.value for it in await cluster.committed(ACCOUNTS)] == [b"100"]


async def test_transactions_opened_ahead_carry_the_choice_too(cluster: MemoryCluster):
    """C9, C18: each registration of such a client says so, and none of another client does."""
    async with (
        TransactionClient(connector=cluster.connector, allow_compacted=True) as allowed,
        TransactionClient(connector=cluster.connector) as plain,
    ):
        for _ in range(3):
            await written(allowed.transaction(), ACCOUNTS)
            await written(plain.transaction(), ORDERS)
    bodies = [it.body for it in requests_in(cluster.broker)]
    registrations = [it for it in bodies if isinstance(it, Open | AddPartitions)]
    named = {(it.partitions[0].data.topic, it.allow_compacted) for it in registrations}
    assert named == {(ACCOUNTS, True), (ORDERS, False)}
    assert len(registrations) >= 4


async def test_a_policy_that_changes_stops_the_next_registration(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
):
    """C18: the open transaction goes on; the next one is refused, and then the client knows."""
    for age in ("POLICY_AGE_S", "POLICY_RENEWED_S"):  # each registration looks
        monkeypatch.setattr(known_topics, age, -1.0)
    async with TransactionClient(connector=cluster.connector) as client:
        async with client.transaction() as txn:
            await txn.send(ORDERS, b"1", key=b"alice")
            await txn.flush()
            policy(cluster, ORDERS, "compact")
            await txn.send(ORDERS, b"2", key=b"bob")
            await txn.abort()
        with pytest.raises(CompactedTopicError, match="coordinator 0 refused to open"):
            async with client.transaction() as txn:
                await txn.send(ORDERS, b"3", key=b"alice")
        with pytest.raises(CompactedTopicError, match="the topic compacts"):
            async with client.transaction() as txn:
                await txn.send(ORDERS, b"4", key=b"alice")


@pytest.mark.parametrize("kept", ["compact", "compact,delete"])
async def test_a_real_broker_tells_the_policy(bootstrap: str, topic_name: str, kept: str):
    """C18: the client sees the policy of a topic with the topic's description."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    plain, compacted = topic_name, f"{topic_name}-compacted"
    await admin.ensure_topics(
        [TopicSpec(plain, 1), TopicSpec(compacted, 1, {CLEANUP_POLICY: kept})]
    )
    topics = ClientTopics(admin, 300, TopicDescription(TXN_REQUESTS, bytes(16), 1, 1), print)
    try:
        assert (await topics.describe(plain)).partition_count == 1
        with pytest.raises(CompactedTopicError) as refused:
            await topics.describe(compacted)
        assert refused.value.topic == compacted
    finally:
        await admin.close()


async def test_a_published_topic_may_compact():
    """C18, H7: alice keeps what was committed; the very records in a compacted source do not."""
    a = LinkedCluster("a")
    a.create("latest", cleanup_policy="compact")
    committed, aborted, latest = TxnId(0, 1), TxnId(0, 2), TopicPartition("latest", 0)
    a.write(b"100", txn=committed)
    a.end(committed, committed=True)
    a.write(b"999", txn=aborted)
    a.end(aborted, committed=False)
    with capture_logs() as said:
        async with published(a, PublishRoute("orders", "latest")):
            await until(lambda: a.values(latest) == [b"100"])
    assert "source_compacts" not in {it["event"] for it in said}
    for topic in ("latest", "orders"):
        a.broker.topics[topic].compact()
    assert a.values(latest) == [b"100"]
    assert a.values() == [b"999"]


async def test_a_publish_from_a_topic_that_compacts_says_what_may_be_lost():
    """C18: what the cleaner took before is not there to be copied; the rest is copied."""
    a = LinkedCluster("a", orders=0)
    a.create("orders", cleanup_policy="compact,delete")
    a.write(b"1")
    with capture_logs() as said:
        async with published(a, PublishRoute("orders", "latest")):
            await until(lambda: a.values(TopicPartition("latest", 0)) == [b"1"])
    (line,) = [it for it in said if it["event"] == "source_compacts"]
    assert (line["topic"], line["to"]) == ("orders", "latest")


async def test_dead_letters_do_not_go_to_a_topic_that_compacts(cluster: MemoryCluster):
    """C18, G2: the subscription says so before a message is delivered, not with each failure."""
    dead = f"{ORDERS}-g-DLQ"
    cluster.broker.create_topic(TopicSpec(dead, 1, {CLEANUP_POLICY: "compact"}))
    options = {"group": "g", "acknowledgements": True, "deliveries_max": 2}
    with pytest.raises(CompactedTopicError) as refused:
        async with Subscription([ORDERS], connector=cluster.connector, **options):
            raise AssertionError
    assert refused.value.topic == dead


async def test_retention_between_a_record_and_its_commit_loses_what_it_takes(
    cluster: MemoryCluster,
):
    """Retention takes records by age, decided or not: the rest of the transaction is visible."""
    async with (
        TransactionClient(connector=cluster.connector) as client,
        client.transaction() as txn,
    ):
        for value in (b"old", b"new"):
            await txn.send(ORDERS, value, key=b"alice")
        await txn.flush()
        cluster.broker.delete_records(TopicPartition(ORDERS, 0), Offset(1))
    assert txn.state == "committed"
    assert [it.value for it in await cluster.committed(ORDERS)] == [b"new"]


async def test_retention_of_all_records_leaves_a_commit_without_any(cluster: MemoryCluster):
    """The commit is answered, and readers go on behind what was deleted."""
    async with TransactionClient(connector=cluster.connector) as client:
        async with client.transaction() as txn:
            await txn.send(ORDERS, b"old", key=b"alice")
            await txn.flush()
            cluster.broker.delete_records(TopicPartition(ORDERS, 0), Offset(1))
        async with client.transaction() as txn:
            await txn.send(ORDERS, b"next", key=b"alice")
    assert [it.value for it in await cluster.committed(ORDERS)] == [b"next"]
