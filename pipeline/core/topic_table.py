"""The topics that one client knows: their ids and partition counts, and when to look again.

*Source*: docs/protocols C13, E8.

*Invariants*:
- the partition count of a topic id never falls: a smaller answer comes from a broker whose metadata
  lag behind,
- after an answer that is up to date, the table is up to date, whatever was answered before: an id
  that was replaced may come back, because the id that replaced it may have been the older one,
- a topic that is missing in an answer keeps its id and its count: a deleted topic may come back
  under another id, and only then has anything changed for its readers and writers.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class KnownTopic(NamedTuple):
    """A topic as it was described last.

    Attributes:
        topic_id: Kafka's 16-byte id.
        partition_count: number of partitions.
    """

    topic_id: bytes
    partition_count: int


@dataclass(frozen=True, slots=True)
class TopicGrown:
    """Effect: the topic has partitions `before` to `now` - 1 in addition; the id is the same."""

    topic: str
    before: int
    now: int


@dataclass(frozen=True, slots=True)
class TopicRecreated:
    """Effect: the topic was deleted, and another one exists under its name (E8)."""

    topic: str
    before: bytes
    now: bytes


TopicChange = TopicGrown | TopicRecreated


class TopicTable:
    """The topics of one client.

    Args:
        max_age_ms: longest time between two looks at the topics, > 0.
    """

    def __init__(self, max_age_ms: float) -> None:
        self._max_age_ms = max_age_ms
        self._topics: dict[str, KnownTopic] = {}
        self._looked_ms = -math.inf

    @property
    def names(self) -> Collection[str]:
        """The topics that are known."""
        return self._topics.keys()

    @property
    def deadline_ms(self) -> float | None:
        """When to look at the topics again; None: no topic is known."""
        return self._looked_ms + self._max_age_ms if self._topics else None

    def get(self, name: str) -> KnownTopic | None:
        """The topic as it was described last; None: it was never described."""
        return self._topics.get(name)

    def changes(self, topics: Mapping[str, KnownTopic]) -> list[TopicChange]:
        """What `described` would return; nothing is taken."""
        return [change for name, topic in topics.items() if (change := self._change(name, topic))]

    def described(self, topics: Mapping[str, KnownTopic]) -> list[TopicChange]:
        """Takes an answer of the cluster: the topics that exist, known ones and others, by name."""
        changes = self.changes(topics)
        for change in changes:
            self._topics[change.topic] = topics[change.topic]
        for name, topic in topics.items():
            self._topics.setdefault(name, topic)
        return changes

    def forget(self, names: Collection[str]) -> None:
        """Forgets topics."""
        for name in names:
            self._topics.pop(name, None)

    def looked(self, now_ms: float) -> None:
        """The cluster was asked for every known topic at this time, answered or not."""
        self._looked_ms = max(self._looked_ms, now_ms)

    def overdue(self) -> None:
        """The last look failed: another one is due at once."""
        self._looked_ms = -math.inf

    def _change(self, name: str, topic: KnownTopic) -> TopicChange | None:
        """How a topic differs from what was known of it (C13); None: not at all."""
        known = self._topics.get(name)
        if known is None:
            return None
        if topic.topic_id != known.topic_id:
            return TopicRecreated(name, known.topic_id, topic.topic_id)
        if topic.partition_count > known.partition_count:
            return TopicGrown(name, known.partition_count, topic.partition_count)
        return None
