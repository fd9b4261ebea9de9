"""Carries out replicated resets that operators ask the controller of a data partition for.

*Source*: docs/protocols I10, I14.
*Invariants*: a reset is answered after its update was read back; a reset that arrives too late or a
second time changes nothing.

Refuses: a reset of a group that has members, unless they are to be removed.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from stilltide.connectors.clock import Clock, monotonic_of
from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.core.groups.group_between_rounds import Reset, ResetResult
from stilltide.pipeline.drivers.groups.controller import ControlledPartition
from stilltide.pipeline.drivers.groups.requests.targets import named_offsets
from stilltide.schemas.coordinator.transactions import RefusalCode, Refused
from stilltide.schemas.replication.requests import (
    GroupAnswer,
    HasMembers,
    ResetAnswer,
    ResetGroup,
)

MEMBERS_SHOWN_MAX = 10
"""Members that a refusal names; a group may have thousands."""

ANSWER_MS = 1000
"""A reset is answered so long before the time-out of the client, although the group is not moved.

A time-out that is shorter waits for nothing.
"""

REJOINED_S = 0.2
"""Seconds until members that have joined again are removed again."""


async def reset_group(
    one: ControlledPartition, group: str, ask: ResetGroup, clock: Clock
) -> GroupAnswer:
    """Carries out a reset, or says what it would do if the request names no generation."""
    named = (await named_offsets(one.deps.admin, [one.data], ask.target)).get(one.data)
    if named is None or (offset := named.offset) is None:
        return Refused(f"the log of {one.data} has no such offset", RefusalCode.MALFORMED)
    committed = (await one.deps.groups.committed([group], [one.data]))[group].get(one.data)
    before = None if committed is None else committed.offset
    if ask.generation is None:
        held = one.machine.groups.get(group)
        generation = 0 if held is None else held.generation
        return await _members(one, group, ask) or ResetAnswer(before, offset, generation)
    until_ms = monotonic_of(clock, ask.until_ms)  # the wall clock may jump while it is carried out
    late = clock.monotonic_ms() > until_ms
    refused = await _reset(one, group, Reset(offset, ask.generation, ask.stop), ask, late=late)
    if refused is not None:
        return refused
    moved = await _moved(one, group, ask, lambda: clock.monotonic_ms() < until_ms - ANSWER_MS)
    return ResetAnswer(before, offset, ask.generation + 1, moved)


async def _members(one: ControlledPartition, group: str, ask: ResetGroup) -> HasMembers | None:
    if ask.stop or not await one.deps.groups.active([group]):
        return None
    members = sorted(await one.deps.groups.members(group))
    return HasMembers(tuple(members[:MEMBERS_SHOWN_MAX]))


async def _reset(
    one: ControlledPartition, group: str, reset: Reset, ask: ResetGroup, *, late: bool
) -> GroupAnswer | None:
    """Resets a group, if that was not done yet; None: its update was read back."""
    held, result = one.machine.groups.get(group), None
    if reset.generation != (0 if held is None else held.generation):
        result = ResetResult.OVERTAKEN if held is None else held.result_of(reset)
    elif has_members := await _members(one, group, ask):
        return has_members
    elif late:
        return Refused("the reset arrived after the time-out of its command")
    else:
        offset, generation = reset.offset, reset.generation
        asked = one.machine.reset(group, offset, generation=generation, stop=reset.stop)
        one.group_lane.wake()
        held = one.machine.groups[group]
        result = await one.changes.until(lambda: held.result_of(asked))
    return None if result is ResetResult.DONE else Refused((result or ResetResult.OVERTAKEN).value)


async def _moved(
    one: ControlledPartition, group: str, ask: ResetGroup, in_time: Callable[[], bool]
) -> bool:
    """Whether the group has been moved here before the time of the request is nearly over.

    With `stop` members are removed until then, because they join again by themselves.
    """
    held = one.machine.groups[group]

    def is_moved() -> bool:
        return ask.generation is not None and held.state.applied_generation > ask.generation

    while not is_moved() and in_time():
        if ask.stop:
            await one.deps.groups.remove_members(group)
        elif held.standing is Standing.ACTIVE:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(REJOINED_S):
                await looked(one, group)
                await one.changes.until(lambda: is_moved() or None)
    return is_moved()


async def looked(one: ControlledPartition, group: str) -> None:
    """Returns after a look at the group that began after this call."""
    machine = one.machine
    number = machine.look_now()
    one.group_lane.wake()
    await one.changes.until(lambda: machine.has_looked(group, number) or None)
