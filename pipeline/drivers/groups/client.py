"""Asks the controllers of replicated groups for an operator.

*Source*: docs/protocols I14. *Invariants*: a reset is carried out with the offset and the
generation of an earlier answer, so that it moves a group as was shown, once.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from stilltide.connectors.errors import ActiveGroupError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector, GroupAdmin
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.core.outside_log import OutsideLog, outside_log
from stilltide.pipeline.drivers.groups.outside import log_ranges
from stilltide.pipeline.drivers.groups.read_elsewhere import reset
from stilltide.pipeline.drivers.service.ask.requests import OwnerLine, Service
from stilltide.pipeline.errors import ActiveMembersError, RefusedError, UnknownGroupError
from stilltide.schemas import topics
from stilltide.schemas.replication import requests
from stilltide.schemas.replication.requests import (
    AtOffset,
    AtTime,
    Edge,
    GroupAnswer,
    GroupAsk,
    GroupQuestion,
    HasMembers,
    PositionsAnswer,
    ResetAnswer,
    ResetGroup,
    ResetTarget,
    SyncAnswer,
    SyncGroup,
    TakePositions,
)
from stilltide.schemas.retry import REJOINED
from stilltide.schemas.service.envelopes import Refused
from stilltide.schemas.topics import system_partition
from stilltide.schemas.values import Offset, Range, TopicPartition

GROUP_SERVICE: Service[GroupQuestion, GroupAnswer] = Service(
    topics.GROUP_REQUESTS,
    "controller",
    requests.encode_request,
    requests.decode_response,
    for_operators=True,
)


class GroupLine(OwnerLine[GroupQuestion, GroupAnswer]):
    """An asynchronous context manager that asks the controllers of groups; see `OwnerLine`.

    Args:
        connector: the cluster.
        name: the program's name in client ids and logs.
        timeout_s: the longest wait for one answer.
    """

    def __init__(self, connector: Connector, name: str, *, timeout_s: float) -> None:
        super().__init__(
            GROUP_SERVICE, None, connector, name=name, request_timeout_s=timeout_s, patient=True
        )
        self._clock = connector.clock
        self._timeout_ms = round(timeout_s * 1000)

    async def reset_shown(
        self, data: TopicPartition, group: str, target: ResetTarget, *, stop: bool = False
    ) -> ResetAnswer:
        """The result of a reset now; nothing is changed.

        Raises:
            ActiveMembersError: the group has members on this cluster, and `stop` is not given.
            RefusedError: the group is not replicated, or the log has no such offset.
            RequestTimeoutError: no answer in time.
        """
        answer = await self._ask(data, group, ResetGroup(target, None, 0, stop))
        assert isinstance(answer, ResetAnswer)
        return answer

    async def reset(
        self, data: TopicPartition, group: str, shown: ResetAnswer, *, stop: bool = False
    ) -> ResetAnswer:
        """Resets a group on all clusters as `shown` says; safe to call again.

        Each cluster moves the group once it has no members there (I10). With `stop` the members on
        this cluster are removed; those that still run join again behind the reset.

        Raises:
            As `reset_shown`; RefusedError also if another reset came between. After
            RequestTimeoutError the reset may have been carried out, and will not be later.
        """
        until_ms = self._clock.now_ms() + self._timeout_ms
        ask = ResetGroup(AtOffset(shown.to_offset), shown.generation, until_ms, stop)
        answer = await self._ask(data, group, ask)
        assert isinstance(answer, ResetAnswer)
        return answer

    async def sync(self, data: TopicPartition, group: str) -> SyncAnswer:
        """The group after a look that began after this call; raises as `reset_shown`."""
        answer = await self._ask(data, group, SyncGroup())
        assert isinstance(answer, SyncAnswer)
        return answer

    async def take_positions(self, data: TopicPartition) -> PositionsAnswer:
        """A position snapshot that began after this call; raises as `reset_shown`."""
        answer = await self._ask(data, "", TakePositions())
        assert isinstance(answer, PositionsAnswer)
        return answer

    async def _ask(self, data: TopicPartition, group: str, ask: GroupAsk) -> GroupAnswer:
        owner = system_partition(data, self.count)
        answer = await self.ask(owner, GroupQuestion(data, group, ask))
        if isinstance(answer, HasMembers):
            shown = ", ".join(answer.members)
            raise ActiveMembersError(
                f"group {group} has members on this cluster; nothing was changed",
                detail=f"members: {shown}" if shown else "",
                hint="stop the consumers of the group, or remove its members with --stop",
                data=data,
            )
        if isinstance(answer, Refused):
            raise RefusedError(
                f"the controller refused {_named(ask, group)}: {answer.reason}",
                detail="nothing was changed",
                data=data,
            )
        return answer


def _named(ask: GroupAsk, group: str) -> str:
    """What was asked for, for the error of a refusal."""
    match ask:
        case ResetGroup():
            return f"to reset group {group}"
        case SyncGroup():
            return f"to look at group {group}"
        case TakePositions():
            return "to take a position snapshot"


class NamedOffset(NamedTuple):
    """What a target means in one log.

    Attributes:
        log: what the log holds.
        offset: the offset; None: the log has no such offset.
    """

    log: Range
    offset: Offset | None


async def named_offsets(
    admin: LogAdmin, partitions: Sequence[TopicPartition], target: ResetTarget
) -> dict[TopicPartition, NamedOffset]:
    """What a target means in each of these logs; a partition that does not exist is left out.

    Raises:
        RetriableError: the cluster is away.
    """
    ranges = await log_ranges(admin, list(partitions))
    since = {}
    if isinstance(target, AtTime):
        since = await admin.start_offsets(list(ranges), since_ms=target.at_ms)
    named: dict[TopicPartition, NamedOffset] = {}
    for data, log in ranges.items():
        match target:
            case Edge.EARLIEST:
                offset = log.first
            case Edge.LATEST:
                offset = Offset(log.end)
            case AtOffset(wanted):
                offset = wanted if log.first <= wanted <= log.end else None
            case AtTime():
                offset = since.get(data)
        named[data] = NamedOffset(log, offset)
    return named


MEMBERS_SHOWN_MAX = 10
"""Members that a refusal names."""


class PlannedReset(NamedTuple):
    """The reset of a group in one partition.

    Attributes:
        data: the partition.
        before: what the group has committed; None: nothing.
        after: what is to be committed.
        log: what the log holds.
    """

    data: TopicPartition
    before: Committed | None
    after: Committed
    log: Range

    @property
    def is_back(self) -> bool:
        """Whether the group may read records of the log again.

        A group that stays where it is reads those again that it has acknowledged above its
        position; a group without a commit, all of them.
        """
        read_to = self.log.end if self.before is None else self.before.offset
        return self.after.offset <= read_to and self.after.offset < self.log.end

    def outside(self, group: str) -> OutsideLog | None:
        """The group's position now, if the log does not hold it."""
        if self.before is None:
            return None
        return outside_log(self.data, group, self.before.offset, *self.log)


class KafkaReset:
    """Resets one group.

    Args:
        admin: admin client of the cluster; the caller closes it.
        groups: admin of the groups of the same cluster; the caller closes it.
        group: name of the group.
    """

    def __init__(self, admin: LogAdmin, groups: GroupAdmin, group: str) -> None:
        self._admin = admin
        self._groups = groups
        self._group = group

    async def plan(
        self, partitions: Sequence[TopicPartition], target: ResetTarget
    ) -> list[PlannedReset]:
        """What a reset would do now, by partition.

        Raises:
            UnknownGroupError: the cluster does not know the group: the name may be mistyped.
            RefusedError: a log does not hold the offset.
            ConnectorError: the cluster is away, or forbids the question.
        """
        named = await named_offsets(self._admin, partitions, target)
        committed = (await self._groups.committed([self._group], partitions))[self._group]
        if not committed and self._group not in await self._groups.listed():
            raise UnknownGroupError(
                f"no such group: {self._group}",
                detail="it has no members and has committed nothing on the cluster",
                hint="check the name; a group comes to be when a consumer joins it or commits",
            )
        plans: list[PlannedReset] = []
        for data, (log, offset) in sorted(named.items()):
            if offset is None:
                raise RefusedError(
                    "the log has no such offset; nothing was changed",
                    detail=f"the log holds offsets {log.first} to {log.end}",
                    hint="name one of these offsets, or --to-earliest or --to-latest",
                    data=data,
                )
            before = committed.get(data)
            plans.append(PlannedReset(data, before, reset(before, offset), log))
        return plans

    async def require_inactive(self) -> None:
        """Raises `ActiveMembersError` while the group has members; names some of them."""
        members = await self._groups.described_members(self._group)
        if members or await self._groups.active([self._group]):
            shown = [f"{it.client_id} at {it.host}" for it in members[:MEMBERS_SHOWN_MAX]]
            raise ActiveMembersError(
                f"group {self._group} has members; nothing was changed",
                detail=f"members: {', '.join(shown)}" if shown else "",
                hint="stop the consumers of the group, or remove its members with --stop",
            )

    async def carry_out(
        self, plans: Sequence[PlannedReset], *, stop: bool, timeout_s: float
    ) -> None:
        """Commits as planned, for all partitions or for none.

        Args:
            plans: of `plan`.
            stop: whether members are removed first, again and again while they join again.
            timeout_s: how long members are removed.

        Raises:
            ActiveMembersError: the group has members; nothing was changed.
            ConnectorError: the cluster is away, or forbids the commit.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while True:
            if stop:
                await self._groups.remove_members(self._group)
            try:
                return await self._groups.move(self._group, {it.data: it.after for it in plans})
            except ActiveGroupError:
                if not stop or loop.time() > until:
                    await self.require_inactive()
                    if not stop:
                        raise
                await asyncio.sleep(REJOINED.wait_s())
