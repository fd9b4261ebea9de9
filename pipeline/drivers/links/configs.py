"""Has the configs of a link's topics follow those of the source.

*Source*: docs/protocols H8 (rules in `core.links.configs`).

*Invariants*: a topic whose configs may not be read or altered stays as it is, which `/readyz`, the
metrics and the log say; the link goes on copying. Only configs of the target's topics are altered.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from stilltide.connectors.errors import ConnectorError, FatalError
from stilltide.connectors.ports.connector import TopicAdmin
from stilltide.pipeline.core.links.configs import (
    AlterConfigs,
    Authority,
    ConfigFollower,
    LeftAlone,
    ReadSourceEnds,
    ReportDiffering,
    TopicConfigs,
    TopicPair,
    alike,
    authority,
)
from stilltide.pipeline.core.links.copying import Topics
from stilltide.pipeline.core.links.progress import LinkProgress
from stilltide.pipeline.drivers.links.sides import PositionsView, Side
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.values import ClusterName, TopicPartition

_log = get_logger(__name__)

_WAITS = "the target follows as soon as the link has copied what was there before the change"
_LEFT_ALONE = (
    "make them equal; or name the leading cluster in replicate_configs_from, or what is to differ "
    "in replicate_configs_except"
)


@dataclass(frozen=True, slots=True)
class ConfigOptions:
    """What a link does with the configs of topics.

    Attributes:
        lead: name of the cluster whose configs the topics of all others follow; empty: none is
            named, and only changes are carried that the link sees.
        left_alone: configs on the target that the link never alters.
        interval_s: time between two looks, and a little more.
    """

    lead: str = ""
    left_alone: LeftAlone = field(default_factory=LeftAlone)
    interval_s: float = 30.0


class FollowedConfigs:
    """The configs of one link's topics.

    Args:
        sides: source and target.
        views: the buckets on source and target.
        admin: alters configs of the target; its maker closes it.
        options: what is followed.
        progress: gets the figures.
    """

    def __init__(
        self,
        sides: tuple[Side, Side],
        views: tuple[PositionsView, PositionsView],
        admin: TopicAdmin,
        options: ConfigOptions,
        progress: LinkProgress,
    ) -> None:
        self._source, self._target = sides
        self._views = views
        self._admin = admin
        self._lead = options.lead
        self._left_alone = options.left_alone
        self._follower = ConfigFollower(options.left_alone)
        self._progress = progress
        self._turn = asyncio.Lock()

    def created(self, topic: str, own: Mapping[str, str]) -> None:
        """The link creates a topic with these configs of the source."""
        self._follower.created(topic, own)

    def leave(self) -> None:
        """Another process follows the configs now: what was seen so far says nothing (H12)."""
        self._follower = ConfigFollower(self._left_alone)
        self._progress.forget_configs(set(self._progress.configs))

    async def look(self, seen: Mapping[TopicPartition, Topics]) -> None:
        """Looks at the configs on both sides once, and alters what the target is to follow.

        Args:
            seen: the data partitions that are copied.

        Raises:
            RetriableError: a cluster is away.
        """
        async with self._turn:
            partitions: dict[str, list[TopicPartition]] = {}
            for data in seen:
                partitions.setdefault(data.topic, []).append(data)
            self._follower.keep(partitions)
            self._progress.forget_configs(self._progress.configs.keys() - partitions.keys())
            try:
                pairs = await self._pairs(partitions, seen)
            except FatalError as error:
                for topic in partitions:
                    self._refused(topic, error)
                return
            for pair in pairs:
                await self._follow(pair)

    async def _pairs(
        self,
        partitions: Mapping[str, list[TopicPartition]],
        seen: Mapping[TopicPartition, Topics],
    ) -> list[TopicPair]:
        """The topics as they are on both sides."""
        source, target = self._source.admin, self._target.admin
        there, here = await asyncio.gather(
            source.topic_overrides(list(partitions)), target.topic_overrides(list(partitions))
        )
        both = [name for name in partitions if name in there and name in here]
        # What follows is needed only for topics that differ, which is rare.
        unlike = [name for name in both if not alike(there[name], here[name])]
        all_there, all_here = await asyncio.gather(
            source.topic_configs(unlike), target.topic_configs(unlike)
        )
        if unlike:
            await asyncio.gather(*(view.catch_up() for view in self._views))
        gone = set(unlike) - (all_there.keys() & all_here.keys())
        allowed = self._authorities(unlike)
        return [
            TopicPair(
                name,
                seen[partitions[name][0]][:2],
                TopicConfigs(there[name], all_there.get(name, {})),
                TopicConfigs(here[name], all_here.get(name, {})),
                allowed.get(name, Authority.NONE),  # nothing to alter where nothing differs
                {data: self._position(data, seen[data]) for data in partitions[name]},
            )
            for name in both
            if name not in gone
        ]

    def _authorities(self, topics: list[str]) -> dict[str, Authority]:
        into: list[dict[str, set[ClusterName]]] = []
        for view, side in zip(self._views, (self._source, self._target), strict=True):
            sources: dict[str, set[ClusterName]] = {name: set() for name in topics}
            for source, target, name in view.links:
                if target == side.name and name in sources:
                    sources[name].add(source)
            into.append(sources)
        return {
            name: authority(self._lead, self._source.name, into[0][name], into[1][name])
            for name in topics
        }

    def _position(self, data: TopicPartition, topics: Topics) -> int:
        """The link's position, by its newest bucket: another process of the link may copy (H12)."""
        _, bucket = self._views[1].newest.get((self._source.name, data), (0, None))
        if bucket is None or (bucket.source_incarnation, bucket.target_incarnation) != topics[:2]:
            return 0
        return bucket.source_to

    async def _follow(self, pair: TopicPair) -> None:
        """Carries out what the machine decides about one topic."""
        refused = False
        for effect in self._follower.seen(pair):
            match effect:
                case ReportDiffering():
                    self._report(effect)
                case ReadSourceEnds(topic):
                    ends = await self._source.admin.end_offsets(list(pair.positions))
                    self._follower.ends_read(topic, ends)
                case AlterConfigs(topic, changes):
                    try:
                        await self._admin.alter_configs({topic: changes})
                    except ConnectorError as error:  # also if the outcome is not known
                        self._refused(topic, error)
                        refused = True
                    else:
                        self._carried(pair, changes)
        if not refused:
            self._progress.configs_of(pair.topic).refused = ""

    def _carried(self, pair: TopicPair, changes: Mapping[str, str | None]) -> None:
        self._progress.configs_of(pair.topic).carried += len(changes)
        _log.info(
            "altered configs of a topic",
            cluster=self._target.name,
            topic=pair.topic,
            configs=dict(changes),
            before={config: pair.target.own.get(config) for config in changes},
        )

    def _report(self, effect: ReportDiffering) -> None:
        self._progress.configs_of(effect.topic).differing = len(effect.configs)
        if not effect.configs:
            return
        _log.warning(
            "configs of a topic differ",
            source=self._source.name,
            target=self._target.name,
            topic=effect.topic,
            configs={name: list(values) for name, values in effect.configs.items()},
            hint=_WAITS if effect.waiting else _LEFT_ALONE,
        )

    def _refused(self, topic: str, error: ConnectorError) -> None:
        figures = self._progress.configs_of(topic)
        if figures.refused != error.primary:
            figures.refused = error.primary
            _log.error(
                "configs of a topic are not followed",
                topic=topic,
                reason=error.primary,
                hint=error.hint,
            )
