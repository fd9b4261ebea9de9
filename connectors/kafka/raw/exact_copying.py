"""Writes copies that librdkafka would alter, in native transactions over kafka-python.

*Source*: docs/protocols H11; connectors.ports.copying, `CopyWriter`; KIP-98. librdkafka writes the
present time where a record's timestamp is 0, and no header name that is not UTF-8.

*Invariants*: one batch is under way at a time, and a repeated batch has the same sequence number,
so the broker keeps it once. After any error nothing is written before another `fence`. `fence` is
the only request without producer id and epoch: a writer that was replaced is refused.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import kafka.errors as kafka_errors
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
)
from kafka.record.default_records import DefaultRecordBatchBuilder

from stilltide.connectors.errors import AnotherWriterError, ConnectorError, FatalError
from stilltide.connectors.kafka.config import KafkaConfig, milliseconds
from stilltide.connectors.kafka.errors import Access, on_id, on_topic
from stilltide.connectors.kafka.producer.copying import is_altered
from stilltide.connectors.kafka.producer.native_producer import TransactionalIds
from stilltide.connectors.kafka.raw.line import Line, RawClient, SharedLine, check, translate_raw
from stilltide.connectors.ports.copying import COPY_TIMEOUT_S, Copies, Span
from stilltide.connectors.ports.readers import NewRecord
from stilltide.schemas.rights import Operation
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

T = TypeVar("T")

QUIET_RECORDS = 20_000
"""After so many records that librdkafka would not alter, librdkafka writes again: four times faster
(`make bench CASE=exact`), and a change of writers takes a second."""

_BATCH_BYTES = 100_000
"""Size of a batch with several records: topics that take less refuse it, and `_SMALL_BYTES` is
taken."""

_SMALL_BYTES = 1
_SEQUENCES = 2**31
_MAGIC = 2
_ALL_REPLICAS = -1
_NOT_TRANSACTIONAL_V2 = 11
"""Later versions of the request add partitions to transactions by themselves."""


class _Name(str):
    """A header name that kafka-python writes as the bytes that it was read from."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> bytes:
        return super().encode(encoding, errors)


class ExactCopyWriter:
    """A `CopyWriter` for a link whose records librdkafka would alter (H11).

    Args:
        config: the cluster.
        transactional_id: the link's id.
        ids: the ids whose next writer is of this kind, among others.
    """

    def __init__(self, config: KafkaConfig, transactional_id: str, ids: TransactionalIds) -> None:
        self._id = transactional_id
        self._ids = ids
        self._client = RawClient(SharedLine(config, transactional_id), f"writer {transactional_id}")
        self._timeout_s = min(config.delivery_timeout_s, COPY_TIMEOUT_S)
        self._producer: tuple[int, int] | None = None  # id and epoch
        self._sequences: dict[TopicPartition, int] = {}
        self._written: set[TopicPartition] = set()  # in the open transaction
        self._quiet_records = 0

    async def fence(self) -> None:
        """Takes over the transactional id; see `CopyWriter.fence`."""
        self._producer = None
        self._sequences.clear()
        self._written.clear()
        request = InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=milliseconds(COPY_TIMEOUT_S),
            producer_id=-1,
            producer_epoch=-1,
            min_version=0,
            max_version=4,
        )
        with self._ids.taking(self._id):
            answer = await self._made(lambda line: self._coordinated(line, request), "take the id")
        self._producer = answer.producer_id, answer.producer_epoch

    async def begin(self) -> None:
        """Begins a transaction; the broker learns of it with the first record.

        Raises:
            AnotherWriterError: librdkafka's writer would not have altered the last records.
        """
        self._fenced()
        if self._quiet_records >= QUIET_RECORDS:
            self._ids.exact.discard(self._id)
            raise AnotherWriterError("the faster writer may copy again")

    async def copy(self, data: TopicPartition, copies: Copies, span: Span) -> None:
        """Writes copies in order; waits until they are durable."""
        self._quiet_records = 0 if is_altered(copies) else self._quiet_records + len(copies.values)
        records = [
            (key, value, made_ms, [(_Name(name), one) for name, one in headers])
            for key, value, made_ms, headers in zip(*copies, strict=True)
        ]
        await self._write(data, records, span)

    async def flush(self) -> None:
        """Every copy is durable already."""
        self._fenced()

    async def commit(self, records: Sequence[NewRecord]) -> None:
        """Writes `records` after the copies, and commits the transaction."""
        made_ms = round(time.time() * 1000)
        for data, key, value in records:
            await self._write(data, [(key, value, made_ms, [])], Span())
        if self._written:
            await self._end(committed=True)

    async def close(self) -> None:
        """Aborts the open transaction, unless another writer took the id; safe to call twice."""
        if self._written and self._producer is not None:
            with suppress(ConnectorError):  # the broker aborts it at its time-out
                await self._end(committed=False)
        self._producer = None
        await self._client.close()

    async def _write(
        self, data: TopicPartition, records: Sequence[tuple[Any, ...]], span: Span
    ) -> None:
        if data not in self._written:
            await self._add(data)
        for batch, count in self._batches(data, records):
            base = await self._made(
                lambda line, batch=batch: self._produced(line, data, batch),
                f"copy to {data}",
                on_topic(Operation.WRITE, data.topic),
            )
            self._sequences[data] = (self._sequences.get(data, 0) + count) % _SEQUENCES
            if span.first is None:
                span.first = Offset(base)
            span.end = EndOffset(base + count)
            await asyncio.sleep(0)

    def _batches(
        self, data: TopicPartition, records: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[bytes, int]]:
        """Batches with the partition's next sequence number each; made as they are asked for."""
        left = deque(records)
        size = _SMALL_BYTES if self._ids.has_small_batches else _BATCH_BYTES
        while left:
            producer_id, epoch = self._fenced()
            batch: Any = DefaultRecordBatchBuilder(
                _MAGIC, 0, True, producer_id, epoch, self._sequences.get(data, 0), size
            )
            count = 0
            while left:
                key, value, made_ms, headers = left[0]
                if batch.append(count, made_ms, key, value, headers) is None:
                    break
                left.popleft()
                count += 1
            yield bytes(batch.build()), count

    async def _add(self, data: TopicPartition) -> None:
        """Adds a partition to the transaction."""
        producer_id, epoch = self._fenced()
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
            name=data.topic, partitions=[data.partition]
        )
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[topic],
            max_version=3,
        )
        asked = on_topic(Operation.WRITE, data.topic)
        await self._made(lambda line: self._coordinated(line, request), f"copy to {data}", asked)
        self._written.add(data)

    async def _end(self, *, committed: bool) -> None:
        producer_id, epoch = self._fenced()
        request = EndTxnRequest(
            transactional_id=self._id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=committed,
            max_version=3,
        )
        action = "commit a copy" if committed else "abort a copy"
        await self._made(lambda line: self._coordinated(line, request), action)
        self._written.clear()

    async def _coordinated(self, line: Line, request: Any) -> Any:
        """The answer of the id's coordinator, free of errors; called on the line's thread."""
        own = on_id(Operation.WRITE, self._id)
        answer = await line.send(request, await line.transaction_coordinator(self._id, own))
        for code in _codes(answer):
            check(code, own)
        return answer

    async def _produced(self, line: Line, data: TopicPartition, batch: bytes) -> int:
        """The offset of a batch's first record; called on the line's thread."""
        leader, _ = await line.leader(data)
        topic = ProduceRequest.TopicProduceData
        part = topic.PartitionProduceData(index=data.partition, records=batch)
        request = ProduceRequest(
            transactional_id=self._id,
            acks=_ALL_REPLICAS,
            timeout_ms=milliseconds(self._timeout_s),
            topic_data=[topic(name=data.topic, partition_data=[part])],
            max_version=_NOT_TRANSACTIONAL_V2,
        )
        answer = await line.send(request, leader)
        (of_topic,) = answer.responses
        (of_partition,) = of_topic.partition_responses
        check(of_partition.error_code, on_topic(Operation.WRITE, data.topic))
        return of_partition.base_offset

    async def _made(
        self, attempt: Callable[[Line], Awaitable[T]], action: str, *asked: Access
    ) -> T:
        """The result of `attempt`, repeated after errors that pass."""
        deadline_s = time.monotonic() + self._timeout_s
        try:
            return await self._client.call(
                lambda line: line.persist(lambda: attempt(line), deadline_s)
            )
        except kafka_errors.MessageSizeTooLargeError as error:
            raise self._too_large(error, action) from error
        except kafka_errors.KafkaError as error:
            self._producer = None
            text = f"cannot {action} as {self._id}"
            own = on_id(Operation.WRITE, self._id)
            translated = translate_raw(error, self._client.address, text, own, *asked)
            raise self._ids.own_fence(translated, self._id) from error
        except BaseException:
            self._producer = None
            raise

    def _too_large(self, error: kafka_errors.KafkaError, action: str) -> ConnectorError:
        self._producer = None
        if self._ids.has_small_batches:
            return translate_raw(error, self._client.address, f"cannot {action} as {self._id}")
        self._ids.has_small_batches = True
        return AnotherWriterError(f"cannot {action}: copies go on with smaller batches")

    def _fenced(self) -> tuple[int, int]:
        if self._producer is None:
            raise FatalError(f"writer {self._id} has not been fenced", hint="call fence() first")
        return self._producer


def _codes(answer: Any) -> Iterator[int]:
    """The error codes of a coordinator's answer."""
    if isinstance(answer, AddPartitionsToTxnResponse):
        for topic in answer.results_by_topic_v3_and_below:
            for partition in topic.results_by_partition:
                yield partition.partition_error_code
    else:
        yield answer.error_code
