"""Writes large native transactions with confluent-kafka.

*Source*: docs/protocols H2, H8; connectors.ports.copying, `CopyWriter`;
docs/internals/kafka-clients.md, Producers.

*Invariants*: the client refuses to commit a transaction of which any record failed, so only the
first and the last copy of each call have a delivery callback. Batches are as large as the topics of
the cluster take: a topic that refuses a batch makes later ones smaller.

Which copies librdkafka would alter, and which writers have to write them in another way.

*Source*: docs/protocols H11; docs/internals/kafka-clients.md, Producers.
"""

import contextlib
from collections.abc import Callable, Sequence
from itertools import chain, islice
from operator import itemgetter

from confluent_kafka import KafkaError, KafkaException, Message

from stilltide.connectors.errors import AnotherWriterError, ConnectorError, RetriableError
from stilltide.connectors.kafka.config import KafkaConfig, copy_options
from stilltide.connectors.kafka.errors import TOO_LARGE, error_of
from stilltide.connectors.kafka.producer.native_producer import NativeProducer, TransactionalIds
from stilltide.connectors.kafka.producer.writer import (
    is_unknown_partition,
    learn_partition,
)
from stilltide.connectors.ports.copying import COPY_TIMEOUT_S, Copies, Span
from stilltide.connectors.ports.readers import NewRecord
from stilltide.schemas.headers import is_writable
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

_NAME = itemgetter(0)


def is_altered(copies: Copies) -> bool:
    """Whether librdkafka would write one of the copies with another time or header name (H11)."""
    if 0 in copies.timestamps_ms:
        return True
    names = set(map(_NAME, chain.from_iterable(copies.headers)))
    return not all(map(is_writable, names))


_ROOM_WAIT_S = 0.1
_ABORT_S = 5.0

_BATCH_BYTES = (1_000_000, 100_000, 10_000, 1)
"""Sizes of a batch: what Kafka's default of `max.message.bytes` takes, and then smaller ones; with
the last one each record is a batch."""


class CopyBatches:
    """How large the batches of all copies to one cluster are.

    Brokers compare `max.message.bytes` of a topic with a whole batch. Large batches are faster: an
    idempotent producer has one batch of a partition under way.
    """

    def __init__(self) -> None:
        self._step = 0

    @property
    def size_bytes(self) -> int:
        """The largest size of a batch with several records."""
        return _BATCH_BYTES[self._step]

    def refused(self, size_bytes: int) -> bool:
        """A batch of at most this size was refused; whether a smaller one may pass."""
        if size_bytes <= _BATCH_BYTES[-1]:
            self._step = 0  # a record is too large by itself
            return False
        if size_bytes == self.size_bytes:
            self._step += 1
        return True


class KafkaCopyWriter(NativeProducer):
    """A `CopyWriter`."""

    def __init__(
        self,
        config: KafkaConfig,
        transactional_id: str,
        batches: CopyBatches,
        ids: TransactionalIds,
    ) -> None:
        super().__init__(config, transactional_id, copy_options(config, transactional_id), ids)
        self._batches = batches
        self._batch_bytes = batches.size_bytes  # of the present producer
        self._timeout_s = min(config.delivery_timeout_s, COPY_TIMEOUT_S)
        self._is_open = False
        self._offset_unknown = False

    def _fence(self) -> None:
        self._batch_bytes = self._options["batch.size"] = self._batches.size_bytes
        super()._fence()

    async def begin(self) -> None:
        """Begins a transaction; the broker learns of it with the first record."""
        producer = self._fenced()
        with self._translated(f"cannot begin a transaction of {self._id}"):
            producer.begin_transaction()
        self._is_open = True

    async def copy(self, data: TopicPartition, copies: Copies, span: Span) -> None:
        """Queues copies; see `CopyWriter.copy`."""
        done, action = 0, f"cannot copy to {data}"
        if is_altered(copies):
            self._ids.exact.add(self._id)
            raise AnotherWriterError("the slower writer has to copy a record as it is")
        with self._translated(action):
            try:
                done = self._produce(data, copies, done, span)
            except KafkaException as error:  # of the first copy: none was queued
                if not is_unknown_partition(error) or not await self._learn(data, action):
                    raise
            while done < len(copies.values):
                producer = self._fenced()
                await self._call(lambda it=producer: it.poll(_ROOM_WAIT_S), action)
                done = self._produce(data, copies, done, span)

    async def flush(self) -> None:
        """Waits until every copy is durable."""
        action = f"cannot copy as {self._id}"
        left = await self._call(lambda: self._fenced().flush(self._timeout_s), action)
        if self._failed is not None:
            raise self._refused(self._failed, action)
        if left or self._offset_unknown:
            raise RetriableError(
                f"{action} at {self._address}",
                detail=f"{left} copies are under way" if left else "a copy has no known offset",
                hint="check that the broker runs; then try again",
            )

    async def commit(self, records: Sequence[NewRecord]) -> None:
        """Writes `records` after the copies, and commits the transaction."""
        await self._call(lambda: self._commit(records), f"cannot commit a copy as {self._id}")
        self._is_open = False

    def _produce(self, data: TopicPartition, copies: Copies, at: int, span: Span) -> int:
        """Queues copies from index `at` on while there is room; returns the next index."""
        topic, partition = data
        produce: Callable[..., None] = self._fenced().produce
        count = len(copies.values)

        def reported(error: KafkaError | None, message: Message) -> None:
            self._landed(error, message, span)

        callbacks: list[Callable[..., None] | None] = [None] * count
        if count:
            callbacks[0] = callbacks[-1] = reported
        left = islice(zip(*copies, callbacks, strict=True), at, None)
        try:
            for key, value, made_ms, headers, callback in left:
                produce(topic, value, key, partition, callback, None, made_ms, headers)
                at += 1
        except BufferError:
            return at
        return count

    async def _learn(self, data: TopicPartition, action: str) -> bool:
        """Makes a partition that the topic has gained known to the producer (C13)."""
        producer, timeout_s = self._fenced(), self._request_timeout_s
        return await self._call(lambda: learn_partition(producer, data, timeout_s), action)

    def _commit(self, records: Sequence[NewRecord]) -> None:
        producer = self._fenced()
        for (topic, partition), key, value in records:
            producer.produce(topic, value, key, partition)
        self._in_attempts(producer.commit_transaction, self._timeout_s)

    def _refused(self, cause: KafkaError | KafkaException, action: str) -> ConnectorError:
        too_large = error_of(cause).code() in TOO_LARGE
        if too_large and self._batches.refused(self._batch_bytes):
            return RetriableError(
                f"{action} at {self._address}: a batch is larger than the topic takes",
                hint="copying goes on with smaller batches; raise max.message.bytes of the topic "
                "for the speed of large ones",
                topic=self._failed_topic,
            )
        return super()._refused(cause, action)

    def _landed(self, error: KafkaError | None, message: Message, span: Span) -> None:
        if error is not None:
            self._failed, self._failed_topic = self._failed or error, message.topic()
            return
        offset = message.offset()
        if offset is None or offset < 0:  # an idempotent retry of a record that the broker had
            self._offset_unknown = True
            return
        if span.first is None:
            span.first = Offset(offset)
        span.end = EndOffset(offset + 1)

    def _drop(self) -> None:
        if self._is_open and self._producer is not None and self._closed:
            # If this fails, the broker aborts the transaction at its time-out.
            with contextlib.suppress(KafkaException):
                self._producer.abort_transaction(_ABORT_S)
        super()._drop()
        self._is_open = self._offset_unknown = False
