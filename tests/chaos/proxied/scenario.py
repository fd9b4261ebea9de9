"""One scenario: programs at work on a site, what befalls them, and how it ends.

Directories: `histories` has what each process told, `logs` what it wrote to stderr.
"""

import asyncio
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from stilltide import Subscription
from stilltide.connectors.local.addresses import HOST
from stilltide.schemas.values import TopicPartition
from tests.chaos.proxied.kept import Kept
from tests.chaos.proxied.merging import Files, Merging, behind
from tests.chaos.proxied.plan import Fault
from tests.chaos.proxied.programs.telling import Role, Telling
from tests.chaos.proxied.site import Site
from tests.chaos.proxied.topics import (
    BY_NAME,
    FIRST,
    GROUPS,
    OUTPUT,
    PARTITIONS,
    PUBLISHED,
    SECOND,
    TOPICS,
)
from tests.simulation.check import missing_copies
from tests.support.looks import lasting
from tests.support.processes.child import Child
from tests.support.processes.proxy import Way

SESSION_S = 6
LATE_S = 2.0
SETTLE_S = 300.0
"""Time after the last fault within which everything is written, copied, read and decided."""

FAIL_OVER_S = 20.0

LATE_FAULT_S = 20.0
"""Faults of brokers wait for each other; one whose turn comes later than this is left out."""

WORKERS = {"worker-1": FIRST, "worker-2": FIRST, "worker-3": SECOND}
LINKS = {"link-1": (FIRST, SECOND), "link-2": (SECOND, FIRST)}
PUBLISH = "publish-1"
WRITERS = {"writer-1": FIRST, "writer-2": FIRST, "writer-3": SECOND}
MEMBERS = {f"{group.name[:-1]}-{number}": group.name for group in GROUPS for number in (1, 2)}
COMING = tuple(name for name, group in MEMBERS.items() if not BY_NAME[group].moves)
"""Members that come and go."""

PROGRAMS = (*WORKERS, *LINKS, PUBLISH, *WRITERS, *MEMBERS)

DIRECT = "writer-2"
"""A writer that asks coordinators by direct lines, which no proxy touches."""


class Scenario:
    """Starts the programs on entry; on exit no process is left but the brokers.

    Args:
        site: the clusters.
        directory: of histories and logs.
        seed: of the scenario.
        ablate: a rule that all programs of the scenario go without, or nothing.
    """

    def __init__(self, site: Site, directory: Path, seed: int, ablate: str = "") -> None:
        self._site, self._seed, self._ablate = site, seed, ablate
        self._histories, self._logs = directory / "histories", directory / "logs"
        for folder in (self._histories, self._logs):
            folder.mkdir(parents=True)
        self._telling = Telling(self._histories / "site.jsonl")
        self._kept: dict[str, Kept] = {}
        self._brokers = asyncio.Lock()
        self._files, self._merging = Files(self._histories), Merging()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for name in PROGRAMS:
                kept = Kept(name, self._maker(name), self._telling)
                self._kept[name] = kept
                stack.push_async_callback(kept.close)
                if name in WORKERS:
                    await kept.announced()
                if name == list(WORKERS)[-1]:
                    await self._enable_moving()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def befall(self, faults: list[Fault]) -> None:
        """Carries out all faults, each at its time; returns when the last one is over."""
        async with asyncio.TaskGroup() as tasks:
            for fault in faults:
                tasks.create_task(self._befall(fault))

    async def settle(self) -> None:
        """Ends the writers, waits until all is copied and read, ends the rest, and reads again."""
        for proxy in self._site.proxies.values():
            proxy.mend()
        for cluster in self._site.clusters.values():
            await asyncio.to_thread(cluster.start)
        missing = ["writers have not ended"]
        try:
            async with asyncio.timeout(SETTLE_S):
                await asyncio.gather(*(self._kept[name].close() for name in WRITERS))
                while missing:
                    await self._read_all((*TOPICS, PUBLISHED))
                    missing = self._missing()
        except TimeoutError:
            for why in missing[:9]:
                self._telling.tell("unfinished", why=f"after {SETTLE_S:g} s {why}")
        await asyncio.gather(*(self._kept[name].close() for name in MEMBERS))
        await self._read_all((*TOPICS, PUBLISHED, OUTPUT))
        await asyncio.gather(*(self._kept[name].close() for name in (*LINKS, PUBLISH, *WORKERS)))

    def _missing(self) -> list[str]:
        for line in self._files.more():
            self._merging.feed(line)
        history = self._merging.history
        return [*missing_copies(history), *behind(history, self._merging.at)]

    async def _read_all(self, topics: tuple[str, ...]) -> None:
        for cluster in self._site.clusters:
            await self._read(cluster, [it for it in topics if it in TOPICS or cluster == FIRST])

    async def _read(self, cluster: str, topics: list[str]) -> None:
        """Tells what a reader sees who begins now, and who reads to the present ends."""
        connector = self._site.connector(cluster)
        partitions = [TopicPartition(topic, it) for topic in topics for it in range(PARTITIONS)]
        admin = connector.admin()
        ends = await admin.end_offsets(partitions)
        await admin.close()
        logs: dict[TopicPartition, list[tuple[int, str]]] = {it: [] for it in partitions}
        async with Subscription(
            topics, group=f"judge-{self._seed}-{id(logs)}", connector=connector
        ) as subscription:
            async for message in subscription.read_to(ends):
                value = (message.value or b"").decode()
                logs[TopicPartition(message.topic, message.partition)].append(
                    (message.offset, value)
                )
        for data, log in logs.items():
            self._telling.tell(
                "final", cluster=cluster, topic=data.topic, partition=data.partition, log=log
            )

    async def _enable_moving(self) -> None:
        """Has the positions of the groups that move carried over."""
        for group in (it for it in GROUPS if it.moves):
            for topic in group.topics:
                assert await self._operator("enable", topic, group.name) == 0

    async def _befall(self, fault: Fault) -> None:
        await lasting(fault.at_s)
        self._telling.tell("fault", fault=str(fault))
        if fault.kind.startswith("move"):
            await self._move(fault)
        elif fault.kind.endswith("_broker"):
            began_s = asyncio.get_running_loop().time()
            async with self._brokers:
                if asyncio.get_running_loop().time() - began_s > LATE_FAULT_S:
                    self._telling.tell("left out", fault=str(fault))
                    return
                await self._befall_broker(fault)
        elif fault.target in self._kept and fault.kind in {"kill", "leave", "freeze"}:
            await self._befall_program(fault, self._kept[fault.target])
        else:
            await self._befall_lines(fault)
        self._telling.tell("over", fault=str(fault))

    async def _befall_program(self, fault: Fault, kept: Kept) -> None:
        if fault.kind == "freeze":
            await kept.freeze(fault.for_s)
            return
        await kept.leave(killed=fault.kind == "kill")
        await lasting(fault.for_s)
        await kept.back()

    async def _befall_broker(self, fault: Fault) -> None:
        cluster = self._site.clusters[fault.target]
        broker = cluster.brokers.get(fault.broker) or cluster.brokers[1]
        if fault.kind == "kill_broker":
            await asyncio.to_thread(broker.kill)
            await lasting(fault.for_s)
            await asyncio.to_thread(broker.start)
        else:
            await asyncio.to_thread(broker.pause)
            await lasting(fault.for_s)
            await asyncio.to_thread(broker.resume)

    async def _befall_lines(self, fault: Fault) -> None:
        proxies = self._site.lines(fault.target, fault.broker)
        way = Way.TO_BROKER if fault.kind == "mute" else Way.FROM_BROKER
        for number, proxy in enumerate(proxies):
            match fault.kind:
                case "late":
                    for valve in proxy.valves.values():
                        valve.delay_s = LATE_S
                case "cut":
                    proxy.cut_next_frame(list(Way)[(number + round(fault.for_s * 1000)) % 2])
                case "half_open":
                    proxy.half_open()
                case _:
                    proxy.valves[way].shut()
        await lasting(fault.for_s)
        for proxy in proxies:
            proxy.mend()

    async def _move(self, fault: Fault) -> None:
        """Ends the members of a group, waits as an operator does, and starts them elsewhere."""
        members = [self._kept[name] for name, group in MEMBERS.items() if group == fault.target]
        killed = fault.kind == "move_killed"
        await asyncio.gather(*(it.leave(killed=killed) for it in members))
        to = SECOND if self._merging.at[fault.target] == FIRST else FIRST
        exact = True
        for topic in BY_NAME[fault.target].topics:
            exact &= await self._fail_over(topic, fault.target, to)
        # What is acknowledged above the position of a group is not carried over.
        exact &= BY_NAME[fault.target].mode == "positions"
        self._merging.at[fault.target] = to
        self._telling.tell("moved", group=fault.target, to=to, exact=exact)
        await asyncio.gather(*(it.back() for it in members))

    async def _fail_over(self, topic: str, group: str, to: str) -> bool:
        """Waits until a group can go on elsewhere; whether it reads nothing again there.

        The command fails as long as the brokers count members that were killed.
        """
        options = ["--to", to, "--timeout-s", f"{FAIL_OVER_S:g}", "-o", "json"]
        until_s = asyncio.get_running_loop().time() + FAIL_OVER_S
        while (code := await self._operator("failover", topic, group, *options)) == 1:
            if asyncio.get_running_loop().time() > until_s:
                break
        return code == 0

    async def _operator(self, command: str, *arguments: str) -> int:
        """Runs `stilltide group` without proxies; returns the exit code."""
        plain = " ".join(f"{name}={it.bootstrap}" for name, it in self._site.clusters.items())
        options = [*arguments, "--clusters", plain]
        async with self._stilltide("operator", "group", command, *options) as process:
            return await process.ended()

    def _maker(self, name: str) -> Callable[[int], Child]:
        return lambda run: self._process(name, run)

    def _process(self, name: str, run: int) -> Child:
        site = self._site
        if name in WORKERS:
            return self._worker(name, WORKERS[name])
        if name in LINKS:
            source, target = LINKS[name]
            copied = [option for topic in TOPICS for option in ("--topics", topic)]
            ends = ["--from", source, "--to", target, "--merge"]
            clusters = site.addresses(name)
            return self._stilltide(name, "replicate", "--clusters", clusters, *ends, *copied)
        if name == PUBLISH:
            publish = ["payments", "--to", PUBLISHED, "--cluster", FIRST]
            brokers = ["--bootstrap-servers", site.bootstrap(name, FIRST)]
            return self._stilltide(name, "publish", *publish, *brokers)
        return self._application(name, run)

    def _application(self, name: str, run: int) -> Child:
        site = self._site
        group = MEMBERS.get(name, "")
        cluster = self._merging.at.get(group) or WRITERS.get(name, FIRST)
        role = Role(
            name,
            run,
            self._seed,
            cluster,
            site.bootstrap(name, cluster),
            str(self._histories / f"{name}.{run}.jsonl"),
            group,
            BY_NAME[group].mode if group else "",
            direct_line=name == DIRECT,
        )
        program = "writer" if not group else "copier" if role.mode == "transactions" else "member"
        return self._module(name, f"tests.chaos.proxied.programs.{program}", role.text)

    def _worker(self, name: str, cluster: str) -> Child:
        site = self._site
        settings = {
            "CLUSTERS": site.addresses(name),
            "BROKER_AWAY_S_MAX": "120",
            "LINE_HOST": HOST,
            "SNAPSHOT_CHANGES_MAX": "20",
            "SNAPSHOT_INTERVAL_MS": "1000",
            "MARKER_RETENTION_MS": "2000",
        }
        return self._stilltide(
            name,
            "worker",
            *("--cluster", cluster, "--bootstrap-servers", site.bootstrap(name, cluster)),
            *("--session-timeout-s", f"{SESSION_S}", "--web-port", "0"),
            settings={f"STILLTIDE_{key}": value for key, value in settings.items()},
        )

    def _stilltide(
        self, name: str, *arguments: str, settings: dict[str, str] | None = None
    ) -> Child:
        return self._module(name, "stilltide", *arguments, settings=settings)

    def _module(
        self, name: str, module: str, *arguments: str, settings: dict[str, str] | None = None
    ) -> Child:
        ablated = ["tests.chaos.proxied.programs.ablated", self._ablate] if self._ablate else []
        command = [sys.executable, "-m", *ablated, module, *arguments]
        traced = {"PYTHONFAULTHANDLER": "1"}  # a log says where a client library has ended it
        return Child(command, self._log_path(name), traced | (settings or {}))

    def _log_path(self, name: str) -> Path:
        path = self._logs / f"{name}.log"
        path.touch()
        return path
