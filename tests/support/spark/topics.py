"""Writes data records and markers by hand, to plant faults that no client would write."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic

from stilltide.schemas.coordinator import markers
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.digest import content_digest
from stilltide.schemas.headers import TXN
from stilltide.schemas.topics import TXN_MARKERS, system_partition, system_topics
from stilltide.schemas.values import EndOffset, TopicPartition, TxnId

Content = tuple[bytes | None, bytes | None]
TIMEOUT_S = 60


def create_topics(bootstrap: str, partitions: Mapping[str, int]) -> None:
    """Creates the topics, and txn-markers unless it exists."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [NewTopic(name, count, 1) for name, count in partitions.items()]
    wanted.extend(
        NewTopic(spec.name, spec.partition_count, 1, config=dict(spec.configs))
        for spec in system_topics(coordinators=4, partitions=4)
        if spec.name == TXN_MARKERS
    )
    for topic, done in admin.create_topics(wanted).items():
        try:
            done.result(TIMEOUT_S)
        except KafkaException as error:
            if topic != TXN_MARKERS or error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise


def topic_id(bootstrap: str, topic: str) -> bytes:
    """Kafka's 16-byte id of a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_topics(TopicCollection([topic]))[topic].result(TIMEOUT_S).topic_id
    halves = (found.get_most_significant_bits(), found.get_least_significant_bits())
    return b"".join((half % 2**64).to_bytes(8) for half in halves)


def await_readable(bootstrap: str, topic: str, offset: int) -> None:
    """Returns when partition 0 shows the record at `offset` under read_committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([KafkaPartition(topic, 0, offset)])
    message = consumer.poll(TIMEOUT_S)
    consumer.close()
    assert message is not None
    assert message.error() is None, message.error()


@dataclass(frozen=True)
class Written:
    """Offsets and content of appended records, in order."""

    offsets: list[int]
    content: list[Content]

    @property
    def digest(self) -> int:
        """The content digest of all records."""
        return content_digest(self.content)


class HandWriter:
    """Writes records and markers of one topic, without the rules of client and coordinator."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        listed = self._producer.list_topics(TXN_MARKERS, timeout=TIMEOUT_S)
        self._marker_partitions = len(listed.topics[TXN_MARKERS].partitions)

    def records(self, partition: int, count: int, *headers: tuple[str, bytes | None]) -> Written:
        """Appends records with these headers, null keys and null values among them."""
        content: list[Content] = [
            (
                None if number % 3 == 0 else b"key-%d" % number,
                None if number % 4 == 3 else f"{headers} {number}".encode(),
            )
            for number in range(count)
        ]
        return Written(self._append(self.topic, partition, content, headers), content)

    def of_txn(self, txn: TxnId, partition: int, count: int) -> Written:
        """Appends records of a transaction."""
        return self.records(partition, count, (TXN, txn.to_bytes()))

    def commit(self, txn: TxnId, partition: int, written: Written, *, count: int = 0) -> None:
        """Writes a correct commit marker; `count` replaces the number of records in it."""
        self.marker(
            txn,
            partition,
            committed=True,
            start=written.offsets[0],
            end=written.offsets[-1] + 1,
            count=count or len(written.offsets),
        )

    def abort(self, txn: TxnId, partition: int) -> None:
        """Writes an abort marker."""
        self.marker(txn, partition, committed=False, start=0, end=0)

    def marker(
        self,
        txn: TxnId,
        partition: int,
        *,
        committed: bool,
        start: int,
        end: int,
        count: int = 0,
        of_topic: bytes = b"",
    ) -> None:
        """Writes the outcome of a transaction on one partition."""
        data = TopicPartition(self.topic, partition)
        value = Marker(data, txn, committed, EndOffset(start), EndOffset(end), count, of_topic)
        self._mark(data, txn, markers.encode_value(value))

    def tombstone(self, txn: TxnId, partition: int) -> None:
        """Deletes the outcome of a transaction on one partition."""
        self._mark(TopicPartition(self.topic, partition), txn, None)

    def _mark(self, data: TopicPartition, txn: TxnId, value: bytes | None) -> None:
        place = system_partition(data, self._marker_partitions)
        self._append(TXN_MARKERS, place, [(markers.encode_key(data, txn), value)], ())

    def _append(
        self,
        topic: str,
        partition: int,
        content: Sequence[Content],
        headers: Sequence[tuple[str, bytes | None]],
    ) -> list[int]:
        offsets: list[int] = []

        def delivered(error: object, message: Message) -> None:
            assert error is None, error
            offsets.append(message.offset())

        for key, value in content:
            self._producer.produce(
                topic,
                value,
                key,
                partition,
                on_delivery=delivered,
                headers=list(headers) or None,
            )
        assert self._producer.flush(TIMEOUT_S) == 0
        assert len(offsets) == len(content)
        return offsets
