"""Records without key, and a topic that compacts only after they were written.

What a user saw: a topic had records without key when its `cleanup.policy` became `compact`. Kafka
keeps such records, and takes no new ones. `stilltide publish` made a topic of the same policy for
its copies, and ended with `INVALID_RECORD` at each start, without a topic, partition or offset.
"""

import asyncio
from collections.abc import Callable

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.drivers.links.link import LinkRun
from stilltide.schemas.replication.origins import PublishRoute, origin_of
from stilltide.schemas.values import TopicPartition
from tests.support.foreign_producer import ForeignRecord, write_foreign
from tests.support.links.link_process import Clusters
from tests.support.links.publishing import publishing
from tests.support.looks import between_looks

WAIT_S = 120.0
RECORDS = [
    ForeignRecord(b"a", b"k"),
    ForeignRecord(b"keyless", None),
    ForeignRecord(b"b", b"k"),
    ForeignRecord(b"empty key", b""),
    ForeignRecord(b"other", b"k", partition=1),
]


def set_policy(bootstrap: str, topic: str, policy: str) -> None:
    """Alters `cleanup.policy` and returns when the broker has agreed."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([changed])[changed].result(30)


async def prepared(kafka: LocalCluster, topic: str) -> tuple[Clusters, PublishRoute]:
    """A topic of two partitions that compacts since records without key were written."""
    clusters = Clusters([kafka])
    await clusters.create("a", topic, 2)
    write_foreign(kafka.bootstrap, topic, RECORDS)
    set_policy(kafka.bootstrap, topic, "compact")
    return clusters, PublishRoute(topic, f"{topic}.out")


async def until(link: LinkRun, is_so: Callable[[LinkRun], object]) -> None:
    """Waits until something holds of a publish."""
    async with asyncio.timeout(WAIT_S):
        while not is_so(link):
            await between_looks()


async def test_a_partition_waits_and_goes_on_when_its_topic_takes_the_record(
    kafka: LocalCluster, topic_name: str
):
    """H10: other partitions are copied; the error names the record; a changed policy is the way on.

    A second publish, after a restart, waits at the same place.
    """
    clusters, publish = await prepared(kafka, topic_name)
    own, other = (TopicPartition(publish.target, number) for number in (0, 1))
    async with publishing(kafka.bootstrap, publish) as link:
        assert [it.value for it in await clusters.records("a", other, 1)] == [b"other"]
        assert [it.value for it in await clusters.records("a", own, 1)] == [b"a"]
        await until(link, lambda it: it.last_error and "@1" in it.last_error.cause)
        error = link.last_error
        assert error is not None
        assert f"{publish.source}/0@1: a record without key" in error.cause
        assert "--keyless skip" in error.hint
        assert link.progress.of(own).keyless == 1
    async with publishing(kafka.bootstrap, publish) as link:
        await until(link, lambda it: it.progress.waiting == {own: 1})
        set_policy(kafka.bootstrap, publish.target, "delete")
        copies = await clusters.records("a", own, 4)
        assert [it.value for it in copies] == [b"a", b"keyless", b"b", b"empty key"]
        await until(link, lambda it: not it.progress.waiting)


async def test_records_without_key_are_left_out_on_request(kafka: LocalCluster, topic_name: str):
    """H10: `--keyless skip` copies all others in order, and counts what it leaves out."""
    clusters, publish = await prepared(kafka, topic_name)
    own = TopicPartition(publish.target, 0)
    async with publishing(kafka.bootstrap, publish, skips_keyless=True) as link:
        copies = await clusters.records("a", own, 3)
        assert [it.value for it in copies] == [b"a", b"b", b"empty key"]
        assert [it and it.offset for it in map(origin_of, [it.headers for it in copies])] == [
            0,
            2,
            3,
        ]
        assert link.progress.of(own).keyless == 1
        write_foreign(kafka.bootstrap, publish.source, [ForeignRecord(b"later", b"k")])
        assert (await clusters.records("a", own, 4))[-1].value == b"later"
