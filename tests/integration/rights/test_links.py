"""C17: a link works with the rights of `acl print` on both clusters, and needs each of them."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.drivers.links.configs import ConfigOptions
from stilltide.pipeline.drivers.links.link import LinkRun, LinkRunOptions
from stilltide.pipeline.drivers.links.topics import TopicChoice
from stilltide.pipeline.errors import LinkError
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.replication.origins import topic_incarnation
from stilltide.schemas.replication.signals import (
    PositionSnapshotRequest,
    RequestKey,
    encode_key,
    encode_value,
)
from stilltide.schemas.rights import (
    Component,
    LinkSide,
    Names,
    Operation,
    Resource,
    ResourceKind,
    entries,
    rights,
)
from stilltide.schemas.topics import REPLICATION_MARKERS, TopicSpec, system_topics
from stilltide.schemas.values import ClusterName, EndOffset, TopicPartition
from tests.support.processes.refusals import entry_id, names, said_of
from tests.support.processes.rights import (
    GuardedCluster,
    create_unguarded,
    guarded_cluster,
    produce_unguarded,
)

WAIT_S = 180.0
USER = Component.LINK.value
PREFIX = "orders-"
SIDES = {
    side: entries(
        rights(
            Component.LINK,
            Names(topics=(f"{PREFIX}*",), source="a", target="b", side=side),
        )
    )
    for side in LinkSide
}
EACH = [
    pytest.param(side, entry, id=f"{side.value} {entry_id('link', *entry)}")
    for side, found in SIDES.items()
    for entry in found
]
_numbers = itertools.count()


class Pair(NamedTuple):
    """The clusters of the link."""

    source: GuardedCluster
    target: GuardedCluster

    def of(self, side: LinkSide) -> GuardedCluster:
        """The cluster of a side."""
        return self.source if side is LinkSide.SOURCE else self.target


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two brokers that deny by default, with system topics, and the user of a link on both."""
    directory = tmp_path_factory.mktemp("guarded")
    with (
        guarded_cluster(directory / "a", USER) as source,
        guarded_cluster(directory / "b", USER) as target,
    ):
        made = Pair(source, target)
        for side, found in SIDES.items():
            made.of(side).allow(USER, *found)
            specs = system_topics(coordinators=1, partitions=1)
            asyncio.run(create_unguarded(made.of(side), *specs, TopicSpec(f"{PREFIX}open", 1)))
        yield made


@pytest.fixture(scope="module", autouse=True)
def stranger(pair: Pair) -> Iterator[None]:
    """A native transaction of a stranger that is open on the target, in a topic that is copied."""
    options = {"bootstrap.servers": pair.target.cluster.bootstrap, "transactional.id": "stranger"}
    producer = Producer({**options, "transaction.timeout.ms": 900_000})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(f"{PREFIX}open", b"1", partition=0)
    producer.flush(30)
    yield
    producer.abort_transaction(30)


async def copied(pair: Pair) -> None:
    """Copies a new topic, a partition and a config that it gains, to a cluster that lacks all."""
    topic = f"{PREFIX}{next(_numbers)}"
    await create_unguarded(pair.source, TopicSpec(topic, 1))
    produce_unguarded(pair.source, TopicPartition(topic, 0))
    produce_open(pair)
    await signal(pair.source, TopicPartition(topic, 0))
    signals = TopicPartition(REPLICATION_MARKERS, 0)
    before = await stable_end(pair, signals)
    link = LinkRun(
        (ClusterName("a"), pair.source.connector(USER)),
        (ClusterName("b"), pair.target.connector(USER)),
        SystemClock(),
        LinkRunOptions(
            TopicChoice((topic, f"{PREFIX}open"), merge=True),
            partition_count=1,
            patience_s=5,
            look_interval_s=0.2,
            refuse_after_s=0.5,
            configs=ConfigOptions(interval_s=0.2),
        ),
    )
    running = asyncio.create_task(link.run())
    try:
        await until_there(pair, running, TopicPartition(topic, 0))
        await until_there(pair, running, signals, before)
        admin = AdminClient({"bootstrap.servers": pair.source.cluster.bootstrap})
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
        produce_unguarded(pair.source, TopicPartition(topic, 1))
        await until_there(pair, running, TopicPartition(topic, 1))
        await until_followed(pair, link, topic)
        if link.progress.refusals:
            end = await stable_end(pair, TopicPartition(topic, 1))
            produce_unguarded(pair.source, TopicPartition(topic, 1))
            await until_there(pair, running, TopicPartition(topic, 1), end)
            raise LinkError(link.progress.refusals)
    finally:
        link.stop()
        await running


async def until_followed(pair: Pair, link: LinkRun, topic: str) -> None:
    """Alters a config on the source, and waits until it is followed or refused."""
    source = KafkaConnector(KafkaConfig(pair.source.cluster.bootstrap)).topic_admin()
    await source.alter_configs({topic: {"retention.bytes": "1000000000"}})
    await source.close()
    target = KafkaConnector(KafkaConfig(pair.target.cluster.bootstrap)).admin()
    try:
        while "retention.bytes" not in (await target.topic_overrides([topic]))[topic]:
            if link.progress.refusals:
                break
    finally:
        await target.close()


def produce_open(pair: Pair) -> None:
    """A record for the topic in which a stranger's transaction is open on the target."""
    produce_unguarded(pair.source, TopicPartition(f"{PREFIX}open", 0))


async def signal(guarded: GuardedCluster, data: TopicPartition) -> None:
    """A request of the source's controllers about a group, which the link copies."""
    connector = KafkaConnector(KafkaConfig(guarded.cluster.bootstrap))
    admin = connector.admin()
    topic = (await admin.describe_topics([data.topic]))[data.topic]
    await admin.close()
    body = PositionSnapshotRequest(bytes(16), 1, topic_incarnation(topic.topic_id), EndOffset(0))
    producer = Producer({"bootstrap.servers": guarded.cluster.bootstrap})
    key = encode_key(RequestKey(data, ClusterName("a")))
    producer.produce(REPLICATION_MARKERS, encode_value(body), key, 0)
    assert producer.flush(30) == 0


async def stable_end(pair: Pair, data: TopicPartition) -> int:
    """The end of the committed records on the target; 0 for a partition that is not there."""
    admin = KafkaConnector(KafkaConfig(pair.target.cluster.bootstrap)).admin()
    try:
        return (await admin.end_offsets([data], committed=True)).get(data, 0)
    finally:
        await admin.close()


async def until_there(
    pair: Pair, running: "asyncio.Task[None]", data: TopicPartition, after: int = 0
) -> None:
    """Waits for a copy at or above an offset; raises the link's error if it ends."""
    while await stable_end(pair, data) <= after:
        if running.done():
            await running
            raise AssertionError("the link has ended")


async def test_a_link_copies_with_its_rights(pair: Pair):
    """A new topic with its configs, and a partition that is added later."""
    async with asyncio.timeout(WAIT_S):
        await copied(pair)


@pytest.mark.slow
@pytest.mark.parametrize(("side", "entry"), EACH)
async def test_without_one_right_the_error_names_it(
    pair: Pair, side: LinkSide, entry: tuple[Resource, Operation]
):
    """Operation, resource and principal."""
    said = ""
    with pair.of(side).without(USER, entry):
        try:
            async with asyncio.timeout(240):
                await copied(pair)
        except (StilltideError, TimeoutError) as error:
            said = said_of(error)
    assert said, "nothing failed"
    assert names(said, USER, *entry), said


async def test_a_link_that_may_not_alter_configs_goes_on_copying(pair: Pair):
    """H8: with the right to read them; `/readyz` and the metrics name the right that is missing."""
    resource = Resource(ResourceKind.TOPIC, PREFIX, prefixed=True)
    alters, reads = (resource, Operation.ALTER_CONFIGS), (resource, Operation.DESCRIBE_CONFIGS)
    pair.target.allow(USER, reads)
    try:
        with pair.target.without(USER, alters), pytest.raises(LinkError) as caught:
            async with asyncio.timeout(WAIT_S):
                await copied(pair)
        assert names(str(caught.value), USER, *alters), caught.value
    finally:
        pair.target.withdraw(USER, reads)
