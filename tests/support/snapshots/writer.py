"""A snapshot writer that a test drives step by step."""

from stilltide.pipeline.core.snapshots.buffer import DataPosition
from stilltide.pipeline.core.snapshots.effects import (
    ReadMarkerEnd,
    ReadPositions,
    TrimMarkers,
    WriterEffect,
    WriteSnapshots,
)
from stilltide.pipeline.core.snapshots.recovery import SnapshotTable
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits, SnapshotWriter
from stilltide.schemas.coordinator.markers import Barrier, Marker, OpenTransactions, Probe
from stilltide.schemas.snapshots.snapshots import SnapshotEnd, decode_key
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId
from tests.support.snapshots.recovered import recover

P = TopicPartition("orders", 0)
Q = TopicPartition("orders", 1)
ID, OTHER_ID = b"i" * 16, b"j" * 16
NONCE = b"n" * 16
LIMITS = SnapshotLimits(changes_max=100, interval_ms=5000, part_bytes_max=25, marker_retention_ms=0)
NOW_MS = 1_000_000


def abort(sequence: int, data: TopicPartition = P, topic_id: bytes = ID) -> Marker:
    """Of coordinator 0."""
    return Marker(data, TxnId(0, sequence), False, EndOffset(0), EndOffset(0), 0, topic_id)


def commit(sequence: int, end_offset: int, topic_id: bytes = ID) -> Marker:
    """Of coordinator 0."""
    txn = TxnId(0, sequence)
    return Marker(P, txn, True, EndOffset(0), EndOffset(end_offset), 1, topic_id)


def still_open(start_offset: int, data: TopicPartition = P, topic_id: bytes = ID):
    """An open transaction in a barrier."""
    return OpenTransactions(data, topic_id, EndOffset(start_offset), 7, 1)


def found(end: int, *, start: int = 0, stable: int | None = None, topic_id: bytes = ID):
    """The position of a data partition that a probe finds."""
    stable = end if stable is None else stable
    return DataPosition(topic_id, EndOffset(start), EndOffset(stable), EndOffset(end))


class Rig:
    """A writer, its snapshot log, and markers appended one by one."""

    def __init__(self, limits: SnapshotLimits = LIMITS) -> None:
        self.limits = limits
        self.now_ms = NOW_MS
        self.end = 0
        self.trimmed_to = 0
        self.log: list[tuple[Offset, bytes | None, bytes | None]] = []
        self.begin()

    def begin(self):
        """A writer recovers."""
        self.writer = SnapshotWriter(
            0,
            self.table(),
            Offset(self.trimmed_to),
            nonce=NONCE,
            limits=self.limits,
            now_ms=self.now_ms,
        )

    def table(self) -> SnapshotTable:
        """The table in the snapshot log."""
        return recover(0, self.log)

    def snapshot_of(self, data: TopicPartition = P) -> SnapshotEnd:
        """The durable end record of the snapshot."""
        return self.table().ends[data]

    def add(self, *items: Marker | Barrier | None) -> list[WriterEffect]:
        """Appends to the marker log and reads it to its end."""
        records = list(enumerate(items, self.end))
        self.end += len(items)
        return self.writer.markers_read(records, self.now_ms)  # type: ignore[arg-type]

    def tick(self, elapsed_ms: int) -> list[WriterEffect]:
        """Time passes."""
        self.now_ms += elapsed_ms
        return self.writer.tick(self.now_ms)

    def request(self, data: TopicPartition = P) -> int:
        """Makes a request that begins a probe; returns the probe's counter."""
        (effect,) = self.writer.requested(1, data, self.now_ms)
        assert isinstance(effect, ReadPositions)
        return effect.counter

    def positions(self, counter: int, positions: dict, coordinators: int = 1):
        """E1 (1), (2)."""
        ends = dict.fromkeys(range(coordinators), EndOffset(9))
        return self.writer.positions_read(counter, positions, ends, self.now_ms)

    def barrier(self, counter: int, *there: OpenTransactions, low: int = 0, coordinator: int = 0):
        """Appends a barrier, and has the writer read it."""
        return self.add(Barrier(coordinator, Probe(NONCE, counter), low, there))

    def to_write(self, counter: int, positions: dict, *there: OpenTransactions, low: int = 0):
        """Runs a whole probe; returns the effects that write its result."""
        self.positions(counter, positions)
        assert self.barrier(counter, *there, low=low) == [ReadMarkerEnd(counter)]
        return self.writer.marker_end_read(counter, EndOffset(self.end), self.now_ms)

    def write(self, effects: list[WriterEffect]) -> list[WriterEffect]:
        """Commits the write of these effects."""
        (effect,) = effects
        assert isinstance(effect, WriteSnapshots)
        for key, value in effect.records:
            self.log.append((Offset(len(self.log)), key, value))
        effects = self.writer.snapshots_written(effect.counter, self.now_ms)
        self.trimmed_to = max(
            [self.trimmed_to, *(one.before for one in effects if isinstance(one, TrimMarkers))]
        )
        return effects

    def take(self, position: DataPosition, *there: OpenTransactions, low: int = 0):
        """A snapshot of P on request."""
        return self.write(self.to_write(self.request(), {P: position}, *there, low=low))

    def keys(self, effects: list[WriterEffect]) -> list[object]:
        """The keys to be written, in order, and whether they are tombstones."""
        (effect,) = effects
        assert isinstance(effect, WriteSnapshots)
        return [(type(decode_key(key)).__name__, value is None) for key, value in effect.records]
