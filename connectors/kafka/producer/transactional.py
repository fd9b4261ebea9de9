"""Writes sets of records in native transactions, with confluent-kafka's blocking calls.

*Source*: docs/protocols E3, H1; connectors.ports, `TransactionalWriter`;
docs/internals/kafka-clients.md, Producers.
"""

from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.kafka.authorization import REFUSALS
from stilltide.connectors.kafka.config import KafkaConfig, transactional_options
from stilltide.connectors.kafka.errors import error_of
from stilltide.connectors.kafka.producer.native_producer import NativeProducer
from stilltide.connectors.ports.records import NewRecord

_ROOM_WAIT_S = 0.1


class KafkaTransactionalWriter(NativeProducer):
    """A `TransactionalWriter`; `close` waits for the transaction under way, and aborts none."""

    def __init__(self, config: KafkaConfig, transactional_id: str) -> None:
        super().__init__(config, transactional_id, transactional_options(config, transactional_id))
        self._commit_timeout_s = config.delivery_timeout_s

    async def write(self, records: Sequence[NewRecord]) -> None:
        """Writes a set; see `TransactionalWriter.write`."""
        if not records:
            return
        action = f"cannot write {len(records)} records as {self._id}"
        await self._call(lambda: self._write(records), action)

    def _write(self, records: Sequence[NewRecord]) -> None:
        producer = self._fenced()
        self._failed_topic = records[0].data.topic
        try:
            producer.begin_transaction()
            for record in records:
                self._produce(producer, record)
            producer.commit_transaction(self._commit_timeout_s)
        except (KafkaException, SystemError, ConnectorError) as error:
            # The commit's own error would only report that some record failed; but the records of a
            # transaction that is refused a topic only report that they were purged.
            cause = error if isinstance(error, ConnectorError) else self._cause(error)
            refused = isinstance(cause, KafkaException) and error_of(cause).code() in REFUSALS
            failed = None if refused else self._failed
            if failed is not None:
                failed = self._named(failed)
            self._drop()
            if failed is not None:
                raise KafkaException(failed) from None
            raise cause from None

    def _produce(self, producer: Producer, record: NewRecord) -> None:
        (topic, partition), key, value = record
        while True:
            try:
                producer.produce(topic, value, key, partition, self._reported)
            except BufferError:
                producer.poll(_ROOM_WAIT_S)
            else:
                return

    def _reported(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failed is None:
            self._failed, self._failed_topic = error, message.topic()
