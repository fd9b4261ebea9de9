"""Topics, logs and native transactions of the memory broker; planned reports, calls at changes.

*Invariants*: a record never changes its offset, and no offset is given to two records.
`append_all` writes and commits a transaction in one step. A transaction of
`append_open` stays open until `end_open`, or until another writer fences its transactional id.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import chain, islice, takewhile
from operator import attrgetter

from stilltide.connectors.errors import OffsetOutOfRangeError, RecordRefusedError, RetriableError
from stilltide.connectors.ports.admin import TopicDescription
from stilltide.connectors.ports.readers import NewRecord, Record
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


class Watch:
    """One registered call, which follows changes of the partitions that it names."""

    def __init__(self, watchers: "Watchers", changed: Callable[[], None]) -> None:
        self.changed = changed
        self._watchers = watchers
        self._partitions: frozenset[TopicPartition] = frozenset()

    def follow(self, partitions: Iterable[TopicPartition]) -> None:
        """Replaces the named partitions; a change of the whole broker is followed in any case."""
        self._watchers.replace(self, self._partitions, named := frozenset(partitions))
        self._partitions = named

    def end(self) -> None:
        """Removes the call."""
        self.follow(())
        self._watchers.remove(self)


class Watchers:
    """The registered calls, in order of registration."""

    def __init__(self) -> None:
        self._watches: dict[Watch, None] = {}
        self._of: defaultdict[TopicPartition, dict[Watch, None]] = defaultdict(dict)

    def __bool__(self) -> bool:
        """Whether any call is registered."""
        return bool(self._watches)

    def add(self, changed: Callable[[], None]) -> Watch:
        """Registers `changed` to be called after every change that the watch follows."""
        watch = Watch(self, changed)
        self._watches[watch] = None
        return watch

    def notify(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Makes the calls that follow these partitions; None: all calls."""
        if partitions is None:
            watches = list(self._watches)
        else:
            followed = [watches for data in partitions if (watches := self._of.get(data))]
            watches = list(followed[0] if len(followed) == 1 else dict.fromkeys(chain(*followed)))
        for watch in watches:
            watch.changed()

    def replace(
        self,
        watch: Watch,
        before: frozenset[TopicPartition],
        after: frozenset[TopicPartition],
    ) -> None:
        """Follows other partitions with a watch."""
        for data in before - after:
            del self._of[data][watch]
        for data in after - before:
            self._of[data][watch] = None

    def remove(self, watch: Watch) -> None:
        """Removes a watch that follows no partition any more."""
        self._watches.pop(watch, None)


class Report(Enum):
    """The delivery report of a record that was appended: right, lost, or without offset."""

    SENT = "sent"
    LOST = "lost"
    OFFSET_UNKNOWN = "offset unknown"


class PlannedReports:
    """The planned reports of the next records of each topic."""

    def __init__(self) -> None:
        self._planned: defaultdict[str, list[Report]] = defaultdict(list)

    def lose(self, topic: str) -> None:
        """Plans that the next record is appended, but its writer gets `RetriableError` (A5)."""
        self._planned[topic].append(Report.LOST)

    def hide_offset(self, topic: str) -> None:
        """Plans that the next record is reported at offset -1, as after an idempotent retry."""
        self._planned[topic].append(Report.OFFSET_UNKNOWN)

    def next(self, topic: str) -> Report:
        """Takes the planned report of the next record."""
        planned = self._planned.get(topic)
        return planned.pop(0) if planned else Report.SENT


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
        batch = records[first : first + _BATCH_RECORDS]
        if committed and (self.open or self.aborted):
            following = islice(records, first, None)
            below = takewhile(lambda record: record.offset < end, following)
            readable = (it for it in below if it.offset not in self.aborted)
            batch = list(islice(readable, _BATCH_RECORDS))
        # Without records, the rest of the log is empty, compacted away or aborted.
        after = Offset(batch[-1].offset + 1) if batch else Offset(max(position, end))
        return batch, after

    def trim(self, before: Offset) -> None:
        """Moves the log start to `before`, at most to the end."""
        self.start = max(self.start, min(before, Offset(self.end)))
        self.records = [record for record in self.records if record.offset >= self.start]

    def compact(self) -> None:
        """Keeps the last record of each key, unless that record is a tombstone.

        As Kafka's cleaner, drops what native transactions have aborted, and leaves alone what lies
        behind an open one.
        """
        end = self.stable_end
        decided = [it for it in self.records if it.offset < end and it.offset not in self.aborted]
        last = {it.key: it.offset for it in decided}
        kept = [it for it in decided if it.value is not None and last[it.key] == it.offset]
        self.records = kept + [record for record in self.records if record.offset >= end]


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


LogFor = Callable[[TopicPartition, bytes | None, bytes | None], Log]


class MemoryTransactions:
    """The transactional ids of one broker, and their open transactions.

    Args:
        check_up: raises `RetriableError` while the broker is down.
        log_for: the log that takes a record; raises as `MemoryBroker.append`.
        reports: planned delivery reports of appended records.
        watchers: calls that follow every change.
    """

    def __init__(
        self,
        check_up: Callable[[], None],
        log_for: LogFor,
        reports: PlannedReports,
        watchers: Watchers,
    ) -> None:
        self._check_up = check_up
        self._log_for = log_for
        self._reports = reports
        self._watchers = watchers
        self._epochs: dict[str, int] = {}
        self._written: dict[str, list[tuple[Log, Offset]]] = {}  # records of open transactions

    def fence(self, transactional_id: str) -> int:
        """Raises and returns the epoch of a transactional id, which fences its earlier writers.

        Raises:
            RetriableError: the broker is down.
        """
        self._check_up()
        epoch = self._epochs[transactional_id] = self.epoch_of(transactional_id) + 1
        self.end_open(transactional_id, committed=False)
        return epoch

    def epoch_of(self, transactional_id: str) -> int:
        """The epoch of a transactional id; 0 before its first fence."""
        return self._epochs.get(transactional_id, 0)

    def append_all(self, records: Sequence[NewRecord]) -> None:
        """Appends all records or none, and a control record in each partition.

        Raises:
            RetriableError: the broker is down, or it is not known whether the records were
                appended.
            FatalError: as `MemoryBroker.append` raises; no record was appended.
        """
        self._check_up()
        logs = {record.data: self._log_for(*record) for record in records}
        reports = [self._reports.next(data.topic) for data in logs]
        for data, key, value in records:
            logs[data].append(key, value, None)
        for log in logs.values():
            log.append_control()
        self._watchers.notify(logs)
        if Report.LOST in reports:
            raise RetriableError("no answer to the end of a transaction")

    def append_open(
        self,
        transactional_id: str,
        data: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
    ) -> Offset:
        """Appends a record of a transaction that stays open; raises as `MemoryBroker.append`."""
        log = self._log_for(data, key, value)
        log.open.setdefault(transactional_id, Offset(log.end))
        offset = log.append(key, value, headers)
        self._written.setdefault(transactional_id, []).append((log, offset))
        self._watchers.notify([data])
        return offset

    def end_open(self, transactional_id: str, *, committed: bool) -> None:
        """Ends the open transaction of an id, if any, with a control record in each log."""
        written = self._written.pop(transactional_id, [])
        for log, offset in written:
            if not committed:
                log.aborted.add(offset)
            if log.open.pop(transactional_id, None) is not None:
                log.append_control()
        self._watchers.notify(dict.fromkeys(log.data for log, _ in written))
