"""Moves groups for the controllers of one ownership, many partitions of a group at once.

*Source*: docs/protocols I7, I11, I16; the effect `MoveGroup` of `core.groups`.
*Invariants*: a group is moved only if its topic, members and commit are what the machine expects,
and the commit is read last of them, because a member may commit until it leaves; the new commit is
read back.

The moves that are wanted while others are under way are made together. For each group and up to
`TOGETHER_MAX` partitions they cost five requests to the brokers, where each alone costs five.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from stilltide.connectors.errors import ActiveGroupError, ConnectorError
from stilltide.connectors.ports.groups import GroupAdmin
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.core.groups.controller_effects import MoveGroup
from stilltide.pipeline.drivers.groups.metadata import moved
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.replication.origins import topic_incarnation
from stilltide.schemas.values import TopicPartition

log = get_logger(__name__)

TOGETHER_MAX = 100
"""Partitions in one commit: with the longest metadata (4 KiB each) it still fits into a batch of
the brokers' topic of offsets (1 MiB)."""


class _Wanted(NamedTuple):
    """One move, and whether it was made."""

    move: MoveGroup
    done: asyncio.Future[bool]


class GroupMoves:
    """Collects the moves of one ownership's controllers, and makes them in `run`.

    Args:
        groups: admin client for groups of the cluster.
    """

    def __init__(self, groups: GroupAdmin) -> None:
        self._groups = groups
        self._wanted: list[_Wanted] = []
        self._wake = asyncio.Event()

    async def move(self, move: MoveGroup) -> bool:
        """Moves a group; whether its state was right before and the commit after (I7, I12).

        Raises:
            ConnectorError: a request to the brokers failed; the commit may have been made.
        """
        if move.offset is None:
            return False
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._wanted.append(_Wanted(move, done))
        self._wake.set()
        return await done

    async def run(self) -> None:
        """Makes moves until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            by_group: defaultdict[str, list[_Wanted]] = defaultdict(list)
            for one in self._wanted:
                by_group[one.move.group].append(one)
            self._wanted = []
            await asyncio.gather(*(self._all_of(group, them) for group, them in by_group.items()))

    async def _all_of(self, group: str, wanted: Sequence[_Wanted]) -> None:
        for first in range(0, len(wanted), TOGETHER_MAX):
            together = wanted[first : first + TOGETHER_MAX]
            try:
                done = await self._together(group, [one.move for one in together])
            except ConnectorError as error:
                for one in together:
                    if not one.done.done():
                        one.done.set_exception(error)
                continue
            for one in together:
                if not one.done.done():
                    one.done.set_result(one.move.data in done)

    async def _together(self, group: str, moves: Sequence[MoveGroup]) -> set[TopicPartition]:
        """Moves a group on different partitions; returns those on which it was moved."""
        names = {move.data.topic for move in moves}
        topics, active = await asyncio.gather(
            self._groups.topics(names), self._groups.active([group])
        )
        if active:
            return set()
        before = await self._committed(group, moves)  # last: a member may commit until it leaves
        targets: dict[TopicPartition, Committed] = {}
        for move in moves:
            topic, held = topics.get(move.data.topic), before.get(move.data)
            if topic is None or topic_incarnation(topic.topic_id) != move.incarnation:
                continue
            if (held.offset if held else None) != move.expected or move.offset is None:
                continue
            try:
                targets[move.data] = moved(held, move.offset, move.generation)
            except DecodeError as error:
                _not_moved(group, str(move.data), error)
        try:
            await self._groups.move(group, targets)
        except ActiveGroupError as error:
            _not_moved(group, ", ".join(map(str, targets)), error)
            return set()
        after = await self._committed(group, moves) if targets else {}
        return {
            data
            for data, target in targets.items()
            if data in after and after[data].offset == target.offset
        }

    async def _committed(
        self, group: str, moves: Sequence[MoveGroup]
    ) -> dict[TopicPartition, Committed]:
        return (await self._groups.committed([group], [move.data for move in moves]))[group]


def _not_moved(group: str, data: str, error: Exception) -> None:
    log.warning("group_not_moved", group=group, data=data, why=str(error))
