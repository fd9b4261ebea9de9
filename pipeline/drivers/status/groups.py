"""Reads the replicated groups of all clusters that are there: what a fail-over now reads again.

*Source*: docs/protocols I; the figures are those of `describe_groups`, which reads topics only.

*Invariants*: groups of one topic are read together, since each costs several clients and a read of
signals. Each group keeps its own time and problem.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from stilltide.connectors.clock import Clock
from stilltide.connectors.ports.connector import GroupConnector, closing
from stilltide.pipeline.core.group_choice import GroupChoice, GroupSetting, Pair
from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.core.status.values import GroupPartition, GroupStatus
from stilltide.pipeline.drivers.groups.report import Standpoint, describe_groups, reason
from stilltide.pipeline.drivers.shared.dynamic_settings import settings_now
from stilltide.schemas.errors import DecodeError, StilltideError
from stilltide.schemas.values import ClusterName

AT_ONCE = 3
"""Topics whose groups are read at the same time; each needs several clients."""

GROUPS_MAX = 200
"""Groups that are read: the first ones by topic and name."""

GROUP_S = 30.0
"""Seconds after which the reading of the groups of a topic is given up."""

STUCK = frozenset({Standing.RESET_BY_HAND, Standing.BEYOND_THE_END, Standing.RESET_REFUSED})
"""Standings that do not pass by themselves."""

Clusters = Mapping[ClusterName, GroupConnector]


class GroupsLook:
    """Reads the replicated groups.

    Args:
        clock: tells when a group was read.
        renewed: called with all groups whenever one of them was read.
    """

    def __init__(self, clock: Clock, renewed: Callable[[tuple[GroupStatus, ...]], None]) -> None:
        self._clock = clock
        self._renewed = renewed
        self._known: dict[Pair, tuple[GroupStatus, ...]] = {}
        self._away: Collection[ClusterName] = ()

    async def read(
        self, clusters: Clusters, away: Collection[ClusterName]
    ) -> tuple[GroupStatus, ...]:
        """Every replicated group on each of these clusters, by topic, group and cluster.

        Args:
            clusters: the clusters that are there.
            away: the other ones, of which the topics of these tell.

        Raises:
            ConnectorError: a cluster is away, or forbids a question.
        """
        self._away = away
        settings = {name: await _settings(one) for name, one in clusters.items()}
        wanted = sorted(
            {pair for it, one in clusters.items() for pair in await _pairs(one, settings[it])}
        )[:GROUPS_MAX]
        self._known = {pair: one for pair, one in self._known.items() if pair in set(wanted)}
        choices = {it: GroupChoice(one) for it, one in settings.items()}
        room = asyncio.Semaphore(AT_ONCE)

        async def some(topic: str, groups: Sequence[str]) -> None:
            async with room:
                await self._read_some(topic, groups, clusters, choices)

        of_topic: dict[str, list[str]] = {}
        for topic, group in wanted:
            of_topic.setdefault(topic, []).append(group)
        await asyncio.gather(*(some(*it) for it in of_topic.items()))
        return self._all()

    async def _read_some(
        self,
        topic: str,
        groups: Sequence[str],
        clusters: Clusters,
        choices: Mapping[ClusterName, GroupChoice],
    ) -> None:
        """Reads groups of a topic together; if one is damaged, each alone."""
        patience_s = GROUP_S + len(groups)
        try:
            async with asyncio.timeout(patience_s):
                by_group = await describe_groups(clusters, topic, groups, timeout_s=GROUP_S)
        except (StilltideError, TimeoutError) as error:
            if isinstance(error, DecodeError) and len(groups) > 1:
                for single in groups:
                    await self._read_some(topic, [single], clusters, choices)
                return
            late = f"not read within {patience_s:g} s"
            why = error.primary if isinstance(error, StilltideError) else late
            for pair in ((topic, one) for one in groups):
                self._known[pair] = self._failed(pair, clusters, why)
        else:
            for group, standpoints in by_group.items():
                self._known[topic, group] = self._read((topic, group), standpoints, choices)
        self._renewed(self._all())

    def _read(
        self,
        pair: Pair,
        standpoints: Sequence[Standpoint],
        choices: Mapping[ClusterName, GroupChoice],
    ) -> tuple[GroupStatus, ...]:
        """A group that was read now, on each cluster."""
        settings = {it: choice.setting_of(*pair) for it, choice in choices.items()}
        disabled = [it for it, one in settings.items() if one is not None and not one.enabled]
        now_ms = self._clock.now_ms()
        whys = {id(it): reason(it, disabled=disabled, away=self._away) for it in standpoints}
        return tuple(
            GroupStatus(
                *pair,
                name,
                any(it.seen.active for it in standpoints if it.cluster == name),
                tuple(_partition(it, whys[id(it)]) for it in standpoints if it.cluster == name),
                now_ms,
            )
            for name in choices
        )

    def _failed(self, pair: Pair, clusters: Clusters, problem: str) -> tuple[GroupStatus, ...]:
        """The last values, with the problem."""
        known = {one.cluster: one for one in self._known.get(pair, ())}
        return tuple(
            known[name]._replace(problem=problem)
            if name in known
            else GroupStatus(
                *pair, name, active=False, partitions=(), read_ms=None, problem=problem
            )
            for name in clusters
        )

    def _all(self) -> tuple[GroupStatus, ...]:
        return tuple(one for _, found in sorted(self._known.items()) for one in found)


def _partition(standpoint: Standpoint, why: str) -> GroupPartition:
    return GroupPartition(
        standpoint.data.partition,
        standpoint.seen.offset,
        standpoint.view.decided_end,
        standpoint.standing,
        standpoint.read_again,
        standpoint.read_again_foreign,
        why,
        standpoint.standing in STUCK,
    )


async def _settings(connector: GroupConnector) -> list[GroupSetting]:
    """What is set about groups on a cluster; nothing where no worker has ever run."""
    settings = await settings_now(connector, patience_s=GROUP_S)
    return [GroupSetting(*chosen) for chosen in settings.subscriptions()]


async def _pairs(connector: GroupConnector, settings: list[GroupSetting]) -> set[Pair]:
    """The topics and groups that are enabled on a cluster, by name or by a pattern."""
    choice = GroupChoice(settings)
    pairs = {(it.topic, it.group) for it in settings if it.enabled and not it.is_pattern}
    if choice.has_patterns:
        async with closing(connector.group_admin()) as groups:
            committed = await groups.topics_of(filter(choice.may_take, await groups.listed()))
        pairs |= {pair for taken in choice.taken(committed).values() for pair in taken}
    return pairs
