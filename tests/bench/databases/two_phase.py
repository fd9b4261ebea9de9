"""A row in PostgreSQL and two records in Kafka, both or neither; the row alone; outboxes.

PostgreSQL makes its commits durable (`fsync`), as it does unless told otherwise; brokers do what
Kafka's do by default. `commit` is how long a program waits. A delay is the time from the
database's commit until a subscription has seen both records. At 32 callers each program runs
in two loops: its callers go on as soon as they have committed, and a transaction counts once it is
seen; or they go on only once their records are seen.

Sizes: ROUNDS, LOOP_S, WARM_UP_S.
"""

import asyncio
import itertools
import os
import tempfile
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.databases import Decisions
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.demo.worker_process import STATIC_MEMBER, WorkerProcess
from stilltide.pipeline.interpreter import tune
from stilltide.schemas.topics import TopicSpec
from tests.bench.commits.served import LINE
from tests.bench.databases import outbox
from tests.bench.databases.outbox import POLLINGS, polling
from tests.bench.databases.programs import (
    ORDERS_DDL,
    PARTITIONS,
    TOPIC,
    Program,
    Sightings,
    Steps,
    bare,
    by_alchemy,
    by_asyncpg,
    two_phase,
    with_outbox,
)
from tests.bench.harness import (
    Run,
    closed_loop,
    cpu_s,
    cpu_with_children_s,
    looks,
    middle,
    report,
    rotated,
    size,
    summary,
)
from tests.support.databases.postgres import PostgresServer, postgres_server

SETTINGS = ("fsync=on", "shared_buffers=128MB", "max_connections=200")
CALLERS = 32
DECIDER = "orders-db"
BARE, OURS = "bare", "two phase"
COMMIT_RATIO_MAX, COMMIT_MORE_MS_MAX = 1.3, 3.0
"""The aim of `alone_p50_ms`: so many times the row alone, and so much more."""
PROCESSES = ("client", "worker", "broker", "database")
ALONE, MANY, AWAITED = "alone", "many", "awaited"
LOOPS = {ALONE: (1, False), MANY: (CALLERS, False), AWAITED: (CALLERS, True)}
"""The loops by name: number of callers, and whether each waits until its records are seen."""


@dataclass
class Way:
    """One program that is measured.

    Attributes:
        program: what a caller does.
        polling: how the outbox is polled; empty: the program needs no poller.
        sees: whether there are records to be seen.
        steps: how long the steps take, of the loop with one caller.
        runs: the runs of each loop.
    """

    program: Program
    polling: str = ""
    sees: bool = True
    steps: Steps = field(default_factory=Steps)
    runs: dict[str, list[Run]] = field(default_factory=dict)


class Bench:
    """The processes and connections of one run; `open` makes them."""

    def __init__(self, stack: AsyncExitStack, directory: Path) -> None:
        self.stack = stack
        self.directory = directory
        self.sightings = Sightings()
        self._numbers = itertools.count()
        self.server: PostgresServer = stack.enter_context(postgres_server(*SETTINGS))
        self.decisions = Decisions(DECIDER, self.server.conninfo)
        stack.push_async_callback(self.decisions.close)
        self.cluster = stack.enter_context(LocalCluster("a", directory / "a", heap="512m"))
        self.connector = KafkaConnector(KafkaConfig(bootstrap_servers=self.cluster.bootstrap))

    async def open(self) -> dict[str, Way]:
        """Starts what is needed; the ways by name."""
        await self.connector.admin().ensure_topics([TopicSpec(TOPIC, PARTITIONS)])
        db = await asyncpg.connect(self.server.conninfo)
        for statement in (ORDERS_DDL, outbox.DDL):
            await db.execute(statement)
        async with db.transaction():
            await self.decisions.create_table(db)
        await db.close()
        self._worker = worker = WorkerProcess(
            self.cluster.bootstrap,
            self.directory / "worker.log",
            *STATIC_MEMBER,
            environment={
                **LINE,
                "STILLTIDE_DECIDERS": f"{DECIDER}={self.server.conninfo}",
            },
        )
        self.stack.push_async_callback(worker.stop)
        await worker.start()
        subscription = Subscription([TOPIC], group="bench", connector=self.connector)
        await self.stack.enter_async_context(subscription)
        watching = asyncio.create_task(self.sightings.watch(subscription))
        self.stack.callback(watching.cancel)
        return await self._ways()

    async def _ways(self) -> dict[str, Way]:
        databases = {
            "asyncpg": await self.stack.enter_async_context(
                by_asyncpg(self.server.conninfo, CALLERS)
            ),
            "SQLAlchemy": await self.stack.enter_async_context(
                by_alchemy(self.server.url("asyncpg"), CALLERS)
            ),
        }
        ways: dict[str, Way] = {}
        for kind, database in databases.items():
            ways[f"{BARE}, {kind}"] = Way(bare(database), sees=False)
        for kind, line in (("asyncpg", True), ("SQLAlchemy", True), ("asyncpg", False)):
            client = TransactionClient(connector=self.connector, direct_line=line)
            await self.stack.enter_async_context(client)
            steps = Steps()
            program = two_phase(databases[kind], client, self.decisions, self.sightings, steps)
            by = "line" if line else "topic"
            ways[f"{OURS}, {kind}, {by}"] = Way(program, steps=steps)
        for name in POLLINGS:
            program = with_outbox(databases["asyncpg"], self.sightings)
            ways[name] = Way(program, polling=name)
        return ways

    async def measure(self, way: Way, callers: int, seconds: float, *, waits: bool) -> Run:
        """One loop; with `waits` a caller goes on once its records are seen."""
        sightings = self.sightings
        sightings.delays_s.clear()

        async def operation() -> None:
            number = next(self._numbers)
            if way.sees:
                sightings.expect(number)
            await way.program(number)
            if waits:
                await sightings.seen(number)

        async with self._pollers(way):
            before_s = self._cpu_s()
            done = await closed_loop(operation, callers, seconds)
            seen = len(sightings.delays_s)
            async for _ in looks(0.01):  # what is left is seen now, and counts for delays only
                if not sightings.unseen:
                    break
            for name, used_s in self._cpu_s().items():
                done.extra[f"{name}_ms"] = 1000 * (used_s - before_s[name]) / done.operations
        if way.sees:
            done.extra["seen_per_s"] = seen * done.per_s / done.operations
            delays = summary(sightings.delays_s, seconds)
            done.extra["delay_p50_ms"], done.extra["delay_p99_ms"] = delays.p50_ms, delays.p99_ms
        return done

    def _cpu_s(self) -> dict[str, float]:
        """Processor time so far by process; pollers are not in it."""
        return {
            "client": sum(os.times()[:2]),
            "worker": cpu_s(self._worker.pid),
            "broker": cpu_s(self.cluster.pid),
            "database": cpu_with_children_s(self.server.pid),
        }

    def _pollers(self, way: Way) -> AbstractAsyncContextManager[object]:
        if not way.polling:
            return nullcontext()
        return polling(
            POLLINGS[way.polling],
            self.server.conninfo,
            self.cluster.bootstrap,
            self.directory / "pollers.log",
        )


async def run() -> None:
    """Measures, prints and writes the case."""
    rounds, seconds, warm_up_s = size("ROUNDS", 5), size("LOOP_S", 3), size("WARM_UP_S", 8)
    async with AsyncExitStack() as stack:
        bench = Bench(stack, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        ways = await bench.open()
        # Brokers compile their code for half a minute; no way shall pay for that alone.
        for way in ways.values():
            await bench.measure(way, CALLERS, warm_up_s, waits=False)
        tune()
        for number in range(rounds):
            for name in rotated(list(ways), number):
                way = ways[name]
                for loop, (callers, waits) in LOOPS.items():
                    if way.sees or not waits:
                        way.steps.kept = loop == ALONE
                        done = await bench.measure(way, callers, seconds, waits=waits)
                        way.runs.setdefault(loop, []).append(done)
            say(f"two_phase: round {number + 1} of {rounds}")
    report("two_phase", [_row(name, way, ways) for name, way in ways.items()])
    report("two_phase_steps", _steps(ways))
    report("two_phase_used", _used(ways))


def _row(name: str, way: Way, ways: dict[str, Way]) -> dict[str, Any]:
    """The figures of one way; of the database alone, there is nothing to see."""
    alone, many = way.runs[ALONE], way.runs[MANY]
    kind = name.split(", ")[1] if ", " in name else "asyncpg"
    bare_ms = middle(ways[f"{BARE}, {kind}"].runs[ALONE], "p50_ms")
    row: dict[str, Any] = {
        "setting": name,
        "alone_p50_ms": middle(alone, "p50_ms"),
        "aim_ms": COMMIT_RATIO_MAX * bare_ms + COMMIT_MORE_MS_MAX,
        f"{CALLERS}_per_s": middle(many, "per_s"),
    }
    for title, runs in (("alone", alone), (str(CALLERS), many)):
        for figure in ("seen_per_s", "delay_p50_ms", "delay_p99_ms"):
            row[f"{title}_{figure}"] = middle(runs, figure) if way.sees else "-"
    for figure in ("per_s", "p50_ms", "p99_ms"):
        row[f"awaited_{figure}"] = middle(way.runs[AWAITED], figure) if way.sees else "-"
    return row


def _used(ways: dict[str, Way]) -> list[dict[str, Any]]:
    """Processor time of a transaction by process, milliseconds; pollers are not in it."""
    return [
        {"setting": f"{name}, {loop}"}
        | {process: middle(way.runs[loop], f"{process}_ms") for process in PROCESSES}
        for name, way in ways.items()
        for loop in (ALONE, MANY)
    ]


def _steps(ways: dict[str, Way]) -> list[dict[str, Any]]:
    """Medians of the steps of a transaction, one caller, milliseconds."""
    stepped = {name: way.steps.took_s for name, way in ways.items() if way.steps.took_s}
    names = next(iter(stepped.values()))
    return [
        {"setting": step} | {name: 1000 * median(took[step]) for name, took in stepped.items()}
        for step in names
    ]
