"""Appends markers and barriers to txn-markers.

*Source*: docs/protocols C4 (markers), E1 (barriers).
"""

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.ports.writers import Delivered, LogWriter
from stilltide.schemas import topics
from stilltide.schemas.coordinator import markers
from stilltide.schemas.topics import system_partition
from stilltide.schemas.values import TopicPartition


class MarkerLog:
    """Writes to txn-markers for one coordinator.

    Args:
        writer: writer of markers.
        partition_count: number of partitions of txn-markers.
    """

    def __init__(self, writer: LogWriter, partition_count: int) -> None:
        self._writer = writer
        self.partition_count = partition_count
        self._partitions = [TopicPartition(topics.TXN_MARKERS, it) for it in range(partition_count)]

    def write(self, marker: markers.Marker, delivered: Delivered) -> None:
        """Appends the marker of a transaction on one data partition."""
        partition = system_partition(marker.data, self.partition_count)
        key = markers.encode_key(marker.data, marker.txn)
        self.append(partition, key, markers.encode_value(marker), delivered)

    def append(self, partition: int, key: bytes, value: bytes, delivered: Delivered) -> None:
        """Appends a record; calls `delivered` with an error where the writer's queue is full."""
        try:
            self._writer.append(self._partitions[partition], value, delivered, key=key)
        except RetriableError as error:  # the step or the probe is repeated
            delivered(error, -1)
