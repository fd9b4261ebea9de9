"""Answers what operators ask the controllers of one partition of group-requests.

*Source*: docs/protocols I14, I10.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from stilltide.connectors.clock import monotonic_of
from stilltide.pipeline.core.groups.group import Reset, ResetResult, Standing
from stilltide.pipeline.drivers.groups.client import named_offsets
from stilltide.pipeline.drivers.groups.controller import ControlledPartition
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.replication.requests import (
    GroupAnswer,
    HasMembers,
    PositionsAnswer,
    ResetAnswer,
    ResetGroup,
    SyncAnswer,
)
from stilltide.schemas.retry import REJOINED
from stilltide.schemas.service.envelopes import RefusalCode, Refused

log = get_logger(__name__)


async def synced(partition: ControlledPartition, group: str) -> GroupAnswer:
    """Looks at a group now; says where it stands."""
    await looked(partition, group)
    machine = partition.machine
    replicated, lag = machine.groups.get(group), machine.lag(group, partition.clock.monotonic_ms())
    offset = None if replicated is None or replicated.seen is None else replicated.seen.offset
    return SyncAnswer(offset, 0 if lag is None else lag.untold, machine.standing(group).value)


async def taken_positions(partition: ControlledPartition) -> GroupAnswer:
    """Takes a position snapshot; says where it lies."""
    builder = partition.builder
    if not builder.can_begin:
        return Refused(
            "a link from or to another cluster does not run, or has not copied the partition yet;"
            f" `stilltide group describe {partition.data.topic} GROUP` names it"
        )
    known = {it.id for it in builder.cached.snapshots} if builder.cached else set[bytes]()
    if builder.pending is not None:
        known.add(builder.pending[0])
    partition.snapshot_lane.add(builder.snapshot_now(partition.clock.monotonic_ms()))

    def taken() -> PositionsAnswer | None:
        kept = builder.cached.snapshots if builder.cached else ()
        new = kept[-1] if kept and kept[-1].id not in known else None
        return new and PositionsAnswer(new.local_end, new.started_ms, new.completed_ms)

    return await partition.changes.until(taken)


MEMBERS_SHOWN_MAX = 10
"""Members that a refusal names; a group may have thousands."""

ANSWER_MS = 1000
"""A reset is answered so long before the time-out of the client, although the group is not moved.

A time-out that is shorter waits for nothing.
"""


async def reset_group(partition: ControlledPartition, group: str, ask: ResetGroup) -> GroupAnswer:
    """Carries out a reset, or says what it would do if the request names no generation (I14)."""
    shared, data, clock = partition.shared, partition.data, partition.clock
    named = (await named_offsets(shared.deps.admin, [data], ask.target)).get(data)
    if named is None or (offset := named.offset) is None:
        return Refused(f"the log of {data} has no such offset", RefusalCode.MALFORMED)
    committed = (await shared.groups.committed([group], [data]))[group].get(data)
    before = None if committed is None else committed.offset
    if ask.generation is None:
        replicated = partition.machine.groups.get(group)
        generation = 0 if replicated is None else replicated.generation
        return await _members(partition, group, ask) or ResetAnswer(before, offset, generation)
    until_ms = monotonic_of(clock, ask.until_ms)  # the wall clock may jump while it is carried out
    late = clock.monotonic_ms() > until_ms
    refused = await _reset(
        partition, group, Reset(offset, ask.generation, ask.stop), ask, late=late
    )
    if refused is not None:
        return refused
    moved = await _moved(partition, group, ask, lambda: clock.monotonic_ms() < until_ms - ANSWER_MS)
    return ResetAnswer(before, offset, ask.generation + 1, moved)


async def _members(
    partition: ControlledPartition, group: str, ask: ResetGroup
) -> HasMembers | None:
    if ask.stop or not await partition.shared.groups.active([group]):
        return None
    members = sorted(await partition.shared.groups.members(group))
    return HasMembers(tuple(members[:MEMBERS_SHOWN_MAX]))


async def _reset(
    partition: ControlledPartition, group: str, reset: Reset, ask: ResetGroup, *, late: bool
) -> GroupAnswer | None:
    """Resets a group, if that was not done yet; None: its update was read back."""
    replicated, result = partition.machine.groups.get(group), None
    if reset.generation != (0 if replicated is None else replicated.generation):
        result = ResetResult.OVERTAKEN if replicated is None else replicated.result_of(reset)
    elif has_members := await _members(partition, group, ask):
        return has_members
    elif late:
        return Refused("the reset arrived after the time-out of its command")
    else:
        offset, generation = reset.offset, reset.generation
        asked = partition.machine.reset(group, offset, generation=generation, stop=reset.stop)
        partition.wake_groups()
        replicated = partition.machine.groups[group]
        result = await partition.changes.until(lambda: replicated.result_of(asked))
    return None if result is ResetResult.DONE else Refused((result or ResetResult.OVERTAKEN).value)


async def _moved(
    partition: ControlledPartition, group: str, ask: ResetGroup, in_time: Callable[[], bool]
) -> bool:
    """Whether the group has been moved here before the time of the request is nearly over.

    With `stop` members are removed until then, because they join again by themselves.
    """
    replicated = partition.machine.groups[group]

    def is_moved() -> bool:
        return ask.generation is not None and replicated.state.applied_generation > ask.generation

    while not is_moved() and in_time():
        if ask.stop:
            await partition.shared.groups.remove_members(group)
        elif replicated.standing is Standing.ACTIVE:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(REJOINED.wait_s()):
                await looked(partition, group)
                await partition.changes.until(lambda: is_moved() or None)
    return is_moved()


async def looked(partition: ControlledPartition, group: str) -> None:
    """Returns after a look at the group that began after this call."""
    machine = partition.machine
    number = machine.look_now()
    partition.wake_groups()
    await partition.changes.until(lambda: machine.has_looked(group, number) or None)
