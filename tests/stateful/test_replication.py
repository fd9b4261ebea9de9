"""Copying and replicated subscriptions when everything that can go wrong does.

*Source*: rules H1, H2, H3, H4, H5, H6, I1, I2, I3, I4, I5, I6, I7, I8, I9, I10, I11, I12. Links are
killed between any two effects and leave their transactions open, controllers are killed or
replaced, markers are late and come twice, clusters are away, groups read here and there; the truth
is what they were given.
"""

from typing import ClassVar

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, rule

from stilltide.pipeline.core.groups.controller import SyncMode
from stilltide.pipeline.core.groups.group import Reset, ResetResult
from stilltide.pipeline.core.offset_index import claims
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.examples import examples
from tests.support.groups.system import ControllerActor, System
from tests.support.groups.world import Cluster, Txn, World, end_txn

PICK = st.integers(0, 10**6)
COUNT = st.sampled_from([1, 2, 5, 1000])
GROUPS = ["ours", "theirs"]
GROUP = st.sampled_from(GROUPS)


class Replication(RuleBasedStateMachine):
    """Says what happens next; the world does it and knows the truth."""

    names: ClassVar = "ab"
    partitions: ClassVar = 1
    mode: ClassVar = SyncMode.EXACT

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.names, self.partitions)
        self.system = System(self.world, GROUPS, self.mode)

    # -- producers

    @rule(pick=PICK, count=st.integers(1, 6))
    def write(self, pick: int, count: int):
        """Local records."""
        cluster = self.cluster(pick)
        for _ in range(count):
            self.world.write(cluster, self.data(pick))

    @rule(pick=PICK, control=st.booleans())
    def write_in_transaction(self, pick: int, *, control: bool):
        """Of Kafka's kind or of ours; the log is undecided from here on."""
        cluster, data = self.cluster(pick), self.data(pick)
        log = cluster.data[data]
        if len(log.open) < 2:
            log.open.append(Txn(control))
            self.world.write(cluster, data, log.open[-1])

    @rule(pick=PICK, committed=st.booleans())
    def end_transaction(self, pick: int, *, committed: bool):
        """The oldest one that is open."""
        log = self.cluster(pick).data[self.data(pick)]
        if log.open:
            end_txn(log.open.pop(0), committed=committed)

    @rule(pick=PICK)
    def forward(self, pick: int):
        """H1: an application copies headers."""
        self.world.forward(self.cluster(pick), self.data(pick))

    # -- processes

    @rule(which=PICK, picks=st.lists(PICK, min_size=1, max_size=20), count=COUNT)
    def run_link(self, which: int, picks: list[int], count: int):
        """A link does some steps."""
        for pick in picks:
            self.system.links[which % len(self.system.links)].step(pick, count)

    @rule(which=PICK, picks=st.lists(PICK, min_size=1, max_size=20), count=COUNT)
    def run_controller(self, which: int, picks: list[int], count: int):
        """A controller does some steps."""
        actors = [*self.system.controllers, *self.system.zombies]
        for pick in picks:
            actors[which % len(actors)].step(pick, count)

    @rule(picks=st.lists(PICK, min_size=5, max_size=40), count=COUNT)
    def run_all(self, picks: list[int], count: int):
        """Everybody in turn."""
        for pick in picks:
            for actor in [*self.system.links, *self.system.controllers]:
                actor.step(pick, count)

    @rule(elapsed_ms=st.sampled_from([100, 1000, 30_000]))
    def pass_time(self, elapsed_ms: int):
        """Clocks tick."""
        self.world.now_ms += elapsed_ms

    @rule(pick=PICK)
    def kill_link(self, pick: int):
        """H2: between any two effects."""
        self.system.kill_link(pick % len(self.system.links))

    @rule(pick=PICK, zombie=st.booleans())
    def kill_controller(self, pick: int, *, zombie: bool):
        """I: between any two effects; or it is replaced and does not know."""
        self.system.kill_controller(pick % len(self.system.controllers), zombie=zombie)

    @rule(pick=PICK)
    def repeat_marker(self, pick: int):
        """The newest of a key comes again."""
        log = self.cluster(pick).markers
        decided = list(log.visible(0, log.end))
        if decided:
            _, (key, value) = decided[pick % len(decided)]
            if all(later[0] != key for at, later in decided[pick % len(decided) + 1 :]):
                log.append((key, value))

    @rule(pick=PICK)
    def compact(self, pick: int):
        """The cleaner takes markers that were replaced, and buckets."""
        cluster = self.cluster(pick)
        for log in (cluster.markers, cluster.positions):
            newest: set[object] = set()
            for at, (key, _) in reversed(list(log.visible(0, log.end))):
                if (type(key), key) in newest and (pick + at) % 3:
                    log.entries[at] = (None, None)
                newest.add((type(key), key))

    @rule(pick=PICK, up=st.booleans())
    def cluster_down(self, pick: int, *, up: bool):
        """Its processes and consumers die, those of others cannot reach it."""
        cluster = self.cluster(pick)
        others = [one for one in self.world.clusters if one.up and one is not cluster]
        if up or not others:
            for one in self.world.clusters:
                one.up = True
        elif cluster.up:
            cluster.up = False
            for group, name in list(self.world.consumers):
                if name == cluster.name:
                    self.world.stop(group, cluster, commit=False)
            for at, link in enumerate(self.system.links):
                if cluster in (link.source, link.target):
                    self.system.kill_link(at)
            for at, controller in enumerate(self.system.controllers):
                if controller.cluster is cluster:
                    self.system.kill_controller(at)

    # -- groups

    @rule(pick=PICK, group=GROUP, alone=st.sampled_from([True, True, True, False]))
    def start(self, pick: int, group: str, *, alone: bool):
        """Mostly on one cluster at a time."""
        if not (alone and self.running(group)):
            self.world.start(group, self.cluster(pick), ours=group == "ours")

    @rule(group=GROUP, count=st.integers(1, 12), pick=PICK, commit=st.booleans())
    def read(self, group: str, count: int, pick: int, *, commit: bool):
        """A member reads on."""
        for cluster in self.running(group):
            self.world.poll(group, cluster, self.data(pick), count)
            if commit:
                self.world.commit(group, cluster, self.data(pick))

    @rule(group=GROUP, commit=st.booleans())
    def stop(self, group: str, *, commit: bool):
        """A member leaves or dies."""
        for cluster in self.running(group):
            self.world.stop(group, cluster, commit=commit)

    @rule(pick=PICK, group=GROUP, count=st.integers(1, 12))
    def work(self, pick: int, group: str, count: int):
        """A fail-over at any moment."""
        self.stop(group, commit=True)
        self.start(pick, group, alone=True)
        self.read(group, count, pick, commit=True)

    @rule()
    def settle(self):
        """For once nothing is late."""
        self.system.settle()

    # -- helpers and the end

    def cluster(self, pick: int) -> Cluster:
        """One of them."""
        return self.world.clusters[pick % len(self.world.clusters)]

    def data(self, pick: int):
        """One of the data partitions."""
        return self.world.partitions[pick // 7 % len(self.world.partitions)]

    def running(self, group: str) -> list[Cluster]:
        """Where the group has a member."""
        return [one for one in self.world.clusters if (group, one.name) in self.world.consumers]

    def calm(self):
        """Applications stop, transactions end, and everything runs until it rests."""
        for cluster in self.world.clusters:
            cluster.up = True
            for log in cluster.data.values():
                for txn in log.open:
                    end_txn(txn, committed=True)
                log.open.clear()
        for group in GROUPS:
            self.stop(group, commit=True)
        self.system.settle()

    def teardown(self):
        """R5, R6, H1, I7: it rests, nothing is missing, positions agree, nothing is read again."""
        self.calm()
        self.check_copies()
        self.check_positions()
        self.check_fail_over()

    def check_copies(self):
        """H1."""
        self.world.check_copied_everything()

    def check_positions(self):
        """I7: on every cluster each group is at the end of what it has read."""
        for cluster in self.world.clusters:
            for data, log in cluster.data.items():
                for group in GROUPS:
                    read = self.world.have_read(group, data)
                    found = cluster.committed.get((group, data))
                    if found is None:
                        assert not read
                        continue
                    ahead = [one for at, one in log.visible(found[0], log.end)]
                    assert not ahead or ahead[0].truth not in read, f"I7 {group} {cluster.name}"
                    claimed = cluster.claimed(data, group)
                    unknown = [
                        one.truth
                        for one in ahead
                        if one.truth in read and not claims.holds(claimed, one.truth)
                    ]
                    assert not unknown, f"I6 {group} on {cluster.name} would read {unknown} again"

    def check_fail_over(self):
        """I11: our group reads nothing again on any cluster; no group misses a record."""
        for group in GROUPS:
            cluster = self.world.clusters[self.world.now_ms // 250 % len(self.world.clusters)]
            before = self.world.again.get(group, 0)
            told = sum(self.system.read_again(cluster, data, group) for data in cluster.data)
            self.world.start(group, cluster, ours=group == "ours")
            for data, log in cluster.data.items():
                self.world.poll(group, cluster, data, 10**6)
                self.world.commit(group, cluster, data)
                read = self.world.have_read(group, data)
                assert not [one for _, one in log.visible(0, log.end) if one.truth not in read]
            again = self.world.again.get(group, 0) - before
            assert again == (0 if group == "ours" else told), "I11 not what was told"


class Replication3(Replication):
    """Three clusters in a full mesh."""

    names = "abc"


class ReplicationOfPartitions(Replication):
    """Two data partitions share transactions, positions and markers."""

    partitions = 2


class ReplicationBySnapshots(Replication):
    """I12: Pulsar's protocol. Nobody misses anything; what is read again is not bounded."""

    names = "abc"
    mode = SyncMode.SNAPSHOT

    def check_positions(self):
        """Between two snapshots they differ."""

    def check_fail_over(self):
        """A reader that goes on anywhere misses nothing."""
        for group in GROUPS:
            for cluster in self.world.clusters:
                self.world.start(group, cluster, ours=False)
                for data, log in cluster.data.items():
                    self.world.poll(group, cluster, data, 10**6)
                    self.world.commit(group, cluster, data)
                    read = self.world.have_read(group, data)
                    assert not [one for _, one in log.visible(0, log.end) if one.truth not in read]


class ReplicationOfShortLogs(Replication):
    """Retention takes what was not copied or not read; topics are deleted and created again.

    Then groups may read again what they have read; they still miss nothing.
    """

    names = "abc"

    def __init__(self) -> None:
        super().__init__()
        self.system.logs_are_short = True

    @rule(pick=PICK, to=PICK)
    def trim(self, pick: int, to: int):
        """H5, I9: the log starts later now."""
        log = self.cluster(pick).data[self.data(pick)]
        log.start = max(log.start, to % (log.stable + 1))

    @rule(pick=PICK)
    def recreate(self, pick: int):
        """H6: another topic of that name."""
        self.world.create(self.cluster(pick), self.data(pick))

    def check_positions(self):
        """Positions need not be the highest possible ones."""

    def check_fail_over(self):
        """I8: no group misses a record."""
        for group in GROUPS:
            self.world.again.clear()
            for cluster in self.world.clusters:
                self.world.start(group, cluster, ours=group == "ours")
                for data, log in cluster.data.items():
                    self.world.poll(group, cluster, data, 10**6)
                    self.world.commit(group, cluster, data)
                    read = self.world.have_read(group, data)
                    assert not [one for _, one in log.visible(0, log.end) if one.truth not in read]


class ResetsByHand(Replication):
    """I10: operators set groups back on one cluster, with Kafka's tools."""

    @rule(pick=PICK, group=GROUP, to=PICK)
    def set_back_by_hand(self, pick: int, group: str, to: int):
        """The group stays at its reset position, and reads again what was read before."""
        self.calm()
        cluster, data = self.cluster(pick), self.data(pick)
        committed = cluster.committed.get((group, data))
        if committed is None or not committed[0]:
            return
        offset = to % committed[0]
        cluster.committed[group, data] = (offset, None)
        self.system.settle()
        assert cluster.committed[group, data] == (offset, None), "I10 undone"
        log, given = cluster.data[data], self.world.given(group)
        self.world.start(group, cluster, ours=group == "ours")
        self.world.poll(group, cluster, data, 10**6)
        missed = [one.truth for _, one in log.visible(offset, log.end)]
        assert given() >= len(missed), "I11 skipped after a reset"
        self.world.stop(group, cluster, commit=True)


class ReplicationBySnapshotsWithResets(ReplicationBySnapshots, ResetsByHand):
    """I10, I12: a reset by hand is not undone by a position of another cluster."""


class ReplicationWithResets(ResetsByHand):
    """I10, I14: groups are set back on one cluster by hand, or everywhere by a request."""

    names = "abc"

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Cluster, TopicPartition, str, Reset]] = []

    @rule(pick=PICK, group=GROUP, to=PICK, stop=st.booleans())
    def set_back_everywhere(self, pick: int, group: str, to: int, *, stop: bool):
        """The group is at its reset position on every cluster, and reads on from there.

        With `stop` it has a member there, which is removed afterwards and cannot commit any more.
        """
        self.calm()
        cluster, data = self.cluster(pick), self.data(pick)
        committed = cluster.committed.get((group, data))
        if committed is None or not committed[0]:
            return
        offset = Offset(to % committed[0])
        if stop:
            self.world.start(group, cluster, ours=group == "ours")
            self.world.poll(group, cluster, data, to % 7)
        self.world.set_back(cluster, group, data, offset)
        machine = self.controller(cluster, data).machine
        reset = machine.reset(group, offset, stop=stop)
        if stop:
            self.system.settle()
            self.world.stop(group, cluster, commit=False)
        self.system.settle()
        assert machine.groups[group].result_of(reset) is ResetResult.DONE
        self.asked.append((cluster, data, group, reset))
        read, log = self.world.have_read(group, data), cluster.data[data]
        now, generation = cluster.committed[group, data]
        assert generation == self.world.generations[group, data]
        assert now >= offset
        assert not [one for _, one in log.visible(offset, now) if one.truth not in read]

    @rule(pick=PICK)
    def set_back_once_more(self, pick: int):
        """I14: a request that is read again changes nothing, whichever controller reads it."""
        self.calm()
        if not self.asked:
            return
        cluster, data, group, reset = self.asked[pick % len(self.asked)]
        before = {one.name: dict(one.committed) for one in self.world.clusters}
        machine = self.controller(cluster, data).machine
        machine.reset(group, reset.offset, generation=reset.generation)
        self.system.settle()
        assert before == {one.name: dict(one.committed) for one in self.world.clusters}
        assert machine.groups[group].result_of(reset) is not ResetResult.REFUSED

    def controller(self, cluster: Cluster, data: TopicPartition) -> ControllerActor:
        """The controller of a data partition on a cluster."""
        return next(
            one for one in self.system.controllers if (one.cluster, one.data) == (cluster, data)
        )


def limits(count: int) -> settings:
    """Enough to meet what the invariants are there for."""
    return settings(max_examples=examples(count), stateful_step_count=50)


Replication.TestCase.settings = limits(100)
Replication3.TestCase.settings = limits(80)
ReplicationOfPartitions.TestCase.settings = limits(30)
ReplicationBySnapshots.TestCase.settings = limits(30)
ReplicationOfShortLogs.TestCase.settings = limits(80)
ReplicationWithResets.TestCase.settings = limits(40)
ReplicationBySnapshotsWithResets.TestCase.settings = limits(30)
TestReplication = Replication.TestCase
TestReplication3 = Replication3.TestCase
TestReplicationOfPartitions = ReplicationOfPartitions.TestCase
TestReplicationBySnapshots = ReplicationBySnapshots.TestCase
TestReplicationOfShortLogs = ReplicationOfShortLogs.TestCase
TestReplicationWithResets = ReplicationWithResets.TestCase
TestReplicationBySnapshotsWithResets = ReplicationBySnapshotsWithResets.TestCase
