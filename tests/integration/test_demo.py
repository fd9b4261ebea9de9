"""The demo: whole, as a user runs it, and its writing and reading on files of all sorts."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.demo.events import (
    ORDERS,
    PAYMENTS,
    SAMPLE,
    EventsFileError,
    Plan,
    consume,
    produce,
)
from stilltide.pipeline.demo.run import PARTITION_COUNT, TOPICS
from stilltide.pipeline.demo.views import PartitionView, View
from stilltide.schemas.digest import content_digest
from stilltide.schemas.topics import TopicSpec
from tests.support.processes.local import run_stilltide
from tests.support.processes.worker_process import running_worker


def sample(path: Path, count: int) -> Path:
    """The first lines of the bundled events, in a file of their own."""
    path.write_bytes(b"".join(SAMPLE.read_bytes().splitlines(keepends=True)[:count]))
    return path


def test_the_demo_agrees(tmp_path: Path):
    """Exit code 0; the three views are equal and hold every event; progress is on stderr."""
    path = sample(tmp_path / "events.ndjson", 500)
    done = run_stilltide("demo", "--file", str(path), "-o", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["agrees"], result["differences"], result["verdict"]) == (True, [], "valid")
    views = [{**view, "name": None} for view in result["views"]]
    assert views[1]["aborted"] is None  # a reader keeps no count of them
    assert views[0] == {**views[1], "aborted": views[0]["aborted"]} == views[2]
    assert views[0]["committed"] + views[0]["aborted"] == 100
    assert views[0]["aborted"] > 0
    assert sum(partition["written"] for partition in views[0]["partitions"]) == 500
    for step in ("starting a Kafka broker", "SIGKILL to the worker", "auditing with Spark"):
        assert step in done.stderr
    assert "agree;" in done.stderr
    assert [it.name for it in tmp_path.iterdir()] == ["events.ndjson"]


def test_a_missing_file_fails_at_once(tmp_path: Path):
    """Nothing is started for a file that is not there."""
    done = run_stilltide("demo", "--file", "nowhere.ndjson", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: cannot read nowhere.ndjson" in done.stderr
    assert "broker" not in done.stderr


@pytest.mark.slow
def test_a_broken_line_fails_the_demo(tmp_path: Path):
    """Exit code 1; the file's line number is named, without a traceback."""
    path = sample(tmp_path / "events.ndjson", 12)
    path.write_bytes(path.read_bytes() + b'{"type": "order.pla\n')
    done = run_stilltide("demo", "--file", str(path), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: events.ndjson line 13 is not JSON" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def bootstrap(empty_kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with a worker."""
    with running_worker(empty_kafka.bootstrap, tmp_path_factory.mktemp("demo") / "worker.log"):
        yield empty_kafka.bootstrap


class Rig:
    """Writes a file and reads it back."""

    def __init__(self, connector: KafkaConnector, group: str) -> None:
        self._connector = connector
        self._group = group
        self._before: View | None = None

    async def produce(self, path: Path, abort_share: float = 0.0, concurrency: int = 8) -> View:
        """What the producer knows."""
        plan = Plan(path, 5, abort_share, concurrency)
        async with TransactionClient(connector=self._connector) as client:
            return await produce(client, plan, lambda _: None)

    async def consume(self) -> View:
        """What the consumer saw of it, and of no earlier test."""
        now = await consume(self._connector, TOPICS, self._group)
        before = self._before or View("before")
        view = View("consumer", now.committed - before.committed, aborted=None)
        for data, one in now.partitions.items():
            was = before.partition(data)
            counts = PartitionView(
                one.visible - was.visible, one.hidden - was.hidden, one.digest - was.digest
            )
            if counts.written:
                view.partitions[data] = counts
        return view

    async def begin(self) -> None:
        """What is there already does not count."""
        self._before = await consume(self._connector, TOPICS, f"{self._group}-before")


@pytest.fixture
async def rig(bootstrap: str, topic_name: str) -> Rig:
    """A rig on the module's cluster."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    admin = connector.admin()
    await admin.ensure_topics([TopicSpec(topic, PARTITION_COUNT) for topic in TOPICS])
    await admin.close()
    made = Rig(connector, topic_name)
    await made.begin()
    return made


def same(produced: View, consumed: View) -> None:
    """Asserts that two views are equal, but for what a consumer cannot tell."""
    assert produced.partitions == consumed.partitions
    assert (produced.committed, None) == (consumed.committed, consumed.aborted)


@pytest.mark.parametrize(("abort_share", "aborted"), [(0.0, 0), (1.0, 20)])
async def test_none_or_all_abort(rig: Rig, tmp_path: Path, abort_share: float, aborted: int):
    """A share of 0 hides nothing, one of 1 everything; producer and consumer agree on it."""
    path = sample(tmp_path / "events.ndjson", 100)
    produced = await rig.produce(path, abort_share)
    assert (produced.committed, produced.aborted) == (20 - aborted, aborted)
    same(produced, await rig.consume())


async def test_any_objects_will_do(rig: Rig, tmp_path: Path):
    """Objects without type or key are spread over both topics, and all come back."""
    path = tmp_path / "plain.ndjson"
    path.write_text("".join(f'{{"n": {number}}}\n' for number in range(1, 41)))
    produced = await rig.produce(path, 0.5)
    assert produced.total(ORDERS, "written") == produced.total(PAYMENTS, "written") == 20
    same(produced, await rig.consume())


async def test_nothing_of_a_broken_line_s_transaction_is_visible(rig: Rig, tmp_path: Path):
    """Transactions before the broken line are whole; of its own, and after it, there is nothing."""
    path = tmp_path / "broken.ndjson"
    lines = [b'{"id": %d}\n' % number for number in range(1, 31)]
    lines[12] = b'{"id": \n'
    path.write_bytes(b"".join(lines))
    with pytest.raises(EventsFileError, match="line 13 is not JSON"):
        await rig.produce(path, concurrency=1)
    consumed = await rig.consume()
    assert sum(it.visible for it in consumed.partitions.values()) == 10
    assert sum(it.digest for it in consumed.partitions.values()) == content_digest(
        (b"%d" % number, line.rstrip()) for number, line in enumerate(lines[:10], 1)
    )
    assert consumed.committed == 2


async def test_an_empty_file_writes_nothing(rig: Rig, tmp_path: Path):
    """No line is no transaction, and no failure."""
    path = tmp_path / "empty.ndjson"
    path.touch()
    produced = await rig.produce(path)
    assert (produced.committed, produced.aborted, produced.partitions) == (0, 0, {})
    same(produced, await rig.consume())
