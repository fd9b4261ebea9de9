"""Two brokers, a link between them, and MirrorMaker 2 from the same jars beside it."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.local.jars import jar_set
from stilltide.connectors.local.java import find_java
from stilltide.pipeline.demo.worker_process import end_with_this_process
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import ClusterName

RECORD_BYTES = 100
WAIT_S = 120.0
"""For whatever a broker or a copier is asked."""

NO_SETTINGS: Mapping[str, str] = {}
EVERY_SECOND: Mapping[str, str] = {
    "emit.checkpoints.enabled": "true",
    "emit.checkpoints.interval.seconds": "1",
    "sync.group.offsets.enabled": "true",
    "sync.group.offsets.interval.seconds": "1",
    "refresh.topics.interval.seconds": "5",
    "refresh.groups.interval.seconds": "5",
    "offset.flush.interval.ms": "1000",
}
"""MirrorMaker carries groups over as often as it can be told to."""

_REPLICATED = (
    "",
    "checkpoints.topic.",
    "heartbeats.topic.",
    "offset-syncs.topic.",
    "offset.storage.",
    "status.storage.",
    "config.storage.",
)
_LOG4J = """status=error
rootLogger.level=warn
rootLogger.appenderRef.stderr.ref=stderr
appender.stderr.type=Console
appender.stderr.name=stderr
appender.stderr.target=SYSTEM_ERR
"""


@dataclass(frozen=True)
class Pair:
    """Two clusters, `a` and `b`, and a directory for what else there is to write."""

    directory: Path
    a: LocalCluster
    b: LocalCluster

    @property
    def named(self) -> str:
        """Both as the settings have them."""
        return f"a={self.a.bootstrap} b={self.b.bootstrap}"

    def bootstrap(self, name: str) -> str:
        """Address of one of them."""
        return {"a": self.a, "b": self.b}[name].bootstrap

    @property
    def connectors(self) -> dict[ClusterName, KafkaConnector]:
        """To each, by name."""
        return {
            ClusterName(one.name): KafkaConnector(KafkaConfig(one.bootstrap))
            for one in (self.a, self.b)
        }


@contextmanager
def running_pair() -> Iterator[Pair]:
    """Both run from entry to exit."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        with (
            LocalCluster("a", directory / "a", heap="512m") as a,
            LocalCluster("b", directory / "b", heap="512m") as b,
        ):
            yield Pair(directory, a, b)


class Copier:
    """A process that copies."""

    def __init__(self, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self._process = process
        self._log_path = log_path

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def check(self) -> None:
        """Fails, with what it said last, if it has ended."""
        code = self._process.poll()
        if code is not None:
            said = self._log_path.read_text(errors="replace")[-4000:]
            raise AssertionError(f"ended by itself, with {code}: {said}")


@contextmanager
def running(command: list[str], log_path: Path) -> Iterator[Copier]:
    """A copier from entry to exit."""
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    end_with_this_process(process.pid)
    try:
        yield Copier(process, log_path)
    finally:
        process.kill()
        process.wait()


def link_command(pair: Pair, *topics: str, ends: str = "ab") -> list[str]:
    """A link of topics that both clusters may write to; `ends` names its source and its target."""
    link = [sys.executable, "-m", "stilltide", "replicate", "--clusters", pair.named]
    named = [word for topic in topics for word in ("--topics", topic)]
    return [*link, "--from", ends[0], "--to", ends[1], "--merge", *named]


def mirror_command(pair: Pair, alias: str, topics: str, settings: Mapping[str, str]) -> list[str]:
    """MirrorMaker from `a` to `b`.

    Args:
        pair: of clusters.
        alias: what it calls `a`. Its group, its offsets and its copies are named by that, so that
            one with an alias of its own finds nothing that another one has left.
        topics: a regular expression.
        settings: beside those that one node needs; `source.` and `target.` stand for the aliases.
    """
    lines = {
        "clusters": f"{alias}, b",
        f"{alias}.bootstrap.servers": pair.a.bootstrap,
        "b.bootstrap.servers": pair.b.bootstrap,
        f"{alias}->b.enabled": "true",
        f"b->{alias}.enabled": "false",
        f"{alias}->b.topics": topics,
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        **{f"{name}replication.factor": "1" for name in _REPLICATED},
        **{_aliased(name, alias): value for name, value in settings.items()},
    }
    properties = pair.directory / f"{alias}.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    log4j = pair.directory / "mm2-log4j2.properties"
    log4j.write_text(_LOG4J)
    return [
        str(find_java().path),
        "-Xmx512m",
        f"-Dlog4j2.configurationFile=file:{log4j}",
        "-cp",
        os.pathsep.join(map(str, jar_set("mirror"))),
        "org.apache.kafka.connect.mirror.MirrorMaker",
        str(properties),
    ]


def _aliased(name: str, alias: str) -> str:
    side, dot, rest = name.partition(".")
    return {"source": alias, "target": "b"}.get(side, side) + dot + rest


async def create(bootstrap: str, *topics: str, partitions: int = 1) -> None:
    """Topics of so many partitions."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.ensure_topics([TopicSpec(topic, partitions) for topic in topics])
    await admin.close()


def fill(bootstrap: str, topic: str, first: int, end: int, partitions: int = 1) -> None:
    """Writes records that bear the numbers `[first, end)`, 100 bytes each, in turn; blocks."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 0}
    )
    for number in range(first, end):
        producer.produce(topic, b"%0*d" % (RECORD_BYTES, number), partition=number % partitions)
        if number % 100_000 == 0:
            assert producer.flush(WAIT_S) == 0
    assert producer.flush(WAIT_S) == 0
