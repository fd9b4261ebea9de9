"""What operators do and see: commands, settings, metrics and probes of a worker on real Kafka."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.core.coordinator.state import TRANSACTIONS_PER_OPEN_MAX
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.errors import PipelineError
from stilltide.schemas.coordinator import txn_log
from stilltide.schemas.coordinator.transactions import (
    CoordinatorStats,
    DescribeCoordinator,
    End,
    Ended,
    Open,
)
from stilltide.schemas.service.envelopes import Request
from stilltide.schemas.topics import PENDING_ACK_LOG, TXN_LOG
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.buffered_log.pip_160 import records_of
from tests.support.looks import between_looks
from tests.support.processes.local import delete_topics
from tests.support.processes.operator import Operator, get
from tests.support.processes.worker_process import (
    COORDINATORS,
    Load,
    WorkerProcess,
    await_all_ended,
    create_topics,
)

TOPICS = ("orders", "payments")
PHASE = 300
"""Transactions that end, at least, between two switches."""

HELD_OPEN = 20_000
"""Transactions that stay open, so that the log is not trimmed under who reads it (C8)."""

ENDLESS = 10**9
"""More transactions than any test waits for."""


OPTIONS = ("--instance-id", "one")
"""Of workers: the next one need not wait until the group has forgotten the last."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker of this module's own, because the system topics are the whole cluster's."""
    with LocalCluster("o", tmp_path_factory.mktemp("operations"), fast_start=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(own: LocalCluster) -> Iterator[LocalCluster]:
    """It, running and without topics."""
    own.start()
    yield own
    own.start()
    delete_topics(own.bootstrap)


@pytest.fixture
async def worker(cluster: LocalCluster, tmp_path: Path) -> AsyncIterator[WorkerProcess]:
    """A worker that serves."""
    log_path, most = tmp_path / "worker.log", HELD_OPEN + 1000
    async with WorkerProcess(
        cluster.bootstrap, log_path, *OPTIONS, client_transactions_max=most
    ) as made:
        await made.serving()
        yield made


@pytest.fixture
def connector(cluster: LocalCluster) -> KafkaConnector:
    """Of the broker."""
    return KafkaConnector(KafkaConfig(cluster.bootstrap))


@pytest.fixture
async def client(cluster: LocalCluster, worker: WorkerProcess) -> AsyncIterator[TransactionClient]:
    """A client of the worker."""
    await create_topics(cluster.bootstrap, *TOPICS)
    async with TransactionClient(cluster.bootstrap, transaction_timeout_s=600) as made:
        yield made


@pytest.fixture
def operator(cluster: LocalCluster, tmp_path: Path) -> Operator:
    """Of the broker."""
    return Operator(cluster.bootstrap, tmp_path)


class LogTail:
    """Every entry of a coordinator's log, read while it grows: what is behind may be trimmed."""

    def __init__(self, connector: KafkaConnector, coordinator: int) -> None:
        self.entries: list[bytes] = []
        self._log = TopicPartition(TXN_LOG, coordinator)
        self._reader = connector.reader("test", committed=False)
        self._grown = asyncio.Event()
        self._following = asyncio.create_task(self._follow())
        self._following.add_done_callback(lambda _: self._grown.set())

    async def close(self) -> None:
        """Reads no more."""
        self._following.cancel()
        await self._reader.close()

    async def _follow(self) -> None:
        await self._reader.assign({self._log: Offset(0)})
        while True:
            for item in await self._reader.read():
                if isinstance(item, Record):
                    assert item.offset == len(self.entries)
                    assert item.value is not None
                    self.entries.append(item.value)
            self._grown.set()

    async def reach(self, end_offset: int) -> None:
        """Waits until everything below is read; raises what ended the reading before."""
        while len(self.entries) < end_offset:
            self._grown.clear()
            if self._following.done():
                await self._following
            await self._grown.wait()


class Switching:
    """Batching on, off and on again while transactions run; where each state was in force."""

    def __init__(self, operator: Operator, coordinators: Coordinators, home: int) -> None:
        self._operator = operator
        self._coordinators = coordinators
        self._home = home
        self._passed = asyncio.Event()
        self._ended = 0
        self._goal = 0

    def ended(self, count: int) -> None:
        """So many transactions have ended."""
        self._ended = count
        if count >= self._goal:
            self._passed.set()

    async def phase(self, verb: str) -> range:
        """Switches, lets transactions pass; offsets written while the state was in force."""
        await self._operator.run(f"txn-log batching {verb}")
        while (await self._stats()).log.batching_enabled is not (verb == "enable"):
            await between_looks()
        first = await self._end_offset()
        self._goal = self._ended + PHASE
        self._passed.clear()
        await self._passed.wait()
        return range(first, await self._end_offset())

    async def all_ended(self) -> None:
        """Returns when no transactions are left but those held open."""
        while True:
            stats = await self._stats()
            if stats.open_count + stats.committing_count + stats.aborting_count == HELD_OPEN:
                break
            await between_looks()

    async def _stats(self) -> CoordinatorStats:
        answer = await self._coordinators.ask(self._home, DescribeCoordinator())
        assert isinstance(answer, CoordinatorStats)
        return answer

    async def _end_offset(self) -> int:
        return (await self._coordinators.log_bounds())[self._home][1]


async def test_batching_goes_on_off_and_on_under_load(
    cluster: LocalCluster,
    connector: KafkaConnector,
    client: TransactionClient,
    operator: Operator,
):
    """A7: every entry stays readable, framed and bare mixed, to a reader of PIP-160 as well."""
    load = Load(TOPICS, ENDLESS, concurrency=32)
    async with Coordinators(connector, request_timeout_s=10) as coordinators:
        assert client._cluster is not None
        home = client._cluster.coordinator
        switching = Switching(operator, coordinators, home)
        tail = LogTail(connector, home)
        for _ in range(HELD_OPEN // TRANSACTIONS_PER_OPEN_MAX):
            await client._cluster.ask(home, Open(600_000, TRANSACTIONS_PER_OPEN_MAX, ()))
        running = asyncio.create_task(load.run(client, switching.ended))
        phases = {verb: await switching.phase(verb) for verb in ("enable", "disable")}
        again = await switching.phase("enable")
        found = (await operator.ask("txn-log downgrade-check", code=3))["logs"][home]
        load.stop()
        await running
        await switching.all_ended()
        await tail.reach((await coordinators.log_bounds())[home][1])
    await tail.close()
    entries = tail.entries
    framed = {offset for offset, entry in enumerate(entries) if len(records_of(entry)) > 1}
    assert framed & set(phases["enable"])
    assert not framed & set(phases["disable"])
    assert len(phases["disable"]) >= PHASE
    assert framed & set(again)
    bodies = [txn_log.decode(record).body for entry in entries for record in records_of(entry)]
    requests = [it.body for it in bodies if isinstance(it, Request)]
    committed = {it.sequence for it in requests if isinstance(it, End) and it.committed}
    assert len(committed) == len(load.outcomes.committed)
    assert committed <= {it.sequence for it in bodies if isinstance(it, Ended)}
    assert load.outcomes.unknown == set()
    await load.check(cluster.bootstrap, "switched")
    scanned = range(found["start_offset"], found["end_offset"])
    batches = {it for first, end in found["batches_at"] for it in range(first, end)}
    assert batches == framed.intersection(scanned)


async def test_operators_see_and_abort_a_transaction(
    client: TransactionClient, operator: Operator, worker: WorkerProcess
):
    """List, describe, slow and abort; a dry run changes nothing, an ended one is refused."""
    txn = await client.transaction().__aenter__()
    await txn.send("orders", b"never seen", partition=0)
    await txn.flush()
    name = str(txn.id)
    listed = await operator.ask("txn list --state open")
    assert [it["partitions"] for it in listed if it["txn"] == name] == [1]
    assert name in [it["txn"] for it in await operator.ask("txn slow --over 0.001")]
    assert await operator.ask("txn list --older-than 3600") == []
    (described,) = await operator.ask(f"txn describe {name}")
    assert described["partitions"] == ["orders/0 from 0"]
    dry = await operator.run(f"txn abort {name}")
    assert "would be aborted" in dry.stderr
    (described,) = await operator.ask(f"txn describe {name}")
    assert described["state"] == "OPEN"
    await operator.run(f"txn abort {name} --yes")
    with pytest.raises(PipelineError):
        await txn.commit()
    await await_all_ended(client)
    refused = await operator.run(f"txn abort {name} --yes", code=1)
    assert refused.stderr.startswith(f"error: transaction {name} cannot be aborted")
    assert "ENDED" in refused.stderr
    never = await operator.run("txn describe 0:999999", code=1)
    assert "never opened" in never.stderr
    await _see_figures(operator, worker, int(name.partition(":")[0]))


async def _see_figures(operator: Operator, worker: WorkerProcess, home: int) -> None:
    """Stats, batching states and metrics of a cluster where one coordinator has served."""
    stats = await operator.ask("coordinator stats")
    assert [it["coordinator"] for it in stats] == list(range(COORDINATORS))
    assert stats[home]["next_sequence"] == stats[home]["low_watermark"] > 0
    internals = await operator.ask("coordinator internal-stats")
    assert all(it["batching_enabled"] for it in internals)
    shown = await operator.ask("txn-log batching show")
    assert shown == {"txn_log_batching_enabled": None, "coordinators": [{str(home): True}]}
    spelled = await operator.run("txn-log batching show -o pip160")
    assert spelled.stdout == (
        '{\n  "txnTcBatchLogEnabled": null,\n  "coodinatorArray": [\n    {\n'
        f'      "{home}": true\n    }}\n  ]\n}}\n'
    )
    await operator.run("pending-ack batching disable")
    shown = await operator.ask("pending-ack batching show")
    assert shown == {"pending_ack_batching_enabled": False, "subscriptions": []}
    assert "on" in (await operator.run("txn-log batching show")).stdout
    assert "recovery_s" in (await operator.run("coordinator internal-stats")).stdout
    _, metrics = await get(worker, "/metrics")
    sample = f'stilltide_coordinator_low_watermark_lag{{cluster="a",coordinator="{home}"}} 0.0'
    assert sample in metrics.splitlines()


async def test_a_log_without_batches_is_safe(
    cluster: LocalCluster, tmp_path: Path, operator: Operator
):
    """With batching off from the start a downgrade is safe, and nobody need serve to say so."""
    off = {"txn_log_batching_enabled": False}
    log_path = tmp_path / "unbatched.log"
    load = Load(TOPICS, 100)
    await create_topics(cluster.bootstrap, *TOPICS)
    missing = await operator.run("pending-ack downgrade-check", code=1)
    assert missing.stderr.startswith(f"error: {PENDING_ACK_LOG}: ")
    async with AsyncExitStack() as stack:
        made = WorkerProcess(cluster.bootstrap, log_path, *OPTIONS, **off)
        worker = await stack.enter_async_context(made)
        await worker.serving()
        client = await stack.enter_async_context(TransactionClient(cluster.bootstrap))
        await load.run(client, lambda _: None)
        shown = await operator.ask("txn-log batching show")
        assert shown["txn_log_batching_enabled"] is None
        assert [list(it.values()) for it in shown["coordinators"]] == [[False]]
    done = await operator.run("txn-log downgrade-check")
    assert done.stdout.rstrip().endswith("\nsafe")
    done = await operator.run("pending-ack downgrade-check")
    assert done.stdout.rstrip().endswith("\nsafe")
    silent = await operator.run("txn list --timeout-s 1", code=4)
    assert silent.stderr.startswith("no answer from coordinators 0, 1, 2, 3")


async def test_probes_follow_the_broker(cluster: LocalCluster, worker: WorkerProcess):
    """Ready while it serves and its broker answers; alive throughout."""
    async with asyncio.timeout(240):
        while (answer := await get(worker, "/readyz"))[0] != 200:
            pass
    assert answer[1] == (
        "[+]broker answers\n"
        "[+]partitions serving coordinators: [0, 1, 2, 3], pending-ack stores: [0, 1, 2, 3],"
        " snapshot writers: [0, 1, 2, 3]\n"
        "[+]work nothing hinders it\n"
    )
    await asyncio.to_thread(cluster.kill)
    async with asyncio.timeout(240):
        while (answer := await get(worker, "/readyz"))[0] == 200:
            pass
    assert answer[0] == 503
    assert answer[1].startswith("[-]broker ")
    assert (await get(worker, "/livez"))[0] == 200
    await asyncio.to_thread(cluster.start)
    async with asyncio.timeout(240):
        while (await get(worker, "/readyz"))[0] != 200:
            pass


async def test_a_port_that_is_taken_stops_a_worker_at_once(
    cluster: LocalCluster, worker: WorkerProcess, tmp_path: Path
):
    """Two workers on one machine with the same port: the second says which setting to change."""
    port = worker.web.rpartition(":")[2]
    options = ("--web-port", port)
    async with WorkerProcess(cluster.bootstrap, tmp_path / "second.log", *options) as second:
        assert await second.ended() == 1
        assert f"error: web_port {port} of 127.0.0.1" in second.said
