"""How soon a group's commit on one cluster is applied on the other, and by how much it trails.

Links and workers of ours, copying both ways, and MirrorMaker told to carry groups over once a
second, one after the other, each with a topic and a group of its own:
- `p50_s`, `p99_s`: from a commit on `a`, of records that are copied, until the group stands at the
  very same record on `b`; of MirrorMaker, until it moves there at all.
- `trail_p95`: records by which the group trails on `b`, while 2000 records a second are written,
  copied, read by a member on `a` and committed ten times a second.
- `rest`: the same three seconds after the last commit.

Sizes: ROUNDS, SAMPLES (commits of a round), LOAD_S (seconds under load, of a round).
"""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, Producer

from stilltide.pipeline.cli.common.output import say
from tests.bench.harness import looks, report, rotated, size
from tests.bench.replication.copiers import (
    EVERY_SECOND,
    RECORD_BYTES,
    WAIT_S,
    Pair,
    create,
    fill,
    mirror_command,
    running,
    running_pair,
)
from tests.bench.replication.replicated import (
    Committed,
    VisibleLog,
    commit_on_a,
    enable,
    replicated,
)

PER_S = 2000
STEP = 100
"""Records of one sample."""

COMMIT_S = 0.1
LOOK_S = 0.005
LOOK_UNDER_LOAD_S = 0.05
SETTLE_S = 15.0
"""From the beginning of the load on; not looked at: brokers, and MirrorMaker, warm up."""

REST_S = 3.0


@dataclass
class _Found:
    """Of one system, over all rounds."""

    latencies_s: list[float] = field(default_factory=list[float])
    trails: list[int] = field(default_factory=list[int])
    rests: list[int] = field(default_factory=list[int])


@dataclass(frozen=True)
class _System:
    """Who carries groups over; what it calls the topic on `b`; whether the place is exact."""

    pair: Pair
    name: str
    turn: int

    @property
    def topic(self) -> str:
        return f"bench-{self.turn}-{self.name}"

    @property
    def copy(self) -> str:
        return self.topic if self.exact else f"{self._alias}.{self.topic}"

    @property
    def exact(self) -> bool:
        return self.name == "link"

    @property
    def _alias(self) -> str:
        return f"mm-{self.turn}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """From entry to exit."""
        async with AsyncExitStack() as stack:
            if self.exact:
                both = {"ab": [self.topic], "ba": [self.topic]}
                await stack.enter_async_context(replicated(self.pair, both))
            else:
                command = mirror_command(self.pair, self._alias, self.topic, EVERY_SECOND)
                log_path = self.pair.directory / f"{self._alias}.log"
                stack.enter_context(running(command, log_path))
            yield


async def run() -> None:
    """Measures and reports."""
    rounds, samples = size("ROUNDS", 3), size("SAMPLES", 30)
    seconds = size("LOAD_S", 20)
    found = {"link": _Found(), "mirrormaker": _Found()}
    with running_pair() as pair:
        for turn in range(rounds):
            for name in rotated(list(found), turn):
                system = _System(pair, name, turn)
                await create(pair.a.bootstrap, system.topic)
                async with system.running():
                    await _latencies(system, samples, found[name])
                    await _under_load(system, seconds, found[name])
                say(
                    f"sync_latency: round {turn + 1} of {rounds}: {name}: {_row(name, found[name])}"
                )
    report("sync_latency", [_row(name, one) for name, one in found.items()])


async def _latencies(system: _System, samples: int, found: _Found) -> None:
    """Commits one after the other, at moments that have nothing to do with anybody's intervals."""
    a, group, rng = system.pair.a.bootstrap, f"{system.topic}-idle", random.Random(system.turn)
    if system.exact:
        await enable(system.pair, system.topic, group)
    asked = Committed(system.pair.b.bootstrap, system.copy, group)
    try:
        for number in range(-1, samples):  # the first finds topic and group
            end = (number + 2) * STEP
            await asyncio.to_thread(fill, a, system.topic, end - STEP, end)
            log = await _copied(system, end)
            await _rest(rng.uniform(0.1, 1.0))
            before = asked.now()
            reached = _reached(system, log, before, end)
            began = time.perf_counter()
            await commit_on_a(system.pair, system.topic, group, end)
            async for _ in looks(LOOK_S):
                if reached(await asyncio.to_thread(asked.now)):
                    break
            if number >= 0:
                found.latencies_s.append(time.perf_counter() - began)
    finally:
        asked.close()


def _reached(system: _System, log: VisibleLog, before: int, end: int) -> Callable[[int], bool]:
    if system.exact:
        return lambda offset: log.count_below(offset) == end
    return lambda offset: offset > before


async def _copied(system: _System, count: int) -> VisibleLog:
    """The copy, once it holds so many records."""
    async for _ in looks(LOOK_UNDER_LOAD_S):
        log = await asyncio.to_thread(VisibleLog, system.pair.b.bootstrap, system.copy)
        if len(log.numbers) >= count:
            return log
    raise AssertionError


async def _rest(seconds: float) -> None:
    async for elapsed_s in looks(seconds):
        if elapsed_s >= seconds:
            return


async def _under_load(system: _System, seconds: int, found: _Found) -> None:
    group = f"{system.topic}-live"
    if system.exact:
        await enable(system.pair, system.topic, group)
    a, b = system.pair.a.bootstrap, system.pair.b.bootstrap
    here, there = Committed(a, system.topic, group), Committed(b, system.copy, group)
    stop = threading.Event()
    seen: list[tuple[int, int]] = []
    load = _Load(a, system.topic, group, stop)
    try:
        working = asyncio.gather(asyncio.to_thread(load.write), asyncio.to_thread(load.read))
        async for elapsed_s in looks(LOOK_UNDER_LOAD_S):
            if elapsed_s > SETTLE_S:
                seen.append(await asyncio.to_thread(lambda: (here.now(), there.now())))
            if elapsed_s > SETTLE_S + seconds:
                break
        stop.set()
        await working
        await _rest(REST_S)
        last = here.now(), there.now()
    finally:
        stop.set()
        here.close()
        there.close()
    source = await asyncio.to_thread(VisibleLog, a, system.topic)
    copy = await _copied(system, len(source.numbers))

    def trail(at: tuple[int, int]) -> int:
        return source.count_below(at[0]) - copy.count_below(at[1])

    found.trails += map(trail, seen)
    found.rests.append(trail(last))


class _Load:
    """A producer, and a member of a group that reads and commits what it has written.

    Args:
        bootstrap: of the cluster.
        topic: where to.
        group: of the member.
        stop: ends both; the member first commits all there is.
    """

    def __init__(self, bootstrap: str, topic: str, group: str, stop: threading.Event) -> None:
        self._bootstrap, self._topic, self._group, self._stop = bootstrap, topic, group, stop
        self._written = threading.Event()
        self._end = 0

    def write(self) -> None:
        """At an even rate."""
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 5})
        began, count = time.perf_counter(), 0
        while not self._stop.wait(0.01):
            due = int((time.perf_counter() - began) * PER_S)
            for number in range(count, due):
                producer.produce(self._topic, b"%0*d" % (RECORD_BYTES, number), partition=0)
            count = due
            producer.poll(0)
        ends: list[int] = []
        producer.produce(
            self._topic,
            b"%0*d" % (RECORD_BYTES, count),
            partition=0,
            on_delivery=lambda _, message: ends.append(message.offset() + 1),
        )
        assert producer.flush(WAIT_S) == 0
        (self._end,) = ends
        self._written.set()

    def read(self) -> None:
        """To the very end."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self._group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([self._topic])
        position, committed, due = 0, 0, time.perf_counter()
        while not (self._written.is_set() and committed >= self._end):
            for message in consumer.consume(1000, 0.02):
                assert message.error() is None, message.error()
                position = message.offset() + 1
            if position > committed and time.perf_counter() >= due:
                due = time.perf_counter() + COMMIT_S
                consumer.commit(asynchronous=False)
                committed = position
        consumer.close()


def _row(name: str, found: _Found) -> dict[str, Any]:
    return {
        "system": name,
        "p50_s": _quantile(found.latencies_s, 50),
        "p99_s": _quantile(found.latencies_s, 99),
        "trail_p50": _quantile(found.trails, 50),
        "trail_p95": _quantile(found.trails, 95),
        "rest": max(found.rests),
        "commits": len(found.latencies_s),
        "looks": len(found.trails),
    }


def _quantile(values: list[Any], percent: int) -> Any:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]
