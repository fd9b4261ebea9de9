"""C17: programs that ask a worker or read work with the rights of `acl print`, and need each.

The broker denies by default. One flow for each component uses every right of the component.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from stilltide.connectors.errors import NotAuthorizedError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.cli.topics import look as look_at_topics
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.core.status.asks import (
    ConfigsAsk,
    EndedAsk,
    GroupAsk,
    GroupsAsk,
    LagAsk,
    LogsAsk,
    NativeAsk,
    PartitionsAsk,
    ProducersAsk,
    RecordsAsk,
    TopicsAsk,
)
from stilltide.pipeline.core.status.values import Aged
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.groups.client import GroupLine
from stilltide.pipeline.drivers.groups.report import describe_group
from stilltide.pipeline.drivers.native.evidence import gather_native
from stilltide.pipeline.drivers.native.open_transactions import open_transactions
from stilltide.pipeline.drivers.native.owner import AbortedIndexing
from stilltide.pipeline.drivers.pending_ack.client import PendingAckStores
from stilltide.pipeline.drivers.shared.dynamic_settings import DynamicSettings, write_setting
from stilltide.pipeline.drivers.snapshots.client import SnapshotLine
from stilltide.pipeline.drivers.snapshots.listing import list_snapshots
from stilltide.pipeline.drivers.snapshots.outcomes import gather_evidence
from stilltide.pipeline.drivers.snapshots.verify import verify_topic
from stilltide.pipeline.drivers.status.cluster import StatusTarget
from stilltide.pipeline.drivers.status.collector import StatusCollector
from stilltide.pipeline.drivers.status.looks.looks import Looks
from stilltide.pipeline.errors import NoTopicError, RefusedError
from stilltide.pipeline.jobs.audits.plan import COORDINATED, AuditPlan, resolve
from stilltide.pipeline.jobs.audits.report import Verdict
from stilltide.pipeline.jobs.audits.run import run_audit
from stilltide.schemas.coordinator.transactions import ListTransactions
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
from stilltide.schemas.settings import TXN_LOG_BATCHING_ENABLED
from stilltide.schemas.topics import (
    ABORTED_INDEX,
    REPLICATION_MARKERS,
    REPLICATION_POSITIONS,
    TopicSpec,
)
from stilltide.schemas.values import ClusterName, EndOffset, TopicPartition
from tests.support.processes.refusals import entry_id, names, said_of
from tests.support.processes.rights import GuardedCluster, guarded_cluster, produce_unguarded
from tests.support.processes.worker_process import running_worker
from tests.support.spark.session import local_spark

ORDERS, NATIVE, GROUP = "orders", "orders-native", "billing"
DATA = TopicPartition(ORDERS, 0)
A = ClusterName("a")
"""The name of the guarded cluster to its worker."""

PATTERN = "order[s]"
"""Fits no other topic."""
WAIT_S = 180.0
ASK_S = 5.0
CHOSEN = Names(topics=(f"{ORDERS}*",), groups=(GROUP,))
TESTED_ELSEWHERE = (Component.WORKER, Component.LINK, Component.PUBLISH)
COMPONENTS = [it for it in Component if it not in TESTED_ELSEWHERE]
EACH = [
    pytest.param(component, resource, operation, id=entry_id(component, resource, operation))
    for component in COMPONENTS
    for resource, operation in entries(rights(component, CHOSEN))
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedCluster]:
    """A broker that denies by default, a worker, and a user for each component."""
    directory = tmp_path_factory.mktemp("guarded")
    with guarded_cluster(directory / "g", *(it.value for it in Component)) as made:
        for component in (Component.WORKER, *COMPONENTS):
            made.allow(component.value, *entries(rights(component, CHOSEN)))
        asyncio.run(prepare(made))
        settings = made.settings("worker") | {"clusters": "b=127.0.0.1:1"}
        with running_worker(made.bootstrap, directory / "worker.log", **settings):
            yield made


async def prepare(guarded: GuardedCluster) -> None:
    """Makes the data topic, as the cluster's own administrator."""
    admin = KafkaConnector(KafkaConfig(guarded.cluster.bootstrap)).admin()
    await admin.ensure_topics([TopicSpec(ORDERS, 1), TopicSpec(NATIVE, 1)])
    await admin.close()


@pytest.fixture(scope="module", autouse=True)
def stranger(guarded: GuardedCluster) -> Iterator[None]:
    """A native transaction of a stranger that is open, about which brokers are asked."""
    options = {"bootstrap.servers": guarded.cluster.bootstrap, "transactional.id": "stranger"}
    producer = Producer({**options, "transaction.timeout.ms": 900_000})
    producer.init_transactions(30)
    for step in (producer.abort_transaction, lambda: None):
        producer.begin_transaction()
        producer.produce(NATIVE, b"1", partition=0)
        producer.flush(30)
        step()
    yield
    producer.abort_transaction(30)


async def application(guarded: GuardedCluster) -> None:
    """A transaction with a record."""
    connector = guarded.connector(Component.APPLICATION)
    async with (
        TransactionClient(connector=connector, request_timeout_s=ASK_S) as client,
        client.transaction() as txn,
    ):
        await txn.send(ORDERS, b"1")


async def reader(guarded: GuardedCluster) -> None:
    """Reads, acknowledges in a transaction, and asks as at an undecided record."""
    await application(guarded)
    connector = guarded.connector(Component.READER)
    writing = guarded.connector(Component.APPLICATION)
    async with SnapshotLine(connector, "reader", timeout_s=ASK_S) as line:
        await line.take(DATA)
    async with (
        TransactionClient(connector=writing, request_timeout_s=ASK_S) as client,
        Subscription([ORDERS], group=GROUP, connector=connector, acknowledgements=True) as orders,
        client.transaction() as txn,
    ):
        await txn.acknowledge(orders, await anext(orders))


async def operator(guarded: GuardedCluster) -> None:
    """Commands of an operator, by the calls that they make."""
    connector = guarded.connector(Component.OPERATOR)
    async with Coordinators(connector, request_timeout_s=ASK_S) as coordinators:
        await coordinators.ask(0, ListTransactions())
        await coordinators.log_bounds()
    async with PendingAckStores(connector, request_timeout_s=ASK_S) as stores:
        assert None not in (await stores.stats()).values()
        await stores.log_bounds()
    async with SnapshotLine(connector, "operator", timeout_s=ASK_S) as line:
        await line.take(DATA)
    async with GroupLine(connector, "operator", timeout_s=ASK_S) as controllers:
        with pytest.raises(RefusedError, match="no group of topic orders is replicated"):
            await controllers.take_positions(DATA)
    await list_snapshots(connector)
    await verify_topic(connector, ORDERS, evidence_max=1)
    await look_at_topics(connector, load_settings())
    await write_setting(connector, TXN_LOG_BATCHING_ENABLED, None, at_ms=0)
    settings = DynamicSettings(connector, patience_s=ASK_S)
    await settings.open()
    await settings.close()
    await open_natives(connector)
    await state(guarded, Component.OPERATOR)


async def open_natives(connector: KafkaConnector) -> None:
    """What `stilltide native hanging` and an audit ask the brokers."""
    native = connector.native_transactions("test")
    try:
        assert await open_transactions(native, [TopicPartition(NATIVE, 0)])
    finally:
        await native.close()


async def indexer(guarded: GuardedCluster) -> None:
    """`stilltide index once`, with a topic to create, and again with an index to read."""
    await drop_index(guarded)
    connector = guarded.connector(Component.INDEXER)
    for _ in range(2):
        indexing = AbortedIndexing(
            connector,
            connector.batch_reader("index"),
            [NATIVE],
            partition_count=1,
            patience_s=ASK_S,
        )
        try:
            await indexing.once()
        finally:
            await indexing.close()


async def drop_index(guarded: GuardedCluster) -> None:
    """Deletes the index, so that the indexer has to create it."""
    admin = AdminClient({"bootstrap.servers": guarded.cluster.bootstrap})
    for deleted in admin.delete_topics([ABORTED_INDEX]).values():
        with suppress(KafkaException):
            deleted.result(30)


async def audit(guarded: GuardedCluster) -> None:
    """The reads of Kafka of an audit, without those of Spark."""
    connector = guarded.connector(Component.AUDIT)
    evidence = await gather_evidence(connector, [NATIVE])
    await resolve(connector, [NATIVE], {}, {})
    native = await gather_native(connector, [NATIVE], evidence.data)
    assert native is not None
    await open_natives(connector)


async def state(guarded: GuardedCluster, component: Component) -> None:
    """What `stilltide status` reads; a part that cannot be read is an error."""
    if not await fill_topics(guarded):
        await indexer(guarded)
    connector = guarded.connector(component)
    async with StatusCollector([target_of(guarded, connector)]) as collector:
        status = await collector.collect(WAIT_S)
    require(*(it for _, it in status.clusters[0].parts()), *status.links.values())
    settings = DynamicSettings(connector, patience_s=ASK_S)
    await settings.open()
    await settings.close()
    assert await describe_group({A: connector}, NATIVE, GROUP, timeout_s=ASK_S)


async def fill_topics(guarded: GuardedCluster) -> bool:
    """Gives topics that links and groups write a record to read; whether the index has one."""
    connector = KafkaConnector(KafkaConfig(guarded.cluster.bootstrap))
    admin = connector.admin()
    try:
        wanted = [REPLICATION_MARKERS, REPLICATION_POSITIONS, ABORTED_INDEX]
        ends: dict[str, dict[TopicPartition, EndOffset]] = {}
        for name, one in (await admin.describe_topics(wanted)).items():
            numbers = range(one.partition_count)
            ends[name] = await admin.end_offsets([TopicPartition(name, it) for it in numbers])
    finally:
        await admin.close()
    for name in (REPLICATION_MARKERS, REPLICATION_POSITIONS):
        for data in (it for it, end in ends[name].items() if not end):
            produce_unguarded(guarded, data, b"foreign")
    return any(ends.get(ABORTED_INDEX, {}).values())


def target_of(guarded: GuardedCluster, connector: KafkaConnector) -> StatusTarget:
    """The cluster as the status looks at it."""
    native = connector.native_transactions("test")
    return StatusTarget(A, guarded.bootstrap, connector, connector, native)


def require(*parts: Aged[Any]) -> None:
    """Every part was read."""
    for one in parts:
        if one.problem:
            raise RefusedError(one.problem, hint=one.hint)
        assert one.value is not None


async def console(guarded: GuardedCluster) -> None:
    """The state, and what pages read while somebody looks."""
    await state(guarded, Component.CONSOLE)
    connector = guarded.connector(Component.CONSOLE)
    target = target_of(guarded, connector)
    looks = Looks([target])
    try:
        asks = (
            TopicsAsk(A, ""),
            PartitionsAsk(A, ORDERS, 0),
            RecordsAsk(A, DATA, None),
            NativeAsk(A),
            ProducersAsk(A, NATIVE, 0),
            LogsAsk(A),
            EndedAsk(A),
            LagAsk(A, ORDERS, GROUP),
            ConfigsAsk(A, ORDERS),
            GroupsAsk(A, ""),
            GroupAsk(A, GROUP),
        )
        answers = await looks.answers(asks, WAIT_S)
        require(*answers.values())
        topics = answers[TopicsAsk(A, "")].value
        assert topics is not None
        for problem in topics.problems:
            raise RefusedError(problem)
        logs = answers[LogsAsk(A)].value
        assert logs is not None
        assert None not in logs.figures.values()
    finally:
        await looks.close()
        assert target.native is not None
        await target.native.close()


FLOWS: dict[Component, Callable[[GuardedCluster], Awaitable[None]]] = {
    Component.APPLICATION: application,
    Component.READER: reader,
    Component.OPERATOR: operator,
    Component.INDEXER: indexer,
    Component.AUDIT: audit,
    Component.CONSOLE: console,
}


@pytest.mark.parametrize("component", FLOWS)
async def test_a_component_works_with_its_rights(guarded: GuardedCluster, component: Component):
    """Everything that the documentation shows of it."""
    async with asyncio.timeout(WAIT_S):
        await FLOWS[component](guarded)


async def read_by_pattern(guarded: GuardedCluster) -> None:
    """The first record of the topic of transactions, which a pattern names."""
    connector = guarded.connector(Component.READER)
    async with Subscription(PATTERN, group=GROUP, connector=connector) as orders:
        await anext(orders)


async def test_a_pattern_finds_the_topics_that_may_be_described(guarded: GuardedCluster):
    """D8: without Describe nothing fits, without Read the error names that; with both it reads."""
    await application(guarded)
    topics = Resource(ResourceKind.TOPIC, ORDERS, prefixed=True)
    user = Component.READER.value
    async with asyncio.timeout(WAIT_S):
        await read_by_pattern(guarded)
        with guarded.without(user, (topics, Operation.READ)):
            with pytest.raises(NoTopicError, match="allow Describe"):
                await read_by_pattern(guarded)
            guarded.allow(user, (topics, Operation.DESCRIBE))
            try:
                with pytest.raises(NotAuthorizedError) as caught:
                    await read_by_pattern(guarded)
            finally:
                guarded.withdraw(user, (topics, Operation.DESCRIBE))
            assert caught.value.operation == Operation.READ
        await read_by_pattern(guarded)


def test_a_whole_audit_works_with_its_rights(guarded: GuardedCluster):
    """Kafka's client for Java, too: Spark reads the records."""
    asyncio.run(application(guarded))
    secured = guarded.connector(Component.AUDIT)._config
    with local_spark():
        plan = AuditPlan([ORDERS], checks=COORDINATED, accept_unchecked=True)
        report = run_audit(secured, plan)
    assert report.verdict is Verdict.VALID


@pytest.mark.slow
@pytest.mark.parametrize(("component", "resource", "operation"), EACH)
async def test_without_one_right_the_error_names_it(
    guarded: GuardedCluster,
    component: Component,
    resource: Resource,
    operation: Operation,
    caplog: pytest.LogCaptureFixture,
):
    """Operation, resource and principal, within a time that a person waits."""
    user = component.value
    said = ""
    with guarded.without(user, (resource, operation)), caplog.at_level(logging.WARNING):
        try:
            async with asyncio.timeout(240):
                await FLOWS[component](guarded)
        except (StilltideError, TimeoutError) as error:
            said = said_of(error)
    assert said, "nothing failed"
    assert names(said, user, resource, operation), said
