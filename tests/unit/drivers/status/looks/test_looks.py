"""What is read only while somebody looks: shared, bounded, and ended when nobody looks."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from stilltide.connectors.errors import NotAuthorizedError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector, MemoryTopicAdmin
from stilltide.connectors.ports.connector import closing
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.core.read_committed.machine import RecordVerdict
from stilltide.pipeline.core.status.asks import (
    PARTITIONS_MAX,
    TOPICS_MAX,
    Ask,
    ConfigsAsk,
    EndedAsk,
    GroupAsk,
    GroupsAsk,
    LagAsk,
    ListedGroup,
    LogsAsk,
    NativeAsk,
    PartitionsAsk,
    ReadPlace,
    RecordsAsk,
    TopicsAsk,
)
from stilltide.pipeline.drivers.status.cluster import StatusTarget
from stilltide.pipeline.drivers.status.looks.looks import KEPT_MAX, WINDOWS_MAX, Looks
from stilltide.pipeline.drivers.status.looks.topics import WAITING_MAX, TopicsLook
from stilltide.schemas.coordinator.markers import is_barrier
from stilltide.schemas.topics import TXN_LOG, TXN_MARKERS, TopicSpec
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition, TxnId
from tests.contract.rig import Membership
from tests.support.coordinator.coordinated import CoordinatedTopic
from tests.support.coordinator.worker_memory import PARTITIONS, MemoryWorker, until

pytestmark = pytest.mark.topics(TopicSpec("wide", 1000))

A = ClusterName("a")
PATIENCE_S = 120.0
OPEN, ABORTED = TxnId(0, 1), TxnId(0, 2)


def target(broker: MemoryBroker) -> StatusTarget:
    """The cluster as looks take it."""
    connector = MemoryConnector(broker)
    return StatusTarget(A, "a:9092", connector, connector)


@pytest.fixture
async def looks(broker: MemoryBroker) -> AsyncIterator[Looks]:
    """Looks at the cluster."""
    made = Looks([target(broker)])
    yield made
    await made.close()


async def value(looks: Looks, ask: Ask) -> Any:
    """The value of an answer."""
    aged = (await looks.answers([ask], PATIENCE_S))[ask]
    assert aged.problem == ""
    return aged.value


async def test_topics_and_partitions_are_shown_in_parts(broker: MemoryBroker, looks: Looks):
    """A part of many names, and of a thousand partitions; the total is told."""
    for number in range(TOPICS_MAX + 10):
        broker.create_topic(TopicSpec(f"orders-{number:03}", 1))
    found = await value(looks, TopicsAsk(A, "orders"))
    assert (found.topics[0].name, len(found.topics), found.total) == ("orders-000", TOPICS_MAX, 60)
    later = await value(looks, TopicsAsk(A, "orders", TOPICS_MAX))
    assert [it.name for it in later.topics] == [f"orders-{number:03}" for number in range(50, 60)]
    broker.append(TopicPartition("wide", 990), None, b"v", None)
    wide = await value(looks, PartitionsAsk(A, "wide", 0))
    assert (wide.total, len(wide.ends)) == (1000, PARTITIONS_MAX)
    last = await value(looks, PartitionsAsk(A, "wide", 990))
    assert [it.data.partition for it in last.ends] == [*range(990, 1000)]
    assert (last.ends[0].log_start, last.ends[0].last_stable, last.ends[0].high_watermark) == (
        (0, 1, 1)
    )


async def test_topics_have_size_rate_and_policy(broker: MemoryBroker):
    """A rate is that between two reads; topics of Stilltide are counted, or listed if asked for."""
    for spec in (TopicSpec(TXN_LOG, 1), TopicSpec("orders", 2, {"cleanup.policy": "compact"})):
        broker.create_topic(spec)
    data = TopicPartition("orders", 1)
    broker.append(data, b"key", b"value", None)
    connector = MemoryConnector(broker)
    look = TopicsLook(connector.admin(), connector.topic_admin(), TopicsAsk(A, "ord"))
    first = await look.read()
    (orders,) = first.topics
    assert (orders.partition_count, orders.policy, orders.own_configs) == (2, "compact", 1)
    assert (orders.size_bytes, orders.offsets, orders.rate) == (8, 1, None)
    broker.append(data, b"key", b"value", None)
    (orders,) = (await look.read()).topics
    assert orders.rate is not None
    assert orders.rate > 0
    everything = TopicsLook(connector.admin(), connector.topic_admin(), TopicsAsk(A, ""))
    assert [topic.name for topic in (await everything.read()).topics] == ["orders", "wide"]
    assert (await everything.read()).system_total == 1
    ask = TopicsAsk(A, "txn-log", with_system=True)
    system = await TopicsLook(connector.admin(), connector.topic_admin(), ask).read()
    assert [topic.name for topic in system.topics] == [TXN_LOG]


async def test_what_the_user_may_not_know_of_topics_is_said(broker: MemoryBroker):
    """The list is there without sizes, and names the right."""

    class Unauthorized(MemoryTopicAdmin):
        async def sizes(self, names: Sequence[str]) -> dict[TopicPartition, int]:
            raise NotAuthorizedError(
                f"the sizes of {names} are secret",
                operation="Describe",
                resource="cluster kafka-cluster",
                principal="User:w",
            )

    admin = MemoryConnector(broker).admin()
    listed = await TopicsLook(admin, Unauthorized(broker), TopicsAsk(A, "wide")).read()
    assert listed.problems == ("sizes: the sizes of ['wide'] are secret",)
    assert [(topic.name, topic.size_bytes) for topic in listed.topics] == [("wide", None)]


async def test_the_configs_of_a_topic(broker: MemoryBroker, looks: Looks):
    """All that hold, and which of them are set on the topic."""
    broker.create_topic(TopicSpec("orders", 1, {"retention.ms": "1000"}))
    configs = await value(looks, ConfigsAsk(A, "orders"))
    assert configs.own == {"retention.ms"}
    assert configs.values["retention.ms"] == "1000"
    gone = await looks.answers([ConfigsAsk(A, "gone")], PATIENCE_S)
    assert "does not exist" in gone[ConfigsAsk(A, "gone")].problem


async def test_all_groups_are_listed(broker: MemoryBroker, looks: Looks):
    """With state, members, topics and lag in offsets; one of them with members and partitions."""
    broker.create_topic(TopicSpec("orders", 2))
    for _ in range(5):
        broker.append(TopicPartition("orders", 0), None, b"v", None)
    connector = MemoryConnector(broker)
    async with closing(connector.group_admin()) as groups:
        await groups.move("left", {TopicPartition("orders", 0): Committed(Offset(2), "")})
    reader = connector.group_reader("shop", "reads", from_start=True)
    member = Membership(reader)
    await member.join("orders")
    await member.until(lambda: len(member.records) == 5)
    listed = await value(looks, GroupsAsk(A, ""))
    assert listed.groups == (
        ListedGroup("left", "Empty", 0, ("orders",), 3),
        ListedGroup("reads", "Stable", 1, (), None),
    )
    assert (await value(looks, GroupsAsk(A, "ea", 1))).total == 1
    reads = await value(looks, GroupAsk(A, "reads"))
    assert [(seen.client, seen.partitions) for seen in reads.members] == [("shop", 2)]
    place = ReadPlace(TopicPartition("orders", 0), None, EndOffset(5), "shop")
    assert reads.places[0] == place
    await member.leave()
    assert (await value(looks, GroupAsk(A, "gone"))).group.state == "Dead"


async def test_records_with_their_transactions(broker: MemoryBroker, looks: Looks):
    """Runs, counts and spans of a window; keys and values are cut."""
    topic = await CoordinatedTopic.create(MemoryConnector(broker), "orders", 1)
    await topic.write(0, None, 2)
    await topic.write(0, ABORTED, 3)
    await topic.write(0, OPEN)
    await topic.write(0, None, value=bytes(5000))
    await topic.abort(0, ABORTED)
    found = await value(looks, RecordsAsk(A, topic.at(0), None))
    assert [(it.first, it.end, it.verdict) for it in found.runs] == [
        (0, 2, RecordVerdict.VISIBLE),
        (2, 5, RecordVerdict.ABORTED),
        (5, 6, RecordVerdict.UNDECIDED),
        (6, 7, RecordVerdict.VISIBLE),
    ]
    assert found.counts == {
        RecordVerdict.VISIBLE: 3,
        RecordVerdict.ABORTED: 3,
        RecordVerdict.UNDECIDED: 1,
    }
    assert found.undecided == 5
    assert [(it.txn, it.first, it.last, it.records) for it in found.transactions] == [
        ("0:2", 2, 4, 3),
        ("0:1", 5, 5, 1),
    ]
    large = found.records[-1]
    assert (len(large.value or b""), large.value_bytes, large.key) == (200, 5000, None)
    assert large.header_values == ()
    one = await value(looks, RecordsAsk(A, topic.at(0), 6, only=True))
    (record,) = one.records
    assert (record.offset, len(record.value or b"")) == (6, 5000)
    (aborted,) = (await value(looks, RecordsAsk(A, topic.at(0), 3, only=True))).records
    assert aborted.verdict is RecordVerdict.ABORTED
    (header,) = aborted.header_values
    assert (header[0], header[2]) == ("txn", 16)
    await topic.close()


async def test_a_question_of_many_viewers_is_read_once(broker: MemoryBroker, looks: Looks):
    """All of them get the same answer; within its rest it is not read again."""
    ask = TopicsAsk(A, "")
    first, *others = await asyncio.gather(*(looks.answers([ask], PATIENCE_S) for _ in range(20)))
    assert all(one[ask] is first[ask] for one in others)
    broker.create_topic(TopicSpec("later", 1))
    assert (await looks.answers([ask], PATIENCE_S))[ask] is first[ask]
    assert looks.count == 1


async def test_what_cannot_be_read_says_why(looks: Looks):
    """A topic that is not there; a cluster whose native transactions cannot be asked for."""
    asks = [
        RecordsAsk(A, TopicPartition("<script>", 0), None),
        PartitionsAsk(A, "gone", 0),
        NativeAsk(A),
    ]
    answers = await looks.answers(asks, PATIENCE_S)
    assert "does not exist" in answers[asks[0]].problem
    assert "does not exist" in answers[asks[1]].problem
    assert "cannot be asked for" in answers[asks[2]].problem


async def test_an_answer_that_takes_long_comes_later(broker: MemoryBroker, looks: Looks):
    """The caller gets what is known; the read goes on."""
    broker.down()
    ask = TopicsAsk(A, "")
    assert (await looks.answers([ask], 0))[ask].value is None
    broker.up()
    async with asyncio.timeout(PATIENCE_S):
        while (await looks.answers([ask], 1))[ask].value is None:
            """The failed read rests first."""


async def test_without_a_viewer_nothing_stays_open(broker: MemoryBroker):
    """Readers are closed some time after the last question."""
    looks = Looks([target(broker)], idle_s=0.01)
    await looks.answers([RecordsAsk(A, TopicPartition("wide", 0), None)], PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        while looks.count:  # noqa: ASYNC110 - the looks have no event for it
            await asyncio.sleep(0)
    await looks.close()


async def test_the_number_of_questions_is_bounded(looks: Looks):
    """The oldest one is forgotten."""
    for number in range(KEPT_MAX + 20):
        await looks.answers([TopicsAsk(A, str(number))], 0)
    assert looks.count == KEPT_MAX


@pytest.fixture
def small_heap() -> Iterator[None]:
    """What other tests have left in this process is not collected with each window."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("small_heap")
async def test_the_clients_of_many_windows_are_few(broker: MemoryBroker, looks: Looks):
    """Windows of a topic share a browser, and few browsers of further topics wait."""
    for number in range(6):
        broker.create_topic(TopicSpec(f"t{number}", 2))
        broker.append(TopicPartition(f"t{number}", 1), None, b"v", None)
    windows = [
        RecordsAsk(A, TopicPartition(f"t{topic}", partition), start)
        for topic in range(6)
        for partition in range(2)
        for start in (0, None)
    ]
    for window in windows:
        await value(looks, window)
        assert len(looks._browsers) <= WAITING_MAX
    assert looks.count <= WINDOWS_MAX
    found = await value(looks, windows[-1])
    assert [it.value for it in found.records] == [b"v"]


async def test_logs_ended_transactions_and_lag(broker: MemoryBroker, looks: Looks):
    """What the owners have written and why, how transactions ended, what a group has not read."""
    broker.create_topic(TopicSpec("orders", 2))
    connector = MemoryConnector(broker)
    async with MemoryWorker(connector, coordinators=2):
        async with TransactionClient(connector=connector) as client:
            async with client.transaction() as txn:
                await txn.send("orders", b"1", partition=0)
                await txn.send("orders", b"2", partition=1)
            async with client.transaction() as txn:
                await txn.send("orders", b"3", partition=0)
                await txn.flush()
                await txn.abort()
        marker_logs = [TopicPartition(TXN_MARKERS, number) for number in range(PARTITIONS)]
        await until(
            lambda: (
                sum(not is_barrier(it.key) for log in marker_logs for it in broker.records(log))
                == 3
            )
        )
        logs = (await value(looks, LogsAsk(A))).figures
        written = [one for log, one in logs.items() if log.topic == TXN_LOG and one is not None]
        assert len(written) == 2
        assert sum(one.entries_written for one in written) > 0
        for one in written:
            assert sum(it.entries for it in one.flushes) >= one.entries_written
            assert sum(it.records for it in one.flushes) >= one.records_written
        ended = (await value(looks, EndedAsk(A))).ended
        assert sorted((it.outcome, it.records, len(it.partitions)) for it in ended) == [
            ("aborted", None, 1),
            ("committed", 2, 2),
        ]
        lag = await value(looks, LagAsk(A, "orders", "billing"))
        assert (lag.visible, lag.at_least) == (2, False)
