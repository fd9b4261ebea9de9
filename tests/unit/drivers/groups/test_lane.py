"""A lane carries out the effects of a machine, and costs nothing while the machine rests (I16)."""

import asyncio
from collections.abc import Sequence
from typing import Any

from stilltide.pipeline.core.groups.group import ControllerEffect, Poll
from stilltide.pipeline.core.groups.position_snapshots import SnapshotEffect, WriteSignal
from stilltide.pipeline.drivers.groups.controller import (
    SIGNALS_MAX,
    Effects,
    Lane,
    MachineChanges,
)
from stilltide.schemas.replication.signals import Applied, AppliedKey, Update, UpdateKey
from stilltide.schemas.values import ClusterName, Offset, TopicPartition

A, DATA = ClusterName("a"), TopicPartition("orders", 0)
LOOK = Poll(1, DATA, ())
WAIT_S = 60.0
FAR_MS = 3_600_000


class Deadlines:
    """A machine whose deadline a test sets, and which wants a look when that has passed."""

    def __init__(self) -> None:
        self.deadline_ms: int | None = None

    def tick(self, now_ms: int) -> Sequence[ControllerEffect]:
        """A look."""
        assert self.deadline_ms is not None
        assert now_ms >= self.deadline_ms
        self.deadline_ms = None
        return [LOOK]


class Looks:
    """Where a lane looks at the time: `asked` counts that; a test sets `now`."""

    def __init__(self) -> None:
        self.now, self.asked = 0, 0

    def now_ms(self) -> int:
        """Is not asked for."""
        raise NotImplementedError

    def monotonic_ms(self) -> int:
        """The time that the test has set."""
        self.asked += 1
        return self.now


class Carrier:
    """Stands for a controlled partition, and keeps the effects that a lane has carried out."""

    def __init__(self, clock: Looks) -> None:
        self.data, self.clock, self.changes = DATA, clock, MachineChanges()
        self.effects: asyncio.Queue[ControllerEffect | SnapshotEffect] = asyncio.Queue()

    async def carry_out(self, effect: ControllerEffect | SnapshotEffect) -> Effects:
        """Keeps an effect."""
        self.effects.put_nowait(effect)
        return []


async def test_a_report_that_changes_nothing_wakes_nobody():
    """Neither effects, nor another deadline; both of these wake the lane."""
    machine, clock = Deadlines(), Looks()
    partition: Any = Carrier(clock)
    carried_out = partition.effects
    lane = Lane(partition, machine)
    running = asyncio.create_task(lane.run())
    async with asyncio.timeout(WAIT_S):
        lane.add([LOOK])
        assert await carried_out.get() == LOOK
        await _turns()
        asked = clock.asked
        lane.add([])
        await _turns()
        assert clock.asked == asked
        machine.deadline_ms = FAR_MS
        lane.add([])
        await _turns()
        assert clock.asked > asked
        clock.now, machine.deadline_ms = FAR_MS, FAR_MS - 1
        lane.add([])
        assert await carried_out.get() == LOOK
    running.cancel()


class Barrier(Carrier):
    """Carries effects out when a test says so."""

    def __init__(self, clock: Looks) -> None:
        super().__init__(clock)
        self.opened: asyncio.Queue[None] = asyncio.Queue()

    async def carry_out(self, effect: ControllerEffect | SnapshotEffect) -> Effects:
        """Keeps an effect, and waits."""
        await super().carry_out(effect)
        await self.opened.get()
        return []

    async def together(self) -> list[ControllerEffect | SnapshotEffect]:
        """The effects that wait together, which are carried out now."""
        await _turns()
        waiting = [self.effects.get_nowait() for _ in range(self.effects.qsize())]
        for _ in waiting:
            self.opened.put_nowait(None)
        return waiting


def _signal(group: str, offset: int = 1) -> WriteSignal:
    return WriteSignal(UpdateKey(DATA, A, group), Update(0, b"t", Offset(offset), {}))


def _note(group: str) -> WriteSignal:
    return WriteSignal(AppliedKey(DATA, A, group), Applied(0, b"t", Offset(1), None, None, {}))


async def test_signals_of_different_groups_are_written_together():
    """Those of one group one after the other, and nothing else is carried out meanwhile."""
    partition: Any = Barrier(Looks())
    lane = Lane(partition, Deadlines())
    running = asyncio.create_task(lane.run())
    async with asyncio.timeout(WAIT_S):
        signals = [_signal("a"), _signal("b"), _note("b"), _note("a"), _signal("a")]
        lane.add([*signals, LOOK, _signal("c")])
        assert await partition.together() == signals[:2]
        assert await partition.together() == signals[2:4]
        assert await partition.together() == signals[4:]
        assert await partition.together() == [LOOK]
        assert await partition.together() == [_signal("c")]
    running.cancel()


async def test_signals_that_are_written_together_are_bounded():
    """All partitions share the writer's queue."""
    partition: Any = Barrier(Looks())
    lane = Lane(partition, Deadlines())
    running = asyncio.create_task(lane.run())
    async with asyncio.timeout(WAIT_S):
        signals = [_signal(f"group-{number}") for number in range(SIGNALS_MAX + 1)]
        lane.add(signals)
        assert await partition.together() == signals[:-1]
        assert await partition.together() == signals[-1:]
    running.cancel()


async def _turns() -> None:
    """Lets everything run that is due."""
    for _ in range(10):
        await asyncio.sleep(0)
