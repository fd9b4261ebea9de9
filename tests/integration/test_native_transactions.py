"""`stilltide native` on a real broker: open, ended and hanging transactions (KIP-664)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from connectors.base import LogAdmin, NativeTransactions
from connectors.errors import FatalError, FencedError
from connectors.kafka.config import KafkaConfig
from connectors.kafka.connector import KafkaConnector
from schemas.topics import TopicSpec
from schemas.values import TopicPartition
from tests.support.hanging import write_hanging
from tests.support.operator import Operator

WAIT_S = 30


@pytest.fixture
def connector(bootstrap: str) -> KafkaConnector:
    """Of the shared broker."""
    return KafkaConnector(KafkaConfig(bootstrap))


@pytest.fixture
async def admin(connector: KafkaConnector) -> AsyncIterator[LogAdmin]:
    """Of the shared broker."""
    made = connector.admin()
    yield made
    await made.close()


@pytest.fixture
async def native(connector: KafkaConnector) -> AsyncIterator[NativeTransactions]:
    """The shared broker's view."""
    made = connector.native_transactions("test")
    yield made
    await made.close()


@pytest.fixture
async def data(admin: LogAdmin, topic_name: str) -> TopicPartition:
    """A partition of a new topic of two."""
    await admin.ensure_topics([TopicSpec(topic_name, 2)])
    return TopicPartition(topic_name, 0)


@pytest.fixture
def operator(bootstrap: str, tmp_path: Path) -> Operator:
    """Of the shared broker."""
    return Operator(bootstrap, tmp_path)


def begin(bootstrap: str, name: str, *partitions: TopicPartition) -> Producer:
    """A producer with an open transaction that has a record in each partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for one in partitions:
        producer.produce(one.topic, b"v", partition=one.partition)
    assert producer.flush(WAIT_S) == 0
    return producer


async def until_stable(admin: LogAdmin, data: TopicPartition, end: int) -> None:
    """Waits for the last marker, which no answer waits for."""
    async with asyncio.timeout(WAIT_S):
        while (await admin.end_offsets([data], committed=True))[data] < end:
            """Each look takes a round trip."""


async def test_an_open_transaction_is_seen_and_fenced(
    bootstrap: str, data: TopicPartition, operator: Operator, admin: LogAdmin
):
    """List, describe, producers; it does not hang, is not aborted by a marker, but as a whole."""
    other = TopicPartition(data.topic, 1)
    producer = await asyncio.to_thread(begin, bootstrap, data.topic, data, other)
    listed = await operator.ask("native list --state ongoing")
    (mine,) = [it for it in listed if it["transactional_id"] == data.topic]
    assert mine["state"] == "Ongoing"
    assert await operator.ask("native list --state ongoing --older-than 3600") == []
    (described,) = await operator.ask(f"native describe {data.topic}")
    assert described["partitions"] == [str(data), str(other)]
    assert described["producer_id"] == mine["producer_id"]
    assert described["age_s"] < 120
    (seen,) = await operator.ask(f"native producers {data.topic} --partition 0")
    assert (seen["producer_id"], seen["open_from"]) == (mine["producer_id"], 0)
    assert await operator.ask(f"native hanging {data.topic}") == []
    refused = await operator.run(f"native abort {data.topic} 0 0 --yes", code=1)
    assert refused.stderr.startswith(f"error: {data.topic}/0@0: the transaction of {data.topic} is")
    await operator.run(f"native fence {data.topic}")
    assert (await admin.end_offsets([data], committed=True))[data] == 0
    await operator.run(f"native fence {data.topic} --yes")
    for one in (data, other):
        await until_stable(admin, one, 2)
    with pytest.raises(KafkaException):
        await asyncio.to_thread(producer.commit_transaction, WAIT_S)
    (described,) = await operator.ask(f"native describe {data.topic}")
    assert (described["partitions"], described["started_at"]) == ([], None)


async def test_a_hanging_transaction_is_found_and_ended(
    bootstrap: str, data: TopicPartition, operator: Operator, admin: LogAdmin
):
    """Beside a live one, which is not taken for it; the marker lets readers pass."""
    producer_id, open_from = await write_hanging(bootstrap, data, 3)
    live = await asyncio.to_thread(begin, bootstrap, data.topic, data)
    (found,) = await operator.ask(f"native hanging {data.topic}", code=3)
    assert (found["partition"], found["open_from"]) == (0, open_from)
    assert (found["producer_id"], found["transactional_id"]) == (producer_id, None)
    assert await operator.ask(f"native hanging {data.topic} --idle-for 9999999999") == []
    await operator.run(f"native abort {data.topic} 0 {open_from}")
    assert (await admin.end_offsets([data], committed=True))[data] == open_from
    wrong = await operator.run(f"native abort {data.topic} 0 {open_from + 1} --yes", code=1)
    assert f"first offsets of open ones: {open_from}, {open_from + 3}" in wrong.stderr
    await operator.run(f"native abort {data.topic} 0 {open_from} --yes")
    await until_stable(admin, data, open_from + 3)
    assert await operator.ask(f"native hanging {data.topic}") == []
    await asyncio.to_thread(live.commit_transaction, WAIT_S)
    await until_stable(admin, data, open_from + 6)


async def test_a_marker_of_an_old_epoch_is_refused(
    bootstrap: str, data: TopicPartition, native: NativeTransactions
):
    """The leader knows better than who asks with what was true before."""
    await write_hanging(bootstrap, data, epoch=3)
    (found,) = (await native.producers([data]))[data]
    with pytest.raises(FencedError):
        await native.write_abort_marker(data, found._replace(producer_epoch=2))
    (found,) = (await native.producers([data]))[data]
    assert found.open_from == 0


async def test_what_is_not_there_is_said(
    data: TopicPartition, operator: Operator, native: NativeTransactions
):
    """Topics, partitions and ids, each with its name."""
    missing = f"{data.topic}-absent"
    for command in (f"producers {missing}", f"hanging {missing}", f"abort {missing} 0 0"):
        done = await operator.run(f"native {command}", code=1)
        assert f"error: {missing}: the topic does not exist" in done.stderr
    done = await operator.run(f"native producers {data.topic} --partition 2", code=1)
    assert "there is no partition 2" in done.stderr
    for command in (f"describe {missing}", f"fence {missing} --yes"):
        done = await operator.run(f"native {command}", code=1)
        assert f"no coordinator knows the transactional id {missing}" in done.stderr
    with pytest.raises(FatalError):
        await native.producers([TopicPartition(missing, 0)])
