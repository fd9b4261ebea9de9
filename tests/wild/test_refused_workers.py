"""A whole worker whose records a real cluster refuses: its page, log, metrics and `status`.

A user saw: brokers refused every entry of a worker's logs, and the worker was ready, its log was
full of lines, and `stilltide status` said that the coordinator does not answer. After the mend, the
worker was not ready for half a minute.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from aiohttp import ClientError

from stilltide.connectors.errors import RecordRefusedError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.client import TransactionClient
from stilltide.schemas.rights import (
    Component,
    Names,
    Operation,
    Resource,
    ResourceKind,
    entries,
    rights,
)
from stilltide.schemas.topics import (
    MIN_INSYNC_REPLICAS,
    TXN_LOG,
    TXN_MARKERS,
    TXN_REQUESTS,
    TopicSpec,
    system_topics,
)
from tests.support.looks import between_looks
from tests.support.processes.local import run_stilltide
from tests.support.processes.operator import get
from tests.support.processes.rights import GuardedCluster, guarded_cluster
from tests.support.processes.worker_process import ModuleWorker, running_worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ORDERS = "orders"
WAIT_S = 240.0
SOON_S = 20.0
"""Less than the time after which work that is not tried any more is forgotten."""

EXIT_NEEDS_PERSON = 3
ONE_OF_EACH: dict[str, object] = {"cluster": "a", "coordinators": 1, "partitions": 1}
"""Settings of a worker with one partition of each system topic."""

WORKER = entries(rights(Component.WORKER, Names(topics=("orders*",), groups=("billing",))))
USER = Component.WORKER.value


class Case(NamedTuple):
    """What a worker of one cluster needs.

    Attributes:
        bootstrap: the cluster as its administrator sees it.
        worker: a worker of the cluster.
        directory: of commands.
    """

    bootstrap: str
    worker: ModuleWorker
    directory: Path

    @property
    def connector(self) -> Connector:
        """A connector of the administrator."""
        return KafkaConnector(KafkaConfig(self.bootstrap))

    async def alter(self, topic: str, name: str, value: str | None) -> None:
        """Alters a config of a topic; None: back to the cluster's default."""
        topics = KafkaConnector(KafkaConfig(self.bootstrap)).topic_admin()
        await topics.alter_configs({topic: {name: value}})
        await topics.close()

    async def transact(self) -> None:
        """A transaction; its requests are repeated for as long as the tests wait."""
        async with (
            TransactionClient(connector=self.connector, request_timeout_s=WAIT_S) as client,
            client.transaction() as txn,
        ):
            await txn.send(ORDERS, b"o")

    async def transact_again(self) -> None:
        """Transactions until one fails: a request may be in time by chance."""
        async with asyncio.timeout(WAIT_S / 2):
            while True:
                await self.transact()

    async def until(self, status: int, *texts: str, within_s: float = WAIT_S) -> str:
        """Waits for a status of `/readyz` with these texts; returns the page."""
        page = ""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    with suppress(ClientError):
                        found, page = await get(self.worker, "/readyz")
                        if found == status and all(it in page for it in texts):
                            return page
                    await between_looks()
        except TimeoutError:
            raise AssertionError(f"{page}\n{self.worker.said[-3000:]}") from None

    async def status(self) -> str:
        """The findings of `stilltide status`, each with its next step."""
        words = ("status", "--clusters", f"a={self.bootstrap}", "--timeout-s", "120", "-o", "json")
        done = await asyncio.to_thread(run_stilltide, *words, cwd=self.directory)
        assert done.returncode in (0, EXIT_NEEDS_PERSON), done.stderr
        return "\n".join(
            f"{it['text']} -> {it['command']}" for it in json.loads(done.stdout)["findings"]
        )

    @asynccontextmanager
    async def hindered(self, work: str, reason: str, step: str) -> AsyncIterator[None]:
        """Checks what is said; the block mends the cause, and what waits for it must go on."""
        before = len(self.worker.said)
        asking = asyncio.create_task(self.transact())
        try:
            await self.until(503, "[-]work", work, reason, step)
            metrics = (await get(self.worker, "/metrics"))[1]
            kind = work.partition(" of ")[0]
            assert f'reason="{reason}",work="{kind}"}}' in metrics
            told = await self.status()
            assert "does not answer" not in told
            for text in (work, reason, step):
                assert text in told, told
            await self.until(503, "[-]work", work, reason)
            lines = self.worker.said[before:].splitlines()
            place = work.partition(" of ")[2]
            assert sum("work_hindered" in it and place in it for it in lines) == 1, lines
            loud = [it for it in lines if "[error" in it or "[warning" in it]
            assert len(loud) <= 6, loud
            yield
            await self.until(200, within_s=SOON_S)
            async with asyncio.timeout(WAIT_S):
                await asking
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


async def create(bootstrap: str) -> None:
    """Makes the data topic."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.ensure_topics([TopicSpec(ORDERS, 1)])
    await admin.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedCluster]:
    """A broker that denies by default, with the user of a worker."""
    with guarded_cluster(tmp_path_factory.mktemp("guarded") / "g", USER) as made:
        made.allow(USER, *WORKER)
        asyncio.run(create(made.cluster.bootstrap))
        yield made


@pytest.fixture(scope="module")
def case(guarded: GuardedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """A worker with its rights."""
    directory = tmp_path_factory.mktemp("worker")
    settings = {**ONE_OF_EACH, **guarded.settings(USER)}
    with running_worker(guarded.bootstrap, directory / "worker.log", **settings) as worker:
        yield Case(guarded.cluster.bootstrap, worker, directory)


CONFIGS = {
    "size": ("max.message.bytes", "1", "MSG_SIZE_TOO_LARGE", "max.message.bytes"),
    "policy": ("cleanup.policy", "compact", "INVALID_RECORD", "policy"),
    "time": ("message.timestamp.before.max.ms", "0", "INVALID_TIMESTAMP", "clock"),
}


@pytest.mark.parametrize("cause", CONFIGS)
async def test_a_log_that_refuses_entries(case: Case, cause: str):
    """C17: while the cause lasts; the client's request is answered after the mend."""
    config, value, reason, step = CONFIGS[cause]
    spec = next(it for it in system_topics(coordinators=1, partitions=1) if it.name == TXN_LOG)
    await case.until(200)
    await case.transact()
    await case.alter(TXN_LOG, config, value)
    async with case.hindered(f"entries of {TXN_LOG}/0", reason, step):
        await case.alter(TXN_LOG, config, spec.configs.get(config))


@pytest.mark.parametrize("cause", ["size", "time"])
async def test_a_client_whose_requests_are_refused(case: Case, cause: str):
    """C17: at once, with the broker's words; the worker stays ready, and takes the next request."""
    config, value, reason, step = CONFIGS[cause]
    spec = next(it for it in system_topics(coordinators=1, partitions=1) if it.name == TXN_REQUESTS)
    await case.until(200)
    await case.alter(TXN_REQUESTS, config, value)
    try:
        with pytest.raises(RecordRefusedError) as raised:
            await case.transact_again()
        assert raised.value.reason == reason
        assert reason in raised.value.detail
        assert step in raised.value.hint
        assert (await get(case.worker, "/readyz"))[0] == 200
    finally:
        await case.alter(TXN_REQUESTS, config, spec.configs.get(config))
    await case.transact()


async def test_markers_that_are_refused(case: Case):
    """C17: the transaction is visible after the mend; its commit waits for no marker."""
    await case.until(200)
    await case.alter(TXN_MARKERS, "max.message.bytes", "1")
    async with case.hindered(f"markers of {TXN_MARKERS}/0", "MSG_SIZE_TOO_LARGE", "max.message"):
        await case.alter(TXN_MARKERS, "max.message.bytes", None)


async def test_a_right_that_is_taken_away(case: Case, guarded: GuardedCluster):
    """C17: at once, with operation, resource and user; the worker goes on by itself."""
    await case.until(200)
    denied = guarded.deny(USER, Resource(ResourceKind.TOPIC, TXN_LOG), Operation.WRITE)
    said = f"Write on topic {TXN_LOG} is not allowed to User:{USER}"
    async with case.hindered(f"entries of {TXN_LOG}/0", "TOPIC_AUTHORIZATION_FAILED", said):
        guarded.lift(denied)


async def test_a_worker_that_cannot_recover(case: Case):
    """C17: as a worker whose clock is wrong at its start; it serves soon after the mend."""
    await case.until(200)
    case.worker.kill()
    await case.alter(TXN_LOG, "message.timestamp.before.max.ms", "0")
    starting = asyncio.create_task(asyncio.to_thread(case.worker.start))
    try:
        async with asyncio.timeout(WAIT_S):
            while "INVALID_TIMESTAMP" not in (told := await case.status()):
                await between_looks()
        assert f"does not serve: entries of {TXN_LOG}/0" in told
        assert "clock" in told
        assert "does not answer" not in told
    finally:
        await case.alter(TXN_LOG, "message.timestamp.before.max.ms", None)
        await starting
    await case.until(200, within_s=SOON_S)
    await case.transact()


async def test_too_few_replicas(tmp_path: Path):
    """C17: a broker is down and the topic wants all replicas: the producer waits without a word."""
    with (
        LocalCluster("a", tmp_path / "a", brokers=3, fast_start=True) as cluster,
        running_worker(cluster.bootstrap, tmp_path / "worker.log", **ONE_OF_EACH) as worker,
    ):
        await create(cluster.bootstrap)
        case = Case(cluster.bootstrap, worker, tmp_path)
        await case.until(200)
        await case.transact()
        await case.alter(TXN_LOG, MIN_INSYNC_REPLICAS, "3")
        controller = await asyncio.to_thread(cluster.controller)
        stopped = next(it for node, it in cluster.brokers.items() if node != controller)
        await asyncio.to_thread(stopped.stop)
        async with case.hindered(
            f"entries of {TXN_LOG}/0", "NOT_ENOUGH_REPLICAS", "start the brokers that are away"
        ):
            await asyncio.to_thread(cluster.start)
