"""Runs one plan: brokers, programs, faults, and the end; returns the history."""

import asyncio
import itertools
import logging
import random
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, cast

import structlog

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.pipeline.config.settings import Settings
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.topics import TopicSpec
from tests.simulation.check import given_up, missing_copies
from tests.simulation.copying import (
    EndlessCopiesError,
    copies,
    enable,
    run_link,
    watch_copies,
)
from tests.simulation.databases.connections import create_table
from tests.simulation.databases.database import Database
from tests.simulation.history import Exit, History, Place
from tests.simulation.network.connector import NetworkConnector
from tests.simulation.network.paths import Path
from tests.simulation.network.streams import Streams
from tests.simulation.plan import (
    DATABASE,
    FAULTS_END_S,
    OUTPUT,
    PUBLISHED,
    TOPICS,
    Client,
    Deciding,
    Fault,
    Link,
    Other,
    Plan,
)
from tests.simulation.processes.guards import (
    RealSourceError,
    new_loop,
    no_clean_up,
    no_real_sources,
)
from tests.simulation.processes.loop import SpinError, VirtualLoop, stacks
from tests.simulation.processes.membership import WorkerGroup
from tests.simulation.processes.process import EVERYWHERE, Process
from tests.simulation.processes.worker import run_worker
from tests.simulation.programs import Writing, read_all
from tests.simulation.trace import Event, Trace
from tests.simulation.workload.deciding import Holding, Overseeing, Resolving, list_prepared
from tests.simulation.workload.moves import GroupMoves, until
from tests.simulation.workload.native import Natives
from tests.simulation.workload.operators import Operators
from tests.simulation.workload.preparing import Preparations, Preparing
from tests.simulation.workload.reading import Reading
from tests.simulation.workload.strangers import Strangers

NOTICE_S = 2.0
"""Time after which the group of the workers notices added coordinators."""

JUMP_MS = 2 * 60 * 60 * 1000.0
"""How wrong the wall clock of a process becomes."""

COPIES_S = 5.0
"""Time between two looks at the copies of links."""

MOMENT_S = 4.0
"""How long a fault waits for the moment at which it happens."""

OF_CLUSTERS = {"down", "full", "lose", "err", "rebalance"}
"""Faults of clusters, and not of programs."""

DECIDED_S = 60.0
"""Time after the last fault by which everything that is prepared has to be decided."""

AGAIN_S = 1.0
"""Time after which a program that has ended by an error is started again."""


class Result(NamedTuple):
    """What a run gave.

    Attributes:
        virtual_s: virtual time.
        turns: turns of the loop.
        trace: what happened, if that was asked for.
    """

    history: History
    virtual_s: float
    turns: int
    trace: list[Event]


class _Program:
    """A program and its present process.

    Attributes:
        paths: the ways of the present process, by cluster.
    """

    def __init__(self, name: str, main: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
        self.name = name
        self.main = main
        self.runs = 0
        self.process: Process | None = None
        self.paths: dict[str, Path] = {}
        self.is_over = False


class _Cluster:
    """The brokers of a cluster, and the group and the settings of its workers."""

    def __init__(self, name: str, plan: Plan) -> None:
        self.broker = MemoryBroker(name)
        self.group = WorkerGroup(self.broker, random.Random(f"group {name} {plan.seed}"))
        others = " ".join(f"{other}={other}:1" for other in plan.clusters)
        self.settings = Settings(
            bootstrap_servers=f"{name}:1",
            cluster=name,
            clusters=others if len(plan.clusters) > 1 else "",  # pyright: ignore[reportArgumentType] - parsed
            coordinators=plan.coordinators,
            partitions=plan.partitions,
            snapshot_changes_max=plan.snapshot_changes_max,
            snapshot_interval_ms=plan.snapshot_interval_ms,
            marker_retention_ms=plan.marker_retention_ms,
        )

    def grow(self) -> int:
        """Has workers start with a coordinator more; those that run get it in a rebalance."""
        count = self.settings.coordinators + 1
        self.settings = self.settings.model_copy(update={"coordinators": count})
        loop = asyncio.get_running_loop()
        loop.call_later(NOTICE_S, self.group.rebalance_soon, context=EVERYWHERE)
        return count


class World:
    """One run of a plan; `run` is called once, on a `VirtualLoop`.

    Attributes:
        END_S: virtual time by which the world has to be done; faults end at `FAULTS_END_S`.
    """

    END_S = 400.0

    def __init__(self, plan: Plan, *, traced: bool = False) -> None:
        self._plan = plan
        self.trace = Trace(on=traced)
        self._chance = random.Random(f"world {plan.seed}")
        self._clusters = {name: _Cluster(name, plan) for name in plan.clusters}
        self.history = History(copies=copies(plan), calm_s=FAULTS_END_S)
        brokers = {name: cluster.broker for name, cluster in self._clusters.items()}
        self._moves = GroupMoves(plan, brokers, self.history, self._pause_links)
        self._database = Database(lambda: asyncio.get_running_loop().time())
        create_table(self._database)
        self._preparations = Preparations(self.history, self._database)
        self._programs: dict[str, _Program] = {}
        self._members = itertools.count()
        self._step = "the start"
        self.processes: list[Process] = []

    async def run(self) -> None:
        """Runs the plan to its end."""
        self._make_topics()
        self._tasks = [asyncio.create_task(it.group.watch()) for it in self._clusters.values()]
        self._make_programs()
        for program in self._programs.values():
            self._start(program)
        self._tasks += [asyncio.create_task(self._befall(it)) for it in self._plan.faults]
        if len(self._plan.clusters) > 1:
            self._tasks.append(asyncio.create_task(self._moves.run()))
            self._tasks.append(asyncio.create_task(self._watch_copies()))
            for name in self._plan.clusters:
                self._run_operator(name)
        try:
            async with asyncio.timeout(self.END_S):
                await self._finish()
        except TimeoutError:
            self.history.unfinished += self._missing()
        for task in self._tasks:
            task.cancel()

    async def _watch_copies(self) -> None:
        try:
            await watch_copies([it.broker for it in self._clusters.values()], self.history)
        except EndlessCopiesError as error:
            cast("VirtualLoop", asyncio.get_running_loop()).abort(error)

    def _make_topics(self) -> None:
        for name, cluster in self._clusters.items():
            dead = {it for reader in self._plan.readers for it in reader.dead_letters}
            counts = {**TOPICS, OUTPUT: 2, **dict.fromkeys(sorted(dead), 1)}
            for topic, count in counts.items():
                cluster.broker.create_topic(TopicSpec(topic, count))
            self.trace.note(name, f"has the topics {sorted(counts)}")

    def _make_programs(self) -> None:
        for name in self._plan.clusters:
            for number in range(self._plan.workers):
                worker = f"{name}-worker-{number}"
                self._programs[worker] = _Program(worker, partial(self._worker, name))
        for client in self._plan.clients:
            writing = Writing(client, self.history)
            self._programs[client.name] = _Program(
                client.name, partial(self._client, client, writing)
            )
        self._make_readers()
        for link in self._plan.links:
            self._programs[link.name] = _Program(link.name, partial(self._link, link))
        for other in self._plan.others:
            self._programs[other.name] = self._program(other, self._errands(other))
        for deciding in self._plan.deciding:
            self._programs[deciding.name] = _Program(
                deciding.name, partial(self._deciding, deciding)
            )

    def _make_readers(self) -> None:
        for reader in self._plan.readers:
            chance = random.Random(f"{reader.name} {self._plan.seed}")
            habits = random.Random(f"{reader.name} habits {self._plan.seed}")
            reading = Reading(reader, self.history, chance, habits, self._members)
            self._moves.readings.append(reading)
            self._programs[reader.name] = _Program(
                reader.name,
                lambda process, reading=reading: reading.run(
                    partial(self._connector, process), partial(self._preparing, process)
                ),
            )

    def _errands(self, other: Other) -> Natives | Strangers | Operators:
        match other.role:
            case "native":
                return Natives(other, self.history)
            case "stranger":
                return Strangers(other)
            case "operator":
                of = self._clusters[other.cluster]
                return Operators(other, self.history, of.broker, of.grow)

    def _program(self, of: Other, application: Natives | Strangers | Operators) -> _Program:
        return _Program(
            of.name, lambda process: application.run(self._connector(process, of.cluster))
        )

    async def _client(self, client: Client, writing: Writing, process: Process) -> None:
        connector = self._connector(process, client.cluster)
        preparing = self._preparing(process, client.cluster)
        await writing.run(connector, preparing.run)

    def _preparing(self, process: Process, cluster: str) -> Preparing:
        return Preparing(self._preparations, cluster, self._path(process, DATABASE))

    async def _deciding(self, deciding: Deciding, process: Process) -> None:
        connector = self._connector(process, deciding.cluster)
        match deciding.role:
            case "holder":
                await Holding(deciding, self._preparations).run(connector)
            case "operator":
                await Overseeing(deciding, self._preparations).run(connector)
            case "resolver":
                path = self._path(process, DATABASE)
                await Resolving(deciding, self._preparations).run(connector, path)

    async def _worker(self, cluster: str, process: Process) -> None:
        connector = self._connector(process, cluster)

        of = self._clusters[cluster]
        settings = of.settings

        def failed(error: BaseException) -> None:
            if not process.is_dead:  # while coordinators are added, it may start with too few
                self._exit(process, error, is_expected=settings is not of.settings)

        try:
            links = [it for it in self._plan.links if it.shared and it.target == cluster]
            sources = dict.fromkeys(it.source for it in links)
            ends = {source: self._connector(process, source) for source in sources}
            await run_worker(connector, of.group, settings, failed, ends)
        except StilltideError as error:  # it could not begin
            failed(error)

    async def _link(self, link: Link, process: Process) -> None:
        if link.shared:
            await asyncio.Event().wait()
        source = self._connector(process, link.source)
        is_publish = link.source == link.target
        target = source if is_publish else self._connector(process, link.target)
        await run_link(link, source, target, self._plan.partitions)

    def _connector(self, process: Process, cluster: str) -> NetworkConnector:
        return NetworkConnector(self._clusters[cluster].broker, self._path(process, cluster))

    def _path(self, process: Process, to: str) -> Path:
        """A way of a process to a cluster, or to the database."""
        name = process.name.split(".")[0]
        path = Path(process, to, self._plan.seed, self.trace)
        if name in self._programs:
            self._programs[name].paths[to] = path
        return path

    def _start(self, program: _Program) -> None:
        program.runs += 1
        process = program.process = Process(f"{program.name}.{program.runs}")
        self.trace.note(process.name, "starts")
        self.processes.append(process)
        task = process.start(program.main(process))
        task.add_done_callback(lambda task: self._ended(program, process, task))

    def _ended(self, program: _Program, process: Process, task: "asyncio.Task[None]") -> None:
        if task.cancelled() or process.is_dead:
            return
        error = task.exception()
        if error is None:
            program.is_over = True
        else:
            self._exit(process, error)

    def _exit(self, process: Process, error: BaseException, *, is_expected: bool = False) -> None:
        """A process ends by an error; its program is started again, as compose does."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        now_s = asyncio.get_running_loop().time()
        if not is_expected:
            self.history.exits.append(Exit(now_s, process.name, repr(error)))
        process.kill()
        program = self._programs[process.name.split(".")[0]]
        self._tasks.append(asyncio.create_task(self._again(program, AGAIN_S)))

    async def _again(self, program: _Program, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if program.process is not None and program.process.is_dead:
            self._start(program)

    async def _befall(self, fault: Fault) -> None:
        """Carries out one fault."""
        await asyncio.sleep(fault.at_s)
        self.trace.note(fault.target, f"{fault.kind} for {fault.for_s:.3f} s")
        program = self._programs.get(fault.target)
        if fault.topic and fault.kind != "blind":
            if not await self._moment(fault, self._programs[fault.of or fault.target]):
                return
            await asyncio.sleep(fault.after_s)
            self.trace.note(fault.target, f"{fault.kind} after a record of {fault.topic}")
        if fault.kind == "crash":
            self._database.crash()
            await asyncio.sleep(fault.for_s)
            self._database.start()
        elif fault.kind in OF_CLUSTERS:
            await self._befall_cluster(fault, self._clusters[fault.cluster])
        elif program is not None and program.process is not None and not program.is_over:
            await self._befall_program(fault, program, program.process)

    @staticmethod
    async def _befall_cluster(fault: Fault, cluster: _Cluster) -> None:
        if fault.kind == "down":
            cluster.broker.down()
            await asyncio.sleep(fault.for_s)
            cluster.broker.up()
        elif fault.kind == "full":
            cluster.broker.hold(fault.target)
            await asyncio.sleep(fault.for_s)
            cluster.broker.release(fault.target)
        elif fault.kind == "lose":
            cluster.broker.reports.lose(fault.target)
        else:
            cluster.group.wrong = cluster.group.wrong or fault.kind == "err"
            cluster.group.rebalance_soon()

    @staticmethod
    async def _moment(fault: Fault, program: _Program) -> bool:
        """Waits until the program appends to the topic of the fault; False: it does not."""
        path = program.paths.get(fault.cluster)
        if path is None:
            return False
        try:
            async with asyncio.timeout(MOMENT_S):
                await asyncio.shield(path.moment(fault.topic))
        except TimeoutError:
            return False
        return True

    async def _befall_program(self, fault: Fault, program: _Program, process: Process) -> None:
        path = program.paths.get(fault.cluster)
        if fault.kind == "kill":
            process.kill()
            await self._again(program, fault.for_s)
        elif fault.kind == "freeze":
            process.freeze()
            await asyncio.sleep(fault.for_s)
            process.thaw()
        elif fault.kind == "jump":
            process.skew_ms = self._chance.choice((-1, 1)) * JUMP_MS
            await asyncio.sleep(fault.for_s)
            process.skew_ms = 0.0
        elif path is not None and fault.kind == "blind":
            path.set_blind(fault.topic)
            await asyncio.sleep(fault.for_s)
            path.set_blind()
        elif path is not None:
            path.change(
                to_open=fault.kind not in {"cut", "deaf"},
                from_open=fault.kind not in {"cut", "mute"},
                slow_s=1.0 if fault.kind == "slow" else 0.0,
            )
            await asyncio.sleep(fault.for_s)
            path.change(to_open=True, from_open=True)

    async def _finish(self) -> None:
        """Waits for the clients, reads all topics, waits for the groups, and reads again."""
        self._step = "the clients"
        writing = (*self._plan.clients, *self._plan.others)
        await until(lambda: all(self._programs[it.name].is_over for it in writing))
        now_s = asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, FAULTS_END_S - now_s) + 1)
        self._step = "the decisions"
        await self._await_decisions()
        self._step = "the copies of links"
        await self._read_copies(sorted(TOPICS))
        self._step = "the groups"
        while self._behind():
            await asyncio.sleep(1)
            await self._read_dead()
        if len(self._plan.clusters) > 1:
            self._step = "the last moves of groups"
            await self._moves.run_at_last()
        for reader in self._plan.readers:
            process = self._programs[reader.name].process
            assert process is not None
            process.kill()
        await asyncio.sleep(1)
        self._step = "the decisions, at the end"
        await self._await_decisions()
        self._preparations.note_rows()
        self._step = "the copies of links, at the end"
        await self._read_copies([*sorted(TOPICS), OUTPUT])
        await self._read_dead()

    async def _await_decisions(self) -> None:
        """Waits until nothing is prepared any more, and the table of decisions is empty."""
        if not self._plan.deciding:
            return
        left = [""]
        with suppress(TimeoutError):
            async with asyncio.timeout(DECIDED_S):
                while left:
                    left = [it for name in self._plan.clusters for it in await self._prepared(name)]
                    left += self._preparations.decisions
                    await asyncio.sleep(1)
        self.history.undecided += left

    async def _prepared(self, cluster: str) -> list[str]:
        process = Process(f"final-{len(self.processes)}.1")
        self.processes.append(process)
        left: list[str] = []
        try:
            await process.start(list_prepared(self._connector(process, cluster), left))
        finally:
            process.kill()
        return left

    def _run_operator(self, cluster: str) -> None:
        """Has an operator turn on that the positions of groups are carried over."""
        process = Process(f"{cluster}-operator.1")
        self.processes.append(process)
        subscriptions = {(it.group, topic) for it in self._plan.readers for topic in it.topics}
        connector = self._connector(process, cluster)
        process.start(enable(connector, sorted(subscriptions)))

    def _pause_links(self, target: str, paused: bool) -> None:  # noqa: FBT001 - for a callback
        """Freezes the processes of the links into a cluster; cuts its workers from the sources."""
        links = [it for it in self._plan.links if it.target == target != it.source]
        for link in links:
            process = self._programs[link.name].process
            if process is not None:
                (process.freeze if paused else process.thaw)()
        for number in range(self._plan.workers):
            paths = self._programs[f"{target}-worker-{number}"].paths
            for source in {it.source for it in links if it.shared}:
                paths[source].change(to_open=not paused, from_open=not paused)

    async def _read_copies(self, topics: list[str]) -> None:
        """Reads all topics, until copies of all that is to be copied were read."""
        while True:
            for cluster in self._plan.clusters:
                targets = {it.target for it in self.history.copies}
                published = [PUBLISHED] if (cluster, PUBLISHED) in targets else []
                await self._read(cluster, [*topics, *published])
            if not missing_copies(self.history):
                return
            await asyncio.sleep(COPIES_S)

    async def _read_dead(self) -> None:
        """Reads the dead letters of each group that has some."""
        for reader in {it.group: it for it in self._plan.readers if it.dead_letters}.values():
            found: dict[Place, list[tuple[int, bytes]]] = {}
            await self._read(reader.cluster, [*reader.dead_letters], found)
            self.history.dead[reader.group] = [it for log in found.values() for _, it in log]

    async def _read(
        self,
        cluster: str,
        topics: list[str],
        into: dict[Place, list[tuple[int, bytes]]] | None = None,
    ) -> None:
        process = Process(f"final-{len(self.processes)}.1")
        self.processes.append(process)
        found = self.history.final if into is None else into
        task = process.start(read_all(self._connector(process, cluster), topics, found))
        await task
        process.kill()

    def _behind(self) -> list[str]:
        """What groups have not read yet of what a reader has found."""
        # What is prepared may have been committed by another program than the member.
        acknowledged = {
            key
            for txn in self.history.transactions
            for key in txn.acknowledged
            if txn.outcome != "aborted"
        }
        dead = {(group, it) for group, values in self.history.dead.items() for it in values}
        handled = self.history.handled | acknowledged | dead | given_up(self.history)
        return [
            f"{reader.group} has not handled {value!r} of {place}"
            for reader in self._plan.readers
            for place, log in self.history.final.items()
            if place.topic in reader.topics
            for _, value in log
            if (reader.group, value) not in handled
        ]

    def stacks(self) -> str:
        """Where the tasks of the living processes wait."""
        tasks = {
            f"{process.name} {task.get_name()}": task
            for process in self.processes
            if process.runs
            for task in process.tasks
        }
        return stacks(tasks)

    def _missing(self) -> list[str]:
        behind = [*self._behind()[:3], *missing_copies(self.history)[:3]]
        waited = [f"waited for {self._step}; {it}" for it in behind or [""]]
        return [*waited, self.stacks()]


def run(plan: Plan, *, traced: bool = False) -> Result:
    """Runs a plan, and returns what happened."""
    return run_world(partial(World, plan, traced=traced))


def run_world(make: Callable[[], World]) -> Result:
    """Runs the world that `make` makes, and returns what happened."""
    silent = structlog.make_filtering_bound_logger(logging.CRITICAL)
    before = structlog.get_config()
    structlog.configure(wrapper_class=silent, cache_logger_on_first_use=False)
    try:
        with no_clean_up():
            return _run(make)
    finally:
        structlog.configure(**before)


def _run(make: Callable[[], World]) -> Result:
    with new_loop() as loop:
        loop.streams = Streams()
        history, trace = _history(make, loop)
        return Result(history, loop.time(), loop.turns, trace.events)


def _history(make: Callable[[], World], loop: VirtualLoop) -> tuple[History, Trace]:
    world = make()
    with no_real_sources():
        try:
            loop.run_until_complete(world.run())
        except (Exception, SpinError, RealSourceError) as error:  # noqa: BLE001 - whatever ends a world is a finding
            where = "".join(traceback.format_tb(error.__traceback__)[-3:])
            world.history.unfinished.append(f"{error!r}; {where}; {world.stacks()}")
            error.with_traceback(None)
    for process in world.processes:
        process.is_dead = True
    return world.history, world.trace
