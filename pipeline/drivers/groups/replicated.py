"""Selects the groups that controllers carry over, by settings, patterns and signals.

*Source*: docs/protocols I6, I15; the choice is `core.group_choice`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from itertools import chain

from stilltide.connectors.clock import Clock
from stilltide.connectors.errors import RetriableError
from stilltide.connectors.ports.connector import GroupAdmin
from stilltide.pipeline.core.group_choice import GroupChoice
from stilltide.pipeline.logging import get_logger

log = get_logger(__name__)

LIST_MS = 2000
"""Time between two lists of the cluster's groups, while a pattern enables groups."""


class Replicated:
    """Selects the replicated groups: by an operator's settings, and by other clusters' signals.

    Args:
        named: the settings: topic, group, and whether the group is replicated.
        clock: measures the time between two lists of the cluster's groups.
    """

    def __init__(
        self, named: Callable[[], Collection[tuple[str, str, bool]]], clock: Clock
    ) -> None:
        self._named = named
        self._clock = clock
        self._read: tuple[tuple[str, str, bool], ...] = ()
        self._choice = GroupChoice(())
        self._taken: dict[str, set[str]] = {}
        self._listing = asyncio.Lock()
        self._listed_ms: int | None = None

    @property
    def choice(self) -> GroupChoice:
        """What the settings say now."""
        named = tuple(self._named())
        if named != self._read:
            self._read, self._choice = named, GroupChoice(named)
            self._listed_ms = None
        return self._choice

    async def look(self, groups: GroupAdmin) -> None:
        """Looks which groups patterns take (I15), if that has not been done lately.

        All owners of a worker share the answer. While brokers are away, the last one counts.
        """
        async with self._listing:
            choice, now_ms = self.choice, self._clock.monotonic_ms()
            if self._listed_ms is not None and now_ms - self._listed_ms < LIST_MS:
                return
            committed: Mapping[str, Collection[str]] = {}
            if choice.has_patterns:
                try:
                    listed = await groups.listed()
                    committed = await groups.topics_of(filter(choice.may_take, listed))
                except RetriableError as error:
                    log.warning("groups_not_listed", why=str(error))
                    return
            taken: defaultdict[str, set[str]] = defaultdict(set)
            for topic, group in chain.from_iterable(choice.taken(committed).values()):
                taken[topic].add(group)
            self._taken = dict(taken)
            self._listed_ms = now_ms

    def topics(self) -> set[str]:
        """The topics of which an operator has enabled a group."""
        return self.choice.topics() | self._taken.keys()

    def groups(self, topic: str, known: Collection[str]) -> set[str]:
        """The replicated groups of a topic; `known` are the groups in any cluster's signals."""
        return self.choice.groups(topic, {*known, *self._taken.get(topic, ())})
