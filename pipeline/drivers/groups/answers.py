"""Answers what operators ask the controllers of one partition of group-requests.

*Source*: docs/protocols I14, I10.
*Invariants*: a repetition of a request gets the same answer, and of a request in work none; nothing
is taken on before the owner serves, because requests come again (C1b).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from stilltide.connectors.clock import Clock, monotonic_of
from stilltide.pipeline.core.groups.controller import SyncMode
from stilltide.pipeline.core.groups.group import Reset, ResetResult, Standing
from stilltide.pipeline.drivers.groups.client import named_offsets
from stilltide.pipeline.drivers.groups.controller import ControlledPartition
from stilltide.pipeline.drivers.service.ended import OwnerEnd
from stilltide.pipeline.drivers.service.own.replies import Replies
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.coordinator.transactions import RefusalCode, Refused, Unreadable
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.framing import decode_each
from stilltide.schemas.replication import requests as group_requests
from stilltide.schemas.replication.requests import (
    GroupAnswer,
    GroupRequest,
    GroupResponse,
    HasMembers,
    PositionsAnswer,
    ResetAnswer,
    ResetGroup,
    SyncAnswer,
    SyncGroup,
    TakePositions,
)
from stilltide.schemas.retry import REJOINED
from stilltide.schemas.topics import system_partition
from stilltide.schemas.values import TopicPartition

log = get_logger(__name__)

IN_WORK_MAX = 1000
"""Requests in work; further ones are dropped, and clients repeat them."""

ANSWERS_MAX = 1000
"""Answers that are kept for repeated requests; the oldest are forgotten first."""

WORK_S_MAX = 120.0
"""Longest work on a request; after that it is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDeps:
    """Dependencies of the answers of one owner.

    Attributes:
        replies: sends answers.
        clock: wall clock.
        partition_count: number of partitions of group-requests.
        mode: way in which positions are carried over (I12).
        enabled: the topics of which an operator has enabled a group.
    """

    replies: Replies
    clock: Clock
    partition_count: int
    mode: SyncMode
    enabled: Callable[[], set[str]]


class GroupAnswers:
    """The requests to one owner, from their arrival to their answers.

    Args:
        partition: number of the partition of group-requests.
        deps: dependencies.
        served: the data partitions whose controllers run; None: the owner does not serve.
    """

    def __init__(
        self,
        partition: int,
        deps: RequestDeps,
        served: Callable[[], Mapping[TopicPartition, ControlledPartition] | None],
    ) -> None:
        self._partition = partition
        self._deps = deps
        self._served = served
        self._work: dict[tuple[bytes, int], asyncio.Task[None]] = {}
        self._answers: OrderedDict[tuple[bytes, int], GroupAnswer] = OrderedDict()

    def received(self, value: bytes | None) -> None:
        """Takes one value of group-requests.

        Raises:
            DecodeError: the value, or a part of it, is no request; the other parts were taken.
        """
        received, failed = decode_each(value, group_requests.decode_request)
        for request in received:
            self._received(request)
        if failed is not None:
            raise failed

    def refuse(self, value: bytes | None, end: OwnerEnd) -> None:
        """Refuses the requests of a value that change nothing; raises `DecodeError`.

        The client of a reset, which may have been carried out, is told of the end (B8).
        """
        received, failed = decode_each(value, group_requests.decode_request)
        reason = end.text(asyncio.get_running_loop().time())
        for request in received:
            ask = request.question.ask
            if isinstance(ask, Unreadable):
                self._answer(request, ask.refusal)
            elif not isinstance(ask, ResetGroup) or ask.generation is None:
                self._answer(request, Refused(reason))
            else:
                self._deps.replies.tell([request], end.notice(self._partition))
        if failed is not None:
            raise failed

    def drop(self) -> None:
        """Ends the work on requests; they get no answer and come again."""
        work, self._work = self._work, {}
        for task in work.values():
            task.cancel()

    def _received(self, request: GroupRequest) -> None:
        key = request.client_id, request.number
        data, count = request.question.data, self._deps.partition_count
        if isinstance(request.question.ask, Unreadable):
            self._answer(request, request.question.ask.refusal)
        elif (owner := system_partition(data, count)) != self._partition:
            reason = f"owner {owner} of {count} has the controller of {data}"
            self._answer(request, Refused(f"{reason}, and this is owner {self._partition}"))
        elif (known := self._answers.get(key)) is not None:
            self._answer(request, known)
        elif key not in self._work and (served := self._served()) is not None:
            if len(self._work) >= IN_WORK_MAX:
                log.warning("group_request_dropped", partition=self._partition)
                return
            one = served.get(data)
            if one is None and data.topic in self._deps.enabled():
                return  # its controller begins within a moment
            task = asyncio.create_task(self._serve(request, one), name="group-request")
            self._work[key] = task
            task.add_done_callback(lambda task: self._ended(key, task))

    def _ended(self, key: tuple[bytes, int], task: "asyncio.Task[None]") -> None:
        if self._work.get(key) is task:
            del self._work[key]

    async def _serve(self, request: GroupRequest, one: ControlledPartition | None) -> None:
        try:
            async with asyncio.timeout(WORK_S_MAX):
                answer = await self._answer_to(request, one)
        except (StilltideError, TimeoutError) as error:  # the client repeats the request
            log.warning("group_request_failed", partition=self._partition, error=str(error))
            return
        self._answers[request.client_id, request.number] = answer
        if len(self._answers) > ANSWERS_MAX:
            self._answers.popitem(last=False)
        self._answer(request, answer)

    def _answer(self, request: GroupRequest, answer: GroupAnswer) -> None:
        response = GroupResponse(request.number, self._partition, answer)
        data = group_requests.encode_response(response)
        self._deps.replies.add(request.client_id, request.reply_partition, data)

    async def _answer_to(
        self, request: GroupRequest, one: ControlledPartition | None
    ) -> GroupAnswer:
        data, group, ask = request.question
        assert not isinstance(ask, Unreadable), "refused on arrival"
        if one is None:
            return Refused(
                f"no group of topic {data.topic} is replicated on this cluster: "
                f"`stilltide group enable {data.topic} GROUP`"
            )
        if isinstance(ask, TakePositions):
            return await _positions(one)
        if group not in one.groups:
            return Refused(
                f"group {group} of topic {data.topic} is not replicated: "
                f"`stilltide group enable {data.topic} {group}`"
            )
        if isinstance(ask, SyncGroup):
            return await _synced(one, group)
        if self._deps.mode is SyncMode.SNAPSHOT:
            reason = "with sync=snapshot no generation says that a group is to read again"
            return Refused(reason, RefusalCode.UNSUPPORTED)
        return await reset_group(one, group, ask, self._deps.clock)


async def _synced(one: ControlledPartition, group: str) -> GroupAnswer:
    await looked(one, group)
    machine = one.machine
    held, lag = machine.groups.get(group), machine.lag(group, one.deps.clock.monotonic_ms())
    offset = None if held is None or held.seen is None else held.seen.offset
    return SyncAnswer(offset, 0 if lag is None else lag.untold, machine.standing(group).value)


async def _positions(one: ControlledPartition) -> GroupAnswer:
    builder = one.builder
    if not builder.can_begin:
        return Refused(
            "a link from or to another cluster does not run, or has not copied the partition yet;"
            f" `stilltide group describe {one.data.topic} GROUP` names it"
        )
    known = {one.id for one in builder.cached.snapshots} if builder.cached else set[bytes]()
    if builder.pending is not None:
        known.add(builder.pending[0])
    one.snapshot_lane.add(builder.snapshot_now(one.deps.clock.monotonic_ms()))

    def taken() -> PositionsAnswer | None:
        kept = builder.cached.snapshots if builder.cached else ()
        new = kept[-1] if kept and kept[-1].id not in known else None
        return new and PositionsAnswer(new.local_end, new.started_ms, new.completed_ms)

    return await one.changes.until(taken)


MEMBERS_SHOWN_MAX = 10
"""Members that a refusal names; a group may have thousands."""

ANSWER_MS = 1000
"""A reset is answered so long before the time-out of the client, although the group is not moved.

A time-out that is shorter waits for nothing.
"""


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
            async with asyncio.timeout(REJOINED.wait_s()):
                await looked(one, group)
                await one.changes.until(lambda: is_moved() or None)
    return is_moved()


async def looked(one: ControlledPartition, group: str) -> None:
    """Returns after a look at the group that began after this call."""
    machine = one.machine
    number = machine.look_now()
    one.group_lane.wake()
    await one.changes.until(lambda: machine.has_looked(group, number) or None)
