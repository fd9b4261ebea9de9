"""Makes a failing plan smaller: fewer faults, then fewer clients, then fewer operations."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.simulation.check import check
from tests.simulation.plan import Plan
from tests.simulation.world import run

T = TypeVar("T")


def fails(plan: Plan) -> bool:
    """Whether a run of the plan has an anomaly."""
    return bool(check(run(plan).history))


def shrunk(plan: Plan, still_fails: Callable[[Plan], bool] = fails) -> Plan:
    """A plan that fails as the given one does, and is as small as leaving parts out makes it."""
    faults = _fewest(plan.faults, lambda some: still_fails(replace(plan, faults=some)))
    plan = replace(plan, faults=faults)
    others = _fewest(plan.others, lambda some: still_fails(replace(plan, others=some)))
    plan = replace(plan, others=others)
    clients = _fewest(plan.clients, lambda some: still_fails(replace(plan, clients=some)))
    plan = replace(plan, clients=clients)
    for number, client in enumerate(plan.clients):

        def with_operations(
            some: Sequence[object], plan: Plan = plan, number: int = number
        ) -> Plan:
            clients = list(plan.clients)
            clients[number] = clients[number]._replace(operations=tuple(some))  # pyright: ignore[reportArgumentType]
            return replace(plan, clients=tuple(clients))

        operations = _fewest(
            client.operations, lambda some, of=with_operations: still_fails(of(some))
        )
        plan = with_operations(operations)
    return plan


def _fewest(parts: tuple[T, ...], still_fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """Leaves out halves, quarters and so on, down to single parts, while the rest fails."""
    size = len(parts)
    while size >= 1:
        first = 0
        while first < len(parts):
            rest = parts[:first] + parts[first + size :]
            if still_fails(rest):
                parts = rest
            else:
                first += size
        size //= 2
    return parts
