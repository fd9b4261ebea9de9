"""A campaign: processes that are killed at named points, and what has to hold afterwards.

The judge knows of the product nothing but `Subscription`, which reads what is committed, and the
list of transactions: rows come from PostgreSQL by psycopg.
"""

import asyncio
import json
import math
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple, Self

import psycopg

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.local.errors import BrokerStartError
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.client import Subscription
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.schemas.coordinator.transactions import Listed, ListTransactions
from stilltide.schemas.decisions import DDL, IDENTITY_KEY
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.values import TopicPartition
from tests.chaos.prepared.points import (
    OF_APPLICATIONS,
    OF_RESOLVERS,
    OF_WORKERS,
    SOCKET,
    Point,
)
from tests.support.databases.postgres import PostgresServer
from tests.support.looks import between_looks, lasting
from tests.support.processes.child import Child
from tests.support.processes.worker_process import PARTITIONS, create_topics

APPLICATIONS, RESOLVERS = 4, 2
WORKERS = (1, 2)
"""One worker or two, by the seed: one has all coordinators, and with two the other one goes on."""

LANES = 3
"""Applications for which a point is chosen at a time."""

BATCH = 60
"""Kills between two judgements."""

LIFE_S = 1.5
"""Longest time between the start of an application and the next point for one."""

REACHED_S = 90.0
"""A point that nobody has reached for so long is left out, and counted."""

UNDECIDED_S = 60.0
"""Longest time, from the last start on, for which a transaction may be undecided."""

ORDERS = """
CREATE TABLE orders (id text PRIMARY KEY, slow boolean);
CREATE FUNCTION take_time() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN IF NEW.slow THEN PERFORM pg_sleep(0.03); END IF; RETURN NULL; END';
CREATE CONSTRAINT TRIGGER takes_time AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION take_time()
"""
"""Orders; the commit of a slow one takes 30 ms, in which a fault can strike."""

DECIDED = f"SELECT token_id FROM stilltide_decisions WHERE token_id <> '{IDENTITY_KEY}'"  # noqa: S608

VICTIMS = {
    "application": (62, OF_APPLICATIONS),
    "resolver": (13, OF_RESOLVERS),
    "worker": (13, OF_WORKERS),
    "postgres": (11, (*OF_APPLICATIONS, *OF_RESOLVERS)),
    "broker": (1, (*OF_APPLICATIONS, *OF_WORKERS)),
}
"""Of each victim: its share of the kills in percent, and the points of most of them."""


class Strike(NamedTuple):
    """A kill that is due."""

    victim: str
    point: Point


def plan(seed: int, kills: int) -> list[Strike]:
    """The kills of a campaign in their order: all victims at their shares, and all points."""
    random = Random(seed)
    strikes: list[Strike] = []
    for victim, (share, own) in VICTIMS.items():
        count = max(1, round(kills * share / 100))
        for number in range(count):
            points: Sequence[Point] = own if number % 4 else tuple(Point)
            offset = random.randrange(len(points))
            strikes.append(Strike(victim, points[(number + offset) % len(points)]))
    random.shuffle(strikes)
    return strikes


class Process(NamedTuple):
    """A process that the herd has forked."""

    role: str
    name: str
    pid: int


class Seen(NamedTuple):
    """What a judgement has found."""

    orders: int
    missing: list[str]
    extra: list[str]
    partial: list[str]
    untold: list[str]
    undecided_s: float


class Campaign:
    """Starts on entry with all processes; `strike` kills, `judge` says whether everything held.

    Args:
        cluster: the broker, started.
        server: PostgreSQL, started.
        folder: of sockets and logs.
        seed: of everything random.
        without: a rule that every process breaks (`programs/losses.py`); empty: none.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        server: PostgresServer,
        folder: Path,
        seed: int,
        without: str = "",
    ) -> None:
        self.kills: Counter[tuple[str, str]] = Counter()
        self.unreached: Counter[tuple[str, str]] = Counter()
        self.undecided_s: list[float] = []
        self.crashed: list[str] = []
        self.begun_s = time.monotonic()
        self._cluster = cluster
        self._server = server
        self._folder = folder
        self._random = Random(seed)
        self._topics = [f"prepared-a-{seed}", f"prepared-b-{seed}"]
        self._group = f"judge-{seed}"
        self._connector = KafkaConnector(KafkaConfig(bootstrap_servers=cluster.bootstrap))
        self._processes: dict[str, Process] = {}
        self._made = 0
        self._forked: dict[str, tuple[str, asyncio.Future[None]]] = {}
        self._restarts: set[asyncio.Task[None]] = set()
        self._herd: asyncio.StreamWriter | None = None
        self._herding = asyncio.Event()
        self._server_socket: asyncio.Server | None = None
        self._herd_gone = asyncio.Event()
        self._due: dict[Point, tuple[Strike, asyncio.Future[Process | None]]] = {}
        self._points: defaultdict[Point, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._broker_down = False
        self._records: Counter[str] = Counter()
        self._whole: dict[str, int] = {}
        self._last_start_s = time.monotonic()
        program = [sys.executable, "-m", "tests.chaos.prepared.programs.herd"]
        where = [str(folder), cluster.bootstrap, server.conninfo, *self._topics]
        self._forks = Child([*program, *where], folder / "herd.log", {"ABLATE": without})

    async def __aenter__(self) -> Self:
        with psycopg.connect(self._server.conninfo) as db:
            for statement in (*DDL["postgresql"], ORDERS):
                db.execute(statement)
        await create_topics(self._cluster.bootstrap, *self._topics)
        self._server_socket = await asyncio.start_unix_server(self._called, self._folder / SOCKET)
        await self._forks.spawn()
        await self._herding.wait()
        for number in range(self._random.choice(WORKERS)):
            await self._start("worker", f"worker-{number}")
        while await self._unended() is None:  # the topics are made, and coordinators serve
            await between_looks()
        for number in range(RESOLVERS):
            await self._start("resolver", f"resolver-{number}")
        for _ in range(APPLICATIONS):
            await self._start("application", "app")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._processes.clear()
        await self._forks.kill()  # its forks end with it
        await self._herd_gone.wait()
        assert self._server_socket is not None
        self._server_socket.close()

    async def strike(self, strike: Strike) -> None:
        """Waits until a process comes to the point, kills the victim, and starts it again."""
        async with self._points[strike.point]:
            begun_s = time.monotonic()
            struck: asyncio.Future[Process | None] = asyncio.get_running_loop().create_future()
            self._due[strike.point] = strike, struck
            armed = self._folder / strike.point.name
            armed.touch()
            try:
                async with asyncio.timeout(REACHED_S):
                    await asyncio.shield(struck)
            except TimeoutError:
                if self._due.pop(strike.point, None) is not None:
                    self.unreached[strike] += 1
                    say(f"nobody has come to the point: {strike.victim}: {strike.point}")
                    return
            finally:
                armed.unlink(missing_ok=True)
            await self._restarted(strike.victim, await struck)
        self.kills[strike] += 1
        took_s = time.monotonic() - begun_s
        say(f"{self.kills.total()} {strike.victim}: {strike.point}, {took_s:.1f} s")

    def life_s(self) -> float:
        """How long applications work before the next of them is killed."""
        return self._random.uniform(0, LIFE_S)

    async def judge(self) -> Seen:
        """Lets everything end, and compares rows with what readers see."""
        pause = self._folder / "pause"
        pause.touch()
        undecided_s = await self._all_decided()
        rows = self._rows()
        await self._read()
        told = {
            key
            for path in self._folder.glob("*.told")
            for line in path.read_text().splitlines()
            for outcome, key in [line.split()]
            if outcome == "committed"
        }
        seen = Seen(
            orders=len(rows),
            missing=sorted(rows - self._records.keys()),
            extra=sorted(self._records.keys() - rows),
            partial=sorted(
                key for key, count in self._records.items() if count != self._whole[key]
            ),
            untold=sorted(told - rows),
            undecided_s=undecided_s,
        )
        await self._no_rows_left()
        pause.unlink()
        return seen

    def report(self, seen: Seen, seed: int) -> dict[str, object]:
        """Numbers of the campaign, for a person and as JSON."""
        by_victim: Counter[str] = Counter()
        for (victim, _), count in self.kills.items():
            by_victim[victim] += count
        return {
            "seed": seed,
            "kills": self.kills.total(),
            "by_victim": dict(by_victim),
            "by_point": {
                f"{victim}: {point}": count for (victim, point), count in sorted(self.kills.items())
            },
            "unreached": {f"{victim}: {point}": n for (victim, point), n in self.unreached.items()},
            "orders": seen.orders,
            "records": self._records.total(),
            "missing": len(seen.missing),
            "extra": len(seen.extra),
            "partial": len(seen.partial),
            "told_and_not_there": len(seen.untold),
            "longest_undecided_s": round(max(self.undecided_s), 1),
            "seconds": round(time.monotonic() - self.begun_s),
        }

    async def _start(self, role: str, stem: str) -> None:
        self._made += 1
        name = f"{stem}.{self._made}"
        forked = asyncio.get_running_loop().create_future()
        self._forked[name] = role, forked
        assert self._herd is not None
        self._herd.write(f"{role} {name}\n".encode())
        await forked
        self._last_start_s = time.monotonic()

    async def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A process has come to a point; or the herd has come."""
        try:
            called = (await reader.readline()).decode().split()
            if called == ["herd"]:
                self._herd = writer
                self._herding.set()
                await self._listen(reader)
                self._herd_gone.set()
                return
            if called:
                point, role, pid = called
                await self._reached(Point[point], role, int(pid))
            with suppress(OSError):
                writer.write(b"\n")
                await writer.drain()
        finally:
            writer.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := (await reader.readline()).decode().split():
            what, name, number = line
            if what == "forked":
                role, forked = self._forked.pop(name)
                self._processes[name] = Process(role, name, int(number))
                forked.set_result(None)
            elif name in self._processes:  # nobody has killed it
                ended = self._processes.pop(name)
                if not self._broker_down:  # without one, what is just started says so, and ends
                    self.crashed.append(f"{name} ended with {number}")
                say(f"{name} ended with {number}")
                restart = asyncio.create_task(self._start(ended.role, name.partition(".")[0]))
                self._restarts.add(restart)
                restart.add_done_callback(self._restarts.discard)

    async def _reached(self, point: Point, role: str, pid: int) -> None:
        strike, struck = self._due.pop(point, (None, None))
        if strike is None or struck is None:
            return
        (self._folder / point.name).unlink(missing_ok=True)
        victim = None
        try:
            if strike.victim == "postgres":
                await asyncio.to_thread(self._kill_postgres)
            elif strike.victim == "broker":
                self._broker_down = True
                await asyncio.to_thread(self._cluster.kill)
            else:
                victim = self._kill(strike.victim, pid if strike.victim == role else None)
        except Exception as error:  # noqa: BLE001 - raised by `strike`
            struck.set_exception(error)
        else:
            struck.set_result(victim)

    def _kill(self, role: str, pid: int | None) -> Process:
        """SIGKILL to the process of this id, or to any one of its role."""
        known = [it for it in self._processes.values() if it.role == role]
        victim = next((it for it in known if it.pid == pid), None) or self._random.choice(known)
        del self._processes[victim.name]
        os.kill(victim.pid, signal.SIGKILL)
        return victim

    def _kill_postgres(self) -> None:
        if self._random.random() < 0.5:
            self._server.kill()
        else:
            self._server.stop_at_once()

    async def _restarted(self, kind: str, victim: Process | None) -> None:
        if victim is not None:
            await self._start(victim.role, victim.name.partition(".")[0])
            return
        if kind == "postgres":
            await asyncio.to_thread(self._server.start)
        else:
            try:
                await asyncio.to_thread(self._cluster.start)
            except BrokerStartError:  # on a busy machine a broker has ended by its own time-out
                await asyncio.to_thread(self._cluster.start)
            self._broker_down = False
        self._last_start_s = time.monotonic()

    async def _all_decided(self) -> float:
        """Waits until no transaction is left; returns the time from the last start on."""
        quiet = 0
        while quiet < 3:
            unended = await self._unended()
            quiet = quiet + 1 if unended == 0 else 0
            elapsed_s = time.monotonic() - self._last_start_s
            assert elapsed_s < 3 * UNDECIDED_S, f"{unended} undecided transactions"
            await between_looks()
        elapsed_s = time.monotonic() - self._last_start_s
        self.undecided_s.append(elapsed_s)
        return elapsed_s

    async def _unended(self) -> int | None:
        """How many transactions have not ended; None: nobody knows."""
        try:
            async with Coordinators(self._connector, request_timeout_s=20) as coordinators:
                count = 0
                for number in range(coordinators.count):
                    listed = await coordinators.ask(number, ListTransactions())
                    assert isinstance(listed, Listed)
                    count += len(listed.transactions)
                return count
        except StilltideError:
            return None

    def _rows(self) -> set[str]:
        with psycopg.connect(self._server.conninfo) as db:
            return {row[0] for row in db.execute("SELECT id FROM orders").fetchall()}

    async def _no_rows_left(self) -> None:
        """Waits until the table of decisions is empty (L5)."""
        async with asyncio.timeout(UNDECIDED_S):
            while True:
                with psycopg.connect(self._server.conninfo) as db:
                    rows = db.execute(DECIDED).fetchall()
                if not rows:
                    return
                await between_looks()

    async def _read(self) -> None:
        """Reads on to the present ends; each record once."""
        admin = self._connector.admin()
        ends = await admin.end_offsets(
            [TopicPartition(topic, it) for topic in self._topics for it in range(PARTITIONS)]
        )
        await admin.close()
        async with Subscription(
            self._topics, group=self._group, connector=self._connector
        ) as subscription:
            async for message in subscription.read_to(ends):
                assert message.value is not None
                key, _, count = message.value.decode().split()
                self._records[key] += 1
                self._whole[key] = int(count)
            await subscription.commit()


async def _strike_each(campaign: Campaign, strikes: Sequence[Strike], until_s: float) -> None:
    """One lane: several applications, and something else, are killed at the same time."""
    for strike in strikes:
        if time.monotonic() > until_s:
            return
        await campaign.strike(strike)
        if strike.victim == "application":
            await lasting(campaign.life_s())


async def run(
    campaign: Campaign, seed: int, kills: int, seconds: float = math.inf
) -> dict[str, object]:
    """Kills so many times, or for so long; raises at the first judgement that finds a fault."""
    strikes, until_s = plan(seed, kills), time.monotonic() + seconds
    seen = None
    for first in range(0, len(strikes), BATCH):
        if time.monotonic() > until_s:
            break
        batch = strikes[first : first + BATCH]
        applications = [it for it in batch if it.victim == "application"]
        others = [it for it in batch if it.victim != "application"]
        async with asyncio.TaskGroup() as lanes:
            lanes.create_task(_strike_each(campaign, others, until_s))
            for lane in range(LANES):
                lanes.create_task(_strike_each(campaign, applications[lane::LANES], until_s))
        seen = await campaign.judge()
        say(f"{json.dumps({'kills': campaign.kills.total(), **seen._asdict()})}")
        assert seen[1:5] == ([], [], [], []), seen
        assert seen.undecided_s < UNDECIDED_S, seen
        assert not campaign.crashed, campaign.crashed
    assert seen is not None
    report = campaign.report(seen, seed)
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return report
