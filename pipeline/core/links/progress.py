"""How far a link has come, for logs and metrics.

*Invariants*: nothing is done for a single record; lags are of the last look at the source's ends.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from stilltide.schemas.values import EndOffset, TopicPartition


@dataclass(slots=True)
class PartitionProgress:
    """One data partition of a link.

    Attributes:
        records: copied since the process began, also by transactions that did not commit.
        size_bytes: of their keys and values.
        lost: offsets that left the source's log before they were copied (H5).
        position: everything below it was copied or passed, durably; None: not known yet.
        newest_ms: when the last record that was copied was written; 0 before there was one.
        end: last stable offset of the source at the last look.
    """

    records: int = 0
    size_bytes: int = 0
    lost: int = 0
    position: EndOffset | None = None
    newest_ms: int = 0
    end: int = 0

    @property
    def lag(self) -> int:
        """Offsets below the last stable offset that were not passed yet."""
        return max(0, self.end - (self.position or 0))

    def lag_s(self, now_ms: int) -> float:
        """Age of the last copied record while others wait behind it; 0 with no lag."""
        if not self.lag or not self.newest_ms:
            return 0.0
        return max(0, now_ms - self.newest_ms) / 1000


class LinkProgress:
    """All data partitions of a link."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, PartitionProgress] = {}

    def of(self, data: TopicPartition) -> PartitionProgress:
        """One partition."""
        return self.partitions.setdefault(data, PartitionProgress())

    def copied(self, data: TopicPartition, count: int, size_bytes: int, newest_ms: int) -> None:
        """Copies are on their way."""
        partition = self.of(data)
        partition.records += count
        partition.size_bytes += size_bytes
        partition.newest_ms = newest_ms

    def committed(self, data: TopicPartition, position: EndOffset) -> None:
        """The position is durable."""
        self.of(data).position = position

    def lost(self, data: TopicPartition, count: int) -> None:
        """They left the source's log."""
        self.of(data).lost += count

    def ends_seen(self, ends: Mapping[TopicPartition, EndOffset]) -> None:
        """The source's last stable offsets."""
        for data, end in ends.items():
            self.of(data).end = end

    def forget(self, partitions: set[TopicPartition]) -> None:
        """These are gone."""
        for data in partitions:
            self.partitions.pop(data, None)

    @property
    def records(self) -> int:
        """Copied of all partitions."""
        return sum(one.records for one in self.partitions.values())

    @property
    def lag(self) -> int:
        """Of all partitions."""
        return sum(one.lag for one in self.partitions.values())
