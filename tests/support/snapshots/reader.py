"""A long-lived reader of one data partition of a `SnapshotWorld`, and a reader that never forgets.

Records, markers and snapshots reach the reader late and in any order: records that retention has
removed since the fetch, markers after cleaner and trims, snapshots after compaction.
"""

from stilltide.pipeline.core.read_committed.machine import (
    Deliver,
    Effect,
    PartitionFilter,
    Reason,
    Withheld,
)
from stilltide.pipeline.core.snapshots.recovery import Snapshot, SnapshotTable
from stilltide.pipeline.errors import TopicRecreatedError
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId
from tests.support.snapshots.world import Data, SnapshotWorld


class SnapshotReader:
    """A reader of one partition, from its log start at the begin."""

    def __init__(self, world: SnapshotWorld, data: TopicPartition, there: Data) -> None:
        self.world, self.data, self.there = world, data, there
        self.machine = PartitionFilter[int](position=Offset(there.log_start), waiting_max=1000)
        self.began = self.position = there.log_start
        self.fetched: list[int] = []  # under way: not fed yet
        self.fetch_from = there.log_start
        self.fed: list[int] = []
        self.markers_from = world.log_start
        self.snapshots_from = 0
        self.table = SnapshotTable(0, only={data})
        self.marker_end: int | None = None  # to be read before anything is lost
        self.delivered: list[int] = []
        self.lost: set[int] = set()
        # The outcomes of a reader that forgets nothing.
        self.outcomes: dict[TxnId, int | None] = {}

    @property
    def alive(self) -> bool:
        """Whether the topic and the next offset to fetch still exist."""
        return self.world.topics[self.data] is self.there and (
            self.fetch_from >= self.there.log_start
        )

    def begin_at_snapshot(self) -> bool:
        """E9: reads the snapshot, then the markers it has not absorbed; False as below."""
        found = self.read_snapshots()
        self.markers_from = max(self.markers_from, self.table.absorbed_to(self.data))
        return found

    def fetch(self, count: int) -> None:
        """Fetches records, which are then under way."""
        end = min(self.there.stable, self.fetch_from + count)
        self.fetched += range(self.fetch_from, end)
        self.fetch_from = max(self.fetch_from, end)

    def feed(self, count: int) -> None:
        """Hands fetched records to the reader."""
        batch, self.fetched = self.fetched[:count], self.fetched[count:]
        self.fed += batch
        found = [self.there.records[offset] for offset in batch]
        txns = [txn and txn.to_bytes() for txn in found]
        self.run(self.machine.records_read(batch, txns, batch))

    def read_markers(self, count: int) -> None:
        """D5: reads markers; does not wait for trimmed ones."""
        world = self.world
        self.markers_from = max(self.markers_from, world.log_start)
        found = [one for one in world.log if one[0] >= self.markers_from]
        for offset, item in found[:count]:
            self.markers_from = offset + 1
            if isinstance(item, Marker) and item.data == self.data:
                end = None if item.end_offset is None else int(item.end_offset)
                self.outcomes[item.txn] = end if item.committed else None
                committed = item.committed
                txn = item.txn.to_bytes()
                self.run(
                    self.machine.marker_read(txn, committed=committed, end_offset=item.end_offset)
                )
        if len(found) <= count:
            self.markers_from = world.log_end
        self.give_up()

    def read_snapshots(self) -> bool:
        """E4: reads snapshots to the end of the log; False: the topic was created again (E8)."""
        for offset, key, value in self.world.snapshots:
            if offset >= self.snapshots_from:
                self.table.record_read(Offset(offset), key, value)
        self.snapshots_from = self.world.snapshots_end
        end = self.table.ends.get(self.data)
        passes = end is not None and end.floors_valid_from <= self.machine.position
        last = self.machine.snapshot if passes else None
        assert last is None or isinstance(last, Snapshot)
        try:
            snapshot = self.table.snapshot(self.data, self.there.topic_id, last)
        except TopicRecreatedError:
            return False
        if snapshot is not None:
            self.run(self.machine.snapshot_read(snapshot))
            waits = self.machine.newer_snapshot is not None
            self.marker_end = self.world.log_end if waits else None
            self.give_up()
        return True

    def give_up(self) -> None:
        """D4: gives up undecided records, after the markers of that time were read."""
        if self.marker_end is not None and self.markers_from >= self.marker_end:
            self.marker_end = None
            self.run(self.machine.markers_read_to_end())

    def run(self, effects: list[Effect[int]]) -> None:
        """Carries out effects as a driver does."""
        for effect in effects:
            match effect:
                case Deliver(payloads, position):
                    self.delivered += payloads
                    assert position > self.position
                    self.position = position
                case Withheld(offset, reason):
                    assert reason is Reason.LOST
                    assert offset < self.there.log_start, "D4: lost, but it is still in the log"
                    self.lost.add(offset)

    # -- what must hold

    def check(self) -> None:
        """D1, D2, D3: what is below the position is exactly what committed, once and in order.

        And the position is that of a reader that keeps every outcome.
        """
        truth, records = self.world.txns, self.there.records
        passed = [offset for offset in self.fed if offset < self.position]
        assert self.delivered == [
            offset
            for offset in passed
            if offset not in self.lost
            and ((txn := records[offset]) is None or truth[txn].committed)
        ]
        waiting = [offset for offset in self.fed if offset >= self.position]
        if waiting:
            txn = records[waiting[0]]
            assert txn is not None, "D3"
            assert txn not in self.outcomes, "D1"
            snapshot = self.machine.snapshot
            told = None if snapshot is None else self.seen(waiting[0], txn)
            assert told is None, "D4"

    def seen(self, offset: int, txn: TxnId) -> bool | None:
        """The decision of the snapshot in use."""
        snapshot = self.machine.snapshot
        assert isinstance(snapshot, Snapshot)
        return snapshot.visible(offset, *txn)

    def check_memory(self) -> None:
        """An outcome is kept in memory only if the snapshot in use does not decide it."""
        snapshot, known = self.machine.snapshot, self.outcomes.items()
        if isinstance(snapshot, Snapshot):
            told = snapshot.max_read_position
            above = [
                txn
                for txn, end in known
                if (end > told if end is not None else not snapshot.hides(*txn))
            ]
            assert self.machine.statistics.outcomes == len(above)
        else:
            assert self.machine.statistics.outcomes == len(self.outcomes)

    def finish(self) -> None:
        """Hands over everything that is under way."""
        self.fetch(1000)
        self.feed(1000)
        self.read_markers(1000)
        assert self.read_snapshots()
        assert self.machine.position == EndOffset(len(self.there.records))
