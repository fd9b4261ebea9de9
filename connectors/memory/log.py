"""Topics and logs of the memory broker.

*Invariants*: a record never changes its offset, and no offset is given to two records.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import islice, takewhile
from operator import attrgetter

from stilltide.connectors.errors import OffsetOutOfRangeError, RecordRefusedError
from stilltide.connectors.ports.admin import TopicDescription
from stilltide.connectors.ports.records import Record
from stilltide.schemas.headers import Headers
from stilltide.schemas.topics import MIN_INSYNC_REPLICAS, TopicSpec
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

_BATCH_RECORDS = 500
_CONFIGS = {
    "cleanup.policy": "delete",
    "delete.retention.ms": "86400000",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "min.compaction.lag.ms": "0",
    "min.cleanable.dirty.ratio": "0.5",
    MIN_INSYNC_REPLICAS: "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
}
"""Kafka's defaults of topic configs; the memory broker obeys the policy and the most bytes."""


class Log:
    """One partition: the records from `start` to `end`, some of them compacted away.

    Attributes:
        open: first offsets of open transactions, by transactional id.
        aborted: offsets of records of aborted transactions.
    """

    def __init__(self, data: TopicPartition) -> None:
        self.data = data
        self.start = Offset(0)
        self.end = EndOffset(0)
        self.records: list[Record] = []
        self.open: dict[str, Offset] = {}
        self.aborted: set[Offset] = set()

    @property
    def stable_end(self) -> EndOffset:
        """The last stable offset."""
        return EndOffset(min(self.open.values())) if self.open else self.end

    def append(self, key: bytes | None, value: bytes | None, headers: Headers | None) -> Offset:
        """Appends a record."""
        offset = Offset(self.end)
        self.records.append(Record(*self.data, offset, key, value, headers))
        self.end = EndOffset(offset + 1)
        return offset

    def append_control(self) -> None:
        """Uses up an offset for a control record, which no reader sees."""
        self.end = EndOffset(self.end + 1)

    def read(self, position: Offset, *, committed: bool) -> tuple[Sequence[Record], Offset]:
        """A batch of records from `position` on, and the next position to read from.

        Raises:
            OffsetOutOfRangeError: the position is outside the log.
        """
        if not self.start <= position <= self.end:
            raise OffsetOutOfRangeError(
                f"position {position} of {self.data} is outside the log [{self.start}, {self.end})",
                hint="choose a position in the log",
            )
        end = self.stable_end if committed else self.end
        records = self.records
        if len(records) == self.end - self.start:  # no offset is missing
            first = position - self.start
        else:
            first = bisect_left(records, position, key=attrgetter("offset"))
        found = records[first : first + _BATCH_RECORDS]
        if committed and (self.open or self.aborted):
            following = islice(records, first, None)
            below = takewhile(lambda it: it.offset < end, following)
            readable = (it for it in below if it.offset not in self.aborted)
            found = list(islice(readable, _BATCH_RECORDS))
        # Without records, the rest of the log is empty, compacted away or aborted.
        after = Offset(found[-1].offset + 1) if found else Offset(max(position, end))
        return found, after

    def trim(self, before: Offset) -> None:
        """Moves the log start to `before`, at most to the end."""
        self.start = max(self.start, min(before, Offset(self.end)))
        self.records = [it for it in self.records if it.offset >= self.start]

    def compact(self) -> None:
        """Keeps the last record of each key, unless that record is a tombstone.

        As Kafka's cleaner, drops what native transactions have aborted, and leaves alone what lies
        behind an open one.
        """
        end = self.stable_end
        decided = [it for it in self.records if it.offset < end and it.offset not in self.aborted]
        last = {it.key: it.offset for it in decided}
        kept = [it for it in decided if it.value is not None and last[it.key] == it.offset]
        self.records = kept + [it for it in self.records if it.offset >= end]


class Topic:
    """One topic.

    Attributes:
        set_configs: configs that are set on the topic itself.
        configs: all configs, with defaults for those that are not set.
        logs: the log of each partition, by number.
    """

    def __init__(self, spec: TopicSpec, topic_id: bytes, replica_count: int) -> None:
        self._name = spec.name
        self._id = topic_id
        self._replica_count = replica_count
        self.set_configs = spec.created_configs
        self.configs = {**_CONFIGS, **self.set_configs}
        self.logs: list[Log] = []
        self.add_partitions(spec.partition_count)

    @property
    def description(self) -> TopicDescription:
        """The description that admins return."""
        return TopicDescription(self._name, self._id, len(self.logs), self._replica_count)

    def add_partitions(self, partition_count: int) -> None:
        """Raises the partition count to `partition_count`, if it is lower."""
        self.logs += [
            Log(TopicPartition(self._name, number))
            for number in range(len(self.logs), partition_count)
        ]

    def alter(self, changes: Mapping[str, str | None]) -> None:
        """Sets configs; None takes the topic's own value away."""
        own = {**self.set_configs, **changes}
        self.set_configs = {name: value for name, value in own.items() if value is not None}
        self.configs = {**_CONFIGS, **self.set_configs}

    def compact(self) -> None:
        """Keeps the last record of each key, unless that is a tombstone; offsets stay."""
        for log in self.logs:
            log.compact()

    def check_record(self, key: bytes | None, value: bytes | None) -> None:
        """Refuses a record as Kafka does.

        Raises:
            RecordRefusedError: the record is too large, or has no key and the topic is compacted.
        """
        if key is None and "compact" in self.configs["cleanup.policy"]:
            raise RecordRefusedError(f"a record without key for compacted topic {self._name}")
        most = int(self.configs["max.message.bytes"])
        size = len(key or b"") + len(value or b"")
        if size > most:
            raise RecordRefusedError(
                f"a record of {size} bytes for topic {self._name}; the most is {most}",
                hint="write smaller records",
            )
