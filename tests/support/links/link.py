"""A link of a replication world: each effect is a step, so that anything may come between.

*Source*: rules H2, H3, H4, H5, H6.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from stilltide.pipeline.core.links.copying import Topics
from stilltide.pipeline.core.links.link import (
    Begin,
    Commit,
    Copy,
    FenceTarget,
    Fetch,
    Finish,
    Link,
    LinkLimits,
    ReadIncarnations,
    ReadLinkPositions,
    ReadPositionsEnd,
    ReportLost,
    ServeLink,
    StartOver,
)
from stilltide.schemas.replication.origins import Incarnation, Origin
from stilltide.schemas.replication.positions import BucketKey
from stilltide.schemas.values import EndOffset, Offset, Range, TopicPartition
from tests.support.groups.world import Cluster, Txn, World, Written, end_txn

LINK_LIMITS = LinkLimits(linger_ms=100, records_max=6, position_interval_ms=1000)


class LinkSystem(Protocol):
    """The surroundings of a link."""

    world: World

    def fence(self, link: "LinkActor") -> None:
        """Aborts the open transaction of a former link (H2)."""
        ...

    def restart_link(self, link: "LinkActor") -> None:
        """Restarts a link that has died by itself."""
        ...


class LinkActor:
    """A link's process; when it dies its transaction stays open until the next one fences it."""

    def __init__(self, system: LinkSystem, source: Cluster, target: Cluster) -> None:
        self.system, self.world = system, system.world
        self.source, self.target = source, target
        self.machine: Link[Written] = Link(source.name, target.name, LINK_LIMITS)
        self.todo: deque[object] = deque(self.machine.begin())
        self.txn: Txn | None = None
        self.copies: dict[TopicPartition, dict[int, list[int]]] = {}
        self.fetched: dict[TopicPartition, int] = {}
        self.asking: set[TopicPartition] = set()  # what ReadIncarnations asks for
        self.positions_to: int | None = None
        self.positions_at = self.markers_at = self.markers_end = 0
        self.serving = self.caught_up = self.dead = False
        self.lost: list[tuple[TopicPartition, Range]] = []
        self.handlers: dict[type, Callable[..., None]] = {
            FenceTarget: self.on_fence,
            ReadPositionsEnd: self.on_read_positions_end,
            ReadLinkPositions: self.on_read_positions,
            ServeLink: self.on_serve,
            Fetch: self.on_fetch,
            ReportLost: lambda effect: self.lost.append((effect.data, effect.offsets)),
            ReadIncarnations: lambda effect: self.asking.add(effect.data),
            Begin: self.on_begin,
            Copy: self.on_copy,
            Finish: self.on_finish,
            Commit: self.on_commit,
            StartOver: lambda _: self.system.restart_link(self),
        }

    @property
    def connected(self) -> bool:
        """Whether the link copies."""
        return self.serving and self.source.up and self.target.up

    def step(self, pick: int, count: int) -> bool:
        """Does one thing; False: there is nothing to do."""
        if self.dead or not (self.source.up and self.target.up):
            return False
        if self.todo:
            self.count = count
            effect = self.todo.popleft()
            handler = self.handlers.get(type(effect))
            handler(effect) if handler else effect()
            return True
        if self.positions_to is not None:
            return self.read_positions()
        if not self.serving:
            return False
        choices = [self.tick, lambda: self.read_markers(count), self.read_incarnations]
        choices.append(self.look_at_topics)
        choices += [lambda data=data: self.fetch(data, count) for data in self.fetched]
        first = pick % len(choices)
        return any(choice() for choice in choices[first:] + choices[:first])

    # -- reads that need no effect

    def tick(self) -> bool:
        """A deadline has come."""
        deadline_ms = self.machine.deadline_ms
        if deadline_ms is None or self.world.now_ms < deadline_ms:
            return False
        self.todo += self.machine.tick(self.world.now_ms)
        return True

    def read_positions(self) -> bool:
        """Reads the target's positions up to the last stable offset."""
        log = self.target.positions
        stable = log.stable
        for _, (key, bucket) in log.visible(self.positions_at, stable):
            self.machine.bucket_read(key, bucket)
        self.positions_at = stable
        served = self.machine.positions_read(EndOffset(stable))
        if served:
            self.positions_to = None
        self.todo += served
        return bool(served)

    def read_markers(self, count: int) -> bool:
        """Reads some signals of the source."""
        log = self.source.markers
        stable = log.stable
        if self.markers_at >= stable:
            return False
        end = min(stable, self.markers_at + count)
        found = [one for _, one in log.visible(self.markers_at, end)]
        self.markers_at = end
        self.todo += self.machine.signals_read(found, self.world.now_ms)
        self.check_caught_up()
        return True

    def check_caught_up(self):
        """Reports when the link has read everything that existed at its start."""
        if not self.caught_up and self.markers_at >= self.markers_end:
            self.caught_up = True
            self.todo += self.machine.signals_caught_up(self.world.now_ms)

    def read_incarnations(self) -> bool:
        """H1: once the source's positions are stable to their end."""
        log = self.source.positions
        if not self.asking or log.stable < log.end:
            return False
        data = min(self.asking)
        self.asking.remove(data)
        known = {
            Incarnation(key.source, bucket.source_incarnation)
            for _, (key, bucket) in log.visible(0, log.end)
            if bucket is not None and key.data == data and key.target == self.source.name
        }
        self.todo += self.machine.incarnations_read(data, known, self.world.now_ms)
        return True

    def topics(self, data: TopicPartition) -> Topics:
        """The topics as they are now."""
        source, target = self.source.data[data], self.target.data[data]
        incarnations = source.incarnation.topic, target.incarnation.topic
        return Topics(*incarnations, Offset(source.start), Offset(target.start))

    def take_topics(self, data: TopicPartition):
        """Once the machine is between transactions."""
        if self.machine.accepts_records:
            self.todo += self.machine.topics_read(data, self.topics(data), self.world.now_ms)
        else:
            self.todo.append(lambda: self.take_topics(data))

    def look_at_topics(self) -> bool:
        """H6: a link with nothing to commit learns, too, that a topic was created again."""
        for data in self.fetched:
            partition, topics = self.machine.partitions[data], self.topics(data)
            assert partition.topics is not None
            idle = self.machine.accepts_records and not partition.chunk_count
            if idle and topics[:2] != partition.topics[:2]:
                self.take_topics(data)
                return True
        return False

    def fetch(self, data: TopicPartition, count: int) -> bool:
        """Reads some decided records of the source."""
        log, at = self.source.data[data], self.fetched[data]
        if not self.machine.accepts_records or data in self.asking:
            return False
        if at < log.start:
            if self.machine.partitions[data].chunk_count:
                return False  # first the transaction ends
            self.take_topics(data)
            return True
        if at > log.end:
            self.system.restart_link(self)
            return True
        until = min(log.stable, at + count)
        if until <= at:
            return False
        records = [(Offset(at), one.header, one) for at, one in log.visible(at, until)]
        self.fetched[data] = until
        now_ms = self.world.now_ms
        self.todo += self.machine.records_read(data, records, EndOffset(until), now_ms)
        return True

    # -- effects

    def on_fence(self, _: FenceTarget):
        """Takes the transactional id."""
        self.system.fence(self)
        self.todo += self.machine.fenced()

    def on_read_positions_end(self, _: ReadPositionsEnd):
        """Reads the present signals of the target, and the end of its positions."""
        for _, (key, value) in self.target.markers.visible(0, self.target.markers.end):
            self.machine.target_signal_read(key, value)
        self.todo += self.machine.positions_end_read(EndOffset(self.target.positions.end))

    def on_read_positions(self, effect: ReadLinkPositions):
        """Begins to read positions, step by step."""
        self.positions_to = effect.until

    def on_serve(self, _: ServeLink):
        """Marks the link as serving, and reads topics and the end of the signals."""
        self.serving = True
        self.markers_end = self.source.markers.stable
        for data in self.world.partitions:
            self.take_topics(data)
        self.check_caught_up()

    def on_fetch(self, effect: Fetch):
        """Moves the position of the reader."""
        self.fetched[effect.data] = effect.position
        self.asking.discard(effect.data)

    def on_begin(self, _: Begin):
        """Begins a transaction."""
        self.txn, self.copies = Txn(), {}

    def on_copy(self, effect: Copy[Written]):
        """Copies some records; other writers may write in between."""
        data, log = effect.data, self.target.data[effect.data]
        topics = self.machine.partitions[data].topics
        assert topics is not None
        now, later = effect.records[: self.count], effect.records[self.count :]
        span = self.copies.setdefault(data, {}).setdefault(effect.chunk, [log.end, 0])
        for offset, _, record in now:
            header = Origin(Incarnation(self.source.name, topics.source), offset)
            log.append(Written(record.truth, header), self.txn)
        span[1] = log.end
        if later:
            self.todo.appendleft(Copy(effect.transaction, data, effect.chunk, later))

    def on_finish(self, effect: Finish):
        """Reports the offsets of the copies, and the topics as they are now."""
        copies: dict[TopicPartition, list[Range | None]] = {}
        for data, chunk_count in effect.partitions.items():
            spans = self.copies.get(data, {})
            found = [spans.get(chunk) for chunk in range(chunk_count)]
            copies[data] = [
                Range(Offset(span[0]), EndOffset(span[1])) if span else None for span in found
            ]
        topics = {data: self.topics(data) for data in effect.partitions}
        self.todo += self.machine.finished(effect.transaction, copies, topics, self.world.now_ms)

    def on_commit(self, effect: Commit):
        """Writes, commits and reports: three steps."""
        for data, changes in effect.buckets.items():
            for number, bucket in changes:
                key = BucketKey(self.source.name, self.target.name, data, number)
                self.target.positions.append((key, bucket), self.txn)
        for marker in effect.signals:
            self.target.markers.append(marker, self.txn)
        self.todo.append(lambda: self.commit(effect.transaction))

    def commit(self, transaction: int):
        """Commits, and reports later."""
        assert self.txn is not None
        end_txn(self.txn, committed=True)
        for data in self.world.partitions:
            self.world.check_copies(self.target, data)
        self.txn = None
        self.todo.append(lambda: self.committed(transaction))

    def committed(self, transaction: int):
        """Reports the commit."""
        self.todo += self.machine.committed(transaction, self.world.now_ms)
