"""Subscriptions in the same world: they begin, read on and wait while everything goes wrong.

*Source*: rules D1, D2, D3, D4, D5, E4, E8, E9.
"""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import invariant, precondition, rule

from stilltide.schemas.values import TopicPartition
from tests.stateful.test_snapshot_writer import PICK, WHERE, Snapshots
from tests.support.examples import examples
from tests.support.snapshots.reader import SnapshotReader

READERS_MAX = 4


class SnapshotReaders(Snapshots):
    """Says which reader takes its next step."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[SnapshotReader] = []

    @rule(where=WHERE)
    def begin_reading(self, where: TopicPartition):
        """At the log start; at most a few."""
        there = self.world.topics[where]
        if there is not None:
            self.readers = [
                *self.readers[1 - READERS_MAX :],
                SnapshotReader(self.world, where, there),
            ]

    @rule(where=WHERE)
    def begin_reading_where_the_snapshot_ends(self, where: TopicPartition):
        """E9: markers that the snapshot has absorbed are not read, although they are kept."""
        self.begin_reading(where)
        if self.world.topics[where] is not None and not self.readers[-1].begin_at_snapshot():
            self.readers.pop()

    @precondition(lambda self: self.readers)
    @rule(pick=PICK, count=st.integers(1, 4))
    def fetch(self, pick: int, count: int):
        """A reader whose topic or position has left the log stops; what it fetched, it has."""
        reader = self.pick_reader(pick)
        if reader.alive:
            reader.fetch(count)

    @precondition(lambda self: self.readers)
    @rule(pick=PICK, count=st.integers(1, 4))
    def feed(self, pick: int, count: int):
        """What it fetched arrives, maybe long after."""
        self.pick_reader(pick).feed(count)

    @precondition(lambda self: self.readers)
    @rule(pick=PICK, count=st.integers(1, 4))
    def fetch_and_feed(self, pick: int, count: int):
        """Mostly both at once."""
        self.fetch(pick, count)
        self.feed(pick, count)

    @precondition(lambda self: self.readers)
    @rule(pick=PICK, count=st.integers(1, 6))
    def read_markers_too(self, pick: int, count: int):
        """Some more of them."""
        self.pick_reader(pick).read_markers(count)

    @precondition(lambda self: self.readers)
    @rule(pick=PICK)
    def read_snapshots(self, pick: int):
        """To their end; the first one of another topic stops the reader (E8)."""
        reader = self.pick_reader(pick)
        if not reader.read_snapshots():
            assert self.world.table().ends[reader.data].topic_id != reader.there.topic_id
            self.readers.remove(reader)

    @invariant()
    def subscriptions_deliver_what_committed_and_nothing_else(self):
        """D1, D2, D3, D4, D5."""
        for reader in self.readers:
            reader.check()
            reader.check_memory()

    def pick_reader(self, pick: int) -> SnapshotReader:
        """One of them."""
        return self.readers[pick % len(self.readers)]

    def everything_is_decided(self):
        """D2: when faults stop, no reader is stopped by an undecided record."""
        super().everything_is_decided()
        for reader in self.readers:
            if reader.alive:
                reader.finish()
                reader.check()


SnapshotReaders.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=80)
TestSnapshotReaders = SnapshotReaders.TestCase
