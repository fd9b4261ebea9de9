"""Whether a worker is ready: its owners on the memory broker, assigned as Faust would."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import ClientSession
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.raw.fetch import KafkaBatchReader
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.agents.apps import worker_options
from stilltide.pipeline.agents.probes import Probes
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.core.groups.controller import SyncMode
from stilltide.pipeline.drivers.buffered_log.owned_log import EntryQueue
from stilltide.pipeline.drivers.pending_ack.client import AckLine, PendingAckStores
from stilltide.pipeline.drivers.service.ended import OwnerEnd
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.service.own.direct_lines import LineServer
from stilltide.pipeline.drivers.shared.cluster_watch import ProbeResult
from stilltide.pipeline.drivers.shared.dynamic_settings import DynamicSettings
from stilltide.pipeline.drivers.worker.deps import WorkerDeps, open_deps, replication_deps
from stilltide.pipeline.drivers.worker.owners import Owners
from stilltide.pipeline.drivers.worker.runtime import Runtime
from stilltide.pipeline.errors import OwnerEndedError
from stilltide.pipeline.metrics.groups import GroupMetrics
from stilltide.pipeline.metrics.process import EndedMetrics
from stilltide.pipeline.metrics.worker import WorkerMetrics
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.headers import EntryStamp
from stilltide.schemas.pending_ack.acknowledgements import (
    MEMBER_BYTES,
    AckQuestion,
    Attach,
    DescribeAcks,
    DescribeStore,
)
from stilltide.schemas.topics import (
    ACK_REQUESTS,
    OPERATOR_ACK_REQUESTS,
    PENDING_ACK_LOG,
    SNAPSHOT_REQUESTS,
    TXN_LOG,
    TXN_REQUESTS,
    system_topics,
)
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition
from tests.support.coordinator.repair import FENCE, entries_behind
from tests.support.coordinator.worker_memory import WAIT_S, until

READ = SubscriptionId(TopicPartition("orders", 0), "g")
SETTINGS = Settings(coordinators=1, partitions=2)
ASSIGNED = {
    TopicPartition(TXN_REQUESTS, 0),
    TopicPartition(ACK_REQUESTS, 0),
    TopicPartition(ACK_REQUESTS, 1),
    TopicPartition(SNAPSHOT_REQUESTS, 1),
}


class Site:
    """A worker's owners and its probes; `assign` is what the group does."""

    shared: WorkerDeps
    owners: Owners

    def __init__(self, broker: MemoryBroker, settings: Settings = SETTINGS) -> None:
        self._connector, self._options = MemoryConnector(broker), worker_options(settings)
        self.metrics = WorkerMetrics("a", CollectorRegistry())
        self.admin = self._connector.admin()
        self._runtimes: list[Runtime[int, Any]] = []
        self._probes = Probes(self.metrics.registry, {"partitions": self._ready})
        self._address = ""
        self._batches = KafkaBatchReader(KafkaConfig("127.0.0.1:1"), "unused")
        self.failures: list[BaseException] = []

    async def open(self) -> None:
        """Makes the topics and listens."""
        await self.admin.ensure_topics(system_topics(coordinators=1, partitions=2))
        dynamic, entries = DynamicSettings(self._connector), EntryQueue()
        self.shared = await open_deps(
            self._connector,
            self.admin,
            self._options,
            entries=entries,
            dynamic=dynamic,
            metrics=self.metrics,
            hindrances=Hindrances(),
            lines=LineServer(),
            batches=self._batches,
        )
        self.owners = Owners(self._runtimes.append, self.shared, self.failures.append)
        self._writing = asyncio.create_task(entries.run())
        self.metrics.registry.register(EndedMetrics("a", lambda: self.owners.ends))
        self._address = await self._probes.start("127.0.0.1", 0)

    async def close(self) -> None:
        """Stops the owners."""
        await self.owners.stop()
        self._writing.cancel()
        await self._probes.close()
        await self.shared.close(flush_s=0)

    async def assign(self, assigned: set[TopicPartition]) -> None:
        """The group has given this worker these partitions."""
        for runtime in self._runtimes:
            topic = runtime.placement.topic
            await runtime.assign(data.partition for data in assigned if data.topic == topic)

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body."""
        async with ClientSession() as session, session.get(self._address + path) as response:
            return response.status, await response.text()

    async def _ready(self) -> ProbeResult:
        return self.owners.finding()


@pytest.fixture
async def site(broker: MemoryBroker) -> AsyncIterator[Site]:
    """A worker to which nothing is assigned yet."""
    async with AsyncExitStack() as stack:
        made = Site(broker)
        stack.push_async_callback(made.close)
        await made.open()
        yield made


@pytest.mark.parametrize("mode", SyncMode)
async def test_controllers_carry_over_as_the_setting_says(broker: MemoryBroker, mode: SyncMode):
    """What each mode does is tested with the controllers."""
    made = Site(
        broker, Settings.model_validate({"sync": mode.value, "partitions": 2, "coordinators": 1})
    )
    await made.open()
    assert replication_deps(made.shared, GroupMetrics("a", dict)).mode is mode
    await made.close()


async def test_it_is_unready_before_the_group_has_spoken(site: Site):
    """A worker that has just started owns nothing yet, and nobody knows whether it will."""
    assert await site.get("/readyz") == (503, "[-]partitions the group has assigned none yet\n")


async def test_a_store_that_is_not_recovered_makes_it_unready(site: Site, broker: MemoryBroker):
    """503, and the line names the stores that still replay their logs; then 200."""
    broker.hold(PENDING_ACK_LOG)
    await site.assign(ASSIGNED)
    coordinator = site.owners.coordinators.owners[0]
    await until(lambda: coordinator.serving)
    recovering = "[-]partitions recovering pending-ack stores: [0, 1]\n"
    assert await site.get("/readyz") == (503, recovering)
    _, metrics = await site.get("/metrics")
    assert 'stilltide_coordinator_recovery_seconds{cluster="a",coordinator="0"}' in metrics
    assert "stilltide_pending_ack_recovery_seconds{" not in metrics
    broker.release()
    await until(lambda: site.owners.serving)
    serving = (
        "[+]partitions serving coordinators: [0], pending-ack stores: [0, 1],"
        " snapshot writers: [1]\n"
    )
    assert await site.get("/readyz") == (200, serving)
    _, metrics = await site.get("/metrics")
    assert 'stilltide_pending_ack_recovery_seconds{cluster="a",partition="1"}' in metrics


async def test_a_store_that_moved_away_leaves_no_gauge(site: Site):
    """Only what is this worker's is waited for and shown."""
    await site.assign(ASSIGNED)
    await until(lambda: site.owners.serving)
    await site.assign(ASSIGNED - {TopicPartition(ACK_REQUESTS, 1)})
    serving = (
        "[+]partitions serving coordinators: [0], pending-ack stores: [0], snapshot writers: [1]\n"
    )
    assert await site.get("/readyz") == (200, serving)
    _, metrics = await site.get("/metrics")
    assert 'stilltide_pending_ack_subscriptions{cluster="a",partition="0"} 0.0' in metrics
    assert 'stilltide_pending_ack_subscriptions{cluster="a",partition="1"}' not in metrics


async def test_indexers_are_waited_for_where_topics_are_indexed(broker: MemoryBroker):
    """Those of the partitions whose snapshots are written here; a topic may be missing still."""
    async with AsyncExitStack() as stack:
        made = Site(broker, SETTINGS.model_copy(update={"index_topics": "later"}))
        stack.push_async_callback(made.close)
        await made.open()
        await made.assign(ASSIGNED)
        text = ""

        async def ready() -> bool:
            nonlocal text
            status, text = await made.get("/readyz")
            return status == 200

        async with asyncio.timeout(WAIT_S):
            while not await ready():
                """Each look takes a round trip."""
        assert text.endswith(", snapshot writers: [1], indexers: [1]\n")
        _, metrics = await made.get("/metrics")
        indexed = (
            'stilltide_aborted_index_data_partitions{cluster="a",partition="1",state="indexed"}'
        )
        assert f"{indexed} 0.0" in metrics


async def test_the_end_of_one_owner_is_told_and_ends_no_other(site: Site, broker: MemoryBroker):
    """B8: damage in the log of a store; probe and metric name its place, and the others serve."""
    await site.assign(ASSIGNED)
    await until(lambda: site.owners.serving)
    damaged = TopicPartition(PENDING_ACK_LOG, 1)
    offset = broker.append(
        damaged, None, b"\x0e\x01no batch", EntryStamp(Offset(0), 1).to_headers()
    )
    await until(lambda: site.owners.ends["pending-ack"])
    status, text = await site.get("/readyz")
    assert status == 503
    assert text.startswith(f"[-]partitions pending-ack 1 has ended: {damaged}@{offset}: ")
    _, metrics = await site.get("/metrics")
    labels = f'number="1",offset="{offset}",owner="pending-ack",partition="1"'
    ended = [it for it in metrics.splitlines() if it.startswith("stilltide_owner_ended_seconds{")]
    assert len(ended) == 1
    assert set(labels.split(",")) < set(ended[0].partition("{")[2].partition("}")[0].split(","))
    assert site.owners.coordinators.owners[0].serving
    assert site.owners.pending_acks.owners[0].serving
    assert site.failures == []
    assert site.owners.serving, "a worker is announced without the owners that have ended"


async def asked_of(
    broker: MemoryBroker, topic: str, partition: int, *, after: int = 1
) -> bytes | None:
    """The newest request to an owner, as soon as there are so many."""
    data = TopicPartition(topic, partition)
    async with asyncio.timeout(WAIT_S):
        reader = MemoryConnector(broker).reader("look", committed=False)
        await reader.assign({data: Offset(0)})
        found: list[bytes | None] = []
        while len(found) < after:
            found += [it.value for it in await reader.read() if isinstance(it, Record)]
        await reader.close()
    return found[-1]


@pytest.mark.parametrize(
    "question", [AckQuestion(None, DescribeStore()), AckQuestion(READ, DescribeAcks())]
)
async def test_who_only_looks_at_an_ended_store_is_told_at_once(
    site: Site, broker: MemoryBroker, question: AckQuestion
):
    """B8: by an error with place, cause and next step, long before the time-out."""
    await site.assign(ASSIGNED)
    await until(lambda: site.owners.serving)
    damaged = TopicPartition(PENDING_ACK_LOG, 1)
    offset = broker.append(
        damaged, None, b"\x0e\x01no batch", EntryStamp(Offset(0), 1).to_headers()
    )
    await until(lambda: site.owners.ends["pending-ack"])
    driver, end = site.owners.pending_acks.owners[1], site.owners.ends["pending-ack"]["1"]
    connector = MemoryConnector(broker)
    async with PendingAckStores(connector, request_timeout_s=10 * WAIT_S) as stores:
        asking = asyncio.create_task(stores.ask(1, question))
        driver.refuse(await asked_of(broker, OPERATOR_ACK_REQUESTS, 1), end)
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(OwnerEndedError, match=rf"1 has ended.*@{offset}") as told:
                await asking
    assert told.value.hint


async def test_a_change_that_an_ended_store_may_have_made_times_out_by_the_cause(
    site: Site, broker: MemoryBroker
):
    """B8: no refusal, since the outcome is unknown; the error of the time-out names the cause."""
    await site.assign(ASSIGNED)
    await until(lambda: site.owners.serving)
    driver = site.owners.pending_acks.owners[1]
    end = OwnerEnd(DecodeError("damaged", hint="repair it", topic="log", partition=1), 0.0, 60.0)
    async with PendingAckStores(MemoryConnector(broker), request_timeout_s=1) as stores:
        question = AckQuestion(READ, Attach(b"m" * MEMBER_BYTES, EndOffset(0), (), reset=True))
        asking = asyncio.create_task(stores.ask(1, question))
        driver.refuse(await asked_of(broker, OPERATOR_ACK_REQUESTS, 1), end)
        with pytest.raises(OwnerEndedError, match=r"1 has ended .*log/1: damaged") as told:
            await asking
    assert "unknown" in told.value.detail
    assert told.value.hint == "repair it"


async def test_a_member_at_an_ended_store_is_told_at_once_and_asks_on(
    site: Site, broker: MemoryBroker
):
    """B8: its log names the cause once, at once; its question is repeated, for who serves next."""
    await site.assign(ASSIGNED)
    await until(lambda: site.owners.serving)
    driver = site.owners.pending_acks.owners[1]
    end = OwnerEnd(DecodeError("damaged", hint="repair it", topic="log", partition=1), 0.0, 60.0)
    asked_by = AckLine(MemoryConnector(broker), "member", timeout_s=10 * WAIT_S)
    with capture_logs() as lines:
        async with asked_by as member:
            asking = asyncio.create_task(member.ask(1, AckQuestion(READ, DescribeAcks())))
            asked = await asked_of(broker, ACK_REQUESTS, 1)
            driver.refuse(asked, end)
            driver.refuse(asked, end)
            await until(lambda: [it for it in lines if it["event"] == "owner_has_ended"])
            repeated = await asked_of(broker, ACK_REQUESTS, 1, after=2)
            assert repeated == asked
            asking.cancel()
    told = [it for it in lines if it["event"] == "owner_has_ended"]
    assert [it["hint"] for it in told] == ["repair it"]
    assert "log/1: damaged" in told[0]["why"]


@pytest.mark.parametrize("by_assignment", [True, False])
async def test_an_owner_serves_again_after_a_repair(
    site: Site,
    broker: MemoryBroker,
    by_assignment: bool,  # noqa: FBT001 - a parameter of the test
):
    """B8: at the next assignment, or after an absence of the cluster; without a restart."""
    await site.assign(ASSIGNED)
    await until(lambda: site.owners.serving)
    damaged = TopicPartition(TXN_LOG, 0)
    broker.append(damaged, None, b"\x0e\x01no batch", EntryStamp(Offset(0), 1).to_headers())
    await until(lambda: site.owners.ends["coordinator"])
    fence = broker.append(damaged, None, *FENCE)
    for entry in entries_behind(0, fence):
        broker.append(damaged, None, *entry)
    await site.admin.delete_records({damaged: Offset(fence + 1)})
    if by_assignment:
        await site.assign(ASSIGNED)
    else:
        site.owners.retry_now()
    await until(lambda: not site.owners.ends["coordinator"])
    await until(lambda: site.owners.serving)
    assert (await site.get("/readyz"))[0] == 200


async def test_a_worker_without_an_owner_left_ends(site: Site, broker: MemoryBroker):
    """B8: it has nothing to serve, as after a downgrade."""
    await site.assign({TopicPartition(TXN_REQUESTS, 0)})
    await until(lambda: site.owners.serving)
    stamp = EntryStamp(Offset(0), 1).to_headers()
    broker.append(TopicPartition(TXN_LOG, 0), None, b"\x0e\x01no batch", stamp)
    await until(lambda: site.failures)
    assert isinstance(site.failures[0], DecodeError)
