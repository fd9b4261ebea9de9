"""A link against MirrorMaker 2, over the same topic: a million records of 100 bytes, one partition.

Both copy between the same two brokers, one after the other, into topics of their own. Ours writes
exactly once, with an origin on each record, and filters what did not commit; MirrorMaker runs at
its defaults (at least once, no filter), and tuned for throughput. Rates are of the target's log,
from the first records seen there to the last, and so is processor time; memory is that at the end.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from connectors.base import LogAdmin
from connectors.kafka.config import KafkaConfig
from connectors.kafka.connector import KafkaConnector
from connectors.local.cluster import LocalCluster
from connectors.local.jars import mirror_jars
from connectors.local.java import find_java
from pipeline.cli.output import say
from schemas.topics import TopicSpec
from schemas.values import TopicPartition
from tests.bench.harness import Run, cpu_s, middle, report, rotated, rss_mib

RECORDS = 1_000_000
RECORD_BYTES = 100
ROUNDS = 3
LOOK_S = 0.02
TIMEOUT_S = 120.0

LINK = "link"
MIRRORS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "tuned": {
        "a.consumer.max.poll.records": "5000",
        "b.producer.batch.size": str(512 * 1024),
        "b.producer.linger.ms": "20",
    },
}
"""MirrorMaker's settings beside those that one node needs."""

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


@dataclass
class _Pair:
    directory: Path
    a: LocalCluster
    b: LocalCluster


async def run() -> None:
    """Measures and reports."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        with (
            LocalCluster("a", directory / "a", heap="512m") as a,
            LocalCluster("b", directory / "b", heap="512m") as b,
        ):
            results = await _rounds(_Pair(directory, a, b))
    report("replication", [_row(settings, results) for settings in MIRRORS])


async def _rounds(pair: _Pair) -> dict[str, list[Run]]:
    results: dict[str, list[Run]] = {name: [] for name in (LINK, *MIRRORS)}
    admin = KafkaConnector(KafkaConfig(pair.b.bootstrap)).admin()
    for turn in range(ROUNDS):
        for name in rotated(list(results), turn):
            topic = f"bench-{turn}-{name}"
            await _fill(pair.a.bootstrap, topic)
            if name == LINK:
                copied = _link(pair, topic), topic
            else:
                copied = _mirror(pair, topic, name), f"a.{topic}"
            found = await _measured(admin, pair.directory / "stderr", *copied)
            say(f"round {turn + 1} of {ROUNDS}: {name}: {found.per_s:,.0f}/s, {found.extra}")
            results[name].append(found)
    await admin.close()
    return results


async def _fill(bootstrap: str, topic: str) -> None:
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.ensure_topics([TopicSpec(topic, 1)])
    await admin.close()
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 0}
    )
    for number in range(RECORDS):
        producer.produce(topic, b"%0*d" % (RECORD_BYTES, number), partition=0)
    assert producer.flush(60) == 0


def _link(pair: _Pair, topic: str) -> list[str]:
    named = f"a={pair.a.bootstrap} b={pair.b.bootstrap}"
    command = [sys.executable, "-m", "pipeline.cli", "replicate", "--clusters", named]
    return [*command, "--from", "a", "--to", "b", "--topics", topic]


def _mirror(pair: _Pair, topic: str, settings: str) -> list[str]:
    lines = {
        "clusters": "a, b",
        "a.bootstrap.servers": pair.a.bootstrap,
        "b.bootstrap.servers": pair.b.bootstrap,
        "a->b.enabled": "true",
        "b->a.enabled": "false",
        "a->b.topics": topic,
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        **{f"{name}replication.factor": "1" for name in _REPLICATED},
        **MIRRORS[settings],
    }
    properties = pair.directory / f"mm2-{topic}-{settings}.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    log4j = pair.directory / "mm2-log4j2.properties"
    log4j.write_text(_LOG4J)
    return [
        str(find_java().path),
        "-Xmx512m",
        f"-Dlog4j2.configurationFile=file:{log4j}",
        "-cp",
        os.pathsep.join(map(str, mirror_jars())),
        "org.apache.kafka.connect.mirror.MirrorMaker",
        str(properties),
    ]


@contextmanager
def _running(command: list[str], log_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _last_words(log_path: Path) -> str:
    return log_path.read_text()[-4000:]


async def _measured(admin: LogAdmin, log_path: Path, command: list[str], topic: str) -> Run:
    data = TopicPartition(topic, 0)
    first: tuple[float, int, float] | None = None
    with _running(command, log_path) as process:
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            assert time.monotonic() < deadline_s, _last_words(log_path)
            end = (await admin.end_offsets([data], committed=True)).get(data, 0)
            now, used_s = time.perf_counter(), cpu_s(process.pid)
            if first is None and end:
                first = now, end, used_s
            # Control records count too, so that a target's end may come a little early.
            if first is not None and end >= RECORDS:
                break
            with suppress(subprocess.TimeoutExpired):
                code = await asyncio.to_thread(process.wait, LOOK_S)
                raise AssertionError(f"ended by itself: {code}: {_last_words(log_path)}")
        began, begin, used_before_s = first
        count = end - begin
        memory_mib = rss_mib(process.pid)
    elapsed_s = now - began
    return Run(
        per_s=count / elapsed_s,
        p50_ms=0,
        p99_ms=0,
        operations=count,
        extra={"cpu_us": (used_s - used_before_s) / count * 1e6, "rss_mib": memory_mib},
    )


def _row(settings: str, results: Mapping[str, list[Run]]) -> dict[str, Any]:
    ours, theirs = results[LINK], results[settings]
    return {
        "settings": settings,
        "link_per_s": middle(ours, "per_s"),
        "mirrormaker_per_s": middle(theirs, "per_s"),
        "ratio": middle(ours, "per_s") / middle(theirs, "per_s"),
        "link_cpu_us": middle(ours, "cpu_us"),
        "mirrormaker_cpu_us": middle(theirs, "cpu_us"),
        "cpu_ratio": middle(ours, "cpu_us") / middle(theirs, "cpu_us"),
        "link_rss_mib": middle(ours, "rss_mib"),
        "mirrormaker_rss_mib": middle(theirs, "rss_mib"),
    }
