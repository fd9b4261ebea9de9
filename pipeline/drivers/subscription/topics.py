"""The topics that a subscription reads now: named ones, and those that fit its patterns.

*Source*: docs/protocols D8, C13.

*Invariants*: the id of a topic is known before the group's positions in the topic are asked for. A
failure of reading or committing ends the subscription only if the topics have not changed.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.pipeline.core.group_choice import TopicPatterns
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.subscription.intake import Intake
from stilltide.pipeline.drivers.subscription.options import SubscriptionOptions
from stilltide.pipeline.errors import NoTopicError
from stilltide.pipeline.logging import get_logger

_log = get_logger(__name__)


class SubscribedTopics:
    """Looks for the topics of a subscription; with patterns again whenever the age is reached.

    Args:
        admin: admin client of the cluster; the caller closes it.
        outages: repeats calls while the cluster is away.
        options: names and patterns, and the age.

    Attributes:
        ids: Kafka's ids of the topics that are read, by name; the same object all along.
        changes: how often the topics have changed.
    """

    def __init__(self, admin: LogAdmin, outages: OutageGuard, options: SubscriptionOptions) -> None:
        self._admin = admin
        self._outages = outages
        self._choice = TopicPatterns(options.topics, options.left_out)
        self._max_age_s = options.metadata_max_age_s
        self._looking = asyncio.Lock()
        self.changes = 0
        self._settled = 0  # changes that the group's last assignment took in
        self._intake: Intake | None = None
        self.ids: dict[str, bytes] = {}

    async def first(
        self, outages: OutageGuard, system: Sequence[str]
    ) -> Mapping[str, TopicDescription]:
        """Finds the topics; the descriptions of them and of those `system` topics that exist.

        Raises:
            NoTopicError: no topic fits a pattern.
            FatalError: a named topic does not exist.
            UnavailableError: the cluster cannot be reached.
        """
        chosen = await outages.call(chosen_now, self._admin, self._choice)
        described = await outages.call(self._admin.describe_topics, [*chosen, *system])
        _require(self._choice.names, described)
        self.ids |= {name: described[name].topic_id for name in chosen if name in described}
        return described

    async def run(self, intake: Intake) -> None:
        """Follows the topics that fit the patterns, until cancelled.

        Raises:
            UnavailableError: the cluster stayed away.
        """
        self._intake = intake
        while self._choice.patterns:
            await asyncio.sleep(self._max_age_s)
            await self.look()

    @property
    def settled(self) -> bool:
        """Whether the group's last assignment is of the topics that are there now."""
        return self.changes == self._settled

    def assigned(self, topics: Collection[str]) -> None:
        """The group has assigned partitions of these topics.

        With a topic that is gone, the assignment was made before this member left that topic, and
        another assignment follows.
        """
        if self.ids.keys() >= set(topics):
            self._settled = self.changes

    async def look(self) -> None:
        """D8: looks once, and has the group share out the topics that are there now."""
        if self._intake is None or not self._choice.patterns:
            return
        async with self._looking:
            existing = await self._outages.call(self._admin.list_topics)
            chosen = self._choice.chosen(existing)
            new = [name for name in chosen if name not in self.ids]
            described: Mapping[str, TopicDescription] = {}
            if new:
                described = await self._outages.call(self._admin.describe_topics, new)
            gone = self.ids.keys() - set(chosen)
            if not described and not gone:
                return
            for name in gone:
                del self.ids[name]
            self.ids |= {name: one.topic_id for name, one in described.items()}
            self._intake.decided.forget_topics(gone)
            _log.info("the topics have changed", new=sorted(described), gone=sorted(gone))
            self.changes += 1
            reader, names = self._intake.reader, sorted(self.ids)
            await self._outages.call(reader.change_topics, names)


async def topics_now(connector: Connector, topic: str) -> list[str]:
    """A topic, whether it exists or not, or what fits a pattern; raises as `chosen_now`."""
    async with closing(connector.admin()) as admin:
        return await chosen_now(admin, TopicPatterns([topic]))


async def chosen_now(admin: LogAdmin, choice: TopicPatterns) -> list[str]:
    """The plain names, whether they exist or not, and the topics that fit the patterns; sorted.

    Raises:
        NoTopicError: no topic fits a pattern.
        RetriableError: the cluster cannot be reached.
    """
    existing = await admin.list_topics() if choice.patterns else []
    for pattern in choice.patterns:
        if not choice.taken_by(pattern, existing):
            raise _nothing_fits(pattern, existing, await admin.cluster_id())
    return choice.chosen(existing)


def _require(topics: Collection[str], described: Mapping[str, TopicDescription]) -> None:
    for name in topics:
        if name not in described:
            raise FatalError(
                "the topic does not exist", hint="create it, or correct its name", topic=name
            )


def _nothing_fits(pattern: str, existing: Collection[str], cluster_id: str) -> NoTopicError:
    return NoTopicError(
        f"no topic fits the pattern {pattern!r}",
        detail=f"the client sees {len(existing)} topics of cluster {cluster_id}",
        hint="create a topic, correct the pattern, or allow Describe on the topics",
    )
