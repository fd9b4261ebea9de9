"""The figures of a link, for logs and metrics.

*Invariants*: no call is made for a single record; lags are as of the last look at the source's
ends.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class CopiedCount(NamedTuple):
    """What one transaction has copied of a data partition.

    Attributes:
        records: number of records.
        size_bytes: bytes of their keys and values.
        newest_ms: timestamp of the last one.
    """

    records: int
    size_bytes: int
    newest_ms: int


@dataclass(slots=True)
class PartitionProgress:
    """The figures of one data partition of a link.

    Attributes:
        records: records copied since the process began, by transactions that committed.
        size_bytes: bytes of those records' keys and values.
        lost: number of offsets that left the source's log before they were copied (H5).
        position: durable end offset of what was copied or passed; None: not known yet.
        keyless: number of records without key that were not copied, since the target's topic
            compacts (H10): left out, or waited at.
        waits_at: offset of the record without key that the partition waits at; None: none.
        withheld: number of records that no reader may see although their transaction did not abort:
            late ones, and those with a malformed `txn` header (D1, D3).
        withheld_to: end offset of the last one of them, which another driver does not count again.
        newest_ms: timestamp of the last copied record; 0: no record was copied.
        end: last stable offset of the source at the last look.
    """

    records: int = 0
    size_bytes: int = 0
    lost: int = 0
    keyless: int = 0
    waits_at: Offset | None = None
    withheld: int = 0
    withheld_to: int = 0
    position: EndOffset | None = None
    newest_ms: int = 0
    end: int = 0

    @property
    def lag(self) -> int:
        """The number of offsets below the last stable offset that were not passed yet."""
        return max(0, self.end - (self.position or 0))

    def lag_s(self, now_ms: int) -> float:
        """Age of the last copied record while later records wait; 0 without a lag."""
        if not self.lag or not self.newest_ms:
            return 0.0
        return max(0, now_ms - self.newest_ms) / 1000


@dataclass(slots=True)
class ConfigProgress:
    """How the configs of one topic follow the source's (H8).

    Attributes:
        carried: number of configs that were set or unset on the target since the process began.
        differing: number of configs that differ and are not altered.
        refused: why the last request was refused; empty if it was not.
    """

    carried: int = 0
    differing: int = 0
    refused: str = ""

    @property
    def is_refused(self) -> bool:
        """Whether the last request was refused."""
        return bool(self.refused)


class LinkProgress:
    """The figures of a link.

    Attributes:
        partitions: figures of each data partition.
        configs: figures of each topic's configs.
    """

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, PartitionProgress] = {}
        self.configs: dict[str, ConfigProgress] = {}

    def of(self, data: TopicPartition) -> PartitionProgress:
        """The figures of one partition; zeros at first."""
        return self.partitions.setdefault(data, PartitionProgress())

    def copied(self, data: TopicPartition, count: CopiedCount) -> None:
        """Copies were committed."""
        partition = self.of(data)
        partition.records += count.records
        partition.size_bytes += count.size_bytes
        partition.newest_ms = count.newest_ms

    def committed(self, data: TopicPartition, position: EndOffset) -> None:
        """The position was committed."""
        self.of(data).position = position

    def lost(self, data: TopicPartition, count: int) -> None:
        """Offsets left the source's log before they were copied."""
        self.of(data).lost += count

    def left_out(self, data: TopicPartition, count: int) -> None:
        """Records without key were left out."""
        self.of(data).keyless += count

    def waits(self, data: TopicPartition, offset: Offset) -> None:
        """The partition waits at a record without key."""
        partition = self.of(data)
        partition.keyless += 1
        partition.waits_at = offset

    def withholds(self, data: TopicPartition, offset: Offset) -> bool:
        """A record is withheld; True: the first one of its partition."""
        partition = self.of(data)
        if offset < partition.withheld_to:
            return False
        partition.withheld += 1
        partition.withheld_to = offset + 1
        return partition.withheld == 1

    def begins(self, data: TopicPartition) -> None:
        """The partition is read from its position on."""
        self.of(data).waits_at = None

    @property
    def waiting(self) -> dict[TopicPartition, Offset]:
        """The partitions that wait at a record without key, and its offset."""
        positions = {data: one.waits_at for data, one in self.partitions.items()}
        return {data: offset for data, offset in positions.items() if offset is not None}

    def ends_seen(self, ends: Mapping[TopicPartition, EndOffset]) -> None:
        """The source has these last stable offsets."""
        for data, end in ends.items():
            self.of(data).end = end

    def forget(self, partitions: set[TopicPartition]) -> None:
        """Drops the figures of partitions that are gone."""
        for data in partitions:
            self.partitions.pop(data, None)

    def configs_of(self, topic: str) -> ConfigProgress:
        """The figures of one topic's configs; zeros at first."""
        return self.configs.setdefault(topic, ConfigProgress())

    def forget_configs(self, topics: set[str]) -> None:
        """Drops the figures of topics that are gone."""
        for topic in topics:
            self.configs.pop(topic, None)

    @property
    def carried(self) -> int:
        """The number of configs that were set or unset, of all topics."""
        return sum(one.carried for one in self.configs.values())

    @property
    def refusals(self) -> str:
        """What clusters refuse, for people: configs, and records without key; empty: nothing.

        Of each the first is named, and how many more there are.
        """
        refusals = sorted({one.refused for one in self.configs.values() if one.refused})
        more = f", and {len(refusals) - 1} more" if len(refusals) > 1 else ""
        configs = f"; configs are not followed: {refusals[0]}{more}" if refusals else ""
        return configs + self._waits

    @property
    def _waits(self) -> str:
        if not (waiting := self.waiting):
            return ""
        data, offset = min(waiting.items())
        more = f", and {len(waiting) - 1} partitions more" if len(waiting) > 1 else ""
        return f"; {data} waits at a record without key, offset {offset} of the source{more}"

    @property
    def records(self) -> int:
        """The number of records copied, of all partitions."""
        return sum(one.records for one in self.partitions.values())

    @property
    def lag(self) -> int:
        """The sum of all partitions' lags."""
        return sum(one.lag for one in self.partitions.values())
