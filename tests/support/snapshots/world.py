"""Coordinators, clients, markers, a compacted snapshot log and its writers, in one process.

*Source*: rules C2, C3, C4, D, E. The world acts as drivers and brokers do; the test chooses the
next step and the faults. The truth is a plain dict of transactions.
"""

from dataclasses import dataclass, field

from stilltide.pipeline.core.coordinator.barrier import barrier_of
from stilltide.pipeline.core.coordinator.state import CoordinatorState
from stilltide.pipeline.core.snapshots.buffer import DataPosition
from stilltide.pipeline.core.snapshots.effects import (
    AskBarriers,
    ReadMarkerEnd,
    ReadPositions,
    SnapshotsTaken,
    TrimMarkers,
    WriterEffect,
    WriteSnapshots,
)
from stilltide.pipeline.core.snapshots.recovery import SnapshotTable
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits, SnapshotWriter
from stilltide.schemas.coordinator import markers
from stilltide.schemas.coordinator.markers import Barrier, Marker, Probe
from stilltide.schemas.coordinator.transactions import (
    AddPartitions,
    End,
    Ended,
    Open,
    Opened,
    Registered,
    TxnLogRecord,
    WriteBarrier,
    Written,
)
from stilltide.schemas.service.envelopes import Refused, Request
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId
from tests.support.snapshots.recovered import recover

PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("pay", 0)]
LIMITS = SnapshotLimits(changes_max=3, interval_ms=5000, part_bytes_max=25, marker_retention_ms=0)
"""Limits with which a part holds two ids."""


@dataclass(eq=False)
class Data:
    """One incarnation of a data partition: the transaction of each offset, None: no record."""

    topic_id: bytes
    records: list[TxnId | None] = field(default_factory=list)
    log_start: int = 0
    pinned_at: int | None = None  # first offset of an open native transaction

    @property
    def stable(self) -> int:
        """Last stable offset."""
        return len(self.records) if self.pinned_at is None else self.pinned_at


@dataclass
class Txn:
    """The truth about a transaction."""

    registered: dict[TopicPartition, Registered] = field(default_factory=dict)
    written: list[tuple[TopicPartition, Data, int]] = field(default_factory=list)
    committed: bool | None = None
    missing: int = 0  # markers on their way


@dataclass(eq=False)
class Actor:
    """A snapshot writer process, and the answers that it waits for."""

    machine: SnapshotWriter
    reads: list[list] = field(default_factory=list)  # [counter, partitions, found, log ends]
    end_reads: list[list[int | None]] = field(default_factory=list)  # [counter, end]
    write: WriteSnapshots | None = None


class SnapshotWorld:
    """The whole system around one partition of txn-markers."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.ids = 0
        self.topics: dict[TopicPartition, Data | None] = dict.fromkeys(PARTITIONS)
        self.coordinators = [CoordinatorState()]
        self.asked = 0
        self.txns: dict[TxnId, Txn] = {}
        self.flights: list[Marker] = []
        self.landed: list[Marker] = []
        self.log: list[tuple[int, Marker | Barrier]] = []  # of markers
        self.log_start = self.log_end = 0
        self.asks: list[tuple[int, Probe]] = []
        self.barriers: list[Barrier] = []
        self.snapshots: list[tuple[int, bytes, bytes | None]] = []
        self.snapshots_end = 0
        self.requests: dict[int, TopicPartition] = {}
        self.highest: dict[tuple[TopicPartition, bytes], int] = {}
        self.trims: list[int] = []
        self.zombies: list[Actor] = []
        for data in PARTITIONS:
            self.create(data)
        self.start_writer()

    # -- topics

    def create(self, data: TopicPartition):
        """Creates the topic, or replaces it by a new topic of the same name."""
        self.ids += 1
        self.topics[data] = Data(self.ids.to_bytes(16))

    def append(self, data: TopicPartition, txn: TxnId | None):
        """Appends a record, if the topic exists."""
        there = self.topics[data]
        if there is not None:
            there.records.append(txn)
            if txn is not None and self.txns[txn].committed is None:
                self.txns[txn].written.append((data, there, len(there.records) - 1))

    # -- transactions

    def change(self, coordinator: int, body: object):
        """A request that is effective at once."""
        self.asked += 1
        request = Request(b"client", self.asked, 0, 0, body)
        return self.coordinators[coordinator].apply(TxnLogRecord(request, self.now_ms))

    def open(self, coordinator: int):
        """Opens a transaction without registrations; a coordinator is added when needed (C14)."""
        while len(self.coordinators) <= coordinator:
            self.coordinators.append(CoordinatorState())
        answer = self.change(coordinator, Open(1000, 1, ()))
        assert isinstance(answer, Opened)
        self.txns[TxnId(coordinator, answer.first_sequence)] = Txn()

    def register(self, txn: TxnId, data: TopicPartition, behind: int):
        """C2: registers a partition with a known end offset, which may be old."""
        there = self.topics[data]
        if there is not None and data not in self.txns[txn].registered:
            start = EndOffset(max(0, len(there.records) - behind))
            one = Registered(data, start, there.topic_id)
            self.change(txn.coordinator, AddPartitions(txn.sequence, (one,)))
            self.txns[txn].registered[data] = one

    def end(self, txn: TxnId, *, committed: bool):
        """C4, C6: decides the outcome, and sends the markers; impossible counts abort."""
        held = self.txns[txn]
        if committed:
            counts = self.counts(held)
            answer = self.change(txn.coordinator, End(txn.sequence, True, counts, False))
            committed = not isinstance(answer, Refused)
        if not committed:
            self.change(txn.coordinator, End(txn.sequence, False, (), False))
        held.committed = committed
        ends: dict[TopicPartition, EndOffset | None] = (
            {one.data: one.end_offset for one in self.counts(held)}
            if committed
            else dict.fromkeys(held.registered)
        )
        for data, end_offset in ends.items():
            there, one = self.topics[data], held.registered[data]
            if not committed and there is not None:
                end_offset = EndOffset(len(there.records))  # noqa: PLW2901 - C3
            self.flights.append(
                Marker(data, txn, committed, one.start_offset, end_offset, 1, one.topic_id)
            )
        held.missing = len(ends)
        self.finish(txn)

    def counts(self, held: Txn) -> tuple[Written, ...]:
        """The counts from delivery reports, even if the topic was created again since."""
        offsets: dict[TopicPartition, list[int]] = {}
        for data, _, offset in held.written:
            offsets.setdefault(data, []).append(offset)
        return tuple(
            Written(data, Offset(min(found)), EndOffset(max(found) + 1), 1)
            for data, found in offsets.items()
        )

    def finish(self, txn: TxnId):
        """C4: Ended is effective behind the last marker."""
        held = self.txns[txn]
        if held.committed is not None and not held.missing:
            record = TxnLogRecord(Ended(txn.sequence), self.now_ms)
            self.coordinators[txn.coordinator].apply(record)

    def land_marker(self, pick: int):
        """A marker is durable."""
        marker = self.flights.pop(pick % len(self.flights))
        self.landed.append(marker)
        self.append_marker(marker)
        self.txns[marker.txn].missing -= 1
        self.finish(marker.txn)

    def append_marker(self, item: Marker | Barrier):
        """Appends an item after encoding and decoding it."""
        if isinstance(item, Marker):
            key, value = markers.encode_key(item.data, item.txn), markers.encode_value(item)
            assert markers.decode(key, value) == item
        self.log.append((self.log_end, item))
        self.log_end += 1

    def compact_markers(self, pick: int):
        """Removes one record that a later record of its key replaces."""
        at = pick % len(self.log)
        item = self.log[at][1]
        if any(_key(other) == _key(item) for _, other in self.log[at + 1 :]):
            del self.log[at]

    def trim(self, before: int):
        """Deletes the records before an offset, as DeleteRecords does."""
        assert before <= self.log_end
        self.log_start = max(self.log_start, before)
        self.log = [one for one in self.log if one[0] >= self.log_start]

    # -- snapshot writers

    def table(self) -> SnapshotTable:
        """The table of a reader that has read the snapshot log to its end."""
        return recover(0, self.snapshots)

    def start_writer(self):
        """E3: fences the one before, whose open transaction is aborted, then recovers."""
        self.ids += 1
        machine = SnapshotWriter(
            0,
            self.table(),
            Offset(self.log_start),
            nonce=self.ids.to_bytes(16),
            limits=LIMITS,
            now_ms=self.now_ms,
        )
        self.writer = Actor(machine)

    def replace_writer(self):
        """Starts a new writer; the old one may not notice for a while."""
        self.zombies = [self.writer]
        self.start_writer()

    def run(self, actor: Actor, effects: list[WriterEffect]):
        """Carries out effects as a driver does."""
        for effect in effects:
            match effect:
                case ReadPositions(counter, partitions):
                    actor.reads.append([counter, partitions, None, None])
                case AskBarriers(probe, coordinators):
                    self.asks += [(one, probe) for one in coordinators]
                case ReadMarkerEnd(counter):
                    actor.end_reads.append([counter, None])
                case WriteSnapshots():
                    assert actor.write is None
                    actor.write = effect
                case TrimMarkers(before):
                    self.trims.append(before)
                case SnapshotsTaken(requests):
                    for one in requests:
                        del self.requests[one]

    def read_positions(self, actor: Actor, pick: int):
        """E1: data first, then the logs, then the report; each at its own time."""
        read = actor.reads[pick % len(actor.reads)]
        if read[2] is None:
            read[2] = {data: _position(self.topics[data]) for data in read[1] if self.topics[data]}
        elif read[3] is None:
            ends = enumerate(self.coordinators)
            read[3] = {one: EndOffset(state.next_sequence) for one, state in ends}
        else:
            actor.reads.remove(read)
            counter, _, found, ends = read
            self.run(actor, actor.machine.positions_read(counter, found, ends, self.now_ms))

    def read_marker_end(self, actor: Actor, pick: int):
        """Reads the end of the markers now, and reports it later."""
        read = actor.end_reads[pick % len(actor.end_reads)]
        if read[1] is None:
            read[1] = self.log_end
            return
        actor.end_reads.remove(read)
        self.run(actor, actor.machine.marker_end_read(read[0], EndOffset(read[1]), self.now_ms))

    def answer_ask(self, pick: int):
        """A coordinator reads its no-op back, and sends the barrier off."""
        coordinator, probe = self.asks.pop(pick % len(self.asks))
        state = self.coordinators[coordinator]
        self.barriers.append(barrier_of(state, coordinator, WriteBarrier(0, probe), 1))

    def read_markers(self, actor: Actor, count: int):
        """The next markers; a writer that a trim has overtaken stops."""
        machine = actor.machine
        if machine.position < self.log_start:
            assert actor is not self.writer, "its own markers were trimmed"
            self.zombies.remove(actor)
            return
        records = [one for one in self.log if one[0] >= machine.position][:count]
        self.run(actor, machine.markers_read(records, self.now_ms))
        if not records:
            self.run(actor, machine.end_reached(EndOffset(self.log_end), self.now_ms))

    def end_write(self, actor: Actor, *, committed: bool, reported: bool):
        """E3: ends a write; a fenced writer stops, and so does a writer without a report."""
        write = actor.write
        assert write is not None
        actor.write = None
        if actor is not self.writer:
            self.zombies.remove(actor)
            return
        if committed:
            for key, value in write.records:
                self.snapshots.append((self.snapshots_end, key, value))
                self.snapshots_end += 1
            self.check_positions()
        if committed and reported:
            self.run(actor, actor.machine.snapshots_written(write.counter, self.now_ms))
        else:
            self.start_writer()

    def compact_snapshots(self, pick: int):
        """Removes a record that a later record of its key replaces, or a lone tombstone."""
        at = pick % len(self.snapshots)
        _, key, value = self.snapshots[at]
        others = [n for n, one in enumerate(self.snapshots) if one[1] == key]
        if others[-1] != at or (value is None and others == [at]):
            del self.snapshots[at]

    def request(self, data: TopicPartition):
        """Requests a snapshot, and requests it again if the writer dies."""
        request = len(self.requests) + self.snapshots_end * 1000
        while request in self.requests:
            request += 1
        self.requests[request] = data
        self.run(self.writer, self.writer.machine.requested(request, data, self.now_ms))

    # -- what must hold

    def check_positions(self):
        """M never goes back while the topic is the same."""
        for data, end in self.table().ends.items():
            before = self.highest.get((data, end.topic_id), 0)
            assert end.max_read_position >= before
            self.highest[data, end.topic_id] = end.max_read_position

    def check_readers(self):
        """D1, D4: a reader of snapshot and markers delivers no aborted record, and hides no other.

        And E2: a trimmed marker leaves no record undecided that a snapshot does not decide, unless
        the marker's offsets are those of a former topic.
        """
        table = self.table()
        assert table.star.markers_covered_to >= self.log_start
        told = {(one.data, one.txn) for _, one in self.log if isinstance(one, Marker)}
        lost = {(one.data, one.txn): one for one in self.landed}
        for data, there in self.topics.items():
            if there is None:
                continue
            end = table.ends.get(data)
            same = end is not None and end.topic_id == there.topic_id
            snapshot = table.snapshot(data, there.topic_id) if same else None
            for offset in range(there.log_start, len(there.records)):
                txn = there.records[offset]
                if txn is None or (data, txn) in told:
                    continue
                visible = None if snapshot is None else snapshot.visible(offset, *txn)
                assert visible in (None, self.txns[txn].committed), (data, offset, txn)
                marker = lost.get((data, txn))
                if marker is not None and marker.topic_id == there.topic_id and snapshot:
                    assert visible is not None, (data, offset, txn)


def _key(item: Marker | Barrier) -> object:
    return (item.data, item.txn) if isinstance(item, Marker) else item.coordinator


def _position(there: Data | None) -> DataPosition:
    assert there is not None
    start, stable, end = there.log_start, there.stable, len(there.records)
    return DataPosition(there.topic_id, EndOffset(start), EndOffset(stable), EndOffset(end))
