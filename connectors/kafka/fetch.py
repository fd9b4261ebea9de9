"""A reader of raw batches, over kafka-python's connections and messages.

*Source*: connectors.base, `BatchReader`; protocols.md F2; kafka.md 3, 4. librdkafka shows an
application neither batches nor control records nor producer ids.

*Invariants*: every fetch goes to the leader that the metadata names, with the epoch it names, so
that a leader with older metadata, or a deposed one, refuses it; after a refusal the metadata is
asked for anew. An empty answer below the end is asked for again, never taken for the end.

Fetch versions end at 12 here: later ones name topics by their id, which a topic that was created
anew under its old name would turn into an error that looks like no other.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import kafka.errors as kafka_errors
from kafka.protocol.consumer import FetchRequest
from kafka.structs import TopicPartition as ClientPartition

from connectors.base import FETCH_BYTES, FetchedBatches
from connectors.errors import FatalError
from connectors.kafka.config import TOPIC_ABSENT_MS, KafkaConfig
from connectors.kafka.errors import translate_raw
from connectors.kafka.raw_batches import parse_batches
from connectors.kafka.raw_line import RawLine
from connectors.kafka.raw_options import raw_options
from schemas.batches import AbortedTransaction, Batch
from schemas.values import EndOffset, Offset, TopicPartition

T = TypeVar("T")

_WAIT_MS = 100
"""A broker holds a fetch at the end this long."""

_AGAIN_S = 0.1
"""Between two attempts."""

_FETCH_VERSION_MIN = 5
"""The first with the log start; Kafka 0.11."""

_FETCH_VERSION_MAX = 12


class KafkaBatchReader:
    """A `BatchReader`. Connects at its first fetch; belongs to the loop of that one."""

    def __init__(self, config: KafkaConfig, client_id: str) -> None:
        """Touches nothing yet.

        Raises:
            FatalError: the settings hold a TLS or SASL option that cannot be passed on.
        """
        self._timeout_s = config.request_timeout_s
        self._address = config.bootstrap_servers
        self._client_id = client_id
        self._options = raw_options(config, client_id)
        self._line: _Line | None = None
        self._closing = asyncio.Event()

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
        action = f"cannot fetch {data}@{position}"
        deadline_s = time.monotonic() + self._timeout_s
        try:
            while True:
                answer = await self._on_line(
                    lambda line: line.fetch(data, position, int(committed), bytes_max, deadline_s)
                )
                found = await asyncio.to_thread(_convert, answer, position)
                end = found.last_stable_offset if committed else found.high_watermark
                if found.batches or position >= end:
                    return found
                if time.monotonic() > deadline_s:
                    text = f"nothing at {position}, below the end {end}"
                    raise kafka_errors.KafkaTimeoutError(text)
        except kafka_errors.KafkaError as error:
            ours = translate_raw(error, self._address, action)
            raise ours.at(data.topic, data.partition, position) from error

    async def close(self) -> None:
        """Ends the connections; safe to call twice."""
        self._closing.set()
        line, self._line = self._line, None
        if line is not None:
            await asyncio.to_thread(line.close)

    async def _on_line(self, work: "Callable[[_Line], Awaitable[T]]") -> T:
        """Runs on kafka-python's thread; what is still under way at `close` is left to itself."""
        if self._closing.is_set():
            raise self._closed_error()
        if self._line is None:
            self._line = _Line(self._options, self._timeout_s)
        line = self._line
        running = asyncio.ensure_future(line.run(lambda: work(line)))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((running, closing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
            running.cancel()
        if self._closing.is_set():
            # What the closed line makes of the call is nobody's business.
            await asyncio.gather(running, return_exceptions=True)
            raise self._closed_error()
        return running.result()

    def _closed_error(self) -> FatalError:
        return FatalError(f"batch reader {self._client_id} is closed")


class _Line(RawLine):
    """Fetches on kafka-python's thread."""

    async def fetch(
        self,
        data: TopicPartition,
        position: int,
        isolation_level: int,
        bytes_max: int,
        deadline_s: float,
    ) -> Any:
        """The leader's answer about the partition, without error; on the line.

        Raises:
            kafka_errors.KafkaError: the last one, when it will not pass or time is up.
        """
        absent_s = time.monotonic() + TOPIC_ABSENT_MS / 1000
        while True:
            try:
                leader, epoch = await self._leader(data)
                request = _request(data, position, isolation_level, bytes_max, epoch)
                return _answer(await self.manager.send(request, leader))
            except kafka_errors.KafkaError as error:
                missing = isinstance(error, kafka_errors.UnknownTopicOrPartitionError)
                until_s = min(absent_s, deadline_s) if missing else deadline_s
                if not error.retriable or time.monotonic() > until_s:
                    raise
                if error.invalid_metadata:
                    self.manager.cluster.request_update()
            await self.sleep(_AGAIN_S)

    async def _leader(self, data: TopicPartition) -> tuple[int, int]:
        """Node and epoch of the leader."""
        await self.bootstrap()
        cluster, partition = self.manager.cluster, ClientPartition(*data)
        leader = cluster.leader_for_partition(partition)
        if leader is None:
            _follow(cluster, data.topic)
            await cluster.refresh_metadata()
            leader = cluster.leader_for_partition(partition)
        if leader is None:
            if data.topic in cluster.unauthorized_topics:
                raise kafka_errors.TopicAuthorizationFailedError
            raise kafka_errors.UnknownTopicOrPartitionError
        if leader < 0:
            raise kafka_errors.LeaderNotAvailableError
        epoch = cluster.leader_epoch_for_partition(partition)
        return leader, -1 if epoch is None else epoch


def _follow(cluster: Any, topic: str) -> None:
    """Has the topic be part of the metadata from now on."""
    try:
        cluster.add_topic(topic)
    except ValueError as error:
        raise kafka_errors.InvalidTopicError(str(error)) from error


def _request(
    data: TopicPartition, position: int, isolation_level: int, bytes_max: int, epoch: int
) -> FetchRequest:
    """Without a fetch session: each request says all."""
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
    """What the response says about its one partition; raises its error."""
    codes = [response.error_code] if response.API_VERSION >= 7 else []  # noqa: PLR2004 - a version
    partitions = [one for topic in response.responses for one in topic.partitions]
    for code in (*codes, *(one.error_code for one in partitions)):
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
            AbortedTransaction(one.producer_id, Offset(one.first_offset))
            for one in partition.aborted_transactions or ()
        ],
        Offset(partition.log_start_offset),
        EndOffset(partition.last_stable_offset),
        EndOffset(partition.high_watermark),
    )


def _check_order(batches: Sequence[Batch], position: Offset) -> None:
    """A filter that is fed other than in order decides wrongly."""
    before = -1
    for base_offset, last_offset, *_ in batches:
        if not before < base_offset <= last_offset >= position:
            text = f"a batch [{base_offset}, {last_offset}] behind {before}, asked for {position}"
            raise kafka_errors.CorruptRecordError(text)
        before = last_offset
