"""Snapshots of aborted transactions when everything that can go wrong does.

*Source*: rules D1, D4, E1, E2, E3, E4, E5, E6, E7, E8. Markers, barriers and reads are late, or
lost and asked for again; zombies repeat markers and write records of transactions that were aborted
long ago; writers are replaced between any two steps and linger; the cleaner and retention take what
they may; topics are deleted and created again.
"""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stilltide.pipeline.core.snapshots.writer import DELETED_AFTER_MS, SWEEP_MS
from stilltide.schemas.values import TopicPartition, TxnId
from tests.support.examples import examples
from tests.support.snapshots.world import PARTITIONS, Actor, SnapshotWorld

PICK = st.integers(0, 10**6)
WHERE = st.sampled_from(PARTITIONS)


class Snapshots(RuleBasedStateMachine):
    """Says what happens next; the world does it and knows the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.world = SnapshotWorld()

    # -- transactions

    @rule(coordinator=st.sampled_from([0, 0, 1, 2]), where=WHERE, behind=st.integers(0, 2))
    def open_and_write(self, coordinator: int, where: TopicPartition, behind: int):
        """C2: registers, then writes."""
        self.world.open(coordinator)
        txn = list(self.world.txns)[-1]
        self.world.register(txn, where, behind)
        if where in self.world.txns[txn].registered:
            self.world.append(where, txn)

    @precondition(lambda self: self.open_txns())
    @rule(pick=PICK, where=WHERE, behind=st.integers(0, 2), count=st.integers(0, 2))
    def write_more(self, pick: int, where: TopicPartition, behind: int, count: int):
        """C2: also elsewhere, and where the topic is another one by now."""
        txn = self.pick_open(pick)
        self.world.register(txn, where, behind)
        if where in self.world.txns[txn].registered:
            for _ in range(count):
                self.world.append(where, txn)

    @precondition(lambda self: self.open_txns())
    @rule(pick=PICK, committed=st.booleans())
    def end(self, pick: int, *, committed: bool):
        """C4: its markers are on their way."""
        self.world.end(self.pick_open(pick), committed=committed)

    @precondition(lambda self: self.world.flights)
    @rule(pick=PICK)
    def land_marker(self, pick: int):
        """In any order."""
        self.world.land_marker(pick)

    @rule(where=WHERE, committed=st.booleans())
    def end_at_once(self, where: TopicPartition, *, committed: bool):
        """For once nothing is late."""
        self.open_and_write(0, where, 0)
        self.world.end(list(self.world.txns)[-1], committed=committed)
        while self.world.flights:
            self.world.land_marker(0)

    # -- what goes wrong around them

    @precondition(lambda self: self.world.landed)
    @rule(pick=PICK)
    def repeat_marker(self, pick: int):
        """C4: a zombie writes a marker again, long after its transaction has ended."""
        self.world.append_marker(self.world.landed[pick % len(self.world.landed)])

    @precondition(lambda self: self.zombie_places())
    @rule(pick=PICK)
    def write_late(self, pick: int):
        """D1: a zombie client's record of an aborted transaction, whatever the topic is by now."""
        places = self.zombie_places()
        txn, data = places[pick % len(places)]
        self.world.append(data, txn)

    @precondition(lambda self: self.world.log)
    @rule(pick=PICK)
    def compact_markers(self, pick: int):
        """The cleaner takes a marker that was repeated, or an old barrier."""
        self.world.compact_markers(pick)

    @precondition(lambda self: self.world.snapshots)
    @rule(picks=st.lists(PICK, min_size=1, max_size=6))
    def compact_snapshots(self, picks: list[int]):
        """The cleaner takes what was replaced, in any order."""
        for pick in picks:
            if self.world.snapshots:
                self.world.compact_snapshots(pick)

    @rule(where=WHERE, pick=PICK, everything=st.booleans())
    def retain(self, where: TopicPartition, pick: int, *, everything: bool):
        """E5: the data log starts later now."""
        there = self.world.topics[where]
        if there is not None:
            end = len(there.records)
            there.log_start = max(there.log_start, end if everything else pick % (end + 1))
            if there.pinned_at is not None:
                there.pinned_at = max(there.pinned_at, there.log_start)

    @rule(where=WHERE)
    def pin(self, where: TopicPartition):
        """A native transaction begins or ends; the last stable offset stays behind it."""
        there = self.world.topics[where]
        if there is not None:
            there.pinned_at = None if there.pinned_at is not None else len(there.records)
            there.records.append(None)

    @rule(where=WHERE, again=st.booleans())
    def delete_topic(self, where: TopicPartition, *, again: bool):
        """E8: a topic goes, or another one of that name comes, at once or later."""
        if again:
            self.world.create(where)
        else:
            self.world.topics[where] = None

    # -- snapshot writers

    @precondition(lambda self: self.world.asks)
    @rule(pick=PICK, lost=st.booleans())
    def answer_ask(self, pick: int, *, lost: bool):
        """E1: a coordinator hears the question, or not."""
        if lost and pick % 4 == 0:
            self.world.asks.pop(pick % len(self.world.asks))
        else:
            self.world.answer_ask(pick)

    @precondition(lambda self: self.world.barriers)
    @rule(pick=PICK)
    def land_barrier(self, pick: int):
        """In any order."""
        self.world.append_marker(self.world.barriers.pop(pick % len(self.world.barriers)))

    @rule(pick=PICK, count=st.integers(1, 4))
    def read_markers(self, pick: int, count: int):
        """A writer reads on."""
        self.world.read_markers(self.any_actor(pick), count)

    @rule(pick=PICK)
    def step(self, pick: int):
        """A read of a writer goes one step further, or its write ends."""
        actor = self.any_actor(pick)
        if actor.reads:
            self.world.read_positions(actor, pick)
        elif actor.end_reads:
            self.world.read_marker_end(actor, pick)

    @precondition(lambda self: any(one.write for one in self.actors()))
    @rule(pick=PICK, committed=st.booleans(), reported=st.booleans())
    def end_write(self, pick: int, *, committed: bool, reported: bool):
        """E3: committed or aborted; a writer that does not hear which begins again."""
        writing = [one for one in self.actors() if one.write]
        actor = writing[pick % len(writing)]
        self.world.end_write(actor, committed=committed, reported=reported)

    @precondition(lambda self: self.world.trims)
    @rule(pick=PICK)
    def trim(self, pick: int):
        """Now, or long after its writer was replaced; or never."""
        self.world.trim(self.world.trims.pop(pick % len(self.world.trims)))

    @rule(where=WHERE)
    def request(self, where: TopicPartition):
        """E7: a blocked reader asks."""
        self.world.request(where)

    @rule(zombie=st.booleans())
    def replace_writer(self, *, zombie: bool):
        """Two at once, or the first one has died."""
        self.world.replace_writer()
        if not zombie:
            self.world.zombies.clear()

    @rule()
    def snapshot_calmly(self):
        """For once everything is answered."""
        self.calm()

    @rule(elapsed_ms=st.sampled_from([1000, 5000, DELETED_AFTER_MS, SWEEP_MS]))
    def pass_time(self, elapsed_ms: int):
        """Clocks tick."""
        self.world.now_ms += elapsed_ms
        for actor in self.actors():
            if self.world.now_ms >= actor.machine.deadline_ms:
                self.world.run(actor, actor.machine.tick(self.world.now_ms))
                assert actor.machine.deadline_ms > self.world.now_ms, "spins"

    # -- what must hold

    @invariant()
    def readers_see_what_is_committed_and_nothing_else(self):
        """D1, D4, E2."""
        self.world.check_readers()

    def actors(self) -> list[Actor]:
        """The writer, and the one it replaced that may not have noticed."""
        return [self.world.writer, *self.world.zombies]

    def any_actor(self, pick: int) -> Actor:
        """Mostly the writer."""
        actors = self.actors()
        return actors[max(0, pick % (len(actors) + 2) - 2)]

    def open_txns(self) -> list[TxnId]:
        """Transactions that their clients have not ended."""
        return [txn for txn, held in self.world.txns.items() if held.committed is None]

    def pick_open(self, pick: int) -> TxnId:
        """One of them."""
        found = self.open_txns()
        return found[pick % len(found)]

    def zombie_places(self) -> list[tuple[TxnId, TopicPartition]]:
        """Where clients of aborted transactions may still write."""
        return [
            (txn, data)
            for txn, held in self.world.txns.items()
            if held.committed is False
            for data in held.registered
        ]

    def calm(self):
        """What is under way arrives, until nothing is."""
        world = self.world
        while True:
            writer = world.writer
            if writer.reads:
                world.read_positions(writer, 0)
            elif world.asks:
                world.answer_ask(0)
            elif world.barriers:
                world.append_marker(world.barriers.pop(0))
            elif writer.machine.position < world.log_end:
                world.read_markers(writer, 100)
            elif writer.end_reads:
                world.read_marker_end(writer, 0)
            elif writer.write:
                world.end_write(writer, committed=True, reported=True)
            elif world.trims:
                world.trim(world.trims.pop(0))
            else:
                return

    def take_all(self):
        """A snapshot of everything on request; what died with its writer is asked for again."""
        world = self.world
        for data, there in world.topics.items():
            if there is not None:
                world.request(data)
        for _ in range(8):
            self.calm()
            self.pass_time(1000)
        self.calm()

    def teardown(self):
        """When faults stop, every record is decided, and retention empties the snapshots (E5)."""
        world = self.world
        world.zombies.clear()
        world.requests.clear()
        for txn in self.open_txns():
            world.end(txn, committed=False)
        while world.flights:
            world.land_marker(0)
        world.start_writer()
        for there in world.topics.values():
            if there is not None:
                there.pinned_at = None
        for _ in range(3):
            self.take_all()
        assert not world.requests
        world.check_readers()
        self.everything_is_decided()
        for there in world.topics.values():
            if there is not None:
                there.log_start = len(there.records)
        for _ in range(3):
            self.take_all()
        self.nothing_is_left()

    def everything_is_decided(self):
        """E1: M has reached the end of every topic."""
        ends = self.world.table().ends
        for data, there in self.world.topics.items():
            if there is not None and there.records:
                assert ends[data].topic_id == there.topic_id
                assert ends[data].max_read_position == len(there.records)

    def nothing_is_left(self):
        """E5, E8: no id of what has left the log, no trace of a deleted topic, no marker."""
        for _ in range(3):
            self.pass_time(SWEEP_MS)
            self.calm()
        table = self.world.table()
        for data, end in table.ends.items():
            assert self.world.topics[data] is not None
            assert not end.part_checksums
            assert not end.unsealed
        kept = [one for _, one in self.world.log]
        assert not [one for one in kept if not hasattr(one, "probe")]
        live = {key: value for _, key, value in self.world.snapshots}
        parts = [key for key, value in live.items() if key[:1] == b"p" and value is not None]
        assert not parts


Snapshots.TestCase.settings = settings(max_examples=examples(300), stateful_step_count=60)
TestSnapshotWriter = Snapshots.TestCase
