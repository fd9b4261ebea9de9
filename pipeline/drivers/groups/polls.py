"""Looks at groups, logs and the end of the positions for controllers, many partitions at once.

*Source*: docs/protocols I6, I7; the effect `Poll` of `core.groups`.
*Invariants*: a look reads groups, then the ends of logs, then the end of the positions, all after
the request; the topic id is the same before and after, or there is no answer.

A look costs six requests to the brokers for any number of partitions and groups, at most three of
them one after the other; it starts with the topics as the previous look has found them.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from stilltide.connectors.errors import ConnectorError, RetriableError
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.connectors.ports.groups import GroupAdmin
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.core.groups.frontier import LogView
from stilltide.pipeline.core.groups.group import GroupSeen
from stilltide.pipeline.drivers.groups.metadata import generation_of
from stilltide.pipeline.drivers.read_committed.decided_log import DecidedLog
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.replication.origins import Incarnation, topic_incarnation
from stilltide.schemas.values import ClusterName, EndOffset, TopicPartition

log = get_logger(__name__)

_KEPT = 65_536
"""Commits that are kept decoded: at rest a group's is the same at every look (I16)."""


class Polled(NamedTuple):
    """The state of one data partition and its groups; see `ReplicationController.polled`."""

    view: LogView
    groups: Mapping[str, GroupSeen]
    positions_end: EndOffset


class _Asked(NamedTuple):
    data: TopicPartition
    groups: frozenset[str]
    answer: asyncio.Future[Polled | None]


class GroupPolls:
    """Collects the requests of one ownership's controllers, and answers them in `run`.

    Args:
        admin: admin client of the cluster.
        groups: admin client of the same cluster for groups.
        decided: finds the decided ends of the partitions.
        here: name of the cluster.
        positions: the ownership's partition of replication-positions.
    """

    def __init__(
        self,
        admin: LogAdmin,
        groups: GroupAdmin,
        decided: DecidedLog,
        *,
        here: ClusterName,
        positions: TopicPartition,
    ) -> None:
        self._admin = admin
        self._groups = groups
        self._decided = decided
        self._here = here
        self._positions = positions
        self._asked: list[_Asked] = []
        self._topics: Mapping[str, TopicDescription] = {}  # as the last look found them
        self._wake = asyncio.Event()

    async def poll(self, data: TopicPartition, groups: Collection[str]) -> Polled | None:
        """The partition and these groups, as of now or later; None: the topic is gone or replaced.

        Raises:
            ConnectorError: a request to the brokers failed.
        """
        answer: asyncio.Future[Polled | None] = asyncio.get_running_loop().create_future()
        self._asked.append(_Asked(data, frozenset(groups), answer))
        self._wake.set()
        return await answer

    async def run(self) -> None:
        """Answers until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            asked, self._asked = self._asked, []
            try:
                found = await self._look(asked)
            except ConnectorError as error:
                for one in asked:
                    if not one.answer.done():
                        one.answer.set_exception(error)
                continue
            for one in asked:
                if not one.answer.done():
                    one.answer.set_result(found.get(one.data))

    async def _look(self, asked: Sequence[_Asked]) -> dict[TopicPartition, Polled]:
        admin = self._admin
        names = sorted({one.data.topic for one in asked})
        before = self._topics
        if not before.keys() >= set(names):
            before = await admin.describe_topics(names)
        there = [one for one in asked if one.data.topic in before]
        groups = sorted({group for one in there for group in one.groups})
        everywhere = {
            TopicPartition(name, number)
            for name in before
            for number in range(before[name].partition_count)
        }.union(one.data for one in there)  # a partition may be newer than the topics in `before`
        partitions = [one.data for one in there]
        # Together: a member that commits and leaves between both answers is found by the move.
        active, committed, starts = await asyncio.gather(
            self._groups.active(groups),
            self._groups.committed(groups, everywhere),
            admin.start_offsets(partitions),
        )
        decided = {data: self._decided.decided_end(data) for data in partitions}
        ends = await admin.end_offsets(partitions)  # after the starts, so that none is below them
        after, index_ends = await asyncio.gather(
            admin.describe_topics(names), admin.end_offsets([self._positions])
        )
        self._topics = after
        if self._positions not in index_ends:
            raise RetriableError("the positions of links have no end", topic=self._positions.topic)
        found: dict[TopicPartition, Polled] = {}
        topics = {group: {one.topic for one in committed.get(group, ())} for group in groups}
        for data, wanted, _ in there:
            same = data.topic in after and after[data.topic].topic_id == before[data.topic].topic_id
            if not same or data not in starts or data not in ends:
                continue
            incarnation = Incarnation(self._here, topic_incarnation(before[data.topic].topic_id))
            view = LogView(incarnation, starts[data], ends[data], min(decided[data], ends[data]))
            seen = {
                group: _seen(
                    data,
                    group,
                    committed.get(group, {}).get(data),
                    active=group in active,
                    elsewhere=data.topic in topics[group],
                )
                for group in wanted
            }
            readable = {group: one for group, one in seen.items() if one is not None}
            found[data] = Polled(view, readable, index_ends[self._positions])
        return found


def _seen(
    data: TopicPartition, group: str, held: Committed | None, *, active: bool, elsewhere: bool
) -> GroupSeen | None:
    """The state of a group; None: its commit cannot be decoded, so that it must not be moved."""
    try:
        return _state(held, active, elsewhere)
    except DecodeError as error:
        log.warning("group_left_alone", group=group, data=str(data), why=str(error))
        return None


@lru_cache(_KEPT)
def _state(held: Committed | None, active: bool, elsewhere: bool) -> GroupSeen:  # noqa: FBT001 - a key
    if held is None:
        return GroupSeen(None, None, active, elsewhere)
    return GroupSeen(held.offset, generation_of(held), active, elsewhere)
