"""Controllers of a replication world, and everything together until it rests.

*Source*: rules I. Each effect is a step, so that anything may come between.
"""

from collections import deque
from collections.abc import Callable

from stilltide.pipeline.core.groups.controller import ReplicationController, SyncMode
from stilltide.pipeline.core.groups.frontier import LogRead, VisibleRecord, read_again
from stilltide.pipeline.core.groups.group import GroupSeen, MoveGroup, Poll, ReadRecords
from stilltide.pipeline.core.groups.lag import read_again_at_most
from stilltide.pipeline.core.groups.pace import ControllerLimits
from stilltide.pipeline.core.groups.position_snapshots import (
    PositionSnapshotBuilder,
    PositionSnapshotLimits,
    ReadDecidedEnd,
    ReadEnd,
    WriteSignal,
)
from stilltide.schemas.replication.signals import PositionSnapshots, Update, UpdateKey
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition
from tests.support.groups.world import Cluster, Txn, World, end_txn
from tests.support.links.link import LinkActor


class ControllerActor:
    """The controller process of a data partition on a cluster."""

    def __init__(
        self, system: "System", cluster: Cluster, data: TopicPartition, mode: SyncMode
    ) -> None:
        self.system, self.world, self.cluster, self.data = system, system.world, cluster, data
        others = [one.name for one in self.world.clusters if one is not cluster]
        system.nonces += 1
        self.builder = PositionSnapshotBuilder(
            data,
            cluster.name,
            others,
            nonce=system.nonces.to_bytes(8),
            limits=PositionSnapshotLimits(snapshots_max=4),
        )
        self.machine = ReplicationController(
            data, cluster.name, others, mode=mode, limits=ControllerLimits()
        )
        self.todo: deque[object] = deque()
        self.signals_at = self.positions_at = 0
        self.signals_end = cluster.markers.end
        self.caught_up = False
        self.polled_of = b""
        self.handlers: dict[type, Callable[..., None]] = {
            WriteSignal: self.on_write_signal,
            ReadDecidedEnd: self.on_read_decided_end,
            ReadEnd: self.on_read_end,
            Poll: self.on_poll,
            ReadRecords: self.on_read_records,
            MoveGroup: self.on_move_group,
        }

    def step(self, pick: int, count: int) -> bool:
        """Does one thing; False: there is nothing to do."""
        if not self.cluster.up:
            return False
        if self.todo:
            effect = self.todo.popleft()
            handler = self.handlers.get(type(effect))
            handler(effect) if handler else effect()
            return True
        choices = [lambda: self.read_signals(count), self.read_positions, self.tick]
        first = pick % len(choices)
        return any(choice() for choice in choices[first:] + choices[:first])

    # -- reads that need no effect

    def tick(self) -> bool:
        """Deadlines have come, or links."""
        now_ms = self.world.now_ms
        connected = self.system.connected(self.cluster)
        before = len(self.todo)
        self.todo += self.builder.links_changed(now_ms, connected=connected)
        for machine in (self.builder, self.machine):
            if machine.deadline_ms is not None and now_ms >= machine.deadline_ms:
                self.todo += machine.tick(now_ms)
        return len(self.todo) > before

    def read_signals(self, count: int) -> bool:
        """Reads some signals of this cluster."""
        log, now_ms = self.cluster.markers, self.world.now_ms
        stable = log.stable
        end = min(stable, self.signals_at + count)
        moved = end > self.signals_at
        for _, (key, value) in log.visible(self.signals_at, end):
            if key.data == self.data:
                self.machine.signal_read(key, value)
                self.todo += self.builder.signal_read(key, value, now_ms)
        self.signals_at = end
        if not self.caught_up and self.signals_at >= self.signals_end:
            self.caught_up = moved = True
            self.todo += self.builder.caught_up(now_ms)
            self.todo += self.machine.caught_up(now_ms)
        return moved

    def read_positions(self) -> bool:
        """Reads positions up to the last stable offset."""
        log = self.cluster.positions
        stable = log.stable
        if stable <= self.positions_at:
            return False
        for _, (key, bucket) in log.visible(self.positions_at, stable):
            self.machine.bucket_read(key, bucket)
        self.positions_at = stable
        self.todo += self.machine.positions_read(EndOffset(stable), self.world.now_ms)
        return True

    # -- effects

    def on_write_signal(self, effect: WriteSignal):
        """Checks the signal, then writes it."""
        key, value = effect.key, effect.value
        if isinstance(key, UpdateKey) and isinstance(value, Update):
            self.world.check_claims(key.group, self.data, value)
        if isinstance(value, PositionSnapshots):
            self.system.check_snapshot(self.cluster, self.data, value)
        self.cluster.markers.append((key, value))

    def on_read_decided_end(self, effect: ReadDecidedEnd):
        """From now on."""
        log = self.cluster.data[self.data]
        end = EndOffset(log.stable)
        self.todo += self.builder.decided_end_read(
            effect.asker, effect.request, log.incarnation.topic, end, self.world.now_ms
        )

    def on_read_end(self, effect: ReadEnd):
        """From now on."""
        log = self.cluster.data[self.data]
        end = EndOffset(log.end)
        self.todo += self.builder.end_read(effect.attempt_id, log.incarnation.topic, end)

    def on_poll(self, effect: Poll):
        """Reads groups, log and positions, one after the other."""
        names = sorted({*effect.groups, *self.system.groups})
        seen = {group: self.seen(group) for group in names}
        topic = self.cluster.data[self.data].incarnation.topic
        self.todo.append(lambda: self.poll_log(effect, topic, seen))

    def poll_log(self, effect: Poll, topic: bytes, seen: dict[str, GroupSeen]):
        """The second read; the groups are read again if the topic is another one by now."""
        view, number = self.cluster.view(self.data), effect.number
        if view.incarnation.topic != topic:
            self.todo.append(effect)
            return

        def poll_positions() -> None:
            end = EndOffset(self.cluster.positions.end)
            self.polled_of, now_ms = view.incarnation.topic, self.world.now_ms
            self.todo += self.builder.log_moved(view.incarnation.topic, view.decided_end, now_ms)
            self.todo += self.machine.polled(number, view, seen, end, now_ms)

        self.todo.append(poll_positions)

    def on_read_records(self, effect: ReadRecords):
        """Reads records; none if the log was trimmed or created again."""
        log, first = self.cluster.data[self.data], effect.first
        records = [
            VisibleRecord(Offset(at), one.header) for at, one in log.visible(first, effect.end)
        ]
        found = LogRead(records, EndOffset(max(first, min(effect.end, log.stable))))
        if first < log.start or self.polled_of != log.incarnation.topic:
            found = LogRead([], EndOffset(first))
        self.todo += self.machine.log_read(effect.number, found, self.world.now_ms)

    def seen(self, group: str) -> GroupSeen:
        """The present state of a group."""
        offset, tag = self.cluster.committed.get((group, self.data), (None, None))
        return GroupSeen(
            None if offset is None else Offset(offset),
            tag,
            active=(group, self.cluster.name) in self.world.consumers,
            elsewhere=any(key[0] == group for key in self.cluster.committed),
        )

    def on_move_group(self, effect: MoveGroup):
        """Moves the group, unless it has changed."""
        group, seen, now_ms = effect.group, self.seen(effect.group), self.world.now_ms
        same = effect.incarnation == self.cluster.data[self.data].incarnation.topic
        if seen.active or seen.offset != effect.expected or not same:
            self.todo += self.machine.moved(group, now_ms, done=False)
            return
        assert effect.offset is not None
        self.world.check_move(self.cluster, group, self.data, effect.offset, effect.generation)
        self.cluster.committed[group, self.data] = (effect.offset, effect.generation)
        self.todo.appendleft(lambda: self.moved(group))

    def moved(self, group: str):
        """Reports it, before anything else is done."""
        self.todo.extendleft(self.machine.moved(group, self.world.now_ms, done=True))


class System:
    """All processes of a world."""

    def __init__(self, world: World, groups: list[str], mode: SyncMode = SyncMode.EXACT) -> None:
        self.world, self.groups, self.mode = world, groups, mode
        self.nonces = 0
        self.zombies: list[ControllerActor] = []
        self.logs_are_short = False  # what has left a log is below nothing
        self.open: dict[tuple[ClusterName, ClusterName], Txn] = {}
        pairs = [(one, other) for one in world.clusters for other in world.clusters]
        self.links = [LinkActor(self, one, other) for one, other in pairs if one is not other]
        self.controllers = [
            ControllerActor(self, cluster, data, mode)
            for cluster in world.clusters
            for data in world.partitions
        ]

    def connected(self, cluster: Cluster) -> bool:
        """Whether every link from and to a cluster works."""
        return all(one.connected for one in self.links if cluster in (one.source, one.target))

    def kill_link(self, at: int):
        """Kills a link, whose transaction stays open."""
        link = self.links[at]
        link.dead = True
        if link.txn is not None:
            self.open[link.source.name, link.target.name] = link.txn
        self.links[at] = LinkActor(self, link.source, link.target)

    def restart_link(self, link: LinkActor):
        """Restarts a link that has died by itself."""
        self.kill_link(self.links.index(link))

    def fence(self, link: LinkActor):
        """H2: aborts the open transaction of a former link."""
        txn = self.open.pop((link.source.name, link.target.name), None)
        if txn is not None and txn.committed is None:
            end_txn(txn, committed=False)

    def kill_controller(self, at: int, *, zombie: bool = False):
        """Replaces a controller; the old one goes on if it is a `zombie`."""
        actor = self.controllers[at]
        if zombie:
            self.zombies = [*self.zombies[-2:], actor]
        self.controllers[at] = ControllerActor(self, actor.cluster, actor.data, self.mode)

    def check_snapshot(self, cluster: Cluster, data: TopicPartition, value: PositionSnapshots):
        """I3: a group that has read below the local end has read below every position."""
        if not value.snapshots or self.logs_are_short:
            return
        newest = value.snapshots[-1]
        log = cluster.data[data]
        have = {one.truth for _, one in log.alive(0, newest.local_end)}
        for (where, topic), end in newest.positions:
            there = next(one for one in self.world.clusters if one.name == where).data[data]
            if there.incarnation.topic == topic:
                for at, one in there.alive(0, end):
                    assert one.truth in have, f"I3 {one.truth}@{at} of {where} is not below"

    def read_again(self, cluster: Cluster, data: TopicPartition, group: str) -> int:
        """The number of records to be read again, as reported before a fail-over."""
        log = cluster.data[data]
        position, _ = cluster.committed.get((group, data), (log.start, None))
        controller = next(
            one for one in self.controllers if (one.cluster, one.data) == (cluster, data)
        )
        view, claimed = cluster.view(data), cluster.claimed(data, group)
        indexes = list(controller.machine.indexes.values())
        reading = read_again(view, indexes, claimed, Offset(position))
        try:
            wanted = next(reading)
            while True:
                found = [
                    VisibleRecord(Offset(at), one.header)
                    for at, one in log.visible(wanted.first, wanted.end)
                ]
                wanted = reading.send(LogRead(found, wanted.end))
        except StopIteration as done:
            count: int = done.value
        at_most = read_again_at_most(view, indexes, claimed, Offset(position))
        assert count <= at_most, f"I7 {group} on {cluster.name}: the bound is none"
        return count

    def settle(self):
        """Everything runs until nothing is written any more (R5)."""
        self.zombies.clear()
        for cluster in self.world.clusters:
            cluster.up = True
        quiet, before = 0, self.written()
        for _ in range(2000):
            for actor in [*self.links, *self.controllers]:
                steps = 0
                while actor.step(0, 1000):
                    steps += 1
                    assert steps < 5000, "spins"
            self.world.now_ms += 250
            now = self.written()
            quiet, before = (quiet + 1 if now == before else 0), now
            pending = [one for one in self.controllers if one.builder.pending]
            if quiet >= 12 and not pending:
                return
        raise AssertionError("never rests")

    def written(self) -> list[object]:
        """A value that changes with every write."""
        return [
            (
                cluster.markers.end,
                cluster.positions.end,
                sorted(cluster.committed.items(), key=str),
                [log.end for log in cluster.data.values()],
            )
            for cluster in self.world.clusters
        ]
