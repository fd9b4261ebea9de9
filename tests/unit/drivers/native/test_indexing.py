"""What indexers do with logs and indexes that are not as they must be (F3, F4)."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.errors import FatalError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.core.native.index_table import IndexTable, StoredIndex
from stilltide.pipeline.core.native.indexer import IndexLimits
from stilltide.pipeline.core.replicas import WantedReplicas
from stilltide.pipeline.drivers.native.evidence import (
    indexed_partitions,
    indexed_ranges,
    ranges_in_log,
)
from stilltide.pipeline.drivers.native.owner import AbortedIndexing, IndexOwner
from stilltide.pipeline.drivers.service.own.owner import OwnerDeps
from stilltide.pipeline.drivers.service.own.replies import Replies
from stilltide.pipeline.errors import AbortedIndexError
from stilltide.pipeline.metrics.worker import IndexStats, WorkerMetrics
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.native.aborted_index import Coverage, coverage_key, encode_coverage
from stilltide.schemas.native.transactions import Control
from stilltide.schemas.topics import ABORTED_INDEX, BrokerFigures, TopicSpec
from stilltide.schemas.values import EndOffset, Offset, TopicPartition
from tests.support.coordinator.worker_memory import until
from tests.support.native.log import NativeLog
from tests.support.native.model_batches import ModelBatches
from tests.support.owners import tenure

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 0)
INDEX = TopicPartition(ABORTED_INDEX, 0)

pytestmark = pytest.mark.topics(
    TopicSpec("orders", 1),
    TopicSpec("payments", 1),
    TopicSpec(ABORTED_INDEX, 1, {"cleanup.policy": "compact"}),
)
NOW = IndexLimits(delay_ms_max=0)


FAILED = "stilltide_aborted_index_failed_total"


@pytest.fixture
async def batches(broker: MemoryBroker) -> ModelBatches:
    """Each log: two records that aborted, then one that did not; 5 offsets."""
    made = ModelBatches(broker)
    for data in (ORDERS, PAYMENTS):
        made.logs[data] = NativeLog()
        write(made.logs[data])
    made.mirror()
    return made


@pytest.fixture
async def indexing(broker: MemoryBroker, batches: ModelBatches) -> AsyncIterator[AbortedIndexing]:
    """The indexer of both topics, as the command line has it."""
    made = AbortedIndexing(
        MemoryConnector(broker),
        batches,
        ["orders", "payments"],
        partition_count=1,
        patience_s=5,
        limits=NOW,
    )
    yield made
    await made.close()


@pytest.fixture
def registry() -> CollectorRegistry:
    """Where the indexer counts."""
    return CollectorRegistry()


@pytest.fixture
async def owner(
    broker: MemoryBroker, batches: ModelBatches, registry: CollectorRegistry
) -> IndexOwner:
    """The indexer of both topics, as a worker has it; a third topic does not exist yet."""
    connector = MemoryConnector(broker)
    topics = ["later", "orders", "payments"]
    writer = connector.writer("owner")
    deps = OwnerDeps(
        connector=connector,
        admin=connector.admin(),
        writer=writer,
        replies=Replies(writer),
        clock=SystemClock(),
        partition_count=1,
    )
    metrics = WorkerMetrics("a", registry).aborted_index(0)
    return IndexOwner(0, deps, batches=batches, topics=topics, metrics=metrics, limits=NOW)


def write(log: NativeLog) -> None:
    """One transaction that aborts and one that commits."""
    log.produce(1, 2)
    log.mark(1, Control.ABORT)
    log.produce(1, 1)
    log.mark(1, Control.COMMIT)


def claim(broker: MemoryBroker, data: TopicPartition, covered_to: int, run_count: int) -> None:
    """Has the index say so much of a partition."""
    found = broker.topics[data.topic]
    end = EndOffset(covered_to)
    coverage = Coverage(found.description.topic_id, Offset(0), end, end, run_count, run_count)
    broker.append(INDEX, coverage_key(data), encode_coverage(coverage), None)


def stored(broker: MemoryBroker, data: TopicPartition) -> StoredIndex | None:
    """What the index says of a partition."""
    table = IndexTable(keep_ranges=True)
    for record in broker.records(INDEX):
        table.record_read(record.key, record.value)
    return table.index(data)


def covered(broker: MemoryBroker, data: TopicPartition, end: int) -> bool:
    """Whether the index goes so far."""
    found = stored(broker, data)
    return found is not None and found.covers(Offset(0), EndOffset(end))


async def test_a_log_that_lost_its_end_is_an_error(broker: MemoryBroker, indexing: AbortedIndexing):
    """F3: what was indexed beyond the end is of records that are not there any more."""
    claim(broker, ORDERS, 9, 0)
    with pytest.raises(AbortedIndexError, match="orders/0 has lost its end") as caught:
        await indexing.once()
    assert "drop" in caught.value.hint


async def test_retention_overtakes_an_indexer(
    broker: MemoryBroker, batches: ModelBatches, indexing: AbortedIndexing
):
    """The position is trimmed away between two looks: it goes on at the log start."""
    write(batches.logs[ORDERS])
    batches.logs[ORDERS].trim(5)
    batches.mirror()
    assert await indexing.once() == {ORDERS: 10, PAYMENTS: 5}
    found = stored(broker, ORDERS)
    assert found is not None
    assert (found.coverage.covered_from, list(found.ranges)) == (5, [(5, 7)])


async def test_an_index_that_is_not_whole_is_an_error(
    broker: MemoryBroker, indexing: AbortedIndexing
):
    """F4: a coverage that names runs that are not there."""
    claim(broker, PAYMENTS, 4, 2)
    with pytest.raises(AbortedIndexError, match=r"payments/0 is not whole"):
        await indexing.once()


async def test_a_damaged_record_of_the_index_is_named(
    broker: MemoryBroker, indexing: AbortedIndexing
):
    """B10: with its place, so that it can be found; a foreign record is passed over."""
    broker.append(INDEX, b"no key of ours", b"v", None)
    broker.append(INDEX, coverage_key(PAYMENTS), b"v", None)
    with pytest.raises(DecodeError) as caught:
        await indexing.once()
    assert caught.value.place == f"{ABORTED_INDEX}/0@1"


async def test_a_policy_that_loses_ranges_is_refused(
    broker: MemoryBroker, indexing: AbortedIndexing
):
    """An index that is deleted by age would forget what is aborted."""
    broker.delete_topic(ABORTED_INDEX)
    broker.create_topic(TopicSpec(ABORTED_INDEX, 1, {"cleanup.policy": "delete"}))
    with pytest.raises(FatalError, match=r"cleanup\.policy=delete, not compact"):
        await indexing.once()


async def test_a_new_index_gets_the_replicas_that_are_wanted(
    broker: MemoryBroker, batches: ModelBatches
):
    """Where aborted-index is missing, the command creates it with them."""
    broker.delete_topic(ABORTED_INDEX)
    broker.figures = BrokerFigures(5, 1)
    connector, wanted = MemoryConnector(broker), WantedReplicas(4, 3)
    indexing = AbortedIndexing(
        connector,
        batches,
        ["orders"],
        partition_count=1,
        patience_s=5,
        replicas=wanted,
    )
    await indexing.once()
    await indexing.close()
    found = broker.topics[ABORTED_INDEX]
    assert (found.description.replica_count, found.configs["min.insync.replicas"]) == (4, "3")


async def test_a_partition_that_cannot_be_indexed_holds_up_nobody(
    broker: MemoryBroker, owner: IndexOwner
):
    """In a worker it rests, is counted, and its coverage stands; the others go on."""
    claim(broker, ORDERS, 9, 0)
    async with tenure(owner):
        await until(lambda: owner.serving and owner.stats().resting)
        await until(lambda: covered(broker, PAYMENTS, 5))
        found = owner.stats()
    assert (found.data_partitions, found.resting, found.range_count, found.lag) == (1, 1, 1, 0)
    assert not covered(broker, ORDERS, 10)


async def test_what_the_index_and_the_log_say_is_the_same(
    broker: MemoryBroker, batches: ModelBatches, indexing: AbortedIndexing
):
    """F3: ranges and coverage, and nothing for a partition that was never indexed."""
    connector = MemoryConnector(broker)
    admin = connector.admin()
    assert await indexed_ranges(connector, admin, ORDERS) is None
    write(batches.logs[ORDERS])
    batches.mirror()
    await indexing.once()
    stored, read = (
        await indexed_ranges(connector, admin, ORDERS),
        await ranges_in_log(batches, admin, ORDERS),
    )
    assert stored is not None
    for found in (stored, read):
        assert list(found.ranges) == [(0, 2), (5, 7)]
        assert (found.covered_from, found.covered_to) == (0, 10)


async def test_an_indexer_serves_once_it_has_read_the_index(
    broker: MemoryBroker, indexing: AbortedIndexing
):
    """Ready from then on, with figures by partition of the index; not while the cluster is away."""
    assert not indexing.serving
    running = asyncio.create_task(indexing.run())
    await until(lambda: covered(broker, ORDERS, 5) and covered(broker, PAYMENTS, 5))
    assert indexing.serving
    assert indexing.stats() == {0: IndexStats(data_partitions=2, range_count=2, lag=0)}
    broker.down()
    await until(lambda: not indexing.serving)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_index_of_no_use_is_listed_with_its_problem(
    broker: MemoryBroker, batches: ModelBatches, indexing: AbortedIndexing
):
    """Behind, not whole, of a former topic, of no topic, ahead of its log."""
    connector = MemoryConnector(broker)
    await indexing.once()
    write(batches.logs[ORDERS])
    batches.mirror()
    claim(broker, PAYMENTS, 4, 2)
    orders, payments = await indexed_partitions(connector, connector.admin())
    assert (orders.data, orders.problem, orders.coverage.covered_to) == (ORDERS, "", 5)
    assert orders.last_stable_offset == 10
    assert payments.problem.endswith("names 2 with 2")
    claim(broker, PAYMENTS, 9, 1)
    broker.delete_topic("orders")
    orders, payments = await indexed_partitions(connector, connector.admin())
    assert orders.problem == "the partition does not exist"
    assert payments.problem == "the log ends below what was indexed"
    broker.create_topic(TopicSpec("orders", 1))
    orders, _ = await indexed_partitions(connector, connector.admin())
    assert orders.problem == "of a former topic of this name"


async def test_another_indexer_takes_over(
    broker: MemoryBroker, batches: ModelBatches, owner: IndexOwner, indexing: AbortedIndexing
):
    """B: whoever fences writes; the owner takes it back while the partition is assigned to it."""
    async with tenure(owner):
        await until(lambda: covered(broker, ORDERS, 5))
        await indexing.once()
        write(batches.logs[ORDERS])
        batches.mirror()
        await until(lambda: not owner.serving)
        await until(lambda: covered(broker, ORDERS, 10))


async def test_an_owner_of_another_worker_ends_when_fenced(
    broker: MemoryBroker, batches: ModelBatches, owner: IndexOwner, indexing: AbortedIndexing
):
    """B4: once the partition is not assigned any more, it does not fight for it."""
    async with tenure(owner) as runtime:
        await until(lambda: covered(broker, ORDERS, 5))
        runtime.revoke()
        await indexing.once()
        write(batches.logs[ORDERS])
        batches.mirror()
        await until(lambda: not owner.serving)
        assert not runtime.ends


async def test_an_index_that_cannot_be_read_stops_its_owner_alone(
    broker: MemoryBroker, owner: IndexOwner, registry: CollectorRegistry
):
    """It does not serve, counts it, and raises nothing that would end the worker."""
    broker.append(INDEX, coverage_key(PAYMENTS), b"v", None)

    def failures() -> float | None:
        return registry.get_sample_value(FAILED, {"cluster": "a", "partition": "0"})

    assert failures() == 0
    async with tenure(owner) as runtime:
        await until(lambda: failures() == 1)
        assert not owner.serving
        assert set(runtime.ends) == {"0"}
