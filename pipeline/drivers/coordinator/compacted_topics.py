"""Which topics with records of coordinated transactions have begun to compact.

*Source*: docs/protocols C18: a policy may be changed while nobody registers anything. Snapshot
writers know the topics that hold records of coordinated transactions.

*Invariants*: a look is bounded (`questions`, `TOPICS_MAX`), and a topic that was looked at is
looked at again after `LOOK_AGAIN_S`, unless a right is missing.

Refuses: to end or to hinder a transaction; what is registered already commits.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from stilltide.connectors.clock import Clock
from stilltide.connectors.errors import ConnectorError, NotAuthorizedError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.core.group_choice import fits
from stilltide.pipeline.drivers.shared.named_partitions import questions
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.coordinator.transactions import CompactedTopic
from stilltide.schemas.retry import POLICIES, POLICIES_AT_START, POLICY_QUESTION
from stilltide.schemas.topics import compacts

log = get_logger(__name__)

LOOK_AGAIN_S = 60.0
"""Seconds between two looks at all topics, and between two lines of the log about one of them."""

TOPICS_MAX = 10_000
"""Topics that are looked at; of more, the first by name."""

REPORTED_MAX = 100
"""Topics that are reported."""

MISSING_MAX = 10
"""Missing rights after which a look ends: the worker is not ready with one of them already."""


class CompactedTopics:
    """Looks at the policies of topics in `run`.

    Args:
        admin: the cluster.
        clock: tells when a topic was seen to compact.
        names: the topics with records of coordinated transactions; None: not known yet.
        allowed: names and patterns of topics that may compact.

    Attributes:
        looked: whether the topics that were there at the start of the worker were looked at.
    """

    def __init__(
        self,
        admin: LogAdmin,
        clock: Clock,
        names: Callable[[], Collection[str] | None],
        allowed: Sequence[str] = (),
    ) -> None:
        self._admin = admin
        self._clock = clock
        self._names = names
        self._allowed = allowed
        self._seen: dict[str, int] = {}
        self._logged_s: dict[str, float] = {}
        self._known: set[str] = set()
        self._hidden: dict[str, NotAuthorizedError] = {}
        self.looked = False

    @property
    def missing(self) -> Sequence[NotAuthorizedError]:
        """The rights to see policies that the worker lacks, as of the last look."""
        return list(self._hidden.values())

    def report(self) -> tuple[CompactedTopic, ...]:
        """The topics that compact, by name, with the time since when the worker has seen that."""
        return tuple(CompactedTopic(*one) for one in sorted(self._seen.items())[:REPORTED_MAX])

    async def run(self) -> None:
        """Looks until cancelled; a cluster that is away is the matter of `ClusterWatch`."""
        now_s = asyncio.get_running_loop().time
        all_due_s = now_s()
        while True:
            names = self._names()
            if names is None:
                await asyncio.sleep((POLICIES if self.looked else POLICIES_AT_START).wait_s())
                continue
            wanted = {it for it in names if not fits(it, self._allowed)}
            due = wanted if now_s() >= all_due_s else wanted - self._known | self._hidden.keys()
            try:
                await self.look(sorted(due & wanted)[:TOPICS_MAX])
            except ConnectorError as error:
                log.debug("policies_not_looked_at", why=error.primary)
            else:
                self.looked = True
                if due is wanted:
                    self._forget_others(wanted)
                    all_due_s = now_s() + LOOK_AGAIN_S
            await asyncio.sleep(POLICIES.wait_s())

    async def look(self, names: Sequence[str]) -> None:
        """Looks at topics, in several questions; ends early once many rights are missing.

        Raises:
            ConnectorError: the cluster is away.
        """
        for number, some in enumerate(questions(names)):
            if number:
                await asyncio.sleep(POLICY_QUESTION.wait_s())
            try:
                self._told(some, await self._admin.topic_configs(some))
            except NotAuthorizedError:
                for name in some:
                    await self._look_alone(name)
                    if len(self._hidden) >= MISSING_MAX:
                        return

    async def _look_alone(self, name: str) -> None:
        """Looks at a topic among which one is refused; one that is not seen at all is no matter."""
        try:
            self._told([name], await self._admin.topic_configs([name]))
        except NotAuthorizedError as error:
            self._known.add(name)
            self._hidden.pop(name, None)
            if await self._may_describe(name):
                self._hidden[name] = error

    async def _may_describe(self, name: str) -> bool:
        try:
            return bool(await self._admin.describe_topics([name]))
        except NotAuthorizedError:
            return False

    def _told(self, names: Sequence[str], configs: Mapping[str, Mapping[str, str | None]]) -> None:
        for name in names:
            self._known.add(name)
            self._hidden.pop(name, None)
            if name in configs and compacts(configs[name]):
                self._seen.setdefault(name, self._clock.now_ms())
                self._say(name)
            else:
                self._seen.pop(name, None)

    def _say(self, name: str) -> None:
        """Logs that a topic compacts, once in a while."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s.get(name, -LOOK_AGAIN_S) < LOOK_AGAIN_S:
            return
        self._logged_s[name] = now_s
        log.warning(
            "topic_compacts",
            topic=name,
            seen_since_ms=self._seen[name],
            why="it holds records of coordinated transactions, and for an aborted one Kafka's "
            "cleaner deletes the committed value of the key",
            hint=compacting_hint(name),
        )

    def _forget_others(self, names: Collection[str]) -> None:
        """Forgets topics that hold no records of coordinated transactions any more."""
        self._known.intersection_update(names)
        for kept in (self._seen, self._logged_s, self._hidden):
            for name in kept.keys() - names:
                del kept[name]


def compacting_hint(name: str) -> str:
    """The next step for a topic that compacts and holds records of coordinated transactions."""
    return (
        f"kafka-configs.sh --alter --topic {name} --add-config cleanup.policy=delete, and publish "
        "the topic to one that compacts (`stilltide publish`); the setting allow_compacted is for "
        "topics whose keys are never written again"
    )
