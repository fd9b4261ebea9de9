"""A snapshot log, made step by step by writers, and the true outcomes at each of its records."""

from collections.abc import Iterator, Sequence
from itertools import product

from stilltide.pipeline.core.snapshots.aborted import SnapshotRecord
from stilltide.pipeline.core.snapshots.recovery import SnapshotTable
from stilltide.pipeline.core.snapshots.writer import SnapshotWriter
from stilltide.pipeline.errors import SnapshotPartError
from stilltide.schemas.snapshots import snapshots
from stilltide.schemas.values import Offset, TxnId
from tests.support.snapshots.recovered import recover
from tests.support.snapshots.world import LIMITS, PARTITIONS, Data, SnapshotWorld

DATA = PARTITIONS[0]

LogRecord = tuple[int, bytes, bytes | None]


class History:
    """Transactions on one data partition that end one after another, and snapshots of them."""

    def __init__(self) -> None:
        self.world = SnapshotWorld()
        self.ended_at: list[set[TxnId]] = []  # by record of `everything`
        self.log_start_at: list[int] = []
        self.everything: list[LogRecord] = []  # also of transactions that were aborted
        self.aborted: set[int] = set()  # their offsets
        self.markers: dict[TxnId, int] = {}  # offset of its marker
        self.boundaries: list[int] = [0]  # between native transactions

    @property
    def data(self) -> Data:
        """The data partition."""
        there = self.world.topics[DATA]
        assert there is not None
        return there

    def end_txns(self, *, aborted: int, committed: int):
        """Ends these numbers of transactions, each with one record."""
        world = self.world
        for number in range(aborted + committed):
            world.open(0)
            txn = list(world.txns)[-1]
            world.register(txn, DATA, 0)
            world.append(DATA, txn)
            world.end(txn, committed=number >= aborted)
            self.markers[txn] = world.log_end
            world.land_marker(0)

    def take(self, *, committed: bool = True):
        """Requests a snapshot; if its write fails, another writer follows."""
        world = self.world
        world.request(DATA)
        for _ in range(20):
            writer = world.writer
            if writer.reads:
                world.read_positions(writer, 0)
            while world.asks:
                world.answer_ask(0)
            while world.barriers:
                world.append_marker(world.barriers.pop())
            world.read_markers(writer, 1000)
            if writer.end_reads:
                world.read_marker_end(writer, 0)
            if writer.write:
                self.note(writer.write.records, committed=committed)
                world.end_write(writer, committed=committed, reported=committed)
        self.boundaries.append(len(world.snapshots))

    def note(self, records: Sequence[SnapshotRecord], *, committed: bool):
        """Notes the true outcomes when these records are written."""
        ended = {txn for txn, held in self.world.txns.items() if held.committed is not None}
        for key, value in records:
            if not committed:
                self.aborted.add(len(self.everything))
            self.everything.append((len(self.everything), key, value))
            self.ended_at.append(ended)
            self.log_start_at.append(self.data.log_start)

    def disturb_markers(self, pick: int):
        """A zombie writes a marker again, and the cleaner takes the first one."""
        world = self.world
        if world.landed:
            marker = world.landed[pick % len(world.landed)]
            world.append_marker(marker)
            world.log = [one for one in world.log[:-1] if one[1] != marker] + world.log[-1:]

    def retain(self, records: int):
        """Removes all but the last records of the data partition."""
        self.data.log_start = max(self.data.log_start, len(self.data.records) - records)

    @property
    def log(self) -> list[LogRecord]:
        """Every record of the snapshot log, without those of aborted transactions."""
        return self.world.snapshots

    def part_count(self) -> int:
        """How many parts were sealed."""
        return len({key for _, key, _ in self.log if key[:1] == b"p"})

    # -- what must hold

    def check(self, read_to: int, left: list[LogRecord]) -> bool:
        """Checks a reader that read `left` of the first `read_to` records; False: it finds a gap.

        No aborted record is visible, no committed record is hidden, and M is not ahead of the
        ended transactions.
        """
        table = recover(0, ((Offset(offset), key, value) for offset, key, value in left))
        try:
            snapshot = table.snapshot(DATA, self.data.topic_id)
        except SnapshotPartError:
            return False
        if snapshot is None:
            return True
        ended = self.ended_at[read_to - 1]
        for offset in range(self.log_start_at[read_to - 1], len(self.data.records)):
            txn = self.data.records[offset]
            assert txn is not None
            visible = snapshot.visible(offset, *txn)
            assert visible in (None, self.world.txns[txn].committed), (offset, txn)
            assert txn in ended or offset >= snapshot.end.max_read_position
        return True

    def check_writer(self, left: list[LogRecord]):
        """A writer that begins with these records knows each abort, or reads its marker."""
        table: SnapshotTable = recover(0, left)  # type: ignore[arg-type]
        begins = table.star.markers_covered_to
        writer = SnapshotWriter(0, table, Offset(begins), nonce=b"n", limits=LIMITS, now_ms=0)
        known = writer.buffers.get(DATA)
        for txn, offset in self.markers.items():
            if not self.world.txns[txn].committed and offset < writer.position:
                assert known is not None
                assert known.aborted.hides(*txn)


def compactions(log: list[LogRecord], read_to: int) -> Iterator[list[LogRecord]]:
    """All results of a cleaner that knows the whole log, for its first records.

    A record may go when a later one has its key; a tombstone then too, once the others are gone.
    """
    by_key: dict[bytes, list[LogRecord]] = {}
    for one in log:
        by_key.setdefault(one[1], []).append(one)
    choices = [list(_left(records, read_to)) for records in by_key.values()]
    for chosen in product(*choices):
        yield sorted((one for kept in chosen for one in kept), key=lambda one: one[0])


def _left(records: list[LogRecord], read_to: int) -> Iterator[list[LogRecord]]:
    """All possible remainders of the records of one key, among those that are read."""
    *older, last = records
    seen = [one for one in older if one[0] < read_to]
    latest = [last] if last[0] < read_to else []
    for kept in product([False, True], repeat=len(seen)):
        yield [one for one, keeps in zip(seen, kept, strict=True) if keeps] + latest
    if latest and last[2] is None:
        yield []


def is_star(record: LogRecord) -> bool:
    """Whether the record is a star, which readers ignore."""
    return record[1] == snapshots.STAR_KEY
