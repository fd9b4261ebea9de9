"""A reader of raw batches, over kafka-python's connections and messages.

*Source*: connectors.ports, `BatchReader`; docs/protocols F2. librdkafka shows an application
neither batches nor control records nor producer ids.

*Invariants*: every fetch goes to the leader that the metadata names, with that leader's epoch, so
that a leader with older metadata, or a deposed leader, refuses the fetch; after a refusal the
metadata is requested again. An empty answer below the end leads to another fetch and is never taken
for the end.

Fetch versions end at 12 here: later versions name topics by id, and a topic that was created again
under its old name would then cause an error unlike that of a missing topic.

Parses batch headers from fetched bytes, by kafka-python's classes.

*Source*: docs/protocols F. Records are not decoded: that would take nine tenths of the time.

*Invariants*: a batch is returned only after a check of its checksum, which covers its records too;
the one record that is decoded is a marker. An incomplete batch at the end, as fetches have, is left
out.

Refuses message formats before v2: they have no producer ids, and Kafka 4 no longer writes them.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception's name
from typing import Any

import kafka.errors as kafka_errors
from kafka.errors import CorruptRecordError, UnsupportedVersionError
from kafka.protocol.consumer import FetchRequest
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.errors import on_topic
from stilltide.connectors.kafka.raw.line import Line, RawClient, SharedLine, translate_raw
from stilltide.connectors.ports.readers import FETCH_BYTES, FetchedBatches
from stilltide.schemas.native.transactions import AbortedTransaction, Batch, Control
from stilltide.schemas.rights import Operation
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

_MAGIC_V2 = 2
_TRANSACTIONAL = DefaultRecordBatch.TRANSACTIONAL_MASK
_CONTROL = DefaultRecordBatch.CONTROL_MASK
_CONTROLS = {0: Control.ABORT, 1: Control.COMMIT}
_KEY = Struct(">hh")  # version and type; a later Kafka may append fields


class _MarkerBatch(DefaultRecordBatch):
    """A control batch that returns its record with the key's bytes.

    kafka-python's own class for records of control batches refuses a key of more than four bytes.
    """

    @property
    def is_control_batch(self) -> bool:
        """Whether records are of kafka-python's class for control records: never."""
        return False


def parse_batches(fetched: bytes) -> Iterator[Batch]:
    """The complete batches in fetched bytes, in their order; 3 us for each.

    Raises:
        CorruptRecordError: the bytes are not batches, or fail a checksum.
        UnsupportedVersionError: a message format before v2.
    """
    end = 0
    records: Any = MemoryRecords(fetched)  # Any: a NewType's call costs as much as a property
    for batch in records:
        if batch.magic < _MAGIC_V2:
            raise UnsupportedVersionError(f"message format v{batch.magic} at {batch.base_offset}")
        if not batch.validate_crc():
            raise CorruptRecordError(f"wrong checksum of the batch at {batch.base_offset}")
        # Each property is a call, and some make several calls: reading each once halves the time.
        base_offset, attributes = batch.base_offset, batch.attributes
        start, end = end, end + batch.size_in_bytes
        yield Batch(
            base_offset,
            base_offset + batch.last_offset_delta,
            batch.producer_id,
            attributes & _TRANSACTIONAL != 0,
            _control(_MarkerBatch(fetched[start:end])) if attributes & _CONTROL else None,
            batch.records_count,
        )


def _control(batch: _MarkerBatch) -> Control:
    """The outcome in the first record, read as `ControlRecordType` of Kafka's client for Java does.

    That class reads the first two fields of the key. It accepts every version that is not negative,
    and ignores fields that a later version appends.
    """
    if not batch.records_count:
        return Control.OTHER
    try:
        version, kind = _KEY.unpack_from(next(iter(batch)).key)
    except (StructError, StopIteration, TypeError) as error:
        raise CorruptRecordError(
            f"not a control batch at {batch.base_offset}: {error!r}"
        ) from error
    if version < 0:
        raise CorruptRecordError(f"not a control batch at {batch.base_offset}: version {version}")
    return _CONTROLS.get(kind, Control.OTHER)


_WAIT_MS = 100
"""A broker delays its answer to a fetch at the log end this long."""

_FETCH_VERSION_MIN = 5
"""The first fetch version whose answer contains the log start; Kafka 0.11."""

_FETCH_VERSION_MAX = 12


class KafkaBatchReader:
    """A `BatchReader`. Connects at its first fetch, and may be used on that fetch's loop only."""

    def __init__(self, config: KafkaConfig, client_id: str) -> None:
        """Makes a reader that is not connected.

        Raises:
            FatalError: the settings hold a TLS or SASL option that kafka-python lacks.
        """
        self._client = RawClient(SharedLine(config, client_id), f"batch reader {client_id}")

    async def fetch(
        self,
        data: TopicPartition,
        position: Offset,
        *,
        committed: bool = True,
        bytes_max: int = FETCH_BYTES,
    ) -> FetchedBatches:
        """The next batches; see `BatchReader.fetch`."""
        assert position >= 0
        assert bytes_max > 0
        client = self._client
        action = f"cannot fetch {data}@{position}"
        deadline_s = time.monotonic() + client.timeout_s

        async def attempt(line: Line) -> Any:
            leader, epoch = await line.leader(data)
            request = _request(data, position, int(committed), bytes_max, epoch)
            return _answer(await line.send(request, leader))

        try:
            while True:
                answer = await client.call(
                    lambda line: line.persist(lambda: attempt(line), deadline_s)
                )
                fetched = await asyncio.to_thread(_convert, answer, position)
                end = fetched.last_stable_offset if committed else fetched.high_watermark
                if fetched.batches or position >= end:
                    return fetched
                if time.monotonic() > deadline_s:
                    text = f"nothing at {position}, below the end {end}"
                    raise kafka_errors.KafkaTimeoutError(text)
        except kafka_errors.KafkaError as error:
            ours = translate_raw(
                error, client.address, action, on_topic(Operation.READ, data.topic)
            )
            raise ours.at(data.topic, data.partition, position) from error

    async def close(self) -> None:
        """Ends the connections; safe to call twice."""
        await self._client.close()


def _request(
    data: TopicPartition, position: int, isolation_level: int, bytes_max: int, epoch: int
) -> FetchRequest:
    """A fetch request without a fetch session: every request is complete in itself."""
    partition = FetchRequest.FetchTopic.FetchPartition(
        partition=data.partition,
        current_leader_epoch=epoch,
        fetch_offset=position,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=bytes_max,
    )
    return FetchRequest(
        max_wait_ms=_WAIT_MS,
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=isolation_level,
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=data.topic, partitions=[partition])],
        forgotten_topics_data=[],
        rack_id="",
        min_version=_FETCH_VERSION_MIN,
        max_version=_FETCH_VERSION_MAX,
    )


def _answer(response: Any) -> Any:
    """The response's part about its one partition; raises the error in it."""
    codes = [response.error_code] if response.API_VERSION >= 7 else []  # noqa: PLR2004 - a version
    partitions = [partition for topic in response.responses for partition in topic.partitions]
    for code in (*codes, *(partition.error_code for partition in partitions)):
        if code:
            raise kafka_errors.for_code(code)
    (partition,) = partitions
    return partition


def _convert(partition: Any, position: Offset) -> FetchedBatches:
    fetched: bytes = partition.records or b""
    batches = list(parse_batches(fetched))
    if fetched and not batches:
        raise kafka_errors.CorruptRecordError(f"no whole batch in {len(fetched)} bytes")
    _check_order(batches, position)
    return FetchedBatches(
        batches,
        [
            AbortedTransaction(transaction.producer_id, Offset(transaction.first_offset))
            for transaction in partition.aborted_transactions or ()
        ],
        Offset(partition.log_start_offset),
        EndOffset(partition.last_stable_offset),
        EndOffset(partition.high_watermark),
    )


def _check_order(batches: Sequence[Batch], position: Offset) -> None:
    """Raises unless batches ascend from `position`: out of order a filter decides wrongly."""
    before = -1
    for base_offset, last_offset, *_ in batches:
        if not before < base_offset <= last_offset >= position:
            text = f"a batch [{base_offset}, {last_offset}] behind {before}, asked for {position}"
            raise kafka_errors.CorruptRecordError(text)
        before = last_offset
