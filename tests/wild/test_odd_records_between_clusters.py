"""Links between two clusters, and records whose bytes and times other programs have chosen.

What a user saw: `stilltide publish` copied timestamp 0 as the present time and ended at a header
name in Latin-1. A link between clusters is made of the same parts; here it has to prove it, with
the offsets of its groups behind such records, and on a target that sets the times itself.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.kafka.admin.groups import KafkaGroupAdmin
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client.subscription import Subscription
from stilltide.pipeline.core.groups.controller import SyncMode
from stilltide.pipeline.drivers.groups.controller import GroupsOwnerDeps, Replicated
from stilltide.pipeline.drivers.groups.owner import GroupsOwner
from stilltide.pipeline.drivers.links.offset_translation import translate
from stilltide.pipeline.drivers.service.own.replies import Replies
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.topics import REPLICATION_MARKERS, system_partition
from stilltide.schemas.values import ClusterName, Offset, TopicPartition
from tests.support.foreign_producer import ForeignRecord, write_foreign
from tests.support.links.copied import WAIT_S, columns, create, joined
from tests.support.links.link_process import Clusters
from tests.support.links.publishing import replicating
from tests.support.looks import between_looks
from tests.support.processes.local import commit

ODD = [
    ForeignRecord(b"plain", timestamp_ms=1_700_000_000_000),
    ForeignRecord(b"epoch", timestamp_ms=0),
    ForeignRecord(b"timeless", timestamp_ms=-1),
    ForeignRecord(b"1969", None, timestamp_ms=-5000),
    ForeignRecord(b"latin", None, [(b"stra\xdfe", b"1"), (b"stra\xdfe", b"\x00")], 5),
    ForeignRecord(None, b"tombstone", [(b"", b"nameless")], 0),
    ForeignRecord(b"", b"", [(b"\xff\xfe", b""), (b"origin", b"https://shop.example/cart")], 7),
    ForeignRecord(b"nul", b"\x00", [(b"k", b"\x00")], 8),
    ForeignRecord(b"last", b"k", timestamp_ms=1_700_000_000_001),
]
A, B = ClusterName("a"), ClusterName("b")


async def test_copies_on_another_cluster_are_exact(clusters: Clusters, topic_name: str):
    """H10, H11: key, value, time and headers byte by byte, and each offset is translated."""
    a, b = clusters.addresses["a"], clusters.addresses["b"]
    await create(a, topic_name)
    write_foreign(a, topic_name, ODD)
    async with replicating(clusters, "a", "b", topic_name) as link, asyncio.timeout(WAIT_S):
        copies = joined(await columns(b, topic_name, len(ODD)))
        assert copies == joined(await columns(a, topic_name, len(ODD)))
        assert [it[2] for it in copies] == [it.timestamp_ms for it in ODD]
        assert copies[4][3] == [("stra\udcdfe", b"1"), ("stra\udcdfe", b"\x00")]
        ends, data = (
            (clusters.connector("a"), clusters.connector("b")),
            TopicPartition(topic_name, 0),
        )
        while (found := await translated(ends, data)) is None:
            await between_looks()
        places = {it.value: it.offset for it in await clusters.records("b", data, len(ODD))}
        assert found == [places[it.value] for it in ODD]
        assert link.last_error is None


async def translated(
    ends: tuple[KafkaConnector, KafkaConnector], data: TopicPartition
) -> list[int] | None:
    """The offsets on b of all records of a; None: the link has not written all buckets."""
    try:
        return [
            (await translate(*ends, (A, B), data, Offset(it), timeout_s=WAIT_S)).offset
            for it in range(len(ODD))
        ]
    except RefusedError:
        return None


async def test_a_target_that_sets_times_gets_every_record(clusters: Clusters, topic_name: str):
    """H8: with LogAppendTime on the target, copies lose their times, and nothing else."""
    a, b = clusters.addresses["a"], clusters.addresses["b"]
    await create(a, topic_name)
    await create(b, topic_name, message_timestamp_type="LogAppendTime")
    write_foreign(a, topic_name, ODD)
    began_ms = time.time() * 1000
    async with replicating(clusters, "a", "b", topic_name) as link, asyncio.timeout(WAIT_S):
        await columns(b, topic_name, len(ODD))
        write_foreign(a, topic_name, ODD)
        copies = joined(await columns(b, topic_name, 2 * len(ODD)))
        assert link.last_error is None
    records = joined(await columns(a, topic_name, 2 * len(ODD)))
    assert [(*it[:2], it[3]) for it in copies] == [(*it[:2], it[3]) for it in records]
    assert all(began_ms - 1000 < it[2] < time.time() * 1000 + 1000 for it in copies)


@asynccontextmanager
async def controlling(
    clusters: Clusters, name: str, other: str, data: TopicPartition, group: str
) -> AsyncIterator[None]:
    """The controller of a partition and a replicated group on one cluster."""
    connector, named = clusters.connector(name), {(data.topic, group, True)}
    async with AsyncExitStack() as stack:
        admin, writer, replies = connector.admin(), connector.writer("c"), connector.writer("r")
        for it in (admin, writer, replies):
            stack.push_async_callback(it.close)
        described = await admin.describe_topics([REPLICATION_MARKERS])
        count = described[REPLICATION_MARKERS].partition_count

        async def first(partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Offset]:
            return dict.fromkeys(partitions, Offset(0))

        deps = GroupsOwnerDeps(
            connector=connector,
            admin=admin,
            writer=writer,
            replies=Replies(replies),
            here=ClusterName(name),
            remotes=[ClusterName(other)],
            replicated=Replicated(lambda: named, connector.clock),
            first=first,
            partition_count=count,
            mode=SyncMode.EXACT,
        )

        async def serve() -> None:
            while True:  # as a worker does after an outage
                with suppress(RetriableError):
                    await GroupsOwner(system_partition(data, count), deps).run()
                await between_looks()

        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(serve())
            yield
            running.cancel()


async def test_a_group_fails_over_behind_odd_records(clusters: Clusters, topic_name: str):
    """I7: on the other cluster the group reads what it has not read, wherever it stood."""
    a, b = clusters.addresses["a"], clusters.addresses["b"]
    data = TopicPartition(topic_name, 0)
    await create(a, topic_name)
    write_foreign(a, topic_name, ODD)
    async with asyncio.timeout(WAIT_S), replicating(clusters, "a", "b", topic_name):
        places = {it.value: it.offset for it in await clusters.records("b", data, len(ODD))}
        groups, admin = clusters.connector("b").group_admin(), clusters.connector("b").admin()
        async with (
            controlling(clusters, "a", "b", data, topic_name),
            controlling(clusters, "b", "a", data, topic_name),
        ):
            for read in (2, 4, 5, 7):
                commit(a, topic_name, topic_name, read)
                place = places[ODD[read].value]
                while await standing(groups, topic_name, data) not in {place - 1, place}:
                    await between_looks()
        end = (await admin.end_offsets([data], committed=True))[data]
        await asyncio.gather(groups.close(), admin.close())
    async with Subscription([topic_name], group=topic_name, bootstrap_servers=b) as records:
        left = [it.value async for it in records.read_to({data: end})]
    assert left == [it.value for it in ODD[7:]]


async def standing(groups: KafkaGroupAdmin, group: str, data: TopicPartition) -> int | None:
    """The group's committed offset."""
    found = (await groups.committed([group], [data]))[group].get(data)
    return None if found is None else found.offset
