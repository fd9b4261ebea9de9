"""Reads the replicated groups of all clusters that are there: what a fail-over now reads again.

*Source*: docs/protocols I; the figures are those of `describe_group`, which reads topics only.

*Invariants*: each group keeps its own time, so that one that takes long delays no other.
"""

import asyncio
from collections.abc import Callable, Mapping

from stilltide.connectors.clock import Clock
from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.groups import GroupConnector
from stilltide.pipeline.core.group_choice import GroupChoice, GroupSetting, Pair
from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.core.status.values import GroupPartition, GroupStatus
from stilltide.pipeline.drivers.groups.reason import reason
from stilltide.pipeline.drivers.groups.report import Standpoint, describe_group
from stilltide.pipeline.drivers.shared.dynamic_settings import DynamicSettings
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.topics import SETTINGS
from stilltide.schemas.values import ClusterName

AT_ONCE = 3
"""Groups that are read at the same time; each needs several clients."""

GROUPS_MAX = 200
"""Groups that are read: the first ones by topic and name."""

GROUP_S = 30.0
"""Seconds after which the reading of a group is given up."""

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

    async def read(self, clusters: Clusters) -> tuple[GroupStatus, ...]:
        """Every replicated group on each of these clusters, by topic, group and cluster.

        Raises:
            ConnectorError: a cluster is away, or forbids a question.
        """
        settings = {name: await _settings(one) for name, one in clusters.items()}
        wanted = sorted(
            {pair for it, one in clusters.items() for pair in await _pairs(one, settings[it])}
        )[:GROUPS_MAX]
        self._known = {pair: one for pair, one in self._known.items() if pair in set(wanted)}
        choices = {it: GroupChoice(one) for it, one in settings.items()}
        room = asyncio.Semaphore(AT_ONCE)

        async def one(pair: Pair) -> None:
            async with room:
                await self._read_one(pair, clusters, choices)

        await asyncio.gather(*map(one, wanted))
        return self._all()

    async def _read_one(
        self, pair: Pair, clusters: Clusters, choices: Mapping[ClusterName, GroupChoice]
    ) -> None:
        settings = {it: choice.setting_of(*pair) for it, choice in choices.items()}
        disabled = [it for it, one in settings.items() if one is not None and not one.enabled]
        try:
            async with asyncio.timeout(GROUP_S):
                found = await describe_group(clusters, *pair, timeout_s=GROUP_S)
        except StilltideError as error:
            self._known[pair] = self._failed(pair, clusters, error.primary)
        except TimeoutError:
            self._known[pair] = self._failed(pair, clusters, f"not read within {GROUP_S:g} s")
        else:
            now_ms = self._clock.now_ms()
            whys = {id(it): reason(it, disabled=disabled) for it in found}
            self._known[pair] = tuple(
                GroupStatus(
                    *pair,
                    name,
                    any(it.seen.active for it in found if it.cluster == name),
                    tuple(_partition(it, whys[id(it)]) for it in found if it.cluster == name),
                    now_ms,
                )
                for name in clusters
            )
        self._renewed(self._all())

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


def _partition(one: Standpoint, why: str) -> GroupPartition:
    return GroupPartition(
        one.data.partition,
        one.seen.offset,
        one.view.decided_end,
        one.standing,
        one.read_again,
        one.read_again_foreign,
        why,
        one.standing in STUCK,
    )


async def _settings(connector: GroupConnector) -> list[GroupSetting]:
    """What is set about groups on a cluster; nothing where no worker has ever run."""
    settings = DynamicSettings(connector, patience_s=GROUP_S)
    try:
        await settings.open()
        return [GroupSetting(*one) for one in settings.subscriptions()]
    except FatalError as error:
        if error.topic == SETTINGS:
            return []
        raise
    finally:
        await settings.close()


async def _pairs(connector: GroupConnector, settings: list[GroupSetting]) -> set[Pair]:
    """The topics and groups that are enabled on a cluster, by name or by a pattern."""
    choice = GroupChoice(settings)
    found = {(it.topic, it.group) for it in settings if it.enabled and not it.is_pattern}
    if choice.has_patterns:
        groups = connector.group_admin()
        try:
            committed = await groups.topics_of(filter(choice.may_take, await groups.listed()))
        finally:
            await groups.close()
        found |= {pair for pairs in choice.taken(committed).values() for pair in pairs}
    return found
