"""`stilltide native` on a real broker: open, ended and hanging transactions (KIP-664)."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from stilltide.connectors.errors import FatalError, FencedError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.admin import LogAdmin, NativeTransactions
from stilltide.pipeline.drivers.native.open_transactions import abort_hanging, open_transactions
from stilltide.pipeline.drivers.shared.named_partitions import named_partitions
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.native.transactions import TransactionState
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.native.hanging import write_hanging
from tests.support.native.topics import until_stable
from tests.support.processes.operator import Operator

WAIT_S = 240


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


async def test_an_open_transaction_is_seen_and_fenced(
    bootstrap: str,
    data: TopicPartition,
    native: NativeTransactions,
    operator: Operator,
    admin: LogAdmin,
):
    """Listed, described, held against its partitions; no marker aborts it, a fence does."""
    other = TopicPartition(data.topic, 1)
    producer = await asyncio.to_thread(begin, bootstrap, data.topic, data, other)
    (mine,) = [it for it in await native.list_transactions() if it.transactional_id == data.topic]
    assert mine.state == TransactionState.ONGOING
    assert mine in await native.list_transactions(
        states=[TransactionState.ONGOING], producer_ids=[mine.producer_id], older_than_ms=0
    )
    assert mine not in await native.list_transactions(states=[TransactionState.EMPTY])
    assert mine not in await native.list_transactions(older_than_ms=3_600_000)
    (described,) = await operator.ask(f"native describe {data.topic}")
    assert described["partitions"] == [str(data), str(other)]
    assert described["producer_id"] == mine.producer_id
    found = await open_transactions(native, [data, other])
    assert [(it.data, it.open_from, it.hanging) for it in found] == [
        (data, 0, False),
        (other, 0, False),
    ]
    refused = await operator.run(f"native abort {data.topic} 0 0 --yes", code=1)
    assert refused.stderr.startswith(f"error: {data.topic}/0@0: the transaction of {data.topic} is")
    await operator.run(f"native fence {data.topic}")
    assert (await admin.end_offsets([data], committed=True))[data] == 0
    await operator.run(f"native fence {data.topic} --yes")
    for one in (data, other):
        await until_stable(admin, one, 2)
    with pytest.raises(KafkaException):
        await asyncio.to_thread(producer.commit_transaction, WAIT_S)
    assert await open_transactions(native, [data, other]) == []


async def test_a_hanging_transaction_is_found_and_ended(
    bootstrap: str,
    data: TopicPartition,
    native: NativeTransactions,
    operator: Operator,
    admin: LogAdmin,
):
    """Beside a live one, which is not taken for it; the marker lets readers pass."""
    producer_id, open_from = await write_hanging(bootstrap, data, 3)
    live = await asyncio.to_thread(begin, bootstrap, data.topic, data)
    (found,) = await operator.ask(f"native hanging {data.topic}", code=3)
    assert (found["partition"], found["open_from"]) == (0, open_from)
    assert (found["producer_id"], found["transactional_id"]) == (producer_id, None)
    watched = await operator.run(f"native watch {data.topic} --looks 1 -o json")
    held, free = json.loads(watched.stdout)
    assert (held["last_stable_offset"], held["open"], held["state"]) == (open_from, 2, "hanging")
    assert (free["partition"], free["open"], free["held_by"]) == (1, 0, None)
    with pytest.raises(RefusedError) as caught:
        await abort_hanging(native, data, Offset(open_from + 1))
    assert caught.value.detail.endswith(f"{open_from}, {open_from + 3}")
    await operator.run(f"native abort {data.topic} 0 {open_from}")
    assert (await admin.end_offsets([data], committed=True))[data] == open_from
    await operator.run(f"native abort {data.topic} 0 {open_from} --yes")
    await until_stable(admin, data, open_from + 3)
    assert [it.hanging for it in await open_transactions(native, [data])] == [False]
    await asyncio.to_thread(live.commit_transaction, WAIT_S)
    await until_stable(admin, data, open_from + 6)
    ranges = await operator.ask(f"native aborted-ranges {data.topic} 0 --source log")
    assert [(it["first"], it["end"]) for it in ranges] == [(open_from, open_from + 3)]


async def test_a_marker_of_an_old_epoch_is_refused(
    bootstrap: str, data: TopicPartition, native: NativeTransactions
):
    """The leader knows better than who asks with what was true before."""
    await write_hanging(bootstrap, data, epoch=3)
    (found,) = (await native.producers([data]))[data]
    with pytest.raises(FencedError):
        await native.write_marker(data, found._replace(producer_epoch=2), committed=False)
    (found,) = (await native.producers([data]))[data]
    assert found.open_from == 0


async def test_what_is_not_there_is_said(
    data: TopicPartition, operator: Operator, admin: LogAdmin, native: NativeTransactions
):
    """Topics, partitions and ids, each with its name."""
    missing = f"{data.topic}-absent"
    with pytest.raises(FatalError, match="does not exist"):
        await named_partitions(admin, missing)
    with pytest.raises(RefusedError, match="there is no partition 2"):
        await named_partitions(admin, data.topic, [2])
    with pytest.raises(FatalError, match=missing):
        await native.producers([TopicPartition(missing, 0)])
    assert await native.describe_transaction(missing) is None
    done = await operator.run(f"native describe {missing}", code=1)
    assert f"no coordinator knows the transactional id {missing}" in done.stderr
