"""A link against MirrorMaker 2, over the same topic: a million records of 100 bytes.

Both copy between the same two brokers, one after the other, into topics of their own. Ours writes
exactly once, with an origin on each record, and filters what did not commit; MirrorMaker runs at
its defaults (at least once, no filter), and tuned for throughput, with a task for each partition.
With PROCESSES above 1 a link of so many processes is measured beside that of one. Rates are of the
target's log, from a tenth of the records on to the last, and so is the processor time of the
processes that copy: neither side pays for its start. Memory is the most that the first process ever
held. Processor time of the copier and of both brokers is also reported by thread, in µs a record.

Sizes: RECORDS, PARTITIONS (1), PROCESSES (1), ROUNDS.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.cli.common.output import say
from stilltide.schemas.values import TopicPartition
from tests.bench.harness import (
    Run,
    looks,
    middle,
    report,
    rotated,
    rss_peak_mib,
    size,
)
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
from tests.bench.spent import Spent, cpu_rows, cpu_us
from tests.bench.threads import ThreadTimes, thread_rows, thread_times

LOOK_S = 0.02
LEAST_US = 0.1
"""Threads that use less are one row, `others`."""

LINK = "link"
COPIER = "copier"
PARTITIONS = size("PARTITIONS", 1)
MIRRORS: Mapping[str, Mapping[str, str]] = {
    "default": NO_SETTINGS,
    "tuned": {
        "source.consumer.max.poll.records": "5000",
        "target.producer.batch.size": str(512 * 1024),
        "target.producer.linger.ms": "20",
        "tasks.max": str(PARTITIONS),
    },
}


async def run() -> None:
    """Measures and reports."""
    records, rounds = size("RECORDS", 1_000_000), size("ROUNDS", 3)
    links = {LINK: 1}
    if (processes := size("PROCESSES", 1)) > 1:
        links[f"{LINK} of {processes}"] = processes
    with running_pair() as pair:
        results, threads = await _rounds(pair, links, records, rounds)
    columns = {name: _middles(runs) for name, runs in threads.items()}
    rows = [_row(name, settings, results) for name in links for settings in MIRRORS]
    cpu = cpu_rows(
        PARTITIONS,
        {name: results[name] for name in links},
        {f"MirrorMaker 2, {name}": results[name] for name in MIRRORS},
    )
    report("replication", rows, cpu, threads=thread_rows(columns, LEAST_US))


async def _rounds(
    pair: Pair, links: Mapping[str, int], records: int, rounds: int
) -> tuple[dict[str, list[Run]], dict[str, list[ThreadTimes]]]:
    results: dict[str, list[Run]] = {name: [] for name in (*links, *MIRRORS)}
    threads: dict[str, list[ThreadTimes]] = {name: [] for name in results}
    admin, numbers = KafkaConnector(KafkaConfig(pair.b.bootstrap)).admin(), range(PARTITIONS)
    for turn in range(rounds):
        for name in rotated(list(results), turn):
            topic = f"bench-{turn}-{name.replace(' ', '-')}"
            await create(pair.a.bootstrap, topic, partitions=PARTITIONS)
            await asyncio.to_thread(fill, pair.a.bootstrap, topic, 0, records, PARTITIONS)
            if name in links:
                command = [*link_command(pair, topic), "--processes", str(links[name])]
                copied = command, [TopicPartition(topic, it) for it in numbers]
            else:
                alias = f"a-{turn}-{name}"
                copied = (
                    mirror_command(pair, alias, topic, MIRRORS[name]),
                    [TopicPartition(f"{alias}.{topic}", it) for it in numbers],
                )
            found, by_thread = await copied_per_s(admin, pair, *copied, records)
            say(f"round {turn + 1} of {rounds}: {name}: {found.per_s:,.0f}/s, {found.cpu_us}")
            results[name].append(found)
            threads[name].append(by_thread)
    await admin.close()
    return results, threads


async def copied_per_s(
    admin: LogAdmin, pair: Pair, command: list[str], copies: Sequence[TopicPartition], records: int
) -> tuple[Run, ThreadTimes]:
    """The rate at which a command copies to partitions, with its processor time and memory.

    And the processor time of the copier and both brokers by thread, in µs a record.
    """
    first: tuple[float, int, Spent, ThreadTimes] | None = None
    now, end = 0.0, 0
    with running(command, pair.directory / f"{copies[0].topic}.log") as copier:
        pids = {COPIER: copier.pid, "broker a": pair.a.pid, "broker b": pair.b.pid}
        async for _ in looks(LOOK_S):
            copier.check()
            end = sum((await admin.end_offsets(copies, committed=True)).values())
            now = time.perf_counter()
            if first is None and end >= records // 10:
                first = now, end, Spent(pids, children=True), thread_times(pids)
            # Control records count too, so that a target's end may come a little early.
            if first is not None and end >= records:
                break
        assert first is not None
        began, begin, spent, threads_before = first
        count, elapsed_s = end - begin, now - began
        found = spent.by(Run(count / elapsed_s, 0, 0, count, {}))
        threads = thread_times(pids)
        found.extra["rss_peak_mib"] = rss_peak_mib(copier.pid)
    by_thread = {
        at: (used - threads_before.get(at, 0.0)) / count * 1e6 for at, used in threads.items()
    }
    return found, by_thread


def _middles(runs: Sequence[ThreadTimes]) -> ThreadTimes:
    places = {at for run in runs for at in run}
    return {at: median(run.get(at, 0.0) for run in runs) for at in places}


def _row(link: str, settings: str, results: Mapping[str, list[Run]]) -> dict[str, Any]:
    ours, theirs = results[link], results[settings]
    return {
        "link": link,
        "settings": settings,
        "link_per_s": middle(ours, "per_s"),
        "mirrormaker_per_s": middle(theirs, "per_s"),
        "ratio": middle(ours, "per_s") / middle(theirs, "per_s"),
        "link_cpu_us": cpu_us(ours, COPIER),
        "mirrormaker_cpu_us": cpu_us(theirs, COPIER),
        "cpu_ratio": cpu_us(ours, COPIER) / cpu_us(theirs, COPIER),
        "link_rss_peak_mib": middle(ours, "rss_peak_mib"),
        "mirrormaker_rss_peak_mib": middle(theirs, "rss_peak_mib"),
    }
