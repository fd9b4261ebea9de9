"""What is collected of clusters in memory, with workers, groups and links."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.errors import RetriableError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.clock import MemoryClock
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.connector import ClusterConnector
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.core.status.findings import link_state
from stilltide.pipeline.core.status.values import AuditStatus, ClusterSeen, SystemStatus
from stilltide.pipeline.drivers.shared.dynamic_settings import write_setting
from stilltide.pipeline.drivers.status.cluster import StatusTarget
from stilltide.pipeline.drivers.status.collector import StatusCollector
from stilltide.schemas.service.envelopes import worker_client_id
from stilltide.schemas.settings import subscription_setting
from stilltide.schemas.topics import TXN_LOG, TXN_REQUESTS, TopicSpec
from stilltide.schemas.values import ClusterName, TopicPartition
from tests.contract.rig import Membership
from tests.support.coordinator.worker_memory import MemoryWorker
from tests.support.groups.clusters import DATA, Sites, replicated

pytestmark = pytest.mark.topics(TopicSpec("orders", 2))

PATIENCE_S = 120.0
ORDERS = TopicPartition("orders", 0)


def targets(connectors: Mapping[ClusterName, ClusterConnector]) -> list[StatusTarget]:
    """The clusters as the collector takes them; asked for their brokers by the same connector."""
    return [StatusTarget(name, f"{name}:9092", it, it) for name, it in connectors.items()]


@pytest.fixture
async def collector(broker: MemoryBroker) -> AsyncIterator[StatusCollector]:
    """Of one cluster, named a; by its clock, all that happens is a minute old."""
    clock = MemoryClock(SystemClock().now_ms() + 60_000)
    clusters = targets({ClusterName("a"): MemoryConnector(broker)})
    async with StatusCollector(clusters, clock=clock, rest_s=0) as made:
        yield made


async def joined(broker: MemoryBroker) -> Membership:
    """A member of the workers' group, of version 1.2.3."""
    connector = MemoryConnector(broker)
    group = connector.own_id("workers-a")
    member = Membership(connector.group_reader(worker_client_id("1.2.3"), group))
    await member.join(TXN_REQUESTS)
    return member


def first(status: SystemStatus) -> ClusterSeen:
    """The first cluster."""
    return status.clusters[0]


async def test_a_worker_and_an_open_transaction_that_holds_readers_back(
    broker: MemoryBroker, collector: StatusCollector
):
    """Versions, coordinators, the oldest transaction, and the record that readers wait at."""
    connector = MemoryConnector(broker)
    async with MemoryWorker(connector, coordinators=2):
        member = await joined(broker)
        async with (
            TransactionClient(connector=connector, name="shop") as client,
            client.transaction() as txn,
        ):
            for _ in range(3):  # plain records, which nobody waits for
                broker.append(ORDERS, None, b"plain", None)
            await txn.send("orders", b"held", partition=0)
            await txn.flush()
            seen = first(await collector.collect(PATIENCE_S))
        (worker,) = list(seen.workers.value or ())
        assert (worker.version, worker.coordinators) == ("1.2.3", (0, 1))
        assert [it.serving for it in seen.coordinators.value or ()] == [True, True]
        oldest = seen.transactions.value and seen.transactions.value.oldest
        assert oldest is not None
        assert oldest.client.startswith("shop:")
        (hold,) = list(seen.holds.value or ())
        assert (hold.data, hold.offset, hold.behind) == (ORDERS, 3, 1)
        assert (hold.holder, hold.client) == (oldest.txn, oldest.client)
        await member.leave()
        ended = first(await collector.collect(PATIENCE_S))
        assert ended.workers.value == ()
        assert [it.serving for it in ended.coordinators.value or ()] == [False, False]


async def test_without_system_topics_each_part_says_what_is_missing(collector: StatusCollector):
    """No worker has ever run there: that is an answer, and no failure of the collector."""
    seen = first(await collector.collect(PATIENCE_S))
    assert not seen.away
    assert seen.workers.value == ()
    assert "the system topic does not exist" in seen.coordinators.problem
    assert "stilltide worker" in seen.snapshots.hint
    assert seen.index.value is None


async def test_a_cluster_that_goes_away_keeps_what_was_read(
    broker: MemoryBroker, collector: StatusCollector
):
    """With the time of the read; brokers have a problem until the cluster is back."""
    async with MemoryWorker(MemoryConnector(broker)):
        before = first(await collector.collect(PATIENCE_S))
        broker.down()
        away = first(await collector.collect(PATIENCE_S))
        assert away.away
        assert away.brokers.value == before.brokers.value
        assert away.coordinators == before.coordinators
        broker.up()
        assert not first(await collector.collect(PATIENCE_S)).away


async def test_groups_and_links_of_clusters_that_are_there():
    """What a fail-over reads again, the lag of links; of a cluster that is away nothing more."""
    async with replicated("ab", "billing") as sites:
        await _read_on_a(sites)
        setting = subscription_setting(DATA.topic, "billing")
        await write_setting(sites["a"].connector, setting, value=True, at_ms=1)
        async with StatusCollector(targets(sites.connectors), rest_s=0) as collector:
            status = await collector.collect(PATIENCE_S)
            groups = {it.cluster: it for it in status.groups.value or ()}
            assert groups.keys() == {"a", "b"}
            assert [it.problem for it in groups.values()] == ["", ""]
            assert groups[ClusterName("b")].read_again == 0
            assert groups[ClusterName("b")].partitions[0].standing is Standing.AT_THE_PREFIX
            (link,) = list(status.links[ClusterName("b")].value or ())
            assert (link.source, link.running, link.lag) == ("a", True, 0)
            sites["b"].broker.down()
            status = await collector.collect(PATIENCE_S)
            assert [it.name for it in status.clusters if it.away] == ["b"]
            for target in map(ClusterName, "ab"):  # nobody can say whether they run
                (link,) = list(status.links[target].value or ())
                assert (link.running, link.away) == (None, "b")
            assert link_state(link, status).endswith(": cluster b does not answer")
            assert status.clusters[1].sign_ms is not None
            sites["b"].broker.up()


async def test_a_damaged_group_hides_no_other_group():
    """Groups of a topic are read together; one whose commit cannot be decoded says so alone."""
    async with replicated("ab", "billing") as sites:
        await _read_on_a(sites)
        for group in ("billing", "damaged"):
            setting = subscription_setting(DATA.topic, group)
            await write_setting(sites["a"].connector, setting, value=True, at_ms=1)
        sites["a"].commit("damaged", 1, "st1;a=1;a=2")
        async with StatusCollector(targets(sites.connectors), rest_s=0) as collector:
            found = (await collector.collect(PATIENCE_S)).groups.value or ()
    assert [(it.group, bool(it.problem)) for it in found] == [
        ("billing", False),
        ("billing", False),
        ("damaged", True),
        ("damaged", True),
    ]


async def _read_on_a(sites: Sites) -> None:
    """The group reads two of three records on a, and its position arrives on b."""
    sites["a"].write(b"1", b"2", b"3")
    await sites.until(lambda: sites["b"].values() == [b"1", b"2", b"3"])
    sites["a"].commit("billing", 2)
    await sites.until(lambda: sites["b"].committed("billing") is not None)


async def test_what_takes_long_does_not_delay_the_state(broker: MemoryBroker):
    """`collect` returns within its patience; what it waited for arrives later."""
    ready = asyncio.Event()

    async def slow() -> AuditStatus:
        await ready.wait()
        return AuditStatus("valid", 0, ("orders",), 1)

    async def missing() -> AuditStatus:
        raise RetriableError("no report", hint="name its directory")

    audits = {"slow": slow, "missing": missing}
    made = targets({ClusterName("a"): MemoryConnector(broker)})
    async with StatusCollector(made, audits=audits) as collector:
        status = await collector.collect(0.01)
        assert status.audits["slow"].value is None
        ready.set()
        status = await collector.collect(PATIENCE_S)
        assert status.audits["slow"].value == AuditStatus("valid", 0, ("orders",), 1)
        assert status.audits["missing"].problem == "no report"
        assert status.audits["missing"].hint == "name its directory"


@pytest.mark.parametrize("rest_s", [3600, 0])
async def test_coordinators_are_asked_again_only_when_their_logs_have_grown(
    broker: MemoryBroker, rest_s: int
):
    """While nothing happens a list costs no entry of a log, and figures cost one from time to time.

    What happens is seen at once.
    """
    connector = MemoryConnector(broker)
    logs = [TopicPartition(TXN_LOG, number) for number in range(2)]
    clusters = targets({ClusterName("a"): connector})
    async with MemoryWorker(connector, coordinators=2):
        member = await joined(broker)
        async with (
            StatusCollector(clusters, rest_s=rest_s) as collector,
            TransactionClient(connector=connector) as client,
            client.transaction() as txn,
        ):
            await txn.send("orders", b"held", partition=0)
            await txn.flush()
            before = first(await collector.collect(PATIENCE_S)).transactions.value
            assert before is not None
            assert (before.open_count, before.silent) == (1, ())
            for _ in range(3):
                ends = [len(broker.records(log)) for log in logs]
                assert first(await collector.collect(PATIENCE_S)).transactions.value == before
                more = [len(broker.records(log)) for log in logs]
                assert more == [end + (rest_s == 0) for end in ends]
            name = str(txn.id)
            await txn.abort()
            after = first(await collector.collect(PATIENCE_S)).transactions.value
            assert after is not None
            assert (after.open_count, after.aborted_by) == (0, {name: "its client"})
        await member.leave()
