"""A publish on a memory broker: committed records of a topic in another one, exactly once (H7)."""

import asyncio
from dataclasses import replace

import pytest

from stilltide.connectors.errors import FencedError
from stilltide.pipeline.drivers.links.offset_translation import translate_published
from stilltide.pipeline.drivers.links.topics import TopicChoice
from stilltide.pipeline.errors import PublishError, RefusedError
from stilltide.schemas.replication.origins import Incarnation, Origin, PublishRoute, origin_of
from stilltide.schemas.replication.positions import beat_key, decode_bucket
from stilltide.schemas.topics import REPLICATION_POSITIONS
from stilltide.schemas.values import ClusterName, Offset, TopicPartition, TxnId
from tests.support.links.memory_link import (
    OPTIONS,
    ORDERS,
    WAIT_S,
    MemoryCluster,
    linked,
    published,
    publishing_of,
    until,
)

PUBLISH = PublishRoute("orders", "orders.committed")
COMMITTED = TopicPartition("orders.committed", 0)
TXN = TxnId(0, 1)
PATIENT = {"timeout_s": 10.0}


@pytest.fixture
def a() -> MemoryCluster:
    """A cluster with topic `orders`."""
    return MemoryCluster("a")


async def refusal(cluster: MemoryCluster, publish: PublishRoute = PUBLISH) -> PublishError:
    """What a publish fails with."""
    with pytest.raises(PublishError) as caught:
        async with asyncio.timeout(WAIT_S):
            await publishing_of(cluster, publish).run()
    return caught.value


async def test_the_committed_records_of_a_topic_are_copied_to_another():
    """H7: in order, partition n to n, with the configs of the source; each bears its origin."""
    a = MemoryCluster("a", orders=0)
    a.create("orders", 2, retention_ms="1234", min_insync_replicas="2")
    other = TopicPartition("orders", 1)
    a.write(*[b"%d" % number for number in range(30)])
    a.write(b"other", data=other)
    a.write(b"aborted", data=other, txn=TXN)
    a.write(b"committed", data=other, txn=TxnId(0, 2))
    async with published(a, PUBLISH) as running:
        await until(lambda: len(a.values(COMMITTED)) == 30)
        a.end(TxnId(0, 2), committed=True, data=other)
        a.end(TXN, committed=False, data=other)
        a.write(b"last")
        await until(lambda: len(a.values(COMMITTED)) == 31)
        there = TopicPartition("orders.committed", 1)
        await until(lambda: a.values(there) == [b"other", b"committed"])
        await until(lambda: {it.lag for it in running.progress.partitions.values()} == {0})
        assert running.progress.partitions.keys() == {COMMITTED, there}
    assert a.values(COMMITTED) == a.values()
    made_with = {"retention.ms": "1234", "min.insync.replicas": "1"}
    assert a.broker.topics["orders.committed"].set_configs == made_with
    incarnation = Incarnation(ClusterName("a"), a.incarnation())
    origins = [Origin(incarnation, Offset(number)) for number in range(31)]
    assert a.origins(COMMITTED) == origins
    names = {name for it in a.broker.records(there) for name, _ in it.headers or ()}
    assert names == {"origin"}


async def test_a_publish_is_declared_before_it_copies_and_writes_no_beats(a: MemoryCluster):
    """H7: a look at the target finds a bucket before the first copy; beats are for links."""
    a.write(b"1", b"2")
    beating = replace(OPTIONS, limits=replace(OPTIONS.limits, beat_interval_ms=1))
    async with published(a, PUBLISH, beating):
        await until(lambda: len(a.values(COMMITTED)) == 2)
        a.write(b"3")
        await until(lambda: len(a.values(COMMITTED)) == 3)
    positions = a.broker.records(TopicPartition(REPLICATION_POSITIONS, 0))
    assert [beat_key(it.key) for it in positions] == [None] * len(positions)
    assert decode_bucket(positions[0].value or b"").source_to == 0


async def test_copies_of_links_are_published_too():
    """H7: a reader of the target sees all that a reader of the source sees; the origin is new."""
    a, b = MemoryCluster("a"), MemoryCluster("b", orders=0)
    a.write(b"1", b"2")
    async with linked(a, b, replace(OPTIONS, choice=TopicChoice(["orders"]))):
        await until(lambda: b.values() == [b"1", b"2"])
        b.write(b"local")
        async with published(b, PUBLISH):
            await until(lambda: b.values(COMMITTED) == [b"1", b"2", b"local"])
    (named,) = {it.incarnation for it in b.origins(COMMITTED) if it}
    assert named == Incarnation(ClusterName("b"), b.incarnation())


@pytest.mark.parametrize("at", range(0, 60, 3))
async def test_a_publish_killed_anywhere_loses_and_repeats_nothing(a: MemoryCluster, at: int):
    """H7, H2: what its transaction had written is never seen; the next one begins behind it."""
    a.write(*[b"%d" % number for number in range(40)])
    killed = asyncio.create_task(publishing_of(a, PUBLISH).run())
    for _ in range(at * 4):
        await asyncio.sleep(0)
    killed.cancel()
    await asyncio.gather(killed, return_exceptions=True)
    async with published(a, PUBLISH):
        await until(lambda: len(a.values(COMMITTED)) >= 40)
    assert a.values(COMMITTED) == a.values()


async def test_the_newer_publish_fences_the_older(a: MemoryCluster):
    """H7, H2: a zombie ends with an error, and writes nothing more."""
    a.write(b"1")
    older = asyncio.create_task(publishing_of(a, PUBLISH).run())
    await until(lambda: a.values(COMMITTED) == [b"1"])
    async with published(a, PUBLISH):
        async with asyncio.timeout(WAIT_S):
            while not older.done():
                a.write(b"more")
                await asyncio.sleep(0)
        assert isinstance(older.exception(), FencedError)
        await until(lambda: len(a.values(COMMITTED)) == len(a.values()))
    assert a.values(COMMITTED) == a.values()


async def test_a_chain_of_publishes_is_no_circle(a: MemoryCluster):
    """H7: copies may be published on, as long as they do not come back."""
    a.write(b"1", b"2")
    async with published(a, PUBLISH), published(a, PublishRoute("orders.committed", "third")):
        await until(lambda: a.values(TopicPartition("third", 0)) == [b"1", b"2"])


async def test_a_circle_is_refused(a: MemoryCluster):
    """H7: with all of its topics, also while the other publishes do not run."""
    a.write(b"1")
    for publish in (PUBLISH, PublishRoute("orders.committed", "third")):
        copies = TopicPartition(publish.target, 0)
        async with published(a, publish):
            await until(lambda data=copies: a.values(data) == [b"1"])
    error = await refusal(a, PublishRoute("third", "orders"))
    assert "in a circle: third -> orders -> orders.committed -> third" in str(error)
    assert a.values() == [b"1"]


async def test_of_publishes_in_a_circle_that_begin_together_one_ends_before_it_copies():
    """H7: each writes a bucket before it looks for that of the other."""
    a = MemoryCluster("a")
    a.create("orders.committed")
    options = replace(OPTIONS, look_interval_s=3600.0)
    tasks = [
        asyncio.create_task(publishing_of(a, one, options).run())
        for one in (PUBLISH, PublishRoute("orders.committed", "orders"))
    ]
    async with asyncio.timeout(WAIT_S):
        ended, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    errors = [task.exception() for task in ended]
    assert all(isinstance(error, PublishError) for error in errors)
    assert "in a circle" in str(errors[0])


async def test_topics_that_were_deleted_since_are_in_no_circle(a: MemoryCluster):
    """H7, H6: what was published from a topic of that name before does not count."""
    a.write(b"1")
    async with published(a, PUBLISH):
        await until(lambda: a.values(COMMITTED) == [b"1"])
    a.broker.delete_topic("orders")
    a.broker.delete_topic("orders.committed")
    a.create("orders.committed")
    a.write(b"2", data=COMMITTED)
    async with published(a, PublishRoute("orders.committed", "orders")):
        await until(lambda: a.values() == [b"2"])


async def test_another_number_of_partitions_is_refused(a: MemoryCluster):
    """H1: the error names both topics; nothing is copied."""
    a.create("orders.committed", 2)
    error = await refusal(a)
    assert "orders has 1 partitions and orders.committed has 2 on a" in str(error)


async def test_records_of_others_are_refused(a: MemoryCluster):
    """H7: the error names both topics and the partition; nothing is copied."""
    a.create("orders.committed")
    a.write(b"foreign", data=COMMITTED)
    error = await refusal(a)
    assert "orders.committed on a has records that are not copies of orders" in str(error)
    assert (error.topic, error.partition) == COMMITTED
    assert a.values(COMMITTED) == [b"foreign"]


async def test_records_that_others_wrote_since_are_refused(a: MemoryCluster):
    """H7: a publish that is started again names the first of them."""
    a.write(b"1")
    async with published(a, PUBLISH):
        await until(lambda: a.values(COMMITTED) == [b"1"])
    a.write(b"foreign", data=COMMITTED)
    end = len(a.broker.records(COMMITTED))
    error = await refusal(a)
    assert "is no copy of a record of orders" in str(error)
    assert (error.topic, error.partition) == COMMITTED
    assert error.offset == a.broker.records(COMMITTED)[end - 1].offset
    a.broker.delete_topic("orders.committed")
    async with published(a, PUBLISH):
        await until(lambda: a.values(COMMITTED) == [b"1"])


async def test_two_publishes_to_one_topic_are_refused(a: MemoryCluster):
    """H7: a topic holds the copies of one topic."""
    a.write(b"1")
    a.create("payments")
    async with published(a, PUBLISH):
        await until(lambda: a.values(COMMITTED) == [b"1"])
    error = await refusal(a, PublishRoute("payments", "orders.committed"))
    assert "would hold copies of orders and of payments" in str(error)


@pytest.mark.parametrize(
    "publish",
    [PublishRoute("orders", "stilltide.orders"), PublishRoute("__consumer_offsets", "offsets")],
)
async def test_system_topics_are_refused(a: MemoryCluster, publish: PublishRoute):
    """H7: on either side."""
    assert "names the system topic" in str(await refusal(a, publish))


async def test_a_missing_source_is_refused_or_awaited():
    """By the command, and by a worker, which runs before the applications that make topics."""
    a = MemoryCluster("a", orders=0)
    assert "topic orders does not exist on a" in str(await refusal(a))
    async with published(a, PUBLISH, replace(OPTIONS, awaits_source=True)):
        a.create("orders")
        a.write(b"1")
        await until(lambda: a.values(COMMITTED) == [b"1"])


async def test_topics_that_are_created_again(a: MemoryCluster):
    """H6: a new source is copied behind the former one; a new target gets everything again."""
    a.write(b"1")
    async with published(a, PUBLISH):
        await until(lambda: a.values(COMMITTED) == [b"1"])
        a.broker.delete_topic("orders")
        a.create("orders")
        a.write(b"2")
        await until(lambda: a.values(COMMITTED) == [b"1", b"2"])
        a.broker.delete_topic("orders.committed")
        await until(lambda: a.values(COMMITTED) == [b"2"])


async def test_a_source_that_gains_partitions(a: MemoryCluster):
    """H1: its target gains them, too."""
    a.write(b"1")
    added = TopicPartition("orders", 1)
    async with published(a, PUBLISH):
        await until(lambda: a.values(COMMITTED) == [b"1"])
        a.broker.add_partitions("orders", 2)
        a.write(b"2", data=added)
        await until(lambda: a.values(TopicPartition("orders.committed", 1)) == [b"2"])


async def test_a_link_of_all_topics_leaves_published_topics_out():
    """H7: each cluster publishes by itself; a link that names the topic copies its records."""
    a, b = MemoryCluster("a"), MemoryCluster("b", orders=0)
    a.write(b"1")
    async with published(a, PUBLISH):
        await until(lambda: a.values(COMMITTED) == [b"1"])
    async with linked(a, b), published(b, PUBLISH, replace(OPTIONS, awaits_source=True)):
        await until(lambda: b.values(COMMITTED) == [b"1"])
    (named,) = {it.incarnation.cluster for it in b.origins(COMMITTED) if it}
    assert named == "b"
    c = MemoryCluster("c", orders=0)
    async with linked(a, c, replace(OPTIONS, choice=TopicChoice(["orders.committed"]))):
        await until(lambda: c.values(COMMITTED) == [b"1"])
    assert c.origins(COMMITTED) == [
        Origin(Incarnation(ClusterName("a"), a.incarnation(COMMITTED)), Offset(0))
    ]


async def test_every_offset_is_translated_in_both_directions(a: MemoryCluster):
    """H7, H3: to the first copy at or above, and back to the record that a copy was made of."""
    a.create("other")
    for number in range(60):
        a.write(b"%d" % number, txn=TxnId(0, number))
        a.end(TxnId(0, number), committed=number % 3 != 0)
    async with published(a, PUBLISH):
        await until(lambda: len(a.values(COMMITTED)) == 40)
        a.write(b"behind")
        await until(lambda: len(a.values(COMMITTED)) == 41)
    copies = {
        origin.offset: record.offset
        for record in a.broker.records(COMMITTED)
        if (origin := origin_of(record.headers)) is not None
    }
    named = a.connector, a.name
    for offset in range(max(copies) + 1):
        found = await translate_published(
            *named, ORDERS, "orders.committed", Offset(offset), **PATIENT
        )
        record = min(one for one in copies if one >= offset)
        assert found == (copies[record], record)
    for offset in range(max(copies.values()) + 1):
        found = await translate_published(*named, COMMITTED, "orders", Offset(offset), **PATIENT)
        copy, record = min((copy, record) for record, copy in copies.items() if copy >= offset)
        assert found == (record, copy)
    log = a.broker.log(COMMITTED)
    assert log is not None
    end = await translate_published(*named, COMMITTED, "orders", Offset(log.end), **PATIENT)
    assert end == (max(copies) + 1, None)
    with pytest.raises(RefusedError, match="beyond the end of the log"):
        await translate_published(*named, COMMITTED, "orders", Offset(log.end + 1), **PATIENT)
    with pytest.raises(RefusedError, match="not copied yet"):
        await translate_published(*named, ORDERS, "orders.committed", Offset(1000), **PATIENT)
    with pytest.raises(RefusedError, match="neither of orders and other is published"):
        await translate_published(*named, ORDERS, "other", Offset(0), **PATIENT)


async def test_what_has_left_the_log_is_not_translated(a: MemoryCluster):
    """H7: from either side, the error names the offset; so does one of a source created again."""
    a.write(*[b"%d" % number for number in range(10)])
    async with published(a, PUBLISH):
        await until(lambda: len(a.values(COMMITTED)) == 10)
    third = a.broker.records(COMMITTED)[3].offset
    a.broker.delete_records(COMMITTED, third)
    named = a.connector, a.name
    for data, other in ((ORDERS, "orders.committed"), (COMMITTED, "orders")):
        with pytest.raises(RefusedError, match="have left the log"):
            await translate_published(*named, data, other, Offset(0), **PATIENT)
    a.broker.delete_topic("orders")
    a.create("orders")
    with pytest.raises(RefusedError, match="of an earlier topic orders"):
        await translate_published(*named, COMMITTED, "orders", third, **PATIENT)
