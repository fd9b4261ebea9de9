"""Which partitions transactions may register: those that exist, of topics that do not compact.

*Source*: docs/protocols C16: a registration of a partition that does not exist would be kept, and
get a marker, for ever more names. A topic that was known once stays known: one that is deleted
later is the matter of E8. C18: a policy may be changed at any time, so it is looked at again.

*Invariants*: one call to the cluster at a time, whatever clients ask for. No registration counts on
a policy that was seen more than `POLICY_AGE_S` ago.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from stilltide.connectors.errors import ConnectorError, NotAuthorizedError
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.pipeline.drivers.shared.named_partitions import questions
from stilltide.pipeline.errors import compacted_topic
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.service.envelopes import RefusalCode, Refused
from stilltide.schemas.topics import compacts
from stilltide.schemas.values import TopicPartition

log = get_logger(__name__)

KNOWN_MAX = 100_000
"""Topics that are remembered; beyond, all are forgotten and looked up again."""

POLICY_AGE_S = 30.0
"""A registration waits for another look at a policy that was seen longer ago (C18)."""

POLICY_RENEWED_S = 15.0
"""A registration has an older policy looked at in the background: busy topics never wait."""


class Missing(NamedTuple):
    """The cluster did not answer, or a topic is changing: the client repeats its request."""

    why: str


Looked = Callable[[Refused | Missing | None], None]
"""Called with why partitions cannot be registered; None: they can."""


class _Topic(NamedTuple):
    """A topic that exists.

    Attributes:
        partition_count: number of partitions.
        compacts: whether its policy says `compact`; None: that was not seen.
        seen_s: when the policy was looked at.
    """

    partition_count: int
    compacts: bool | None
    seen_s: float


_UNKNOWN = _Topic(0, None, 0.0)


class _Registration(NamedTuple):
    partitions: Collection[TopicPartition]
    allow_compacted: bool
    looked: Looked


class KnownTopics:
    """Looks up the topics of registrations; `run` makes the calls.

    Args:
        admin: the cluster.
        now_s: the monotonic clock, in seconds.
    """

    def __init__(self, admin: LogAdmin, now_s: Callable[[], float] | None = None) -> None:
        self._admin = admin
        self._now_s = now_s or asyncio.get_running_loop().time
        self._topics: dict[str, _Topic] = {}
        self._asked: list[_Registration] = []
        self._renewed: set[str] = set()
        self._refused: dict[str, Refused] = {}
        self._wake = asyncio.Event()

    @property
    def names(self) -> Collection[str]:
        """The topics of registrations."""
        return self._topics.keys()

    def unknown(
        self, partitions: Iterable[TopicPartition], *, allow_compacted: bool = False
    ) -> list[TopicPartition]:
        """The partitions of which it is not known that they may be registered."""
        topics, now_s = self._topics, self._now_s()
        renewed_s = now_s - POLICY_RENEWED_S
        unknown: list[TopicPartition] = []
        for data in partitions:
            topic, partition = data
            partition_count, compacting, seen_s = topics.get(topic, _UNKNOWN)
            if partition >= partition_count:
                unknown.append(data)
            elif (compacting is False and seen_s >= renewed_s) or allow_compacted:
                continue
            elif compacting is not False or now_s - seen_s > POLICY_AGE_S:
                unknown.append(data)
            else:
                self._renewed.add(topic)
                self._wake.set()
        return unknown

    def look(
        self,
        partitions: Collection[TopicPartition],
        looked: Looked,
        *,
        allow_compacted: bool = False,
    ) -> None:
        """Looks partitions up, and calls `looked` once."""
        self._asked.append(_Registration(partitions, allow_compacted, looked))
        self._wake.set()

    def learn(
        self,
        described: Mapping[str, TopicDescription],
        configs: Mapping[str, Mapping[str, str | None]],
    ) -> None:
        """Remembers topics that exist; a policy that is not among the configs stays unknown."""
        now_s = self._now_s()
        for name, topic in described.items():
            policy = compacts(configs[name]) if name in configs else None
            self._topics[name] = _Topic(topic.partition_count, policy, now_s)

    async def run(self) -> None:
        """Looks up until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            asked, self._asked = self._asked, []
            wanted, self._renewed = self._renewed, set()
            wanted |= {data.topic for it in asked for data in it.partitions}
            failed = await self._describe(sorted(wanted))
            for it in asked:
                it.looked(failed or self._finding(it.partitions, allowed=it.allow_compacted))

    async def _describe(self, names: list[str]) -> Missing | None:
        """Remembers the topics that exist; or says why the cluster did not answer."""
        if len(self._topics) + len(names) > KNOWN_MAX:
            self._topics.clear()
        self._refused.clear()
        try:
            for some in questions(names):
                await self._learn(some)
        except ConnectorError as error:
            log.warning("topics_not_described", topics=len(names), why=str(error))
            return Missing(error.primary)
        return None

    async def _learn(self, names: Sequence[str]) -> None:
        """Looks topics up; each alone if one is refused, so that it costs others nothing (C17)."""
        described: Mapping[str, TopicDescription] = {}
        try:
            described = await self._admin.describe_topics(names)
            self.learn(described, await self._admin.topic_configs(list(described)))
        except NotAuthorizedError as error:
            if len(names) > 1:
                for name in names:
                    await self._learn([name])
                return
            self.learn(described, {})
            self._refused[names[0]] = Refused(error.primary, RefusalCode.MALFORMED)
            log.warning("topic_refused", topic=names[0], why=error.primary, hint=error.hint)

    def _finding(
        self, partitions: Collection[TopicPartition], *, allowed: bool
    ) -> Refused | Missing | None:
        """Why partitions that were looked up cannot be registered."""
        for data in partitions:
            known = self._topics.get(data.topic, _UNKNOWN)
            refused = self._refused.get(data.topic)
            if data.partition >= known.partition_count:
                return refused or Refused(f"{data} does not exist", RefusalCode.MALFORMED)
            if allowed:
                continue
            if known.compacts is None:
                return refused or Missing(f"topic {data.topic} is changing")
            if known.compacts:
                error = compacted_topic(data.topic)
                reason = f"{data.topic}: {error.primary}; {error.hint}"
                return Refused(reason, RefusalCode.COMPACTED)
        return None
