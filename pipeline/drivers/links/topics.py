"""The topics of a link: found on the source, created on the target, checked on both.

*Source*: docs/protocols H1 (partition n to n), H6, H7, H8, H12.

*Invariants*: a topic that the target lacks is created with the source's number of partitions and
configs, and with replicas for the target's brokers; partitions that a copied topic gains are added.
Of the processes of a link, one does both (H12). The link removes no topic and no partition. A topic
that a publish writes is copied only if it is named: where each cluster has a publish of its own,
the copies of both would meet (H7).

Refuses: topics whose numbers of partitions differ before anything was copied, and a target topic
with records that no link has copied.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.connectors.ports.copying import COPY_TIMEOUT_S
from stilltide.pipeline.core.group_choice import fits, is_pattern
from stilltide.pipeline.core.links.configs import carried
from stilltide.pipeline.core.links.copying import Topics
from stilltide.pipeline.core.replicas import WantedReplicas
from stilltide.pipeline.drivers.links.share import LinkShare
from stilltide.pipeline.drivers.links.sides import PositionsView, Side, TopicNames, within_awake
from stilltide.pipeline.errors import LinkError
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.replication.origins import topic_incarnation
from stilltide.schemas.topics import PREFIX, TopicSpec
from stilltide.schemas.values import Offset, TopicPartition

T = TypeVar("T")

_ANSWER_S = 2.0
"""First limit of `AnswerTime`; a cluster at rest answers within milliseconds."""

_OF_THE_CLUSTER = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.timestamp.difference.max.ms",
        "message.timestamp.type",
        "min.insync.replicas",
        "unclean.leader.election.enable",
    }
)
"""Configs that belong to a cluster and not to a topic's content. MirrorMaker leaves out the same
configs; with `message.timestamp.type` a copy would lose its timestamp."""

_log = get_logger(__name__)


async def incarnations(admin: LogAdmin, names: Sequence[str]) -> dict[str, bytes]:
    """The incarnations of topics, by name; a topic that does not exist is absent."""
    described = await admin.describe_topics(names)
    return {name: topic_incarnation(one.topic_id) for name, one in described.items()}


class AnswerTime:
    """Limits how long an open transaction waits for what the clusters say of their topics.

    Readers of the target wait behind the transaction. The source may have died, and its admin
    client asks for as long as the transaction may be open. A link that gives up aborts the
    transaction. A busy cluster gets twice the time after each failure, and three times what its
    last answer took. Time in which the process was frozen does not count: the link may have been
    replaced meanwhile, and must not begin again.
    """

    def __init__(self) -> None:
        self._seconds = _ANSWER_S

    async def of(self, answer: Awaitable[T]) -> T:
        """The answer; raises `RetriableError` if it does not come in time."""
        now = asyncio.get_running_loop().time
        began = now()
        try:
            result = await within_awake(answer, self._seconds)
        except TimeoutError:
            error = f"a cluster of the link did not answer within {self._seconds:g} s"
            self._seconds = min(2 * self._seconds, COPY_TIMEOUT_S)
            raise RetriableError(error, hint="check that the brokers of both run") from None
        self._seconds = min(max(_ANSWER_S, 3 * (now() - began)), COPY_TIMEOUT_S)
        return result


async def topics_now(
    source: LogAdmin, target: LogAdmin, partitions: Sequence[TopicPartition], names: TopicNames
) -> dict[TopicPartition, Topics]:
    """The topics of both sides as of now, without the log start of the source, which is 0 here."""
    on_source = {data: names.on_source(data).topic for data in partitions}
    on_target = {data.topic for data in partitions}
    source_ids, target_ids, starts = await asyncio.gather(
        incarnations(source, sorted(set(on_source.values()))),
        incarnations(target, sorted(on_target)),
        target.start_offsets(partitions),
    )
    return {
        data: Topics(source_ids[topic], target_ids[data.topic], Offset(0), starts[data])
        for data, topic in on_source.items()
        if topic in source_ids and data.topic in target_ids and data in starts
    }


async def create_like(
    sides: tuple[Side, Side],
    topics: Mapping[str, TopicDescription],
    replicas: WantedReplicas,
    created: Callable[[str, Mapping[str, str]], None] = lambda *_: None,
) -> None:
    """Creates topics on the target with the partitions and configs that others have on the source.

    Args:
        sides: source and target.
        topics: by the name of a topic to create, the topic of the source.
        replicas: replicas of the created topics.
        created: called with each topic's name and the configs that it got from the source.
    """
    if not topics:
        return
    source, target = sides
    configs = await source.admin.topic_overrides([one.name for one in topics.values()])
    usable = replicas.on(await target.admin.broker_figures())
    for name, topic in topics.items():
        own = configs.get(topic.name, {})
        kept = {
            config: carried(config, value)
            for config, value in own.items()
            if config not in _OF_THE_CLUSTER
        }
        created(name, kept)
        await target.admin.ensure_topics([TopicSpec(name, topic.partition_count, kept, usable)])
        _log.info(
            "created a topic",
            cluster=target.name,
            topic=name,
            configs=kept,
            replication_factor=usable.factor,
            min_insync_replicas=usable.min_insync,
        )


async def described(
    source: Side,
    target: Side,
    topics: Sequence[tuple[TopicDescription, TopicDescription]],
    names: TopicNames,
) -> dict[TopicPartition, Topics]:
    """The data partitions of topics, each with what it is on the source and on the target."""
    pairs = {
        TopicPartition(theirs.name, number): (ours, theirs)
        for ours, theirs in topics
        for number in range(min(ours.partition_count, theirs.partition_count))
    }
    if not pairs:
        return {}
    on_source = {data: names.on_source(data) for data in pairs}
    source_starts = await source.admin.start_offsets(list(on_source.values()))
    target_starts = await target.admin.start_offsets(list(pairs))
    return {
        data: Topics(
            topic_incarnation(ours.topic_id),
            topic_incarnation(theirs.topic_id),
            source_starts[on_source[data]],
            target_starts[data],
        )
        for data, (ours, theirs) in pairs.items()
        if on_source[data] in source_starts and data in target_starts
    }


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Selects the topics to copy.

    Attributes:
        patterns: names of topics, or shell patterns such as `orders-*`; a plain name must exist.
        merge: whether to copy into topics that had records before the first copy.
    """

    patterns: Sequence[str] = ("*",)
    merge: bool = False

    def takes(self, name: str) -> bool:
        """Whether a topic of the source is copied; system topics never are."""
        return not name.startswith(PREFIX) and fits(name, self.patterns)

    def absent(self, names: Sequence[str]) -> list[str]:
        """The plain names in `patterns` that are not among `names`."""
        return [one for one in self.patterns if not is_pattern(one) and one not in names]


class LinkedTopics:
    """The topics of one link, as of the last `look`."""

    def __init__(
        self,
        sides: tuple[Side, Side],
        views: tuple[PositionsView, PositionsView],
        choice: TopicChoice,
        share: LinkShare,
        *,
        replicas: WantedReplicas,
        created: Callable[[str, Mapping[str, str]], None] = lambda *_: None,
    ) -> None:
        self._source, self._target = sides
        self._on_source, self._on_target = views
        self._choice = choice
        self._share = share
        self._replicas = replicas
        self._created = created
        self._refused: dict[str, str] = {}
        self._linked: set[str] = set()
        self._left_out: set[str] = set()

    async def look(self, *, strict: bool) -> dict[TopicPartition, Topics]:
        """Every data partition to be copied, as it is on both sides.

        Args:
            strict: whether to raise for a topic that cannot be linked; if not, the topic is left
                out, which is logged once.

        Raises:
            LinkError: a topic does not exist, or cannot be linked; names both sides.
            ConnectorError: a request to a cluster failed.
        """
        names = [one for one in await self._source.admin.list_topics() if self._choice.takes(one)]
        absent = self._choice.absent(names)
        if absent and strict:
            await self._source.admin.describe_topics(absent)  # a listing hides what is refused
            raise LinkError(
                f"topic {absent[0]} does not exist on {self._source.name}",
                hint="create it, or correct its name",
            )
        on_source = await self._source.admin.describe_topics(names)
        on_target = await self._on_both(names)
        if on_source.keys() - self._linked:
            await self._on_source.catch_up()
            await self._on_target.catch_up()
        for name in self._published(on_source, on_target):
            del on_source[name]
        on_target = await self._ensured(on_source, on_target, strict=strict)
        both = [(on_source[name], theirs) for name, theirs in on_target.items()]
        return await described(self._source, self._target, both, TopicNames())

    def _published(
        self,
        on_source: Mapping[str, TopicDescription],
        on_target: Mapping[str, TopicDescription],
    ) -> list[str]:
        """The topics that a publish writes on either side, except those that are named (H7)."""
        published = [
            name
            for name, ours in on_source.items()
            if name not in self._choice.patterns
            and (
                self._on_source.is_published(ours)
                or (name in on_target and self._on_target.is_published(on_target[name]))
            )
        ]
        for name in published:
            if name not in self._left_out:
                self._left_out.add(name)
                _log.info("a published topic is not copied", topic=name)
        return published

    async def _on_both(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        return await self._target.admin.describe_topics(names)

    async def _ensured(
        self,
        on_source: Mapping[str, TopicDescription],
        on_target: Mapping[str, TopicDescription],
        *,
        strict: bool,
    ) -> dict[str, TopicDescription]:
        """The topics of the target that may be copied to; creates missing ones first."""
        leads = self._share.leads  # else the process that leads creates what is missing (H12)
        missing = [name for name in on_source if name not in on_target and leads]
        lacking = {name: on_source[name] for name in missing}
        sides = self._source, self._target
        await create_like(sides, lacking, self._replicas, self._created)
        good: list[str] = list(missing)
        for name in on_source:
            if name not in on_target:
                continue
            problem = await self._problem(on_source[name], on_target[name])
            if problem is None:
                good.append(name)
                self._refused.pop(name, None)
            elif strict:
                raise problem
            elif self._refused.get(name) != problem.primary:
                self._refused[name] = problem.primary
                _log.error("a topic is not copied", reason=problem.primary, hint=problem.hint)
        self._linked = set(good)
        return await self._target.admin.describe_topics(good)

    async def _problem(self, ours: TopicDescription, theirs: TopicDescription) -> LinkError | None:
        """Why a topic of both sides cannot be linked; adds partitions that the source gained."""
        source, target, name = self._source.name, self._target.name, ours.name
        linked = name in self._linked or (source, target, name) in self._on_target.links
        linked_back = (target, source, name) in self._on_source.links
        if ours.partition_count != theirs.partition_count and not (linked or linked_back):
            return LinkError(
                f"topic {name} has {ours.partition_count} partitions on {source}"
                f" and {theirs.partition_count} on {target}",
                detail="partition n is copied to partition n",
                hint="give both as many, or leave the topic out with --topics",
            )
        if ours.partition_count > theirs.partition_count and self._share.leads:
            await self._target.admin.add_partitions(name, ours.partition_count)
            _log.info(
                "added partitions", cluster=target, topic=name, partitions=ours.partition_count
            )
        if linked or linked_back or self._choice.merge or self._is_copied(name):
            return None
        return await self._foreign(theirs)

    def _is_copied(self, topic: str) -> bool:
        """Whether a link, this one or another, has copied to a topic of the target."""
        return any(name == topic for _, _, name in self._on_target.links)

    async def _foreign(self, theirs: TopicDescription) -> LinkError | None:
        partitions = [
            TopicPartition(theirs.name, number) for number in range(theirs.partition_count)
        ]
        ends = await self._target.admin.end_offsets(partitions)
        if not any(ends.values()):
            return None
        await self._on_target.catch_up()  # another process may have copied since the last time
        if self._is_copied(theirs.name):
            return None
        return LinkError(
            f"topic {theirs.name} on {self._target.name} has records that no link has copied,"
            f" and {self._source.name} would be copied between them",
            hint="use --merge if both sides are to have all records; otherwise empty one of them",
        )
