"""`offset translate` anywhere in ten million records that a link has copied.

Each look-up is one call of the driver with clients of its own, as the command makes it: it reads
the index, and one bucket of the copies. Offsets are drawn evenly; that each is exact is seen from
the record that lies at the offset which was found. `command_ms` is the whole of `stilltide offset
translate`, and `help_ms` what of it any command takes: the start of Python and its imports.

Sizes: RECORDS, LOOKUPS, COMMANDS.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from statistics import median

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.drivers.links.offset_translation import translate
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.topics import REPLICATION_POSITIONS
from stilltide.schemas.values import ClusterName, Offset, TopicPartition
from tests.bench.harness import looks, report, size, summary
from tests.bench.replication.copiers import (
    WAIT_S,
    Pair,
    create,
    fill,
    link_command,
    running,
    running_pair,
)

TOPIC = "bench"
DATA = TopicPartition(TOPIC, 0)
NAMES = ClusterName("a"), ClusterName("b")
COPIED_WAIT_S = 1200.0
LOOK_S = 0.5
MILLISECONDS_MAX = 200.0


async def run() -> None:
    """Measures and reports."""
    records, count = size("RECORDS", 10_000_000), size("LOOKUPS", 200)
    commands, rng = size("COMMANDS", 5), random.Random(1)
    offsets = [
        Offset(0),
        Offset(records - 1),
        *(Offset(rng.randrange(records)) for _ in range(count)),
    ]
    with running_pair() as pair:
        await create(pair.a.bootstrap, TOPIC)
        with running(link_command(pair, TOPIC), pair.directory / "link.log") as link:
            await asyncio.to_thread(fill, pair.a.bootstrap, TOPIC, 0, records)
            say("translate: written")
            async for _ in looks(LOOK_S, wait_s=COPIED_WAIT_S):
                link.check()
                if await _is_copied(pair, offsets[1]):
                    break
        say("translate: copied")
        took_s: list[float] = []
        found: list[int] = []
        for offset in offsets:
            began = time.perf_counter()
            found.append(await _translated(pair, offset))
            took_s.append(time.perf_counter() - began)
        exact = await asyncio.to_thread(_count_exact, pair, offsets, found)
        words = ("offset", "translate", TOPIC, "0")
        ends = ("--from", "a", "--to", "b", "--clusters", pair.named, "-o", "json")
        command_ms = [_command_ms(*words, str(offset), *ends) for offset in offsets[:commands]]
        help_ms = [_command_ms(*words[:2], "--help") for _ in range(commands)]
        written = await _index_records(pair)
    done = summary(took_s, sum(took_s))
    row = {
        "records": records,
        "look_ups": done.operations,
        "exact": exact,
        "p50_ms": done.p50_ms,
        "p99_ms": done.p99_ms,
        "limit_ms": MILLISECONDS_MAX,
        "command_ms": median(command_ms),
        "help_ms": median(help_ms),
        "index_records": written,
    }
    report("translate", [row])


async def _translated(pair: Pair, offset: Offset) -> int:
    source, target = (pair.connectors[name] for name in NAMES)
    found = await translate(source, target, NAMES, DATA, offset, timeout_s=WAIT_S)
    return found.offset


async def _is_copied(pair: Pair, offset: Offset) -> bool:
    target = pair.connectors[NAMES[1]].admin()
    try:
        ends = await target.end_offsets([DATA], committed=True)
    finally:
        await target.close()
    if ends.get(DATA, 0) <= offset:
        return False
    try:
        await _translated(pair, offset)
    except RefusedError:
        return False
    return True


async def _index_records(pair: Pair) -> int:
    """How many records a look-up reads to know the buckets, at most."""
    admin = pair.connectors[NAMES[1]].admin()
    try:
        count = (await admin.describe_topics([REPLICATION_POSITIONS]))[REPLICATION_POSITIONS]
        logs = [TopicPartition(REPLICATION_POSITIONS, it) for it in range(count.partition_count)]
        return max((await admin.end_offsets(logs)).values())
    finally:
        await admin.close()


def _count_exact(pair: Pair, offsets: list[Offset], found: list[int]) -> int:
    """How many of the records at these offsets of the target are the ones that were asked for."""
    consumer = Consumer({"bootstrap.servers": pair.b.bootstrap, "group.id": "bench-check"})
    exact = 0
    for offset, at in zip(offsets, found, strict=True):
        consumer.assign([Place(TOPIC, 0, at)])
        message = consumer.poll(WAIT_S)
        assert message is not None
        exact += (message.offset(), int(message.value() or b"")) == (at, offset)
    consumer.close()
    return exact


def _command_ms(*words: str) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-m", "stilltide", *words]
    done = subprocess.run(command, capture_output=True, check=True, env=dict(os.environ))
    took_ms = (time.perf_counter() - began) * 1000
    if "--help" not in words:
        json.loads(done.stdout)
    return took_ms
