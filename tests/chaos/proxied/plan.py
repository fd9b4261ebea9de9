"""What goes wrong in a scenario, drawn from its seed before it begins."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from tests.chaos.proxied.topics import FIRST, GROUPS, SECOND

LINES = ("late", "deaf", "mute", "cut", "half_open")
PROCESSES = ("kill", "freeze", "leave")
BROKERS = ("kill_broker", "freeze_broker")
KINDS = {
    "lines": LINES,
    "processes": PROCESSES,
    "brokers": BROKERS,
    "everything": (*LINES, *PROCESSES, *BROKERS),
}
"""Kinds of faults by scenario."""

PAUSE_S = 4.0
"""Mean time between the begins of two faults."""

LONGEST_S = 20.0
MOVE_S = 20.0
"""Mean time between two moves of groups from cluster to cluster, and between two leaves of a
member, which come and go in every scenario."""

CALM_S = 8.0
"""Time before the first fault, so that programs have begun."""


class Fault(NamedTuple):
    """Something that goes wrong.

    Attributes:
        at_s: time since the begin of the scenario.
        kind: `late` (2 s each way), `deaf` (nothing comes from the broker), `mute` (nothing reaches
            the broker), `cut` (in the middle of a frame), `half_open` (connections pass nothing,
            for good), `kill`, `freeze`, `leave` (SIGTERM), `kill_broker`, `freeze_broker`, `move`
            (of a group to the other cluster, after members were killed or have left).
        target: a program, a cluster, or a group; empty: the lines of all programs.
        broker: node id of a broker; 0: of all.
        for_s: how long; of a kill: until the program or the broker is started again.
    """

    at_s: float
    kind: str
    target: str
    broker: int
    for_s: float

    def __str__(self) -> str:
        of = f" broker {self.broker}" if self.broker else ""
        return f"{self.at_s:.1f} s: {self.kind} {self.target or 'all'}{of} for {self.for_s:.1f} s"


def draw(
    scenario: str, seed: int, programs: Sequence[str], members: Sequence[str], length_s: float
) -> list[Fault]:
    """The faults of a scenario, by time; all are over at `length_s`.

    Args:
        scenario: a key of `KINDS`.
        seed: of the choices.
        programs: all of them.
        members: the programs that come and go.
        length_s: of the scenario.
    """
    chance = Random(f"{scenario} {seed}")
    faults: list[Fault] = []
    at_s = CALM_S
    while (at_s := at_s + chance.expovariate(1 / PAUSE_S)) < length_s:
        kind = chance.choice(KINDS[scenario])
        for_s = min(chance.expovariate(1 / 5), LONGEST_S, length_s - at_s)
        target, broker = _target(chance, kind, programs)
        faults.append(Fault(at_s, kind, target, broker, for_s))
    moving = [it.name for it in GROUPS if it.moves]
    for kinds, targets in ((("move_killed", "move"), moving), (("leave",), members)):
        at_s = CALM_S
        while (at_s := at_s + chance.uniform(MOVE_S / 2, MOVE_S * 1.5)) < length_s:
            for_s = min(chance.expovariate(1 / 5), length_s - at_s)
            faults.append(Fault(at_s, chance.choice(kinds), chance.choice(targets), 0, for_s))
    return sorted(faults)


def _target(chance: Random, kind: str, programs: Sequence[str]) -> tuple[str, int]:
    if kind in BROKERS:
        return chance.choice((FIRST, FIRST, FIRST, SECOND)), chance.randint(1, 3)
    program = chance.choice(programs)
    if kind in PROCESSES:
        return program, 0
    every, one = chance.choice((("", True), (program, False), (program, True), (program, True)))
    return every, chance.randint(1, 3) if one else 0
