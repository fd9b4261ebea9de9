"""A broker in memory: topics, logs, group offsets, and faults on demand.

*Source*: ARCHITECTURE.md. A verified fake: the contract suite proves its behaviour on this broker
and on Kafka.

*Invariants*: the broker is deterministic, without threads, clock or randomness; topic ids are made
from the cluster id and a count. A record that was reported without error stays until
`delete_records` or `Topic.compact` removes it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from zlib import crc32

from stilltide.connectors.errors import (
    ConnectorError,
    FatalError,
    MissingTopicError,
    RetriableError,
)
from stilltide.connectors.memory.group import Group
from stilltide.connectors.memory.log import Log, MemoryTransactions, PlannedReports, Topic, Watchers
from stilltide.connectors.ports.admin import too_few_brokers
from stilltide.connectors.ports.readers import Record
from stilltide.schemas.headers import Headers
from stilltide.schemas.topics import BrokerFigures, TopicSpec
from stilltide.schemas.values import Offset, TopicPartition

ADDRESS = "memory"
ONE_BROKER = BrokerFigures(1, 1, 1)
_TOPIC_ID_BYTES = 16


class MemoryBroker:
    """A whole cluster, used on one event loop; several connectors may share the cluster.

    Args:
        cluster_id: the cluster id that admins report.
        figures: the number of brokers that admins report; all are up or down together.

    Attributes:
        topics: topics by name, changed by `create_topic` and `delete_topic`.
        watchers: calls that follow every change.
        reports: wrong delivery reports of the next records, planned by tests.
        transactions: native transactions.
        member_numbers: numbers the members of all groups.
        refusals: by topic, the error of every write to it, set by tests.
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
        self.member_numbers = count(1)
        self.refusals: dict[str, ConnectorError] = {}
        self._topics_made = 0
        self._groups: dict[str, Group] = {}
        self._delayed: list[Callable[[], None]] = []
        self._held: set[str] = set()

    # Requests of clients.

    def check_up(self) -> None:
        """Raises `RetriableError` while the broker is down."""
        if self.is_down:
            raise RetriableError(
                f"no answer from {ADDRESS}", hint="the test has taken the broker down: up()"
            )

    def create_topic(self, spec: TopicSpec) -> None:
        """Creates a topic.

        Raises:
            FatalError: the topic exists, or would have more replicas than there are brokers.
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

    def log_of(self, data: TopicPartition) -> Log:
        """The log of a partition.

        Raises:
            MissingTopicError: the partition does not exist.
        """
        name, number = data
        topic = self.topics.get(name)
        if topic is None or not 0 <= number < len(topic.logs):
            raise MissingTopicError(f"{data} does not exist", hint="create the topic")
        return topic.logs[number]

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
            FatalError: the partition does not exist; or the record is too large, or has no key in a
                compacted topic.
        """
        offset = self.log_for(data, key, value).append(key, value, headers)
        self.watchers.notify([data])
        return offset

    def log_for(self, data: TopicPartition, key: bytes | None, value: bytes | None) -> Log:
        """The log that takes a record; raises as `append`."""
        self.check_up()
        log = self.log_of(data)
        self.topics[data.topic].check_record(key, value)
        if refusal := self.refusals.get(data.topic):
            raise refusal
        return log

    @property
    def groups(self) -> Mapping[str, Group]:
        """All consumer groups by name."""
        return self._groups

    def group(self, name: str) -> Group:
        """A consumer group, created by the first call with its name."""
        return self._groups.setdefault(name, Group())

    def partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """All partitions of the topics that exist, in order of name and number."""
        return [
            TopicPartition(name, partition)
            for name in sorted(set(topics) & self.topics.keys())
            for partition in range(len(self.topics[name].logs))
        ]

    def when_up(self, call: Callable[[], None]) -> None:
        """Runs `call` at once, or when the broker is up again."""
        if self.is_down:
            self._delayed.append(call)
        else:
            call()

    def is_held(self, topic: str) -> bool:
        """Whether writes to this topic are held back."""
        return topic in self._held

    # Controls for tests.

    def down(self) -> None:
        """Takes the broker down: every request of a client fails with `RetriableError`."""
        self.is_down = True
        self.watchers.notify()

    def up(self) -> None:
        """Takes the broker up again, with all its logs."""
        self.is_down = False
        delayed, self._delayed = self._delayed, []
        for call in delayed:
            call()
        self.watchers.notify()

    def hold(self, topic: str) -> None:
        """Holds back writes to a topic: they are neither appended nor reported until `release`."""
        self._held.add(topic)

    def release(self, *topics: str) -> None:
        """Appends the records that were held back, in order; of all topics if none is named."""
        self._held.difference_update(topics or list(self._held))
        self.watchers.notify()

    def delete_records(self, data: TopicPartition, before: Offset) -> None:
        """Moves the log start to `before`, at most to the end."""
        log = self.log(data)
        assert log is not None, data
        log.trim(before)
        self.watchers.notify([data])

    def add_partitions(self, name: str, partition_count: int) -> None:
        """Raises the partition count of a topic to `partition_count`, if it is lower."""
        self.topics[name].add_partitions(partition_count)
        self.watchers.notify()

    def delete_topic(self, name: str) -> None:
        """Removes a topic, and the commits there; a later one of this name has another id."""
        del self.topics[name]
        for group in self._groups.values():
            group.forget(name)
        self.watchers.notify()

    def records(self, data: TopicPartition) -> Sequence[Record]:
        """All records of a partition, for checks by tests; also while the broker is down."""
        log = self.log(data)
        assert log is not None, data
        return tuple(record for record in log.records if record.offset not in log.aborted)
