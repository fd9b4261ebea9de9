"""A cluster is lost with groups on it: they go on at the other one, and come back when it is back.

*Source*: `make bench CASE=disaster`, which does the same with real clusters.

Each world has two losses and two returns, first under load and then after silence. Before a turn
workers and links may be killed, frozen, slow or cut off for some seconds, and after that nothing is
wrong for `CALM_S`. A world fails if a group is given again what it had committed `LATE_S` or longer
before its turn, anything at all after silence, or if a group is never given a message.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from tests.simulation.campaigns.campaign import Outcome
from tests.simulation.history import Exit
from tests.simulation.network.connector import NetworkConnector
from tests.simulation.plan import TOPICS, Fault, Link, Plan, Reader
from tests.simulation.processes.process import Process
from tests.simulation.workload.disaster import TOPIC, Group, Writer
from tests.simulation.workload.moves import until
from tests.simulation.world import World, run_world

CALM_S = 8.0
"""Time before each turn in which nothing is wrong."""

SILENCE_S = 3.0
"""Time without writes before a turn that comes after silence."""

SETTLED_S = 5.0
"""Time after the copies are complete until the application returns."""

READ_S = 5.0
"""What a group reads where it went on before the turn is run_world."""

LATE_S = 3.0
"""Age of what a group may be given again after a turn under load."""


def plan_of(seed: int) -> Plan:
    """The clusters, workers, links and groups of a seed."""
    chance = random.Random(f"disaster {seed}")
    groups = ("of-subscription", "of-any-client")
    return Plan(
        seed,
        ("a", "b"),
        workers=chance.choice((1, 1, 2)),
        coordinators=1,
        partitions=chance.choice((1, 2)),
        clients=(),
        readers=tuple(Reader(name, name, (TOPIC,), "positions") for name in groups),
        links=(Link("a-b-link", "a", "b"), Link("b-a-link", "b", "a")),
        others=(),
        faults=(),
        snapshot_changes_max=1000,
        snapshot_interval_ms=1000,
        marker_retention_ms=0,
    )


class Disasters(World):
    """One world of losses and returns.

    Args:
        plan: the clusters, workers, links and groups.
        turns: whether each loss and its return come after silence.

    Attributes:
        again_s: the age of what groups were given again after turns under load.
    """

    END_S = 1200.0

    def __init__(self, plan: Plan, turns: tuple[bool, ...] = (False, True)) -> None:
        super().__init__(plan)
        self._turns = turns
        self._draw = random.Random(f"disasters {plan.seed}")
        self._busy = self._draw.random() < 0.7
        self._writer = Writer(TOPICS[TOPIC], self.history)
        ours, other = plan.readers
        self._groups = Group(ours.group, is_ours=True), Group(other.group, is_ours=False)
        self._application: list[Process] = []
        self._numbers = iter(range(1, 1000))
        self.again_s: list[float] = []

    def _make_readers(self) -> None:
        """The groups are started where the application is."""

    async def _finish(self) -> None:
        self._go_to("a")
        for is_quiet in self._turns:
            await self._pass(self._draw.uniform(2.0, 40.0), is_quiet=is_quiet)
            self._clusters["a"].broker.down()
            self._go_to("b")
            await self._judge("out", is_quiet=is_quiet)
            await asyncio.sleep(self._draw.uniform(0.0, 60.0))
            self._clusters["a"].broker.up()
            await until(self._is_copied)
            await self._pass(self._draw.uniform(0.0, 20.0), is_quiet=is_quiet)
            await asyncio.sleep(SETTLED_S)
            await asyncio.gather(*(it.leave() for it in self._groups))
            self._go_to("a")
            await self._judge("back", is_quiet=is_quiet)
        await until(self._is_copied)
        self._writer.rest(resting=True)
        await asyncio.sleep(SETTLED_S)
        for group in self._groups:
            if skipped := self._writer.acknowledged.keys() - group.given:
                self.history.unfinished.append(f"{group.name} was never given {sorted(skipped)}")

    async def _pass(self, load_s: float, *, is_quiet: bool) -> None:
        """What comes before a turn: load with faults, calm, and silence."""
        if self._busy:
            for _ in range(self._draw.choice((1, 3, 6))):
                self._tasks.append(asyncio.create_task(self._befall(self._fault(load_s))))
        await asyncio.sleep(load_s + CALM_S)
        if is_quiet:
            self._writer.rest(resting=True)
            await asyncio.sleep(SILENCE_S)

    def _fault(self, load_s: float) -> Fault:
        kind = self._draw.choice(("kill", "freeze", "freeze", "slow", "cut", "mute", "deaf"))
        target = self._draw.choice(sorted(self._programs))
        at_s = self._draw.uniform(0.0, load_s)
        for_s = min(self._draw.expovariate(0.3), load_s - at_s)
        return Fault(at_s, kind, target, for_s, self._draw.choice(self._plan.clusters))

    def _go_to(self, cluster: str) -> None:
        """Has the application write and read on a cluster, which the other one has lost."""
        for process in self._application:
            process.kill()
        self._writer.rest(resting=False)
        self._application = []
        for name, run in (
            ("writer", self._writer.run),
            *((group.name, group.run) for group in self._groups),
        ):
            self._begin(name, cluster, run)
        for group in self._groups:
            group.begin_turn()

    def _begin(
        self,
        name: str,
        cluster: str,
        run: Callable[[NetworkConnector], Coroutine[Any, Any, None]],
    ) -> None:
        process = Process(f"{name}.{next(self._numbers)}")
        self.processes.append(process)
        self._application.append(process)
        task = process.start(run(self._connector(process, cluster)))
        task.add_done_callback(partial(self._application_ended, process))

    def _application_ended(self, process: Process, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not process.is_dead:
            now_s = asyncio.get_running_loop().time()
            self.history.exits.append(Exit(now_s, process.name, repr(error)))

    async def _judge(self, way: str, *, is_quiet: bool) -> None:
        now_s = asyncio.get_running_loop().time()
        before = [{*group.committed} for group in self._groups]
        await asyncio.sleep(READ_S)
        for group, committed in zip(self._groups, before, strict=True):
            again = group.again & committed
            written_s = [self._writer.acknowledged.get(it, now_s) for it in again]
            again_s = now_s - min(written_s, default=now_s)
            turn = f"{group.name} {way} {'after silence' if is_quiet else 'under load'}"
            self.again_s.append(again_s)
            if again and (is_quiet or again_s > LATE_S):
                text = f"{turn}: {len(again)} given again, written up to {again_s:.2f} s before"
                self.history.unfinished.append(text)

    def _is_copied(self) -> bool:
        """Whether both clusters have all that was acknowledged more than a second ago."""
        now_s = asyncio.get_running_loop().time()
        wanted = {it for it, at_s in self._writer.acknowledged.items() if at_s < now_s - 1}
        return all(wanted <= self._values(it) for it in self._plan.clusters)

    def _values(self, cluster: str) -> set[bytes | None]:
        broker = self._clusters[cluster].broker
        return {it.value for data in broker.partitions([TOPIC]) for it in broker.records(data)}


def disaster_of(seed: int) -> Outcome:
    """Runs the world of a seed."""
    result = run_world(partial(Disasters, plan_of(seed)))
    anomalies = *result.history.unfinished, *map(str, result.history.exits)
    return Outcome(seed, result.virtual_s, anomalies)
