"""A cluster refuses what a worker writes for acknowledgements, groups, indexes and links.

A user saw: the clock of a worker was wrong. `/readyz` named the transaction log. Nothing told that
groups were not carried over any more, and that the index of native transactions stood still; two
links into one cluster took each other's hindrance away, and a link went on minutes after the mend.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.core.groups.controller import SyncMode
from stilltide.pipeline.core.native.indexer import IndexLimits
from stilltide.pipeline.drivers.links.link import LinkOwner
from stilltide.pipeline.drivers.native.owner import IndexOwner
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.service.own.owner import OwnerDeps
from stilltide.pipeline.drivers.service.own.replies import Replies
from stilltide.pipeline.metrics.worker import WorkerMetrics
from stilltide.schemas.native.transactions import Control
from stilltide.schemas.pending_ack.acknowledgements import Acks, Attach
from stilltide.schemas.retry import LINK_ENDED
from stilltide.schemas.topics import (
    ABORTED_INDEX,
    PENDING_ACK_LOG,
    REPLICATION_MARKERS,
    REPLICATION_POSITIONS,
    TopicSpec,
    system_partition,
)
from stilltide.schemas.values import EndOffset, SubscriptionId, TopicPartition
from tests.support.coordinator.worker_memory import PARTITIONS, MemoryWorker, until
from tests.support.groups.clusters import replicated
from tests.support.links.memory_link import MemoryCluster, link_of
from tests.support.native.log import NativeLog
from tests.support.native.model_batches import ModelBatches
from tests.support.owners import tenure
from tests.support.pending_ack.client import FIRST, SECOND, AckClient
from tests.support.refused_writes import (
    FULL_DISK,
    NO_RIGHT,
    POLICY,
    TOO_LARGE,
    WRONG_TIME,
    hinder_at_once,
    reason_id,
    refused,
    until_passed,
)

IN_TIME_S = 60.0
SOON_S = 10.0
"""Far below the time after which work that is not tried any more is forgotten."""

ORDERS = TopicPartition("orders", 0)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hinders is said after a moment, not after seconds."""
    hinder_at_once(monkeypatch)


@contextmanager
def said_once(hindrances: Hindrances, work: str, cause: ConnectorError) -> Iterator[None]:
    """What is refused in the block is counted with its reason, and has one line in the log."""
    with capture_logs() as said:
        yield
    assert hindrances.failures[work, cause.reason] > 1
    lines = [it for it in said if it["event"] == "work_hindered"]
    assert [(it["work"], it["hint"]) for it in lines] == [(work, cause.hint)]


async def until_said(hindrances: Hindrances, work: str, cause: ConnectorError) -> str:
    """Waits until `/readyz` fails and the work has failed once more; returns the text."""
    text = await until_passed(hindrances, passed=False)
    tried = hindrances.failures[work, cause.reason]
    await until(lambda: hindrances.failures[work, cause.reason] > tried)
    return text


@pytest.mark.parametrize("cause", [WRONG_TIME, FULL_DISK, TOO_LARGE, POLICY], ids=reason_id)
async def test_a_store_whose_log_takes_nothing_is_not_ready(cause: ConnectorError):
    """C17: the log of acknowledgements; those who wait are answered after the mend."""
    broker = MemoryBroker()
    broker.create_topic(TopicSpec("orders", 1))
    connector = MemoryConnector(broker)
    client = AckClient(connector, SubscriptionId(ORDERS, "billing"))
    place = f"{PENDING_ACK_LOG}/{system_partition(ORDERS, PARTITIONS)}"
    async with asyncio.timeout(IN_TIME_S), MemoryWorker(connector) as worker:
        await client.open(partitions=PARTITIONS)
        assert isinstance(await client.ask(Attach(FIRST, EndOffset(0), ())), Acks)
        with (
            said_once(worker.hindrances, "entries", cause),
            refused(broker, cause, PENDING_ACK_LOG),
        ):
            asking = asyncio.create_task(client.ask(Attach(SECOND, EndOffset(0), ())))
            text = await until_said(worker.hindrances, "entries", cause)
            assert f"entries of {place}: {cause.primary} ({cause.reason}): {cause.hint}" in text
        async with asyncio.timeout(SOON_S):
            assert isinstance(await asking, Acks)
            await until_passed(worker.hindrances, passed=True)
        await client.close()


@pytest.mark.parametrize("cause", [WRONG_TIME, FULL_DISK], ids=reason_id)
async def test_a_controller_that_may_not_tell_of_its_groups_is_not_ready(cause: ConnectorError):
    """C17, I: group updates; the group is carried over after the mend."""
    async with asyncio.timeout(IN_TIME_S), replicated("ab", "g", mode=SyncMode.EXACT) as sites:
        a, b = sites["a"], sites["b"]
        a.write(b"1", b"2")
        await sites.until(lambda: len(b.values()) == 2)
        a.commit("g", 1)
        await sites.until(lambda: b.committed("g") == 1)
        with (
            said_once(a.hindrances, "group updates", cause),
            refused(a.broker, cause, REPLICATION_MARKERS),
        ):
            a.commit("g", 2)
            text = await until_said(a.hindrances, "group updates", cause)
            place = f"{REPLICATION_MARKERS}/0"
            assert f"group updates of {place}: {cause.primary} ({cause.reason})" in text
            assert cause.hint in text
        async with asyncio.timeout(SOON_S):
            await sites.until(lambda: b.committed("g") == b.stable_end())
            await until_passed(a.hindrances, passed=True)


@asynccontextmanager
async def indexing() -> AsyncIterator[tuple[MemoryBroker, NativeLog, ModelBatches, Hindrances]]:
    """An indexer of one topic, as a worker has it."""
    broker, hindrances = MemoryBroker(), Hindrances()
    broker.create_topic(TopicSpec("orders", 1))
    broker.create_topic(TopicSpec(ABORTED_INDEX, 1, {"cleanup.policy": "compact"}))
    connector, batches = MemoryConnector(broker), ModelBatches(broker)
    batches.logs[ORDERS] = NativeLog()
    writer = connector.writer("owner")
    deps = OwnerDeps(
        connector=connector,
        admin=connector.admin(),
        writer=writer,
        replies=Replies(writer),
        clock=SystemClock(),
        partition_count=1,
        hindrances=hindrances,
    )
    metrics = WorkerMetrics("a", CollectorRegistry()).aborted_index(0)
    async with (
        asyncio.timeout(IN_TIME_S),
        tenure(
            IndexOwner(
                0,
                deps,
                batches=batches,
                topics=["orders"],
                metrics=metrics,
                limits=IndexLimits(delay_ms_max=0),
            )
        ),
    ):
        yield broker, batches.logs[ORDERS], batches, hindrances


@pytest.mark.parametrize("cause", [WRONG_TIME, FULL_DISK], ids=reason_id)
async def test_an_index_that_takes_nothing_hinders(cause: ConnectorError):
    """C17, F3: the index goes on soon after the mend, whatever the cause was."""
    async with indexing() as (broker, log, batches, hindrances):
        with said_once(hindrances, "index", cause), refused(broker, cause, ABORTED_INDEX):
            log.produce(1, 2)
            log.mark(1, Control.ABORT)
            batches.mirror()
            text = await until_said(hindrances, "index", cause)
            assert f"index of {ABORTED_INDEX}/0: {cause.primary} ({cause.reason})" in text
            assert cause.hint in text
        async with asyncio.timeout(SOON_S):
            await until_passed(hindrances, passed=True)
        assert broker.records(TopicPartition(ABORTED_INDEX, 0))


@asynccontextmanager
async def linking(
    sources: Sequence[MemoryCluster], target: MemoryCluster, hindrances: Hindrances
) -> AsyncIterator[None]:
    """Links into one cluster, as a worker has them."""

    def owner(source: MemoryCluster) -> LinkOwner:
        return LinkOwner(lambda: link_of(source, target, hindrances=hindrances))

    async with asyncio.timeout(IN_TIME_S), AsyncExitStack() as stack:
        for source in sources:
            await stack.enter_async_context(tenure(owner(source), LINK_ENDED))
        yield


@pytest.mark.parametrize(
    "cause", [WRONG_TIME, FULL_DISK, TOO_LARGE, POLICY, NO_RIGHT], ids=reason_id
)
async def test_a_link_that_may_not_write_hinders(cause: ConnectorError):
    """C17: the same for what a link writes to its target; the link is named."""
    a, b, hindrances = MemoryCluster("a"), MemoryCluster("b", orders=0), Hindrances()
    a.write(b"1")
    async with linking([a], b, hindrances):
        with said_once(hindrances, "links", cause), refused(b.broker, cause, REPLICATION_POSITIONS):
            text = await until_said(hindrances, "links", cause)
            assert f"links of {REPLICATION_POSITIONS}/" in text
            assert f"by the link from a: {cause.primary} ({cause.reason})" in text
            assert cause.hint in text
        async with asyncio.timeout(SOON_S):
            await until_passed(hindrances, passed=True)
            await until(lambda: b.values() == [b"1"])


async def test_a_refused_link_is_tried_again_soon_however_long_it_was_refused():
    """C17: its tries do not come at growing distances, so it is ready again soon after the mend."""
    a, b, hindrances = MemoryCluster("a"), MemoryCluster("b", orders=0), Hindrances()
    a.write(b"1")
    async with linking([a], b, hindrances):
        with refused(b.broker, WRONG_TIME, REPLICATION_POSITIONS):
            await until(lambda: hindrances.failures["links", WRONG_TIME.reason] >= 8)
        async with asyncio.timeout(SOON_S):
            await until(lambda: b.values() == [b"1"])


async def test_links_into_one_cluster_have_hindrances_of_their_own():
    """The success of one link says nothing of another one that writes beside it."""
    a, c, b = MemoryCluster("a"), MemoryCluster("c", orders=0), MemoryCluster("b", orders=0)
    c.create("other")
    other, hindrances = TopicPartition("other", 0), Hindrances()
    async with linking([a, c], b, hindrances):
        await until(lambda: "orders" in b.broker.topics and "other" in b.broker.topics)
        with refused(b.broker, WRONG_TIME, "orders"):
            a.write(b"1")
            await until_passed(hindrances, passed=False)
            for number in range(1, 6):
                c.write(b"%d" % number, data=other)
                await until(lambda: len(b.values(other)) == number)  # noqa: B023 - as above
                text = hindrances.finding().text
                assert "by the link from a" in text
                assert "link from c" not in text
        async with asyncio.timeout(SOON_S):
            await until_passed(hindrances, passed=True)
