"""Workers, applications, commands and links of an earlier version beside those of this one."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.client import Subscription
from stilltide.schemas.headers import EntryStamp
from stilltide.schemas.topics import TXN_LOG
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.looks import between_looks
from tests.support.processes.local import write_values
from tests.support.processes.worker_process import create_topics, read_and_commit
from tests.support.versions.older import Code, older_code

pytestmark = pytest.mark.slow

RIGHT: dict[str, Any] = {
    "transactions": "done",
    "outcome": "committed",
    "read": ["0", "1", "2", "3", "4"],
    "acknowledge": ["0", "1", "2", "3", "4", 2],
    "dead letter": "0",
}
NAME = "shop"
COPIED_S = 120.0
COMMANDS = {
    "status --clusters a={at}": {0, 3},
    "topics check --bootstrap-servers {at}": {0, 3},
    "coordinator stats --bootstrap-servers {at}": {0},
    "coordinator internal-stats --bootstrap-servers {at}": {0},
    "pending-ack stats --bootstrap-servers {at}": {0},
    "pending-ack internal-stats --bootstrap-servers {at}": {0},
    "txn list --bootstrap-servers {at}": {0},
    "txn history --bootstrap-servers {at}": {0},
    "group list --clusters a={at}": {0},
    "group lag shop-orders shop-readers --bootstrap-servers {at}": {0},
    "snapshot list shop-orders --bootstrap-servers {at}": {0},
    "snapshot show shop-orders 0 --bootstrap-servers {at}": {0},
    "snapshot verify --bootstrap-servers {at}": {0},
    "dead-letter list shop-orders-shop-dead-DLQ --bootstrap-servers {at}": {0},
    "txn-log batching show --bootstrap-servers {at}": {0},
    "pending-ack batching show --bootstrap-servers {at}": {0},
}
"""Commands and exit codes that fit; 3: a topic of the test compacts, which a person should see."""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Code:
    """The earlier version."""
    return older_code(tmp_path_factory.mktemp("older") / "code")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster on which no worker has run."""
    with LocalCluster("a", tmp_path / "a", fast_start=True) as made:
        yield made


def use(code: Code, bootstrap: str, name: str) -> dict[str, Any]:
    """What became of the steps of an application."""
    ended = code.used(bootstrap, name)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def all_said(folder: Path) -> str:
    """The logs of all processes."""
    return "".join(log.read_text() for log in folder.glob("*.log"))


async def made(connector: KafkaConnector, topic: str) -> None:
    """Returns once a link has made a topic."""
    admin = connector.admin()
    while topic not in await admin.list_topics():
        await between_looks()
    await admin.close()


def check_commands(code: Code, bootstrap: str) -> None:
    """Each command says what it says to a worker of its own version."""
    for line, codes in COMMANDS.items():
        ended = code.command(*line.format(at=bootstrap).split())
        assert ended.returncode in codes, (line, ended.stdout, ended.stderr)
        assert "Traceback" not in ended.stderr, (line, ended.stderr)


@pytest.mark.parametrize("which", ["older worker", "older users"])
async def test_users_and_workers_of_two_versions(
    which: str, older: Code, cluster: LocalCluster, tmp_path: Path
):
    """All that both versions have works both ways; what the later one refuses says why."""
    this = Code()
    of_worker, of_users = (older, this) if which == "older worker" else (this, older)
    worker = of_worker.worker(cluster.bootstrap, tmp_path / "worker.log")
    async with worker:
        await worker.announced()
        found = use(of_users, cluster.bootstrap, NAME)
        compacted = found.pop("compacted")
        assert found == RIGHT
        assert "the topic compacts" in compacted
        check_commands(of_users, cluster.bootstrap)
        assert await worker.stop() == 0
    assert "Traceback" not in worker.said
    assert "[error" not in worker.said


@pytest.mark.parametrize("which", ["older worker", "older link"])
async def test_links_and_workers_of_two_versions(
    which: str, older: Code, cluster: LocalCluster, tmp_path: Path
):
    """What applications of the worker's version have committed arrives on the other cluster."""
    of_worker, of_link = (older, Code()) if which == "older worker" else (Code(), older)
    with LocalCluster("b", tmp_path / "b", fast_start=True) as target:
        named = f"a={cluster.bootstrap} b={target.bootstrap}"
        worker = of_worker.worker(cluster.bootstrap, tmp_path / "worker.log")
        link = of_link.link(named, tmp_path / "link.log")
        connector = KafkaConnector(KafkaConfig(target.bootstrap))
        copied = Subscription(f"{NAME}-orders", group="look", connector=connector)
        async with worker, link:
            await worker.announced()
            await link.announced()
            found = use(of_worker, cluster.bootstrap, NAME)
            assert {**found, "compacted": ""} == {**RIGHT, "compacted": ""}
            async with asyncio.timeout(COPIED_S):
                await made(connector, f"{NAME}-orders")
                async with copied:
                    arrived = [(await anext(copied)).value for _ in RIGHT["read"]]
            assert [(it or b"").decode() for it in arrived] == RIGHT["read"]
            for code in (of_worker, of_link):
                ended = code.command("status", "--clusters", named)
                assert ended.returncode in {0, 3}, ended.stderr
                assert "Traceback" not in ended.stderr
            assert await link.stop() == 0
            assert await worker.stop() == 0
    assert "Traceback" not in worker.said + link.said


@pytest.mark.parametrize("older_at", "ab")
async def test_a_group_moves_between_clusters_of_two_versions(
    older_at: str, older: Code, cluster: LocalCluster, tmp_path: Path
):
    """One cluster has been upgraded with its worker and its link, and the other one has not."""
    with LocalCluster("b", tmp_path / "b", fast_start=True) as other:
        at = {"a": cluster.bootstrap, "b": other.bootstrap}
        named = " ".join(f"{name}={address}" for name, address in at.items())
        async with AsyncExitStack() as stack:
            for name, other_name in ("ab", "ba"):
                code = older if name == older_at else Code()
                log = tmp_path / f"worker-{name}.log"
                worker = code.worker(at[name], log, "--cluster", name, clusters=named)
                await (await stack.enter_async_context(worker)).announced()
                await create_topics(at[name], NAME)
                link = code.link(named, tmp_path / f"link-{name}.log", other_name + name)
                await (await stack.enter_async_context(link)).announced()
            here, there = KafkaConnector(KafkaConfig(at["a"])), KafkaConnector(KafkaConfig(at["b"]))
            write_values(at["a"], NAME, [b"%d" % number for number in range(500)])
            first = await read_and_commit(here, NAME, "billing", 300)
            words = (NAME, "billing", "--clusters", named)
            for code, verb in ((older, ["enable"]), (Code(), ["failover", "--to", "b"])):
                ended = code.command("group", verb[0], *words, *verb[1:])
                assert ended.returncode == 0, ended.stderr
            rest = await read_and_commit(there, NAME, "billing", 200)
            assert sorted(first + rest) == list(range(500))
            for code in (older, Code()):
                for words in (["group", "list"], ["group", "describe", NAME, "billing"]):
                    ended = code.command(*words, "--clusters", named)
                    assert ended.returncode == 0, ended.stderr
                    assert "Traceback" not in ended.stderr
    assert "Traceback" not in all_said(tmp_path)


async def test_who_asks_an_ended_owner(older: Code, cluster: LocalCluster, tmp_path: Path):
    """B8: the earlier version passes the notice over and waits; this one is told the cause."""
    worker = Code().worker(cluster.bootstrap, tmp_path / "worker.log", coordinators=1)
    writer = KafkaConnector(KafkaConfig(cluster.bootstrap)).writer("damage")
    async with worker:
        await worker.announced()
        stamp = EntryStamp(Offset(0), 1).to_headers()
        log = TopicPartition(TXN_LOG, 0)
        writer.append(log, b"\x0e\x01no batch", lambda _error, _offset: None, headers=stamp)
        assert await writer.flush(COPIED_S)
        async with asyncio.timeout(COPIED_S):
            while "owner_ended" not in worker.said:
                await between_looks()
        asked = ("txn", "describe", "0:1", "--bootstrap-servers", cluster.bootstrap)
        waited = older.command(*asked, "--timeout-s", "3")
        told = Code().command(*asked, "--timeout-s", "300")
        assert await worker.stop() == 0
    await writer.close()
    for ended in (waited, told):
        assert ended.returncode == 1, ended
        assert "Traceback" not in ended.stderr
    assert "no answer from coordinator 0" in waited.stderr
    assert f"{TXN_LOG}/0" in told.stderr


async def test_a_rolling_upgrade(older: Code, cluster: LocalCluster, tmp_path: Path):
    """Workers of both versions serve at once, then those of this one alone."""
    this = Code()
    first = older.worker(cluster.bootstrap, tmp_path / "first.log")
    second = this.worker(cluster.bootstrap, tmp_path / "second.log")
    async with first, second:
        await first.announced()
        await second.announced()
        for code, name in ((older, "a"), (this, "b")):
            found = use(code, cluster.bootstrap, name)
            assert {**found, "compacted": ""} == {**RIGHT, "compacted": ""}
        assert await first.stop() == 0
        for code, name in ((older, "c"), (this, "d")):
            assert {**use(code, cluster.bootstrap, name), "compacted": ""} == {
                **RIGHT,
                "compacted": "",
            }
        assert await second.stop() == 0
    for worker in (first, second):
        assert "Traceback" not in worker.said
        assert "[error" not in worker.said
