"""Looks at groups, logs and the end of the positions for controllers, many partitions at once.

*Source*: docs/protocols I6, I7; the effect `Poll` of `core.groups`.
*Invariants*: a look reads groups, then the ends of logs, then the end of the positions, all after
the request; the topic id is the same before and after, or there is no answer.

A look costs six requests to the brokers for any number of partitions and groups, at most three of
them one after the other, and one more while a group may have its first commits in a topic (I6); it
starts with the topics as the previous look has found them. A partition
at rest has its answer when something differs from the last one, or after `REST_S_MAX`; until then
all such partitions share a glance every `REST_S`, which costs two requests to each coordinating
broker and a comparison if it finds nothing (I16). A glance does not ask for the ends of logs, as
new records are read anyway. Partitions that are settled and do not rest yet share glances of their
own, every `SETTLED_S`, and have an answer when those at rest are glanced at.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from math import inf
from typing import NamedTuple

from stilltide.connectors.errors import ActiveGroupError, ConnectorError, RetriableError
from stilltide.connectors.ports.admin import TopicDescription
from stilltide.connectors.ports.connector import GroupAdmin
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.core.groups.frontier import LogView
from stilltide.pipeline.core.groups.group import GroupSeen, MoveGroup
from stilltide.pipeline.drivers.groups.read_elsewhere import generation_of, moved
from stilltide.pipeline.drivers.read_committed.decided_log import DecidedLog
from stilltide.pipeline.drivers.shared.alarm import Alarm
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.replication.origins import Incarnation, topic_incarnation
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition

log = get_logger(__name__)

REST_S = 0.5
"""Time between two looks at partitions at rest."""

SETTLED_S = 0.05
"""Time between two looks at settled partitions in which something has changed lately."""

REST_S_MAX = 2.5
"""Longest time until a partition at rest has an answer: then its links are judged, and groups that
were enabled meanwhile are asked for (I15)."""

_KEPT = 65_536
"""Commits that are kept decoded: at rest a group's is the same at every look (I16)."""


class Polled(NamedTuple):
    """The state of one data partition and its groups; see `ReplicationController.polled`."""

    view: LogView
    groups: Mapping[str, GroupSeen]
    positions_end: EndOffset


_Commits = Mapping[str, Mapping[TopicPartition, Committed]]

_GroupOfTopic = tuple[str, str]
"""A group, and a topic."""


class _Seen(NamedTuple):
    """What a look has seen at the brokers, before it is sorted by partition.

    Attributes:
        topics: ids of the topics that were the same before and after.
        partitions: the partitions of which commits were read.
        lacking: groups and topics for which all partitions of the topic were read, too.
        elsewhere: the commits that were read so.
        read: by group, the topics of those commits.
    """

    topics: Mapping[str, bytes]
    partitions: Collection[TopicPartition]
    active: Collection[str]
    committed: _Commits
    lacking: frozenset[_GroupOfTopic]
    elsewhere: _Commits
    read: Mapping[str, Collection[str]]
    starts: Mapping[TopicPartition, Offset]
    ends: Mapping[TopicPartition, EndOffset]
    decided: Mapping[TopicPartition, EndOffset]
    positions_end: EndOffset


class _Poll(NamedTuple):
    """One request; with `unlike` the partition is settled or rests.

    Attributes:
        same: what was seen when the answer was like `unlike`.
    """

    data: TopicPartition
    groups: frozenset[str]
    unpublished: frozenset[str]
    answer: asyncio.Future[Polled | None]
    unlike: Polled | None
    same: _Seen | None = None


class _Waiting:
    """Requests that wait until something differs, and share glances.

    Attributes:
        asked: the requests, by partition.
        seen: what the last look at them has seen.
        next_s: loop time of the next glance.
        look_s: loop time at which all of them have an answer.
    """

    def __init__(self) -> None:
        self.asked: dict[TopicPartition, _Poll] = {}
        self.seen: _Seen | None = None
        self.next_s = 0.0
        self.look_s = inf

    def take(self) -> list[_Poll]:
        """The requests, of which none waits any longer."""
        asked, self.asked = [*self.asked.values()], {}
        return asked


class GroupPolls:
    """Collects the requests of one ownership's controllers, and answers them in `run`.

    Args:
        groups: admin client of the cluster for groups.
        decided: finds the decided ends of the partitions.
        here: name of the cluster.
        positions: the ownership's partition of replication-positions.
    """

    def __init__(
        self,
        groups: GroupAdmin,
        decided: DecidedLog,
        *,
        here: ClusterName,
        positions: TopicPartition,
    ) -> None:
        self._groups = groups
        self._decided = decided
        self._here = here
        self._positions = positions
        self._asked: list[_Poll] = []
        self._settled, self._resting = _Waiting(), _Waiting()
        self._urgent: set[TopicPartition] = set()  # since the present look began
        self._topics: Mapping[str, TopicDescription] = {}  # as the last look found them
        self._known: frozenset[TopicPartition] = frozenset()  # all that were asked for so far
        self._wake = asyncio.Event()
        self._alarm = Alarm(self._wake.set)

    async def poll(
        self,
        data: TopicPartition,
        groups: Collection[str],
        *,
        unpublished: Collection[str] = (),
        unlike: Polled | None = None,
        rests: bool = True,
    ) -> Polled | None:
        """The partition and these groups, as of now or later; None: the topic is gone or replaced.

        Args:
            data: the partition; asked for once at a time.
            groups: the groups.
            unpublished: those of the groups about which no cluster has published anything here: if
                they have no commit of the partition, the other ones of its topic are looked at.
            unlike: the last answer, if the partition is settled: the next one may wait until it
                differs in view or groups, until `look_soon`, and for `REST_S` at most.
            rests: whether a settled partition rests: it may wait for `REST_S_MAX`.

        Raises:
            ConnectorError: a request to the brokers failed.
        """
        answer: asyncio.Future[Polled | None] = asyncio.get_running_loop().create_future()
        asked = _Poll(data, frozenset(groups), frozenset(unpublished), answer, unlike)
        if unlike is None:
            self._asked.append(asked)
        elif rests:
            self._resting.asked[data] = asked
            now_s = asyncio.get_running_loop().time()
            self._resting.look_s = min(self._resting.look_s, now_s + REST_S_MAX)
        else:
            self._settled.asked[data] = asked
        self._wake.set()
        return await answer

    def look_soon(self, data: TopicPartition) -> None:
        """Has a settled partition looked at now, if it waits for an answer."""
        self._urgent.add(data)
        for waiting in (self._settled, self._resting):
            asked = waiting.asked.pop(data, None)
            if asked is not None:
                self._asked.append(asked._replace(unlike=None))
                self._wake.set()

    async def run(self) -> None:
        """Answers until cancelled."""
        try:
            await self._run()
        finally:
            self._alarm.cancel()

    async def _run(self) -> None:
        now_s = asyncio.get_running_loop().time
        settled, resting = self._settled, self._resting
        resting.next_s = now_s()
        while True:
            await self._due()
            self._urgent.clear()
            if is_glance := now_s() >= resting.next_s:
                resting.next_s = now_s() + REST_S
                self._asked += settled.take()
            asked, self._asked = self._asked, []
            if asked:
                began_s = now_s()
                await self._answered(asked, self._answer)
                await gather_requests(began_s)
            if is_glance:
                await self._glance(resting)
            if now_s() >= settled.next_s:
                settled.next_s = now_s() + SETTLED_S
                await self._glance(settled)

    async def _due(self) -> None:
        """Waits for a question, and at most until a glance is due for those that wait."""
        if not self._asked:
            due_s = [it.next_s for it in (self._settled, self._resting) if it.asked]
            if due_s:
                self._alarm.arm(min(due_s) * 1000, asyncio.get_running_loop().time() * 1000)
            await self._wake.wait()
        self._wake.clear()

    async def _answered(
        self, asked: Sequence[_Poll], answer: Callable[[Sequence[_Poll]], Awaitable[None]]
    ) -> None:
        """Has all of these answered, or resting again; an error is an answer."""
        try:
            await answer(asked)
        except ConnectorError as error:
            for asker in asked:
                if not asker.answer.done():
                    asker.answer.set_exception(error)

    async def _answer(self, asked: Sequence[_Poll]) -> None:
        seen = await self._look(asked)
        for asker in asked:
            if not asker.answer.done():
                asker.answer.set_result(self._polled(asker, seen))

    async def _glance(self, waiting: _Waiting) -> None:
        """Answers those for which there is something new; the others go on waiting."""
        if asked := waiting.take():
            await self._answered(asked, partial(self._look_again, waiting))

    async def _look_again(self, waiting: _Waiting, asked: Sequence[_Poll]) -> None:
        last, due = waiting.seen, asyncio.get_running_loop().time() >= waiting.look_s
        if not due and last is not None and await self._is_still(last, asked):
            waiting.asked |= {one.data: one._replace(same=last) for one in asked}
            for data in self._urgent.intersection(waiting.asked):
                self.look_soon(data)
            return
        if due:
            waiting.look_s = inf
        seen = waiting.seen = await self._look(asked)
        for asker in asked:
            polled = self._polled(asker, seen)
            if due or asker.data in self._urgent or not _alike(polled, asker.unlike):
                if not asker.answer.done():
                    asker.answer.set_result(polled)
            else:
                waiting.asked[asker.data] = asker._replace(same=seen)

    async def _is_still(self, seen: _Seen, asked: Sequence[_Poll]) -> bool:
        """Whether groups and decided ends are as they were seen, and the askers know that."""
        for asker in asked:
            if self._decided.decided_end(asker.data) != seen.decided.get(asker.data):
                return False
            if asker.same is not seen and not _alike(self._polled(asker, seen), asker.unlike):
                return False
        if not _lacking(asked, seen.committed) <= seen.lacking:
            return False
        groups = sorted({group for one in asked for group in one.groups})
        active, committed, elsewhere = await asyncio.gather(
            self._groups.active(groups),
            self._groups.committed(groups, seen.partitions),
            self._elsewhere(seen.lacking, self._topics),
        )
        return (active, committed, elsewhere) == (seen.active, seen.committed, seen.elsewhere)

    async def _look(self, asked: Sequence[_Poll]) -> _Seen:
        names = sorted({one.data.topic for one in asked})
        before = {name: self._topics[name] for name in names if name in self._topics}
        if len(before) < len(names):
            before = await self._groups.topics(names)
        there = [one for one in asked if one.data.topic in before]
        groups = sorted({group for one in there for group in one.groups})
        partitions = [one.data for one in there]
        together = self._together(partitions)
        logs = [it for it in together if _exists(it, before)]
        # Together: a member that commits and leaves between both answers is found by the move.
        active, committed, starts = await asyncio.gather(
            self._groups.active(groups),
            self._groups.committed(groups, together),
            self._groups.log_starts(logs),
        )
        lacking = frozenset(_lacking(there, committed))
        elsewhere = await self._elsewhere(lacking, before)
        decided = {data: self._decided.decided_end(data) for data in partitions}
        ends = await self._groups.log_ends(logs)  # after the starts, so that none is below them
        after, index_ends = await asyncio.gather(
            self._groups.topics(names), self._groups.log_ends([self._positions])
        )
        gone = set(names) - after.keys()
        self._topics = {it: one for it, one in self._topics.items() if it not in gone} | after
        if self._positions not in index_ends:
            raise RetriableError("the positions of links have no end", topic=self._positions.topic)
        topics = {
            name: topic.topic_id
            for name, topic in after.items()
            if name in before and before[name].topic_id == topic.topic_id
        }
        return _Seen(
            topics,
            together,
            active,
            committed,
            lacking,
            elsewhere,
            {group: {one.topic for one in elsewhere[group]} for group in elsewhere},
            starts,
            ends,
            decided,
            index_ends[self._positions],
        )

    def _together(self, asked: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """The partitions to read commits of: what is asked for, or all known ones if that is most.

        The answer to the same question as before is compared, and not decoded again (I16).
        """
        if not self._known.issuperset(asked):
            self._known = self._known.union(asked)
        return self._known if 2 * len(asked) > len(self._known) else frozenset(asked)

    async def _elsewhere(
        self, lacking: Collection[_GroupOfTopic], topics: Mapping[str, TopicDescription]
    ) -> _Commits:
        """All commits of these groups on these topics."""
        if not lacking:
            return {}
        groups = sorted({group for group, _ in lacking})
        names = {topic for _, topic in lacking if topic in topics}
        partitions = [
            TopicPartition(name, number)
            for name in names
            for number in range(topics[name].partition_count)
        ]
        return await self._groups.committed(groups, partitions)

    def _polled(self, asker: _Poll, seen: _Seen) -> Polled | None:
        data, topic = asker.data, seen.topics.get(asker.data.topic)
        if topic is None or data not in seen.starts or data not in seen.ends:
            return None
        incarnation = Incarnation(self._here, topic_incarnation(topic))
        decided_end = min(seen.decided[data], seen.ends[data])
        view = LogView(incarnation, seen.starts[data], seen.ends[data], decided_end)
        groups: dict[str, GroupSeen] = {}
        for group in asker.groups:
            commits = seen.committed.get(group, {})
            active, commit = group in seen.active, commits.get(data)
            elsewhere = commit is None and group in asker.unpublished
            elsewhere = elsewhere and data.topic in seen.read.get(group, ())
            state = _seen(data, group, commit, active=active, elsewhere=elsewhere)
            if state is not None:
                groups[group] = state
        return Polled(view, groups, seen.positions_end)


def _exists(data: TopicPartition, topics: Mapping[str, TopicDescription]) -> bool:
    topic = topics.get(data.topic)
    return topic is not None and data.partition < topic.partition_count


def _lacking(asked: Iterable[_Poll], committed: _Commits) -> set[_GroupOfTopic]:
    """The groups of which it matters whether they have committed elsewhere in which topic."""
    return {
        (group, asker.data.topic)
        for asker in asked
        for group in asker.unpublished
        if asker.data not in committed.get(group, ())
    }


def _alike(polled: Polled | None, known: Polled | None) -> bool:
    """Whether an answer is what its asker knows, apart from the end of the positions."""
    return polled is not None and known is not None and polled[:2] == known[:2]


def _seen(
    data: TopicPartition, group: str, commit: Committed | None, *, active: bool, elsewhere: bool
) -> GroupSeen | None:
    """The state of a group; None: its commit cannot be decoded, so that it must not be moved."""
    try:
        return group_seen(commit, active, elsewhere)
    except DecodeError as error:
        log.warning("group_left_alone", group=group, data=str(data), why=str(error))
        return None


@lru_cache(_KEPT)
def group_seen(commit: Committed | None, active: bool, elsewhere: bool) -> GroupSeen:  # noqa: FBT001 - a key
    """A group by its commit of a partition; `DecodeError`: metadata of another version."""
    if commit is None:
        return GroupSeen(None, None, active, elsewhere)
    return GroupSeen(commit.offset, generation_of(commit), active, elsewhere)


COMMITTED_MAX = 100
"""Partitions of one question, and so of one commit of a group: with the longest metadata (4 KiB
each) it still fits into a batch of the brokers' topic of offsets (1 MiB)."""

TOGETHER_MAX = 2000
"""Groups times partitions of one question."""


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
        for request in wanted:
            result = done[request.move.group]
            if request.done.done():
                continue
            if isinstance(result, ConnectorError):
                request.done.set_exception(result)
            else:
                request.done.set_result(request.move.data in result)

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
            if outcome is None
            else outcome
            for group, outcome in tried.items()
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
    """The moves in parts of at most `COMMITTED_MAX` partitions and `TOGETHER_MAX` pairs."""
    part: list[_Wanted] = []
    groups: set[str] = set()
    partitions: set[TopicPartition] = set()
    for request in sorted(wanted, key=lambda it: (it.move.data, it.move.group)):
        more_groups, more_partitions = (
            groups | {request.move.group},
            partitions | {request.move.data},
        )
        pairs = len(more_groups) * len(more_partitions)
        if part and (len(more_partitions) > COMMITTED_MAX or pairs > TOGETHER_MAX):
            yield part
            part, more_groups, more_partitions = [], {request.move.group}, {request.move.data}
        part.append(request)
        groups, partitions = more_groups, more_partitions
    if part:
        yield part


def _target(
    move: MoveGroup, topic: TopicDescription | None, commit: Committed | None
) -> Committed | None:
    """What is to be committed; None: the partition is not as the machine expects it (I7)."""
    if topic is None or topic_incarnation(topic.topic_id) != move.incarnation:
        return None
    if (commit.offset if commit else None) != move.expected or move.offset is None:
        return None
    try:
        return moved(commit, move.offset, move.generation, adopts=move.adopts)
    except DecodeError as error:
        _not_moved(move.group, str(move.data), error)
        return None


def _is_at(
    after: Mapping[TopicPartition, Committed], data: TopicPartition, target: Committed
) -> bool:
    return data in after and after[data].offset == target.offset


def _not_moved(group: str, data: str, error: Exception) -> None:
    log.warning("group_not_moved", group=group, data=data, why=str(error))


GATHER_S_MAX = 0.1
"""Longest pause."""


async def gather_requests(began_s: float) -> None:
    """Waits as long as the round that has just ended took, so that rounds take half of the time.

    Args:
        began_s: when the round began, by the event loop's clock.
    """
    took_s = asyncio.get_running_loop().time() - began_s
    await asyncio.sleep(min(took_s, GATHER_S_MAX))
