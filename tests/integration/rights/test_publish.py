"""C17: a publish works with the rights of `acl print`, and needs each of them."""

import asyncio
import itertools
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from stilltide.connectors.clock import SystemClock
from stilltide.pipeline.drivers.links.link import LinkRun, LinkRunOptions
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.replication.origins import PublishRoute
from stilltide.schemas.rights import Component, Names, Operation, Resource, entries, rights
from stilltide.schemas.topics import TopicSpec, system_topics
from stilltide.schemas.values import ClusterName, TopicPartition
from tests.support.processes.refusals import entry_id, names, said_of
from tests.support.processes.rights import (
    GuardedCluster,
    create_unguarded,
    guarded_cluster,
    produce_unguarded,
)

WAIT_S = 180.0
USER = Component.PUBLISH.value
RIGHTS = entries(rights(Component.PUBLISH, Names(topics=("orders-*",), target="committed-*")))
OPEN = PublishRoute("orders-open", "committed-open")
_numbers = itertools.count()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedCluster]:
    """A broker that denies by default, with system topics, and the user of a publish."""
    with guarded_cluster(tmp_path_factory.mktemp("guarded"), USER) as made:
        made.allow(USER, *RIGHTS)
        specs = system_topics(coordinators=1, partitions=1)
        asyncio.run(create_unguarded(made, *specs, TopicSpec(OPEN.source, 1)))
        yield made


@pytest.fixture(scope="module", autouse=True)
def stranger(guarded: GuardedCluster) -> Iterator[None]:
    """A native transaction of a stranger that is open in a topic of copies."""
    produce_unguarded(guarded, TopicPartition(OPEN.source, 0))
    asyncio.run(published(guarded, OPEN))
    options = {"bootstrap.servers": guarded.cluster.bootstrap, "transactional.id": "stranger"}
    producer = Producer({**options, "transaction.timeout.ms": 900_000})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(OPEN.target, b"1", partition=0)
    producer.flush(30)
    yield
    producer.abort_transaction(30)


def publishing(guarded: GuardedCluster, publish: PublishRoute) -> LinkRun:
    """A publish by the user, which looks often and gives up early."""
    end = ClusterName("a"), guarded.connector(USER)
    options = LinkRunOptions(
        publish=publish,
        partition_count=1,
        patience_s=5,
        look_interval_s=0.2,
        refuse_after_s=0.5,
    )
    return LinkRun(end, end, SystemClock(), options)


async def published(guarded: GuardedCluster, publish: PublishRoute, *, grows: bool = False) -> None:
    """Publishes the record that there is, and that of a partition that the source gains."""
    link = publishing(guarded, publish)
    running = asyncio.create_task(link.run())
    try:
        await until_taken(link, running, TopicPartition(publish.target, 0))
        if grows:
            admin = AdminClient({"bootstrap.servers": guarded.cluster.bootstrap})
            admin.create_partitions([NewPartitions(publish.source, 2)])[publish.source].result(30)
            produce_unguarded(guarded, TopicPartition(publish.source, 1))
            await until_taken(link, running, TopicPartition(publish.target, 1))
    finally:
        link.stop()
        await running


async def until_taken(link: LinkRun, running: "asyncio.Task[None]", data: TopicPartition) -> None:
    """Waits until the link has taken a record; raises the link's error if it ends."""
    while not link.progress.of(data).records:
        if running.done():
            await running
            raise AssertionError("the publish has ended")
        await asyncio.sleep(0)


async def both(guarded: GuardedCluster) -> None:
    """Publishes a new topic that grows, and one in whose copies a transaction is open."""
    number = next(_numbers)
    publish = PublishRoute(f"orders-{number}", f"committed-{number}")
    await create_unguarded(guarded, TopicSpec(publish.source, 1))
    produce_unguarded(guarded, TopicPartition(publish.source, 0))
    await published(guarded, publish, grows=True)
    produce_unguarded(guarded, TopicPartition(OPEN.source, 0))
    await published(guarded, OPEN)


async def test_a_publish_works_with_its_rights(guarded: GuardedCluster):
    """A new topic with its configs, and a partition that is added later."""
    async with asyncio.timeout(WAIT_S):
        await both(guarded)


@pytest.mark.slow
@pytest.mark.parametrize("entry", [pytest.param(it, id=entry_id("publish", *it)) for it in RIGHTS])
async def test_without_one_right_the_error_names_it(
    guarded: GuardedCluster, entry: tuple[Resource, Operation]
):
    """Operation, resource and principal."""
    said = ""
    with guarded.without(USER, entry):
        try:
            async with asyncio.timeout(WAIT_S):
                await both(guarded)
        except (StilltideError, TimeoutError) as error:
            said = said_of(error)
    assert said, "nothing failed"
    assert names(said, USER, *entry), said
