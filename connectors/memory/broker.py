"""A broker in memory: topics, logs, group offsets, and faults on demand.

*Source*: architecture.md, The tree: a verified fake. What it does like Kafka is what the contract
suite proves on both.

*Invariants*: deterministic: no thread, no clock, no randomness; topic ids tell of cluster and
count. Offsets never move and never come twice. A record that was reported without error stays until
`delete_records` or `compact` takes it.

A native transaction of a `TransactionalWriter` is one step here; those of a `CopyWriter` are open
while their records come, and may abort.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice
from operator import attrgetter
from zlib import crc32

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError, RetriableError
from stilltide.connectors.memory.group import Group
from stilltide.connectors.ports.admin import TopicDescription
from stilltide.connectors.ports.records import NewRecord, Record
from stilltide.connectors.topic_check import too_few_brokers
from stilltide.schemas.headers import Headers
from stilltide.schemas.topics import MIN_INSYNC_REPLICAS, BrokerFigures, TopicSpec
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

ADDRESS = "memory"
ONE_BROKER = BrokerFigures(1, 1)
_TOPIC_ID_BYTES = 16
_BATCH_RECORDS = 500
_CONFIGS = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    MIN_INSYNC_REPLICAS: "1",
    "retention.ms": "604800000",
}
"""Kafka's defaults of the configs that mean something here."""


class Log:
    """One partition: the records from `start` to `end`, some of them compacted away."""

    def __init__(self) -> None:
        self.start = Offset(0)
        self.end = EndOffset(0)
        self.records: list[Record] = []
        self.open: dict[str, Offset] = {}  # first offsets of open transactions, by id
        self.aborted: set[Offset] = set()

    @property
    def stable_end(self) -> EndOffset:
        """The last stable offset."""
        return EndOffset(min(self.open.values(), default=self.end))


class Report(Enum):
    """What becomes of the report of a record that has landed."""

    SENT = "sent"
    LOST = "lost"
    OFFSET_UNKNOWN = "offset unknown"


class _Topic:
    def __init__(self, spec: TopicSpec, topic_id: bytes, replica_count: int) -> None:
        self.set_configs = spec.created_configs
        self.configs = {**_CONFIGS, **self.set_configs}
        self.replica_count = replica_count
        self.topic_id = topic_id
        self.logs = [Log() for _ in range(spec.partition_count)]


class MemoryBroker:
    """A cluster in one piece. One for each loop; several connectors may share it.

    Args:
        cluster_id: what the cluster is named by.
        figures: how many brokers it passes for; they are never up or down one by one.
    """

    def __init__(self, cluster_id: str = "memory", figures: BrokerFigures = ONE_BROKER) -> None:
        self.cluster_id = cluster_id
        self.figures = figures
        self.is_down = False
        self._topics: dict[str, _Topic] = {}
        self._topics_made = 0
        self._groups: dict[str, Group] = {}
        self._epochs: dict[str, int] = {}  # of transactional ids
        self._written: dict[str, list[tuple[Log, Offset]]] = {}  # in open transactions
        self._watchers: list[Callable[[], None]] = []
        self._delayed: list[Callable[[], None]] = []
        self._held: set[str] = set()
        self._reports: defaultdict[str, list[Report]] = defaultdict(list)

    # What clients ask.

    def check_up(self) -> None:
        """Raises `RetriableError` while the broker is down."""
        if self.is_down:
            raise RetriableError(
                f"no answer from {ADDRESS}", hint="the test has taken the broker down: up()"
            )

    def create_topic(self, spec: TopicSpec) -> None:
        """Creates a topic.

        Raises:
            FatalError: it exists, or would have more replicas than there are brokers.
        """
        if spec.name in self._topics:
            raise FatalError(f"topic {spec.name} exists already")
        count = self.figures.default_replicas if spec.replicas is None else spec.replicas.factor
        if spec.replicas is not None and count > self.figures.brokers:
            raise too_few_brokers(spec, self.figures.brokers)
        self._topics_made += 1
        incarnation = crc32(self.cluster_id.encode()) << 32 | self._topics_made
        topic_id = incarnation.to_bytes(_TOPIC_ID_BYTES // 2) * 2
        self._topics[spec.name] = _Topic(spec, topic_id, count)

    def describe(self, name: str) -> tuple[TopicDescription, Mapping[str, str]] | None:
        """A topic and its configs; None when it does not exist."""
        topic = self._topics.get(name)
        if topic is None:
            return None
        described = TopicDescription(name, topic.topic_id, len(topic.logs), topic.replica_count)
        return described, topic.configs

    def log(self, data: TopicPartition) -> Log | None:
        """The log of a partition; None when it does not exist."""
        topic = self._topics.get(data.topic)
        if topic is None or not 0 <= data.partition < len(topic.logs):
            return None
        return topic.logs[data.partition]

    def append(
        self,
        data: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
    ) -> Offset:
        """Appends a record.

        Raises:
            RetriableError: the broker is down.
            FatalError: no such partition; or too large, or without key, for the topic's configs.
        """
        self.check_up()
        log = self._log_for(data, key, value)
        offset = Offset(log.end)
        log.records.append(Record(data.topic, data.partition, offset, key, value, headers))
        log.end = EndOffset(offset + 1)
        self.notify()
        return offset

    def fence(self, transactional_id: str) -> int:
        """The next epoch of a transactional id; writers with a lower one are fenced.

        Raises:
            RetriableError: the broker is down.
        """
        self.check_up()
        epoch = self._epochs[transactional_id] = self.epoch_of(transactional_id) + 1
        self.end_open(transactional_id, committed=False)
        return epoch

    def epoch_of(self, transactional_id: str) -> int:
        """The epoch of a transactional id; 0 when nobody has fenced it."""
        return self._epochs.get(transactional_id, 0)

    def append_all(self, records: Sequence[NewRecord]) -> None:
        """Appends all of them or none, and what stands for a control record in each partition.

        Raises:
            RetriableError: the broker is down, or it is not known whether they landed.
            FatalError: as `append`; none has landed.
        """
        self.check_up()
        logs = {it.data: self._log_for(*it) for it in records}
        reports = [self.report_of(data.topic) for data in logs]
        for data, key, value in records:
            self.append(data, key, value, None)
        for log in logs.values():
            log.end = EndOffset(log.end + 1)
        self.notify()
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
        """Appends a record of a transaction that stays open; raises as `append`."""
        self.check_up()
        log = self._log_for(data, key, value)
        log.open.setdefault(transactional_id, Offset(log.end))
        self._written.setdefault(transactional_id, []).append((log, Offset(log.end)))
        return self.append(data, key, value, headers)

    def end_open(self, transactional_id: str, *, committed: bool) -> None:
        """Ends the open transaction of an id, if it has one, with a control record in each log."""
        written = self._written.pop(transactional_id, [])
        for log, offset in written:
            if not committed:
                log.aborted.add(offset)
            if log.open.pop(transactional_id, None) is not None:
                log.end = EndOffset(log.end + 1)
        self.notify()

    def fetch(
        self, data: TopicPartition, position: Offset, *, committed: bool = True
    ) -> tuple[Sequence[Record], Offset]:
        """Records from `position` on, some of them, and what to fetch from next.

        Raises:
            RetriableError: the broker is down.
            OffsetOutOfRangeError: a position outside the log.
            FatalError: no such partition.
        """
        self.check_up()
        log = self.log(data)
        if log is None:
            raise FatalError(f"{data} does not exist", hint="create the topic")
        if not log.start <= position <= log.end:
            raise OffsetOutOfRangeError(
                f"position {position} of {data} is outside the log [{log.start}, {log.end})",
                hint="choose a position in the log",
            )
        end = log.stable_end if committed else log.end
        first = bisect_left(log.records, position, key=attrgetter("offset"))
        readable = (
            it
            for it in islice(log.records, first, None)
            if it.offset < end and not (committed and it.offset in log.aborted)
        )
        found = list(islice(readable, _BATCH_RECORDS))
        # Without records the rest of the log, if any, was compacted away, or aborted.
        after = Offset(found[-1].offset + 1) if found else Offset(max(position, end))
        return found, after

    def topics(self) -> list[str]:
        """Names of all topics, ascending."""
        return sorted(self._topics)

    def set_configs(self, name: str) -> dict[str, str]:
        """What the topic was created with."""
        return dict(self._topics[name].set_configs)

    def group(self, name: str) -> Group:
        """A consumer group; it exists from its first mention on."""
        return self._groups.setdefault(name, Group())

    def partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """All partitions of the topics that exist, in order of name and number."""
        return [
            TopicPartition(name, partition)
            for name in sorted(set(topics) & self._topics.keys())
            for partition in range(len(self._topics[name].logs))
        ]

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls `changed` after every change; returns what ends that."""
        self._watchers.append(changed)
        return lambda: self._watchers.remove(changed)

    def notify(self) -> None:
        """Tells every watcher that something changed."""
        for changed in list(self._watchers):
            changed()

    def when_up(self, call: Callable[[], None]) -> None:
        """Calls at once, or when the broker is up again."""
        if self.is_down:
            self._delayed.append(call)
        else:
            call()

    def is_held(self, topic: str) -> bool:
        """Whether writes to this topic are held back."""
        return topic in self._held

    def report_of(self, topic: str) -> Report:
        """What becomes of the report of the next record of a topic; counts as one record."""
        planned = self._reports[topic]
        return planned.pop(0) if planned else Report.SENT

    # What tests do to it.

    def down(self) -> None:
        """Takes the broker away: whatever a client asks fails with `RetriableError`."""
        self.is_down = True
        self.notify()

    def up(self) -> None:
        """Brings it back with all its logs."""
        self.is_down = False
        delayed, self._delayed = self._delayed, []
        for call in delayed:
            call()
        self.notify()

    def hold(self, topic: str) -> None:
        """Holds back writes to a topic: they neither land nor are reported until `release`."""
        self._held.add(topic)

    def release(self) -> None:
        """Lets everything land that was held back, in order."""
        self._held.clear()
        self.notify()

    def lose_report(self, topic: str) -> None:
        """Has the next record land while its writer gets `RetriableError` (A5)."""
        self._reports[topic].append(Report.LOST)

    def hide_offset(self, topic: str) -> None:
        """Has the next record be reported at offset -1, as after an idempotent retry."""
        self._reports[topic].append(Report.OFFSET_UNKNOWN)

    def delete_records(self, data: TopicPartition, before: Offset) -> None:
        """Moves the log start to `before`, at most to the end."""
        log = self.log(data)
        assert log is not None, data
        log.start = max(log.start, min(before, Offset(log.end)))
        log.records = [it for it in log.records if it.offset >= log.start]
        self.notify()

    def compact(self, topic: str) -> None:
        """Keeps the last record of each key, and of those no tombstone; offsets stay."""
        for log in self._topics[topic].logs:
            last = {it.key: it.offset for it in log.records}
            log.records = [
                it for it in log.records if it.value is not None and last[it.key] == it.offset
            ]

    def add_partitions(self, name: str, partition_count: int) -> None:
        """Has a topic have at least so many partitions."""
        logs = self._topics[name].logs
        logs += [Log() for _ in range(partition_count - len(logs))]
        self.notify()

    def delete_topic(self, name: str) -> None:
        """Removes a topic; one created later by this name has another id."""
        del self._topics[name]
        self.notify()

    def records(self, data: TopicPartition) -> Sequence[Record]:
        """All records of a partition, for a test's own eyes: also while the broker is down."""
        log = self.log(data)
        assert log is not None, data
        return tuple(it for it in log.records if it.offset not in log.aborted)

    def _log_for(self, data: TopicPartition, key: bytes | None, value: bytes | None) -> Log:
        log = self.log(data)
        if log is None:
            raise FatalError(f"{data} does not exist", hint="create the topic")
        self._check_record(data.topic, key, value)
        return log

    def _check_record(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        configs = self._topics[topic].configs
        if key is None and "compact" in configs["cleanup.policy"]:
            raise FatalError(f"a record without key for compacted topic {topic}")
        most = int(configs["max.message.bytes"])
        size = len(key or b"") + len(value or b"")
        if size > most:
            raise FatalError(
                f"a record of {size} bytes for topic {topic}; the most is {most}",
                hint="write smaller records",
            )
