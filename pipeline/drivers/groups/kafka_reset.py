"""Resets a group that is not replicated, by a commit for it in Kafka.

*Source*: docs/failures.md; the rules of commits are in `metadata`.

*Invariants*: a plan changes nothing; a group that has members is never moved.

Refuses: an offset that the log does not hold.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from stilltide.connectors.errors import ActiveGroupError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import GroupAdmin
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.core.outside_log import OutsideLog, outside_log
from stilltide.pipeline.drivers.groups.claims import reset
from stilltide.pipeline.drivers.groups.requests.client import named_offsets
from stilltide.pipeline.errors import ActiveMembersError, RefusedError, UnknownGroupError
from stilltide.schemas.replication.requests import ResetTarget
from stilltide.schemas.values import Range, TopicPartition

MEMBERS_SHOWN_MAX = 10
"""Members that a refusal names."""

REJOINED_S = 0.2
"""Seconds until members that have joined again are removed again."""


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
                    topic=data.topic,
                    partition=data.partition,
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
                await asyncio.sleep(REJOINED_S)
