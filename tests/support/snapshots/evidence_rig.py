"""Writes a worker's records for one data partition by hand, on the memory broker."""

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.readers import NewRecord
from stilltide.schemas.coordinator import markers
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.headers import TXN
from stilltide.schemas.snapshots.snapshots import (
    STAR_KEY,
    SnapshotEnd,
    SnapshotStar,
    checksum,
    encode_end,
    encode_part,
    encode_star,
    end_key,
    part_key,
)
from stilltide.schemas.topics import (
    TXN_MARKERS,
    TXN_SNAPSHOTS,
    TopicSpec,
    system_partition,
    system_topics,
)
from stilltide.schemas.values import EndOffset, TopicPartition, TxnId

PARTITIONS = 3
ORDERS = TopicPartition("orders", 0)
SERVING = system_partition(ORDERS, PARTITIONS)
MARKERS = TopicPartition(TXN_MARKERS, SERVING)
SNAPSHOTS = TopicPartition(TXN_SNAPSHOTS, SERVING)
FIRST, SECOND = TxnId(0, 1), TxnId(0, 2)
"""Transactions that are not in `PART`."""

PART = encode_part({0: [7, 8]})


class EvidenceRig:
    """A broker with three data records, and calls that write markers and snapshots."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.broker.create_topic(TopicSpec("orders", 1))
        for spec in system_topics(coordinators=1, partitions=PARTITIONS):
            if spec.name in (TXN_MARKERS, TXN_SNAPSHOTS):
                self.broker.create_topic(spec)
        for _ in range(3):
            self.broker.append(ORDERS, None, b"v", None)
        self.topic_id = self.broker.topics["orders"].description.topic_id

    @property
    def connector(self) -> MemoryConnector:
        """A connector of the broker."""
        return MemoryConnector(self.broker)

    def mark(self, txn: TxnId, *, count: int = 1, committed: bool = True) -> Marker:
        """Writes a marker over offsets [0, 3)."""
        marker = Marker(ORDERS, txn, committed, EndOffset(0), EndOffset(3), count, self.topic_id)
        key = markers.encode_key(ORDERS, txn)
        self.broker.append(MARKERS, key, markers.encode_value(marker), None)
        return marker

    def end(self, **changes: object) -> SnapshotEnd:
        """An end with one part, M = 2, K = 0."""
        crc = checksum(part_key(ORDERS, 1), PART)
        end = SnapshotEnd(
            self.topic_id, EndOffset(2), EndOffset(0), 1, (crc,), {}, {}, EndOffset(0), ()
        )
        return end._replace(**changes)

    def write(self, *, end: SnapshotEnd, part: bytes | None = PART, star: int = 0) -> None:
        """Writes a snapshot."""
        star_value = encode_star(SnapshotStar(EndOffset(star), {}))
        records: list[NewRecord] = [
            NewRecord(SNAPSHOTS, end_key(ORDERS), encode_end(end)),
            NewRecord(SNAPSHOTS, STAR_KEY, star_value),
        ]
        if part is not None:
            records.insert(0, NewRecord(SNAPSHOTS, part_key(ORDERS, 1), part))
        self.broker.transactions.append_all(records)

    def record(self, txn: TxnId) -> int:
        """Writes a record of a transaction; its offset."""
        return self.broker.append(ORDERS, None, b"v", [(TXN, txn.to_bytes())])
