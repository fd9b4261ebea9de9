"""Clusters with logs, signals, positions and groups, in one process, and the truth about them.

*Source*: rules H, I. The world acts as brokers and applications do; links and controllers are
separate actors. The test chooses the next step.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from stilltide.pipeline.core.groups.frontier import LogView
from stilltide.pipeline.core.offset_index import claims
from stilltide.schemas.replication.origins import Claims, Incarnation, Origin
from stilltide.schemas.replication.positions import Bucket, BucketKey
from stilltide.schemas.replication.signals import Applied, SignalKey, SignalValue, Update, UpdateKey
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition

FORWARDED = b"elsewher"
"""The incarnation of another topic, whose records an application forwards."""

T = TypeVar("T")


@dataclass(eq=False)
class Txn:
    """A transaction; a coordinated one leaves no control record."""

    control: bool = True
    committed: bool | None = None
    logs: list["Log"] = field(default_factory=list)


@dataclass(eq=False)
class Log(Generic[T]):
    """Entries with their transaction; None: a control record, or compacted away."""

    entries: list[tuple[T | None, Txn | None]] = field(default_factory=list)
    start: int = 0

    def append(self, entry: T | None, txn: Txn | None = None) -> int:
        """Appends an entry; returns the offset."""
        if txn is not None and self not in txn.logs:
            txn.logs.append(self)
        self.entries.append((entry, txn))
        return len(self.entries) - 1

    @property
    def end(self) -> int:
        """The high watermark."""
        return len(self.entries)

    @property
    def stable(self) -> int:
        """The last stable offset, or the decided end."""
        for at, (_, txn) in enumerate(self.entries):
            if at >= self.start and txn is not None and txn.committed is None:
                return at
        return self.end

    def visible(self, first: int, end: int) -> Iterator[tuple[int, T]]:
        """The entries that readers of committed data see."""
        for at in range(max(first, self.start), min(end, self.stable)):
            entry, txn = self.entries[at]
            if entry is not None and (txn is None or txn.committed):
                yield at, entry

    def alive(self, first: int, end: int) -> Iterator[tuple[int, T]]:
        """The entries that are or may become visible, also below the log start."""
        for at in range(first, min(end, self.end)):
            entry, txn = self.entries[at]
            if entry is not None and (txn is None or txn.committed is not False):
                yield at, entry


def end_txn(txn: Txn, *, committed: bool):
    """Commits or aborts the transaction."""
    txn.committed = committed
    for log in txn.logs:
        if txn.control:
            log.append(None)


@dataclass(frozen=True)
class Written:
    """A record: its true origin, and the origin in its header."""

    truth: Origin
    header: Origin | None


@dataclass(eq=False)
class DataLog(Log[Written]):
    """One incarnation of a data partition."""

    incarnation: Incarnation = field(kw_only=True)
    open: list[Txn] = field(default_factory=list)


@dataclass(eq=False)
class Cluster:
    """A cluster; one partition of each system topic serves all data partitions."""

    name: ClusterName
    up: bool = True
    data: dict[TopicPartition, DataLog] = field(default_factory=dict)
    markers: Log[tuple[SignalKey, SignalValue]] = field(default_factory=Log)
    positions: Log[tuple[BucketKey, Bucket | None]] = field(default_factory=Log)
    committed: dict[tuple[str, TopicPartition], tuple[int, int | None]] = field(
        default_factory=dict
    )

    def view(self, data: TopicPartition) -> LogView:
        """The log view of a data partition."""
        log = self.data[data]
        return LogView(
            log.incarnation, Offset(log.start), EndOffset(log.end), EndOffset(log.stable)
        )

    def newest(self, data: TopicPartition, group: str) -> tuple[dict[ClusterName, Update], int]:
        """Updates of a group, and the highest generation, as a Subscription reads them (I11)."""
        updates: dict[ClusterName, Update] = {}
        generation = 0
        for _, (key, value) in self.markers.visible(0, self.markers.end):
            if key.data != data or getattr(key, "group", None) != group:
                continue
            if isinstance(key, UpdateKey) and isinstance(value, Update):
                updates[key.source] = value
            if isinstance(value, Applied | Update):
                generation = max(generation, value.generation)
        return updates, generation

    def claimed(self, data: TopicPartition, group: str) -> Claims:
        """J, as a Subscription reads it."""
        updates, generation = self.newest(data, group)
        return claims.join(
            *(one.claims for one in updates.values() if one.generation == generation)
        )


@dataclass(eq=False)
class Consumer:
    """The only member of a group on a cluster; `ours` skips records read elsewhere (I11)."""

    cluster: Cluster
    ours: bool
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    skipped: dict[TopicPartition, Claims] = field(default_factory=dict)
    tags: dict[TopicPartition, int | None] = field(default_factory=dict)
    unread: dict[TopicPartition, list[Origin]] = field(default_factory=dict)


class World:
    """Clusters, groups, and the records that each group has really read."""

    def __init__(self, names: str, partitions: int = 1) -> None:
        self.now_ms = 1_000_000
        self.partitions = [TopicPartition("t", n) for n in range(partitions)]
        self.clusters = [Cluster(ClusterName(name)) for name in names]
        self.created = 0
        self.read: dict[tuple[str, TopicPartition], set[Origin]] = {}
        self.again: dict[str, int] = {}  # records that a group was given though it had read them
        self.delivered: dict[str, int] = {}
        self.consumers: dict[tuple[str, ClusterName], Consumer] = {}
        self.generations: dict[tuple[str, TopicPartition], int] = {}
        for cluster in self.clusters:
            for data in self.partitions:
                self.create(cluster, data)

    def create(self, cluster: Cluster, data: TopicPartition):
        """Creates a topic, or creates it again without its open transactions and offsets."""
        self.created += 1
        for txn in cluster.data[data].open if data in cluster.data else ():
            txn.committed = False
        incarnation = Incarnation(cluster.name, b"%08d" % self.created)
        for key in [key for key in cluster.committed if key[1] == data]:
            del cluster.committed[key]
        cluster.data[data] = DataLog(incarnation=incarnation)
        for (group, _), consumer in self.consumers.items():
            if consumer.cluster is cluster:
                self.assign(consumer, data, group)

    # -- producers

    def write(self, cluster: Cluster, data: TopicPartition, txn: Txn | None = None):
        """Writes a local record."""
        log = cluster.data[data]
        truth = Origin(log.incarnation, Offset(log.end))
        log.append(Written(truth, None), txn)

    def forward(self, cluster: Cluster, data: TopicPartition):
        """Writes a local record with the headers of another topic's record (H1)."""
        log = cluster.data[data]
        truth = Origin(log.incarnation, Offset(log.end))
        log.append(Written(truth, Origin(Incarnation(cluster.name, FORWARDED), Offset(0))))

    # -- groups

    def have_read(self, group: str, data: TopicPartition) -> set[Origin]:
        """The set of records that the group has read; the caller may change it."""
        return self.read.setdefault((group, data), set())

    def start(self, group: str, cluster: Cluster, *, ours: bool):
        """A member joins."""
        if cluster.up and (group, cluster.name) not in self.consumers:
            consumer = Consumer(cluster, ours)
            self.consumers[group, cluster.name] = consumer
            for data in self.partitions:
                self.assign(consumer, data, group)

    def assign(self, consumer: Consumer, data: TopicPartition, group: str):
        """Assigns a partition: sets the position and the records to skip."""
        cluster, log = consumer.cluster, consumer.cluster.data[data]
        offset, tag = cluster.committed.get((group, data), (None, None))
        position = -1 if offset is None else offset
        if position < log.start:
            self.count_as_read(group, data, log, log.start)
            position = log.start
        elif position > log.end:
            position = log.start
        consumer.positions[data], consumer.unread[data] = position, []
        updates, generation = cluster.newest(data, group)
        fits = offset is None or tag == generation
        consumer.tags[data] = generation if fits and consumer.ours else None
        consumer.skipped[data] = cluster.claimed(data, group) if fits and updates else {}

    def count_as_read(self, group: str, data: TopicPartition, log: DataLog, end: int):
        """Counts records as read that a member passes because retention has deleted them (I)."""
        self.have_read(group, data).update(one.truth for _, one in log.alive(0, end))

    def poll(self, group: str, cluster: Cluster, data: TopicPartition, count: int):
        """Delivers some records."""
        consumer = self.consumers[group, cluster.name]
        log, read = cluster.data[data], self.have_read(group, data)
        if consumer.positions[data] < log.start:
            self.count_as_read(group, data, log, log.start)
            consumer.positions[data] = log.start
        for _ in range(count):
            at = consumer.positions[data]
            if at >= log.stable:
                return
            consumer.positions[data] += 1
            for _, record in log.visible(at, at + 1):
                origin = record.truth
                if consumer.ours and claims.holds(consumer.skipped[data], origin):
                    assert origin in read, f"I11 skipped unread {origin} on {cluster.name}"
                    continue
                self.again[group] = self.again.get(group, 0) + (origin in read)
                self.delivered[group] = self.delivered.get(group, 0) + 1
                consumer.unread[data].append(origin)

    def given(self, group: str) -> Callable[[], int]:
        """A counter of the records that the group's members get from now on, read before or not."""
        before = self.delivered.get(group, 0)
        return lambda: self.delivered.get(group, 0) - before

    def commit(self, group: str, cluster: Cluster, data: TopicPartition):
        """Commits the member's position."""
        consumer = self.consumers[group, cluster.name]
        cluster.committed[group, data] = (consumer.positions[data], consumer.tags[data])
        self.have_read(group, data).update(consumer.unread[data])
        consumer.unread[data] = []

    def stop(self, group: str, cluster: Cluster, *, commit: bool):
        """A member leaves."""
        if commit and cluster.up:
            for data in self.partitions:
                self.commit(group, cluster, data)
        del self.consumers[group, cluster.name]

    # -- what must hold

    def check_move(self, cluster: Cluster, group: str, data: TopicPartition, to: int, gen: int):
        """I8: a group is never moved past a record that it has not read."""
        log = cluster.data[data]
        assert to <= log.end, f"I8 {group} moved past the end of {cluster.name}"
        before, _ = cluster.committed.get((group, data), (log.start, None))
        wanted = self.generations.get((group, data), 0)
        if gen < wanted:
            return
        read = self.have_read(group, data)
        for at, record in log.alive(max(before, log.start), to):
            assert record.truth in read, f"I8 {group} on {cluster.name} passes {record.truth}@{at}"
        forward = to >= before or (group, data) not in cluster.committed
        assert forward or gen > 0, f"I7 {group} on {cluster.name} moved back to {to}"

    def set_back(self, cluster: Cluster, group: str, data: TopicPartition, offset: int):
        """I10: from now on the group has read the records below `offset` here, and no others."""
        log = cluster.data[data]
        self.generations[group, data] = self.generations.get((group, data), 0) + 1
        self.read[group, data] = {one.truth for _, one in log.alive(0, offset)}

    def check_claims(self, group: str, data: TopicPartition, update: Update):
        """I6: only what was read is claimed."""
        if update.generation != self.generations.get((group, data), 0):
            return
        read = self.have_read(group, data)
        for cluster in self.clusters:
            log = cluster.data[data]
            for _, record in log.alive(0, log.end):
                if claims.holds(update.claims, record.truth):
                    assert record.truth in read, f"I6 {group} claims {record.truth} unread"

    def check_copies(self, cluster: Cluster, data: TopicPartition):
        """H1, H2: each origin's records are copied at most once, in order; no copy of a copy."""
        last: dict[Incarnation, int] = {}
        log = cluster.data[data]
        for at, record in log.visible(0, log.end):
            origin = record.header
            if origin is None or origin.incarnation.topic == FORWARDED:
                continue
            assert origin == record.truth, f"H1 a copy of a copy at {at} of {cluster.name}"
            assert origin.offset > last.get(origin.incarnation, -1), f"H2 copied again at {at}"
            last[origin.incarnation] = origin.offset

    def check_copied_everything(self):
        """H1: when nothing changes any more, every cluster has every local record."""
        for source in self.clusters:
            for data, log in source.data.items():
                seen_here = [one.truth for _, one in log.visible(0, log.end)]
                local = [one for one in seen_here if one.incarnation == log.incarnation]
                for target in self.clusters:
                    there = target.data[data]
                    seen = {one.truth for _, one in there.alive(0, there.end)}
                    missing = [one for one in local if one not in seen]
                    assert not missing, f"never copied to {target.name}: {missing}"
