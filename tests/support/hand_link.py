"""A link by hand between memory brokers: it copies when it is told to.

*Source*: protocols.md H1, H3, H4. It does what a link does that never fails: each call copies what
is there, in one bucket.
"""

from connectors.base import Record
from connectors.memory.broker import MemoryBroker
from schemas import replication_markers, replication_positions
from schemas.replication import Incarnation, OriginStamp, origin_of, topic_incarnation
from schemas.replication_markers import ResponseKey, UpdateKey
from schemas.replication_positions import Bucket, BucketKey
from schemas.topics import REPLICATION_MARKERS, REPLICATION_POSITIONS
from schemas.values import ClusterName, EndOffset, Offset, TopicPartition

MARKERS = TopicPartition(REPLICATION_MARKERS, 0)
POSITIONS = TopicPartition(REPLICATION_POSITIONS, 0)


class HandLink:
    """From one broker to another; one partition of each system topic."""

    def __init__(self, source: tuple[str, MemoryBroker], target: tuple[str, MemoryBroker]) -> None:
        (self.source_name, self.source), (self.target_name, self.target) = source, target
        self.buckets: dict[TopicPartition, int] = {}
        self.copied: dict[TopicPartition, int] = {}
        self.markers_copied = 0

    def run(self, *partitions: TopicPartition):
        """Copies what is new of these, and the markers."""
        for data in partitions:
            self.copy(data)
        self.copy_markers()

    def copy(self, data: TopicPartition):
        """Copies the local records of a partition, and writes the bucket."""
        log = self.source.log(data)
        assert log is not None
        first = max(self.copied.get(data, 0), log.start)
        here = Incarnation(ClusterName(self.source_name), self.incarnation(self.source, data))
        stamp = OriginStamp(here)
        target = self.target.log(data)
        assert target is not None
        if self.copied.get(data) == log.end:
            return
        number, target_from = self.buckets.get(data, 0), target.end
        for record in self.source.records(data):
            if record.offset >= first and self.is_local(record):
                headers = stamp.headers(record.headers, record.offset)
                self.target.append(data, record.key, record.value, headers)
        bucket = Bucket(
            here.topic,
            self.incarnation(self.target, data),
            Offset(first),
            log.end,
            Offset(target_from),
            target.end,
            {},
        )
        key = BucketKey(here.cluster, ClusterName(self.target_name), data, number)
        value = replication_positions.encode_bucket(bucket)
        self.target.append(POSITIONS, replication_positions.encode_key(key), value, None)
        self.buckets[data], self.copied[data] = number + 1, log.end

    def copy_markers(self):
        """Copies what is meant for the target."""
        for record in self.source.records(MARKERS):
            if record.offset < self.markers_copied:
                continue
            self.markers_copied = record.offset + 1
            key, _ = replication_markers.decode(record.key, record.value)
            meant = key.source == self.source_name
            if isinstance(key, ResponseKey):
                meant = meant and key.target == self.target_name
            elif not isinstance(key, UpdateKey | replication_markers.RequestKey):
                meant = False
            if meant:
                self.target.append(MARKERS, record.key, record.value, None)

    @staticmethod
    def is_local(record: Record) -> bool:
        """No other link wrote it."""
        return origin_of(record.headers) is None

    @staticmethod
    def incarnation(broker: MemoryBroker, data: TopicPartition) -> bytes:
        """Of a topic."""
        found = broker.describe(data.topic)
        assert found is not None
        return topic_incarnation(found[0].topic_id)


def end_of(broker: MemoryBroker, data: TopicPartition) -> EndOffset:
    """Of a log."""
    log = broker.log(data)
    assert log is not None
    return log.end
