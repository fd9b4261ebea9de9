"""A broker in memory: topics, logs, group offsets, and faults on demand.

*Source*: architecture.md, The tree: a verified fake. What it does like Kafka is what the contract
suite proves on both.

*Invariants*: deterministic: no thread, no clock, no randomness; topic ids are made of the cluster's
id and a count. A record that was reported without error stays until `delete_records` or
`Topic.compact` removes it.
"""

from collections.abc import Callable, Iterable, Sequence
from zlib import crc32

from stilltide.connectors.errors import FatalError, RetriableError
from stilltide.connectors.memory.group import Group
from stilltide.connectors.memory.log import Log, Topic
from stilltide.connectors.memory.reports import PlannedReports
from stilltide.connectors.memory.transactions import MemoryTransactions
from stilltide.connectors.memory.watchers import Watchers
from stilltide.connectors.ports.records import Record
from stilltide.connectors.topic_check import too_few_brokers
from stilltide.schemas.headers import Headers
from stilltide.schemas.topics import BrokerFigures, TopicSpec
from stilltide.schemas.values import Offset, TopicPartition

ADDRESS = "memory"
ONE_BROKER = BrokerFigures(1, 1)
_TOPIC_ID_BYTES = 16


class MemoryBroker:
    """A cluster in one piece. One for each loop; several connectors may share it.

    Args:
        cluster_id: what the cluster is named by.
        figures: how many brokers it passes for; they are never up or down one by one.

    Attributes:
        topics: by name; `create_topic` and `delete_topic` change them.
        watchers: hear of every change.
        reports: of the next records, which tests have go wrong.
        transactions: Kafka's own.
    """

    def __init__(self, cluster_id: str = "memory", figures: BrokerFigures = ONE_BROKER) -> None:
        self.cluster_id = cluster_id
        self.figures = figures
        self.is_down = False
        self.watchers = Watchers()
        self.reports = PlannedReports()
        self.transactions = MemoryTransactions(
            self.check_up, self.log_for, self.reports, self.watchers
        )
        self.topics: dict[str, Topic] = {}
        self._topics_made = 0
        self._groups: dict[str, Group] = {}
        self._delayed: list[Callable[[], None]] = []
        self._held: set[str] = set()

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
        if spec.name in self.topics:
            raise FatalError(f"topic {spec.name} exists already")
        count = self.figures.default_replicas if spec.replicas is None else spec.replicas.factor
        if spec.replicas is not None and count > self.figures.brokers:
            raise too_few_brokers(spec, self.figures.brokers)
        self._topics_made += 1
        incarnation = crc32(self.cluster_id.encode()) << 32 | self._topics_made
        topic_id = incarnation.to_bytes(_TOPIC_ID_BYTES // 2) * 2
        self.topics[spec.name] = Topic(spec, topic_id, count)

    def log(self, data: TopicPartition) -> Log | None:
        """The log of a partition; None when it does not exist."""
        topic = self.topics.get(data.topic)
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
        offset = self.log_for(data, key, value).append(key, value, headers)
        self.watchers.notify()
        return offset

    def log_for(self, data: TopicPartition, key: bytes | None, value: bytes | None) -> Log:
        """The log that takes a record; raises as `append`."""
        self.check_up()
        log = self.log(data)
        if log is None:
            raise FatalError(f"{data} does not exist", hint="create the topic")
        self.topics[data.topic].check_record(key, value)
        return log

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
        return log.read(position, committed=committed)

    def group(self, name: str) -> Group:
        """A consumer group; it exists from its first mention on."""
        return self._groups.setdefault(name, Group())

    def partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """All partitions of the topics that exist, in order of name and number."""
        return [
            TopicPartition(name, partition)
            for name in sorted(set(topics) & self.topics.keys())
            for partition in range(len(self.topics[name].logs))
        ]

    def when_up(self, call: Callable[[], None]) -> None:
        """Calls at once, or when the broker is up again."""
        if self.is_down:
            self._delayed.append(call)
        else:
            call()

    def is_held(self, topic: str) -> bool:
        """Whether writes to this topic are held back."""
        return topic in self._held

    # What tests do to it.

    def down(self) -> None:
        """Takes the broker away: whatever a client asks fails with `RetriableError`."""
        self.is_down = True
        self.watchers.notify()

    def up(self) -> None:
        """Brings it back with all its logs."""
        self.is_down = False
        delayed, self._delayed = self._delayed, []
        for call in delayed:
            call()
        self.watchers.notify()

    def hold(self, topic: str) -> None:
        """Holds back writes to a topic: they neither land nor are reported until `release`."""
        self._held.add(topic)

    def release(self) -> None:
        """Lets everything land that was held back, in order."""
        self._held.clear()
        self.watchers.notify()

    def delete_records(self, data: TopicPartition, before: Offset) -> None:
        """Moves the log start to `before`, at most to the end."""
        log = self.log(data)
        assert log is not None, data
        log.trim(before)
        self.watchers.notify()

    def add_partitions(self, name: str, partition_count: int) -> None:
        """Has a topic have at least so many partitions."""
        self.topics[name].add_partitions(partition_count)
        self.watchers.notify()

    def delete_topic(self, name: str) -> None:
        """Removes a topic; one created later by this name has another id."""
        del self.topics[name]
        self.watchers.notify()

    def records(self, data: TopicPartition) -> Sequence[Record]:
        """All records of a partition, for a test's own eyes: also while the broker is down."""
        log = self.log(data)
        assert log is not None, data
        return tuple(it for it in log.records if it.offset not in log.aborted)
