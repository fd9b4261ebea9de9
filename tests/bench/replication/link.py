"""A link against MirrorMaker 2, over the same topic: a million records of 100 bytes, one partition.

Both copy between the same two brokers, one after the other, into topics of their own. Ours writes
exactly once, with an origin on each record, and filters what did not commit; MirrorMaker runs at
its defaults (at least once, no filter), and tuned for throughput. Rates are of the target's log,
from a tenth of the records on to the last, and so is the processor time of the process that copies:
neither side pays for its start. Memory is the most that it ever held.

Sizes: RECORDS, ROUNDS.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.cli.common.output import say
from stilltide.schemas.values import TopicPartition
from tests.bench.harness import Run, cpu_s, looks, middle, report, rotated, rss_peak_mib, size
from tests.bench.replication.copiers import (
    NO_SETTINGS,
    Pair,
    create,
    fill,
    link_command,
    mirror_command,
    running,
    running_pair,
)

LOOK_S = 0.02
LINK = "link"
MIRRORS: Mapping[str, Mapping[str, str]] = {
    "default": NO_SETTINGS,
    "tuned": {
        "source.consumer.max.poll.records": "5000",
        "target.producer.batch.size": str(512 * 1024),
        "target.producer.linger.ms": "20",
    },
}


async def run() -> None:
    """Measures and reports."""
    records, rounds = size("RECORDS", 1_000_000), size("ROUNDS", 3)
    with running_pair() as pair:
        results = await _rounds(pair, records, rounds)
    report("replication", [_row(settings, results) for settings in MIRRORS])


async def _rounds(pair: Pair, records: int, rounds: int) -> dict[str, list[Run]]:
    results: dict[str, list[Run]] = {name: [] for name in (LINK, *MIRRORS)}
    admin = KafkaConnector(KafkaConfig(pair.b.bootstrap)).admin()
    for turn in range(rounds):
        for name in rotated(list(results), turn):
            topic = f"bench-{turn}-{name}"
            await create(pair.a.bootstrap, topic)
            await asyncio.to_thread(fill, pair.a.bootstrap, topic, 0, records)
            if name == LINK:
                copied = link_command(pair, topic), topic
            else:
                alias = f"a-{turn}-{name}"
                copied = mirror_command(pair, alias, topic, MIRRORS[name]), f"{alias}.{topic}"
            found = await copied_per_s(admin, pair, *copied, records)
            say(f"round {turn + 1} of {rounds}: {name}: {found.per_s:,.0f}/s, {found.extra}")
            results[name].append(found)
    await admin.close()
    return results


async def copied_per_s(
    admin: LogAdmin, pair: Pair, command: list[str], topic: str, records: int
) -> Run:
    """The rate at which a command copies to a topic, with its processor time and memory."""
    data = TopicPartition(topic, 0)
    first: tuple[float, int, float] | None = None
    now, end, used_s = 0.0, 0, 0.0
    with running(command, pair.directory / f"{topic}.log") as copier:
        async for _ in looks(LOOK_S):
            copier.check()
            end = (await admin.end_offsets([data], committed=True)).get(data, 0)
            now, used_s = time.perf_counter(), cpu_s(copier.pid)
            if first is None and end >= records // 10:
                first = now, end, used_s
            # Control records count too, so that a target's end may come a little early.
            if first is not None and end >= records:
                break
        assert first is not None
        began, begin, used_before_s = first
        memory_mib = rss_peak_mib(copier.pid)
    count, elapsed_s = end - begin, now - began
    return Run(
        per_s=count / elapsed_s,
        p50_ms=0,
        p99_ms=0,
        operations=count,
        extra={"cpu_us": (used_s - used_before_s) / count * 1e6, "rss_peak_mib": memory_mib},
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
        "link_rss_peak_mib": middle(ours, "rss_peak_mib"),
        "mirrormaker_rss_peak_mib": middle(theirs, "rss_peak_mib"),
    }
