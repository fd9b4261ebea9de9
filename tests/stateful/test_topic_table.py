"""The topics that a client knows, while topics grow, vanish and come back, and brokers lag behind.

*Source*: rule C13.
"""

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stilltide.pipeline.core.topic_table import (
    KnownTopic,
    TopicChange,
    TopicGrown,
    TopicRecreated,
    TopicTable,
)

NAMES = st.sampled_from(["orders", "payments"])


class Topics(RuleBasedStateMachine):
    """A cluster with all of its past metadata, and a client that gets any of them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = TopicTable(max_age_ms=1000)
        self.ids = 0
        self.history: list[dict[str, KnownTopic]] = [{}]
        self.seen: dict[str, KnownTopic] = {}

    @rule(name=NAMES, count=st.integers(1, 4))
    def create(self, name: str, count: int):
        """Creates a topic, or another one of its name."""
        self.ids += 1
        topic = KnownTopic(self.ids.to_bytes(16), count)
        self.history.append({**self.history[-1], name: topic})

    @rule(name=NAMES, more=st.integers(1, 3))
    def grow(self, name: str, more: int):
        """Adds partitions, if the topic exists."""
        topic = self.history[-1].get(name)
        if topic is not None:
            grown = topic._replace(partition_count=topic.partition_count + more)
            self.history.append({**self.history[-1], name: grown})

    @rule(name=NAMES)
    def delete(self, name: str):
        """Deletes the topic."""
        self.history.append({it: one for it, one in self.history[-1].items() if it != name})

    @rule(lag=st.integers(0, 5))
    def look(self, lag: int):
        """C13: any broker answers, with metadata that lag behind."""
        for change in self.table.described(self.history[max(0, len(self.history) - 1 - lag)]):
            self.take(change)
        for name in self.table.names:
            known = self.table.get(name)
            assert known is not None
            self.seen.setdefault(name, known)

    def take(self, change: TopicChange):
        """C13: changes lead from what was known to what is known; no count falls."""
        known = self.seen[change.topic]
        if isinstance(change, TopicGrown):
            assert change.before == known.partition_count < change.now
            self.seen[change.topic] = known._replace(partition_count=change.now)
        else:
            assert isinstance(change, TopicRecreated)
            assert change.before == known.topic_id
            assert change.now != known.topic_id
            found = self.table.get(change.topic)
            assert found is not None
            self.seen[change.topic] = found

    @invariant()
    def changes_tell_all(self):
        """C13: a client that follows the changes knows what the table knows."""
        for name, known in self.seen.items():
            assert self.table.get(name) == known

    @rule()
    def settle(self):
        """C13: an answer that is up to date is taken, whatever was answered before."""
        self.look(0)
        for name, topic in self.history[-1].items():
            known = self.table.get(name)
            assert known is not None
            assert known.topic_id == topic.topic_id
            assert known.partition_count >= topic.partition_count


TestTopics = Topics.TestCase
