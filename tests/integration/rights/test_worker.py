"""C17: a worker works with the rights of `acl print`, needs each, and says which one is missing."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from aiohttp import ClientError
from confluent_kafka.admin import AdminClient

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.core.replicas import AUTOMATIC
from stilltide.pipeline.drivers.coordinator.growth import grow_coordinators
from stilltide.pipeline.drivers.shared.topic_findings import ensure_replicated
from stilltide.pipeline.errors import RequestTimeoutError
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.rights import (
    Component,
    Names,
    Operation,
    Resource,
    ResourceKind,
    entries,
    rights,
)
from stilltide.schemas.topics import ABORTED_INDEX, PREFIX, TXN_RESPONSES, TopicSpec, system_topics
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.looks import between_looks
from tests.support.processes.operator import get
from tests.support.processes.refusals import entry_id, names, said_of
from tests.support.processes.rights import GuardedCluster, guarded_cluster
from tests.support.processes.worker_process import COORDINATORS, ModuleWorker, running_worker

ORDERS, LATE, LATER, GROUP = "orders", "orders-late", "orders-later", "billing"
WAIT_S = 180.0
ASK_S = 3.0
CHOSEN = Names(topics=(f"{ORDERS}*",), groups=(GROUP,))
WORKER = entries(rights(Component.WORKER, CHOSEN))
USER, CARRIER = Component.WORKER.value, "carrier"
CARRYING = entries(rights(Component.WORKER, replace(CHOSEN, replicated=True)))
"""Rights of a worker that carries the positions of groups to other clusters."""

SYSTEM = Resource(ResourceKind.TOPIC, PREFIX, prefixed=True)
OWN_IDS = Resource(ResourceKind.TRANSACTIONAL_ID, PREFIX, prefixed=True)
AT_START = (Operation.ALTER, Operation.CREATE, Operation.DESCRIBE_CONFIGS)
Flow = Callable[[GuardedCluster], Awaitable[None]]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedCluster]:
    """A broker that denies by default, with the users of two workers and an application's."""
    directory = tmp_path_factory.mktemp("guarded")
    with guarded_cluster(directory / "g", USER, CARRIER, "client") as made:
        made.allow(USER, *WORKER)
        made.allow(CARRIER, *CARRYING)
        for component in (Component.APPLICATION, Component.READER):
            made.allow("client", *entries(rights(component, CHOSEN)))
        asyncio.run(create(made, ORDERS, LATE, LATER))
        yield made


@pytest.fixture(scope="module")
def worker(
    guarded: GuardedCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ModuleWorker]:
    """A worker with its rights."""
    log = tmp_path_factory.mktemp("worker") / "worker.log"
    with running_worker(guarded.bootstrap, log, **guarded.settings(USER)) as made:
        yield made


async def create(guarded: GuardedCluster, *topics: str) -> None:
    """Makes data topics, as the cluster's own administrator."""
    admin = KafkaConnector(KafkaConfig(guarded.cluster.bootstrap)).admin()
    await admin.ensure_topics([TopicSpec(it, 1) for it in topics])
    await admin.close()


async def until_ready(worker: ModuleWorker, status: int, *texts: str) -> str:
    """Waits for a status of /readyz with these texts; returns the page."""
    page = ""
    try:
        async with asyncio.timeout(WAIT_S):
            while True:
                found, page = await get(worker, "/readyz")
                if found == status and all(it in page for it in texts):
                    return page
                await between_looks()
    except TimeoutError:
        raise AssertionError(f"{page}\n{worker.said[-3000:]}") from None


async def ready_again(worker: ModuleWorker) -> None:
    """Waits until the worker is ready; starts it each time that the lack of a right has ended it.

    A worker that lacks a right may first say so on its page and end a moment later.
    """
    async with asyncio.timeout(2 * WAIT_S):
        while True:
            if not worker.running:
                await asyncio.to_thread(worker.start)
            with suppress(ClientError):
                await until_ready(worker, 200)
                return


async def transaction(guarded: GuardedCluster, topic: str = ORDERS, ask_s: float = WAIT_S) -> None:
    """A transaction of an application.

    By default its requests wait long: a worker takes a coordinator that was just added only after
    it has looked at the topic of requests again.
    """
    connector = guarded.connector("client")
    async with (
        TransactionClient(connector=connector, request_timeout_s=ask_s) as client,
        client.transaction() as txn,
    ):
        await txn.send(topic, b"1")


async def test_answers_that_are_not_delivered_are_said(
    guarded: GuardedCluster, worker: ModuleWorker
):
    """Without Write on the answers a worker is not ready, and with it ready again, as it runs."""
    await until_ready(worker, 200)
    await transaction(guarded)
    denied = guarded.deny(USER, Resource(ResourceKind.TOPIC, TXN_RESPONSES), Operation.WRITE)
    with pytest.raises(RequestTimeoutError):
        await transaction(guarded, ask_s=ASK_S)
    said = f"Write on topic {TXN_RESPONSES} is not allowed to User:{USER}"
    await until_ready(worker, 503, "answers of", f"cannot write to {TXN_RESPONSES}", said)
    metrics = (await get(worker, "/metrics"))[1]
    assert 'reason="TOPIC_AUTHORIZATION_FAILED",work="answers"}' in metrics
    await until_ready(worker, 503, f"[-]work a right is missing at {guarded.bootstrap}: {said}")
    metrics = (await get(worker, "/metrics"))[1]
    sample = f'operation="Write",resource="topic {TXN_RESPONSES}"}} 1.0'
    assert sample in metrics
    lines = [it for it in worker.said.splitlines() if "work_hindered" in it]
    assert len(lines) == 1
    assert f"User:{USER}" in lines[0]
    guarded.lift(denied)
    await transaction(guarded)
    await until_ready(worker, 200)


LIVE = [
    (SYSTEM, Operation.READ),
    (SYSTEM, Operation.WRITE),
    (SYSTEM, Operation.DELETE),
    (Resource(ResourceKind.GROUP, PREFIX, prefixed=True), Operation.READ),
]
"""Rights that a worker needs as it serves."""


@pytest.mark.parametrize("entry", [pytest.param(it, id=entry_id("worker", *it)) for it in LIVE])
async def test_a_worker_that_lacks_a_right_says_so(
    guarded: GuardedCluster, worker: ModuleWorker, entry: tuple[Resource, Operation]
):
    """It is not ready, or it ends: its page or its error names operation, resource, principal."""
    await ready_again(worker)
    before = len(worker.said)
    said = ""
    with guarded.without(USER, entry):
        async with asyncio.timeout(WAIT_S):
            while not names(said, USER, *entry):
                said = await page_or_error(worker, before)
                await between_looks()
    await ready_again(worker)
    await transaction(guarded)


async def page_or_error(worker: ModuleWorker, before: int) -> str:
    """/readyz while it fails; the last lines of the log once the worker has ended."""
    try:
        status, page = await get(worker, "/readyz")
    except ClientError:
        return "" if worker.running else worker.said[before:].rpartition("error: ")[2]
    return page if status == 503 else ""


@pytest.mark.slow
async def test_an_upgrade_stops_at_a_worker_that_sees_no_policies(
    guarded: GuardedCluster, worker: ModuleWorker
):
    """C18: without DescribeConfigs on a topic in use it is not ready, from its start on."""
    await ready_again(worker)
    await transaction(guarded)
    entry = Resource(ResourceKind.TOPIC, ORDERS, prefixed=True), Operation.DESCRIBE_CONFIGS
    worker.kill()
    with guarded.without(USER, entry):
        await asyncio.to_thread(worker.start)
        said = f"DescribeConfigs on topic {ORDERS} is not allowed to User:{USER}"
        await until_ready(worker, 503, f"[-]partitions cannot read the configs of {ORDERS}", said)
        await until_ready(worker, 503, "[-]work", said)
    await until_ready(worker, 200)


async def start(guarded: GuardedCluster) -> None:
    """What a worker does at its start: makes and checks topics, adds coordinators."""
    connector = guarded.connector(USER)
    admin = connector.admin()
    raised = COORDINATORS + 1
    try:
        await grow_coordinators(admin, raised)
        await ensure_replicated(admin, system_topics(coordinators=raised, partitions=4), AUTOMATIC)
    finally:
        await admin.close()


async def snapshot_writer(guarded: GuardedCluster) -> None:
    """A snapshot writer takes its transactional id."""
    connector = guarded.connector(USER)
    writer = connector.transactional_writer(connector.own_id("snapshots-99"))
    try:
        await writer.fence()
    finally:
        await writer.close()


async def registration(guarded: GuardedCluster) -> None:
    """A transaction registers a topic that the worker does not know yet."""
    await transaction(guarded, LATE)


async def registration_with_a_policy(guarded: GuardedCluster) -> None:
    """A transaction registers a topic whose policy the worker does not know yet (C18)."""
    await transaction(guarded, LATER)


async def claim(guarded: GuardedCluster) -> None:
    """A subscription attaches with acknowledgements."""
    await transaction(guarded)
    connector = guarded.connector("client")
    async with Subscription(
        [ORDERS], group=GROUP, connector=connector, acknowledgements=True
    ) as orders:
        await anext(orders)


FLOWS: dict[tuple[Resource, Operation], Flow] = {
    **{(SYSTEM, operation): start for operation in AT_START},
    (
        Resource(ResourceKind.TRANSACTIONAL_ID, PREFIX, prefixed=True),
        Operation.WRITE,
    ): snapshot_writer,
    (Resource(ResourceKind.TOPIC, ORDERS, prefixed=True), Operation.DESCRIBE): registration,
    (
        Resource(ResourceKind.TOPIC, ORDERS, prefixed=True),
        Operation.DESCRIBE_CONFIGS,
    ): registration_with_a_policy,
    (Resource(ResourceKind.GROUP, GROUP), Operation.DESCRIBE): claim,
}


def test_no_right_is_left_out():
    """Each right of a worker is taken away in one of the tests."""
    assert {*LIVE, *FLOWS} == {*WORKER}


@pytest.mark.slow
@pytest.mark.parametrize("entry", [pytest.param(it, id=entry_id("worker", *it)) for it in FLOWS])
async def test_without_one_right_the_error_names_it(
    guarded: GuardedCluster, worker: ModuleWorker, entry: tuple[Resource, Operation]
):
    """Operation, resource and principal of the worker, in its error or in the application's."""
    await ready_again(worker)
    if entry == (SYSTEM, Operation.CREATE):
        admin = AdminClient({"bootstrap.servers": guarded.cluster.bootstrap})
        admin.delete_topics([ABORTED_INDEX])[ABORTED_INDEX].result(30)
    said = ""
    with guarded.without(USER, entry):
        try:
            async with asyncio.timeout(WAIT_S):
                await FLOWS[entry](guarded)
        except (StilltideError, TimeoutError) as error:
            said = said_of(error)
    assert said, "nothing failed"
    assert names(said, USER, *entry), said
    async with asyncio.timeout(WAIT_S):
        await FLOWS[entry](guarded)
    await ready_again(worker)


async def carried(guarded: GuardedCluster) -> None:
    """What a controller does with a group: looks at its positions and members, reads, moves it."""
    connector, data = guarded.connector(CARRIER), TopicPartition(ORDERS, 0)
    admin, groups = connector.admin(), connector.group_admin()
    reader = connector.reader("controller", committed=False)
    try:
        assert (await admin.end_offsets([data])).keys() == {data}
        await groups.committed([GROUP], [data])
        assert await groups.active([GROUP]) == set()
        await reader.assign({data: Offset(0)})
        await reader.read()
        await groups.move(GROUP, {data: Committed(Offset(0), "")})
    finally:
        await reader.close()
        await groups.close()
        await admin.close()


def test_replication_needs_more_than_a_worker():
    """Only these rights are more than those of every worker; the test below takes each away."""
    assert {*CARRYING} - {*WORKER} == {*CARRIED}


CARRIED = [
    (Resource(ResourceKind.TOPIC, ORDERS, prefixed=True), Operation.READ),
    (Resource(ResourceKind.GROUP, GROUP), Operation.READ),
]


@pytest.mark.parametrize("entry", [pytest.param(it, id=entry_id("groups", *it)) for it in CARRIED])
async def test_a_controller_needs_each_right(
    guarded: GuardedCluster, entry: tuple[Resource, Operation]
):
    """With the rights a replicated group is carried; without one the error names it."""
    async with asyncio.timeout(WAIT_S):
        await carried(guarded)
        with guarded.without(CARRIER, entry), pytest.raises(StilltideError) as refused:
            await carried(guarded)
    assert names(said_of(refused.value), CARRIER, *entry), said_of(refused.value)
