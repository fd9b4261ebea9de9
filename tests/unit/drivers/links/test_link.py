"""A link of memory brokers: exactly once, in order, whatever restarts (H1, H2, H3, H4, H5, H6)."""

import asyncio
from dataclasses import replace

import pytest

from stilltide.connectors.errors import FencedError
from stilltide.pipeline.core.links.link import LinkLimits
from stilltide.pipeline.core.replicas import WantedReplicas
from stilltide.pipeline.drivers.links.link import LinkRunOptions
from stilltide.pipeline.errors import LinkError, UnavailableError
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.replication.origins import ORIGIN
from stilltide.schemas.replication.signals import (
    PositionSnapshotRequest,
    RequestKey,
    Update,
    UpdateKey,
)
from stilltide.schemas.topics import REPLICATION_POSITIONS, TXN_MARKERS, BrokerFigures
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition, TxnId
from tests.support.links.memory_link import (
    BUCKET,
    OPTIONS,
    ORDERS,
    WAIT_S,
    MemoryCluster,
    copying,
    link_of,
    linked,
    until,
)
from tests.support.traces import PARENT, PARENT_SPAN, Traces, links_of, traced

TXN = TxnId(0, 1)


@pytest.fixture
def a() -> MemoryCluster:
    """The source, as a rule."""
    return MemoryCluster("a")


@pytest.fixture
def b() -> MemoryCluster:
    """The target, as a rule; without topic."""
    return MemoryCluster("b", orders=0)


async def failure(
    source: MemoryCluster, target: MemoryCluster, options: LinkRunOptions = OPTIONS
) -> StilltideError:
    """What a link fails with."""
    with pytest.raises(StilltideError) as caught:
        async with asyncio.timeout(WAIT_S):
            await link_of(source, target, options).run()
    return caught.value


async def test_records_are_copied_once_and_in_order(b: MemoryCluster):
    """H1: to the same partition of a topic made for it, with its configs; and what follows."""
    a = MemoryCluster("a", orders=0)
    a.create("orders", 2, retention_ms="1234", min_insync_replicas="2")
    a.write(*[b"%d" % number for number in range(30)])
    a.write(b"other", data=TopicPartition("orders", 1))
    async with linked(a, b):
        await until(lambda: len(b.values()) == 30)
        a.write(b"last")
        await until(lambda: len(b.values()) == 31)
        await until(lambda: b.values(TopicPartition("orders", 1)) == [b"other"])
    assert b.values() == a.values()
    made_with = {"retention.ms": "1234", "min.insync.replicas": "1"}
    assert b.broker.topics["orders"].set_configs == made_with
    assert [one.offset for one in b.origins() if one] == list(range(31))
    assert {(one.incarnation.cluster, one.incarnation.topic) for one in b.origins() if one} == {
        ("a", a.incarnation())
    }


async def test_traces_of_records_are_kept_and_linked_to(a: MemoryCluster, b: MemoryCluster):
    """Headers byte by byte, and one span for each transaction, none for a record."""
    headers = [("traceparent", PARENT.encode()), ("Baggage", b"\xff"), ("traceparent", None)]
    a.broker.append(ORDERS, b"k", b"traced", headers)
    a.write(b"plain")
    with traced(Traces()) as traces:
        async with linked(a, b):
            await until(lambda: b.values() == [b"traced", b"plain"])
            await until(lambda: bool(traces.names))
        spans = traces.spans("replicate")
    copied, _ = b.broker.records(ORDERS)
    assert [it for it in copied.headers or () if it[0] != ORIGIN] == headers
    assert traces.names == ["replicate"] * len(spans)
    assert [one for span in spans for one in links_of(span)] == [PARENT_SPAN]
    counts = [(span.attributes or {})["messaging.batch.message_count"] for span in spans]
    assert sum(count for count in counts if isinstance(count, int)) == 2


@pytest.mark.parametrize(
    ("wanted", "replicas"),
    [(WantedReplicas(), (3, "2")), (WantedReplicas(2, 2), (2, "2"))],
)
async def test_topics_get_replicas_by_the_brokers_of_the_target(
    wanted: WantedReplicas, replicas: tuple[int, str]
):
    """Those that a link creates there; the source's brokers and configs do not count."""
    a = MemoryCluster("a", figures=BrokerFigures(2, 2))
    b = MemoryCluster("b", orders=0, figures=BrokerFigures(3, 1))
    for system in (TXN_MARKERS, REPLICATION_POSITIONS):
        b.broker.delete_topic(system)
    a.write(b"1")
    async with linked(a, b, replace(OPTIONS, replicas=wanted)):
        await until(lambda: b.values() == [b"1"])
    for topic in ("orders", TXN_MARKERS, REPLICATION_POSITIONS):
        found = b.broker.topics[topic]
        assert (found.description.replica_count, found.configs["min.insync.replicas"]) == replicas


async def test_a_link_that_is_started_again_goes_on(a: MemoryCluster, b: MemoryCluster):
    """H2, H3: from its newest bucket; nothing twice, nothing left out."""
    a.write(b"1", b"2")
    for expected in ([b"1", b"2"], [b"1", b"2", b"3"], [b"1", b"2", b"3", b"4"]):
        async with linked(a, b):
            await until(lambda wanted=expected: b.values() == wanted)
        assert b.values() == expected
        a.write(b"%d" % (len(expected) + 1))


@pytest.mark.parametrize("at", range(0, 60, 3))
async def test_a_link_killed_anywhere_loses_and_repeats_nothing(
    a: MemoryCluster, b: MemoryCluster, at: int
):
    """H2: what its transaction had written is never seen; the next link begins behind the last."""
    a.write(*[b"%d" % number for number in range(40)])
    killed = asyncio.create_task(link_of(a, b).run())
    for _ in range(at * 4):
        await asyncio.sleep(0)
    killed.cancel()
    await asyncio.gather(killed, return_exceptions=True)
    async with linked(a, b):
        await until(lambda: len(b.values()) >= 40)
    assert b.values() == a.values()


async def test_the_newer_link_fences_the_older(a: MemoryCluster, b: MemoryCluster):
    """H2: a zombie ends with an error, and writes nothing more."""
    a.write(b"1")
    older = asyncio.create_task(link_of(a, b).run())
    await until(lambda: b.values() == [b"1"])
    async with linked(a, b):
        async with asyncio.timeout(WAIT_S):
            while not older.done():
                a.write(b"more")
                await asyncio.sleep(0)
        assert isinstance(older.exception(), FencedError)
        await until(lambda: len(b.values()) == len(a.values()))
    assert b.values() == a.values()


async def test_only_committed_records_are_copied(a: MemoryCluster, b: MemoryCluster):
    """H1, D2: an undecided record holds back what follows; an aborted one is left out."""
    a.write(b"plain")
    a.write(b"aborted", txn=TXN)
    a.write(b"committed", txn=TxnId(0, 2))
    a.write(b"behind")
    async with linked(a, b):
        await until(lambda: b.values() == [b"plain"])
        a.end(TxnId(0, 2), committed=True)
        a.end(TXN, committed=False)
        await until(lambda: len(b.values()) == 3)
    assert b.values() == [b"plain", b"committed", b"behind"]
    assert not any(name == "txn" for it in b.broker.records(ORDERS) for name, _ in it.headers or ())


async def test_native_transactions_are_copied_when_they_commit(a: MemoryCluster, b: MemoryCluster):
    """H1: an open one holds back what follows, an aborted one is left out."""
    a.write(b"1")
    for value, committed in ((b"aborted", False), (b"2", True)):
        a.broker.transactions.append_open("app", ORDERS, b"k", value, None)
        a.broker.transactions.end_open("app", committed=committed)
    a.broker.transactions.append_open("app", ORDERS, b"k", b"open", None)
    a.write(b"behind")
    async with linked(a, b):
        await until(lambda: b.values() == [b"1", b"2"])
        a.broker.transactions.end_open("app", committed=True)
        await until(lambda: b.values() == [b"1", b"2", b"open", b"behind"])


async def test_nothing_goes_round_in_a_mesh():
    """H1: with a link in every direction between three, each has every record once."""
    clusters = [MemoryCluster(name) for name in "abc"]
    for cluster in clusters:
        cluster.write(*[f"{cluster.name}{number}".encode() for number in range(12)])
    links = [
        asyncio.create_task(link_of(one, other, copying(merge=True)).run())
        for one in clusters
        for other in clusters
        if one is not other
    ]
    await until(lambda: all(len(one.values()) >= 36 for one in clusters))
    for cluster in clusters:
        cluster.write(f"{cluster.name}-late".encode())
    await until(lambda: all(len(one.values()) >= 39 for one in clusters))
    for _ in range(500):
        await asyncio.sleep(0)
    for link in links:
        link.cancel()
    await asyncio.gather(*links, return_exceptions=True)
    for cluster in clusters:
        assert len(set(cluster.values())) == len(cluster.values()) == 39
        for origin in clusters:
            mine = [it for it in cluster.values() if it and it.startswith(origin.name.encode())]
            local = [it for it in origin.values() if it and it.startswith(origin.name.encode())]
            assert mine == local


async def test_a_header_that_an_application_forwarded_makes_no_copy(
    a: MemoryCluster, b: MemoryCluster
):
    """H1: no link has copied from there, so the record is local, and gets its own origin."""
    forged = b"12345678" + (7).to_bytes(8) + b"elsewhere"
    a.broker.append(ORDERS, b"k", b"forwarded", [("origin", forged), ("mine", b"1")])
    async with linked(a, b):
        await until(lambda: b.values() == [b"forwarded"])
    (record,) = b.broker.records(ORDERS)
    assert [name for name, _ in record.headers or ()] == ["mine", "origin"]
    (origin,) = b.origins()
    assert origin is not None
    assert (origin.incarnation.cluster, origin.offset) == ("a", 0)


async def test_new_topics_and_partitions_are_picked_up(a: MemoryCluster, b: MemoryCluster):
    """While the link runs."""
    async with linked(a, b):
        await until(lambda: b.broker.log(ORDERS) is not None)
        a.create("later")
        a.write(b"1", data=TopicPartition("later", 0))
        await until(lambda: b.values(TopicPartition("later", 0)) == [b"1"])
        a.broker.add_partitions("orders", 3)
        added = TopicPartition("orders", 2)
        a.write(b"2", data=added)
        await until(lambda: b.values(added) == [b"2"])


async def test_topics_are_chosen_by_name_or_pattern(a: MemoryCluster, b: MemoryCluster):
    """Others are not even created; those of Stilltide never are copied."""
    for name in ("pay-1", "pay-2", "other"):
        a.create(name)
    async with linked(a, b, copying("orders", "pay-*")):
        await until(lambda: {"orders", "pay-1", "pay-2"} <= b.broker.topics.keys())
        await until(lambda: len({key.data.topic for key in b.buckets()}) == 3)
    assert "other" not in b.broker.topics


async def test_a_topic_created_anew_is_copied_anew(a: MemoryCluster, b: MemoryCluster):
    """H6: on either side, from the source's log start; also with nothing to commit."""
    a.write(b"old")
    async with linked(a, b):
        await until(lambda: b.values() == [b"old"])
        a.broker.delete_topic("orders")
        a.create("orders")
        a.write(b"new")
        await until(lambda: b.values() == [b"old", b"new"])
        b.broker.delete_topic("orders")
        await until(lambda: b.values() == [b"new"])


async def test_what_left_the_log_is_reported_and_becomes_a_hole(a: MemoryCluster, b: MemoryCluster):
    """H5: a first start above 0 too."""
    a.write(b"1", b"2", b"3")
    a.broker.delete_records(ORDERS, Offset(2))
    async with linked(a, b) as link:
        await until(lambda: b.values() == [b"3"])
        assert link.progress.of(ORDERS).lost == 2
    a.write(b"4", b"5")
    a.broker.delete_records(ORDERS, Offset(4))
    async with linked(a, b) as link:
        await until(lambda: b.values() == [b"3", b"5"])
        assert link.progress.of(ORDERS).lost == 1
    newest = max(b.buckets().items(), key=lambda one: one[0].number)[1]
    assert newest is not None
    assert [tuple(one) for holes in newest.holes.values() for one in holes] == [(0, 2), (3, 4)]


async def test_markers_take_effect_by_position(a: MemoryCluster, b: MemoryCluster):
    """H4: a request once its decided end was passed; an update at once; of a former topic never."""
    a.write(b"1")
    request = RequestKey(ORDERS, a.name)
    update = UpdateKey(ORDERS, a.name, "group")
    foreign = RequestKey(ORDERS, ClusterName("c"))
    value = PositionSnapshotRequest(b"r" * 16, 1, a.incarnation(), EndOffset(3))
    a.mark(request, value)
    a.mark(update, Update(0, a.incarnation(), Offset(1), {}))
    a.mark(foreign, value)
    async with linked(a, b):
        await until(lambda: update in b.marks())
        assert request not in b.marks()
        a.write(b"2")
        await until(lambda: len(b.values()) == 2)
        assert request not in b.marks()
        a.write(b"3")
        await until(lambda: request in b.marks())
        a.mark(request, value._replace(incarnation=b"formerly", decided_end=EndOffset(0)))
        a.mark(update, Update(0, a.incarnation(), Offset(2), {}))
        await until(lambda: b.marks()[update] == Update(0, a.incarnation(), Offset(2), {}))
    assert b.marks()[request] == value
    assert foreign not in b.marks()


async def test_an_idle_link_writes_nothing(a: MemoryCluster, b: MemoryCluster):
    """H4: neither positions nor markers, however often it looks."""
    a.write(b"1")

    def written() -> list[int]:
        logs = [
            b.broker.log(TopicPartition(topic, number))
            for topic in (REPLICATION_POSITIONS, "stilltide.replication-markers")
            for number in range(2)
        ]
        return [log.end for log in logs if log is not None]

    async with linked(a, b):
        await until(lambda: b.values() == [b"1"])
        for _ in range(300):
            await asyncio.sleep(0)
        before = written()
        for _ in range(500):
            await asyncio.sleep(0)
        assert written() == before


async def test_an_outage_is_ridden_out(a: MemoryCluster, b: MemoryCluster):
    """Of either side; nothing twice, nothing left out."""
    async with linked(a, b):
        for cluster in (a, b, a):
            a.write(b"%d" % len(a.values()))
            await until(lambda: b.values() == a.values())
            cluster.broker.down()
            for _ in range(50):
                await asyncio.sleep(0)
            cluster.broker.up()
        a.write(b"last")
        await until(lambda: len(b.values()) >= 4)
    assert b.values() == a.values()


async def test_an_outage_that_lasts_ends_the_link(a: MemoryCluster, b: MemoryCluster):
    """With the next step."""
    b.broker.down()
    error = await failure(a, b, replace(OPTIONS, patience_s=0.05))
    assert isinstance(error, UnavailableError)
    assert error.hint


async def test_a_link_can_be_stopped_while_a_cluster_is_away(a: MemoryCluster, b: MemoryCluster):
    """It ends without an error."""
    b.broker.down()
    async with linked(a, b):
        for _ in range(20):
            await asyncio.sleep(0)


async def test_a_record_too_large_for_the_target_ends_the_link(a: MemoryCluster, b: MemoryCluster):
    """It says which topic; nothing behind it is copied."""
    b.create("orders", max_message_bytes="100")
    a.write(b"x" * 200, b"behind")
    error = await failure(a, b)
    assert "orders" in error.primary
    assert b.values() == []


async def test_a_throttle_holds_back(a: MemoryCluster, b: MemoryCluster):
    """H: beyond a second's worth it waits; everything comes in the end."""
    a.write(*[b"x" * 999] * 600)
    async with linked(a, b, replace(OPTIONS, throttle_bytes_per_s=400_000)):
        began = asyncio.get_running_loop().time()
        await until(lambda: len(b.values()) == 600)
        assert asyncio.get_running_loop().time() - began > 0.2


async def test_progress_is_told(a: MemoryCluster, b: MemoryCluster):
    """Records and bytes copied, and what is left."""
    a.write(b"12", b"34")
    async with linked(a, b) as link:
        await until(lambda: link.progress.of(ORDERS).position == 2)
        await until(lambda: link.progress.of(ORDERS).end == 2)
        assert (link.progress.records, link.progress.lag) == (2, 0)
        assert link.progress.of(ORDERS).size_bytes == 6


# -- what cannot be linked


async def test_a_cluster_is_not_linked_to_itself(a: MemoryCluster):
    """By name, and under two names."""
    with pytest.raises(LinkError, match="from a to a itself"):
        link_of(a, a)
    twin = MemoryCluster("twin")
    twin.broker.cluster_id = a.broker.cluster_id
    error = await failure(a, twin)
    assert isinstance(error, LinkError)
    assert error.primary == "a and twin are the same cluster"


async def test_partition_counts_that_differ_are_refused(a: MemoryCluster, b: MemoryCluster):
    """H1: both are named, and nothing is copied."""
    b.create("orders", 3)
    a.write(b"1")
    error = await failure(a, b)
    assert isinstance(error, LinkError)
    assert "1 partitions on a and 3 on b" in error.primary
    assert not any(b.values(TopicPartition("orders", number)) for number in range(3))


async def test_records_of_others_on_the_target_are_refused(a: MemoryCluster, b: MemoryCluster):
    """Unless they shall be merged; both sides are named, and nothing is copied."""
    b.create("orders")
    a.write(b"1")
    b.write(b"own")
    error = await failure(a, b)
    assert isinstance(error, LinkError)
    assert "on b" in error.primary
    assert "and a " in error.primary
    assert "--merge" in error.hint
    assert b.values() == [b"own"]
    async with linked(a, b, copying(merge=True)):
        await until(lambda: b.values() == [b"own", b"1"])
    a.write(b"2")
    async with linked(a, b):
        await until(lambda: b.values() == [b"own", b"1", b"2"])


async def test_a_topic_that_is_named_must_exist(a: MemoryCluster, b: MemoryCluster):
    """A pattern need not match."""
    error = await failure(a, b, copying("absent"))
    assert error.primary == "topic absent does not exist on a"
    async with linked(a, b, copying("absent-*", "orders")):
        await until(lambda: bool(b.buckets()))


async def test_a_topic_that_appears_and_cannot_be_linked_is_left_out(
    a: MemoryCluster, b: MemoryCluster
):
    """The others go on."""
    async with linked(a, b):
        await until(lambda: bool(b.buckets()))
        b.create("later")
        b.write(b"own", data=TopicPartition("later", 0))
        a.create("later")
        a.write(b"1", data=TopicPartition("later", 0))
        a.write(b"1")
        await until(lambda: b.values() == [b"1"])
    assert b.values(TopicPartition("later", 0)) == [b"own"]


async def test_a_bucket_that_cannot_be_read_ends_the_link(a: MemoryCluster, b: MemoryCluster):
    """It names the place; nothing is guessed."""
    b.broker.append(TopicPartition(REPLICATION_POSITIONS, 0), BUCKET, b"bucket", None)
    error = await failure(a, b)
    assert error.place == f"{REPLICATION_POSITIONS}/0@0"


async def test_large_batches_are_cut_into_chunks(a: MemoryCluster, b: MemoryCluster):
    """H3: no bucket spans more than 10 000 offsets."""
    a.write(*[b""] * 25_000)
    limits = LinkLimits(linger_ms=10**9, records_max=20_000, position_interval_ms=20)
    async with linked(a, b, replace(OPTIONS, limits=limits)) as link:
        await until(lambda: link.progress.records == 25_000)
    await until(lambda: len(b.values()) == 25_000)
    spans = [one.source_to - one.source_from for one in b.buckets().values() if one]
    assert max(spans) <= 10_000
    assert sum(spans) == 25_000
