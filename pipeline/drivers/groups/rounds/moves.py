"""Moves groups for the controllers of one ownership, many pairs of group and partition at once.

*Source*: docs/protocols I7, I11, I16; the effect `MoveGroup` of `core.groups`.
*Invariants*: a group is moved only if its topic, members and commit are what the machine expects,
and the commit is read last of them, because a member may commit until it leaves; the new commit is
read back.

The moves that are wanted while others are under way are made together. All that fit into one
question (`TOGETHER_MAX`) cost four questions to the brokers, and a commit for each group.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from stilltide.connectors.errors import ActiveGroupError, ConnectorError
from stilltide.connectors.ports.admin import TopicDescription
from stilltide.connectors.ports.connector import GroupAdmin
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.core.groups.controller_effects import MoveGroup
from stilltide.pipeline.drivers.groups.metadata import moved
from stilltide.pipeline.drivers.groups.rounds.gathering import gather_requests
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.replication.origins import topic_incarnation
from stilltide.schemas.values import TopicPartition

log = get_logger(__name__)

TOGETHER_MAX = 100
"""Groups times partitions of one question, and so partitions in one commit: with the longest
metadata (4 KiB each) it still fits into a batch of the brokers' topic of offsets (1 MiB)."""


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
        now_s = asyncio.get_running_loop().time
        while True:
            await self._wake.wait()
            self._wake.clear()
            began_s = now_s()
            wanted, self._wanted = self._wanted, []
            for together in _questions(wanted):
                await self._answer(together)
            await gather_requests(began_s)

    async def _answer(self, wanted: Sequence[_Wanted]) -> None:
        """Makes these moves; an error of a request is the answer of all that it was asked for."""
        try:
            done = await self._moved([one.move for one in wanted])
        except ConnectorError as error:
            done = dict.fromkeys({one.move.group for one in wanted}, error)
        for one in wanted:
            found = done[one.move.group]
            if one.done.done():
                continue
            if isinstance(found, ConnectorError):
                one.done.set_exception(found)
            else:
                one.done.set_result(one.move.data in found)

    async def _moved(
        self, moves: Sequence[MoveGroup]
    ) -> Mapping[str, Collection[TopicPartition] | ConnectorError]:
        """Moves groups; by group the partitions on which it was moved, or its error."""
        groups = sorted({move.group for move in moves})
        topics, active = await asyncio.gather(
            self._groups.topics({move.data.topic for move in moves}), self._groups.active(groups)
        )
        partitions = {move.data for move in moves}
        before = await self._groups.committed(groups, partitions)  # last: a member may still commit
        targets: dict[str, dict[TopicPartition, Committed]] = {group: {} for group in groups}
        for move in moves:
            target = _target(move, topics.get(move.data.topic), before[move.group].get(move.data))
            if target is not None and move.group not in active:
                targets[move.group][move.data] = target
        tries = [self._commit(group, targets[group]) for group in groups]
        tried = dict(zip(groups, await asyncio.gather(*tries), strict=True))
        to_check = [group for group, found in tried.items() if found is None]
        after = await self._groups.committed(to_check, partitions)
        return {
            group: [data for data, it in targets[group].items() if _is_at(after[group], data, it)]
            if found is None
            else found
            for group, found in tried.items()
        }

    async def _commit(
        self, group: str, targets: Mapping[TopicPartition, Committed]
    ) -> Collection[TopicPartition] | ConnectorError | None:
        """Commits for a group; None: it was done, and is to be checked."""
        if not targets:
            return ()
        try:
            await self._groups.move(group, targets)
        except ActiveGroupError as error:
            _not_moved(group, ", ".join(map(str, targets)), error)
            return ()
        except ConnectorError as error:
            return error
        return None


def _questions(wanted: Sequence[_Wanted]) -> Iterator[Sequence[_Wanted]]:
    """The moves in parts of at most `TOGETHER_MAX` groups times partitions."""
    part: list[_Wanted] = []
    groups: set[str] = set()
    partitions: set[TopicPartition] = set()
    for one in sorted(wanted, key=lambda it: (it.move.data, it.move.group)):
        more_groups, more_partitions = groups | {one.move.group}, partitions | {one.move.data}
        if part and len(more_groups) * len(more_partitions) > TOGETHER_MAX:
            yield part
            part, more_groups, more_partitions = [], {one.move.group}, {one.move.data}
        part.append(one)
        groups, partitions = more_groups, more_partitions
    if part:
        yield part


def _target(
    move: MoveGroup, topic: TopicDescription | None, held: Committed | None
) -> Committed | None:
    """What is to be committed; None: the partition is not as the machine expects it (I7)."""
    if topic is None or topic_incarnation(topic.topic_id) != move.incarnation:
        return None
    if (held.offset if held else None) != move.expected or move.offset is None:
        return None
    try:
        return moved(held, move.offset, move.generation, adopts=move.adopts)
    except DecodeError as error:
        _not_moved(move.group, str(move.data), error)
        return None


def _is_at(
    after: Mapping[TopicPartition, Committed], data: TopicPartition, target: Committed
) -> bool:
    return data in after and after[data].offset == target.offset


def _not_moved(group: str, data: str, error: Exception) -> None:
    log.warning("group_not_moved", group=group, data=data, why=str(error))
