"""A log writer on confluent-kafka's plain producer.

*Source*: docs/internals/kafka-clients.md, Producers: the asyncio producer of the same package
gathers batches by itself, so a lone record took 100 ms to 1 s.

*Invariants*: one report per append, on the loop, in librdkafka's order unless the writer was
flushed; a thousand reports wake the loop once. After a record has timed out, a producer that has
lost its brokers is replaced (`KeptClient`).

Threads: the polling thread and the flushing thread (`ProducerClient`) only append to `_reports` and
wake the loop; everything else runs on the loop. `_wake_due` is cleared before the reports are
counted, so a report that is not counted finds `_wake_due` cleared and wakes the loop again.

Records of partitions that a topic has gained since the producer last asked for its metadata.

*Source*: docs/protocols C13; docs/internals/kafka-clients.md, Producers: a producer asks for
metadata every five minutes, and refuses a partition that it does not know at once.

*Invariants*: records of a partition are sent in the order of their appends; every record that is
held is either sent or reported as failed.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from stilltide.connectors.errors import (
    ConnectorError,
    FatalError,
    MissingTopicError,
    RetriableError,
)
from stilltide.connectors.kafka.config import TOPIC_ABSENT_MS, KafkaConfig, producer_options
from stilltide.connectors.kafka.errors import Caller, error_of, on_topic, translate
from stilltide.connectors.kafka.logs import ClientLog
from stilltide.connectors.kafka.producer.client import KeptClient, ProducerClient
from stilltide.connectors.names import check_topic_name
from stilltide.connectors.ports.writers import Delivered, NewHeaders
from stilltide.schemas.retry import SHOWN
from stilltide.schemas.rights import Operation
from stilltide.schemas.values import TopicPartition


class UnsentRecord(NamedTuple):
    """A record whose partition the producer does not know yet."""

    value: bytes | None
    key: bytes | None
    headers: NewHeaders | None
    delivered: Delivered


def is_unknown_partition(error: KafkaException) -> bool:
    """Whether the producer's metadata does not have the partition."""
    return error_of(error).code() == KafkaError._UNKNOWN_PARTITION  # noqa: SLF001 - the client's public name


def learn_partition(producer: Producer, data: TopicPartition, request_timeout_s: float) -> bool:
    """Asks for metadata until they show the partition; False: it does not exist.

    Blocks the calling thread for at most `TOPIC_ABSENT_MS` and one request. The request is for all
    topics, because a request about one topic may create it.

    Raises:
        KafkaException: the brokers do not answer.
    """
    deadline_s = time.monotonic() + TOPIC_ABSENT_MS / 1000
    while True:
        topic = producer.list_topics(timeout=request_timeout_s).topics.get(data.topic)
        if topic is not None and data.partition in topic.partitions:
            return True
        if time.monotonic() > deadline_s:
            return False
        time.sleep(SHOWN.wait_s())


class NewPartitions:
    """Holds records of unknown partitions, and sends them once the producer knows the partitions.

    Args:
        producer: gives the producer of the writer, which may change.
        address: the cluster's address and the user, for errors.
        request_timeout_s: time-out of a request for metadata.
        send: queues one record; raises the client's errors.
        failed: called with each held record that is never sent, and the error.

    Attributes:
        held: records that are held, by partition; later ones of these partitions have to wait, too.
    """

    def __init__(
        self,
        producer: Callable[[], Producer],
        address: Caller,
        request_timeout_s: float,
        send: Callable[[TopicPartition, UnsentRecord], None],
        failed: Callable[[UnsentRecord, ConnectorError], None],
    ) -> None:
        self._producer = producer
        self._address = address
        self._request_timeout_s = request_timeout_s
        self._send = send
        self._failed = failed
        self.unsent: dict[TopicPartition, list[UnsentRecord]] = {}
        self._learning: dict[TopicPartition, asyncio.Task[None]] = {}

    def hold(self, data: TopicPartition, record: UnsentRecord) -> None:
        """Keeps a record until the producer knows its partition."""
        records = self.unsent.setdefault(data, [])
        records.append(record)
        if data not in self._learning:
            self._learning[data] = asyncio.create_task(self._learn(data))

    async def close(self) -> None:
        """Reports the records that are still held as failed."""
        tasks = list(self._learning.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for data in list(self.unsent):
            self._fail(data, RetriableError("the writer was closed"))

    async def _learn(self, data: TopicPartition) -> None:
        try:
            known = await asyncio.to_thread(
                learn_partition, self._producer(), data, self._request_timeout_s
            )
            if known:
                await self._release(data)
            else:
                hint = "create the topic, or correct the name or partition"
                missing = f"{data} does not exist at {self._address}"
                self._fail(data, MissingTopicError(missing, hint=hint))
        except KafkaException as error:
            asked = on_topic(Operation.WRITE, data.topic)
            self._fail(data, translate(error, self._address, f"cannot write to {data}", asked))
        finally:
            del self._learning[data]

    async def _release(self, data: TopicPartition) -> None:
        """Sends the held records in order; the list may grow meanwhile."""
        records = self.unsent[data]
        while records:
            try:
                self._send(data, records[0])
            except BufferError:  # the client's limit of bytes
                await asyncio.sleep(SHOWN.wait_s())
            else:
                del records[0]
        del self.unsent[data]

    def _fail(self, data: TopicPartition, error: ConnectorError) -> None:
        for record in self.unsent.pop(data, ()):
            self._failed(record, error)


_MANY_RECORDS = 100
"""Number of records under way from which on the loop polls, not the thread."""

_UNKNOWN_OFFSET = -1


class KafkaWriter:
    """A `LogWriter`. To be used on the event loop of its first append only.

    Connects when it is made: librdkafka needs half a second for a producer id when the connection
    is not yet up, and the first record would wait for that.
    """

    def __init__(self, config: KafkaConfig, client_id: str, linger_ms: float) -> None:
        self._client_id = client_id
        self._records_max = config.writer_records_max
        self._address = config.caller
        self._reports: deque[tuple[Delivered, ConnectorError | None, int]] = deque()
        self._wake_due = False
        self._under_way = 0
        self._flushing: list[asyncio.Future[None]] = []
        self._full = False
        self._has_room = asyncio.Event()
        self._last_error = ""
        options = {**producer_options(config, client_id, linger_ms), "error_cb": self._note_error}
        log = ClientLog(client_id, config.lines)

        def make() -> ProducerClient:
            try:
                producer = Producer(options, logger=log)
            except KafkaException as error:
                raise translate(error, self._address, "cannot make a producer") from error
            return ProducerClient(producer, client_id, lingers=linger_ms > 0)

        self._kept = KeptClient(make, self._start_client, config.request_timeout_s, client_id)
        self._new_partitions = NewPartitions(
            lambda: self._kept.client.producer,
            self._address,
            config.request_timeout_s,
            self._send,
            self._fail,
        )
        self._produce: Callable[..., None] = self._start

    def append(
        self,
        data: TopicPartition,
        value: bytes | None,
        delivered: Delivered,
        *,
        key: bytes | None = None,
        headers: NewHeaders | None = None,
    ) -> None:
        """Queues one record and returns at once; see `LogWriter.append`."""
        if self._under_way >= self._records_max:
            raise self._refuse_full()
        if self._new_partitions.unsent and data in self._new_partitions.unsent:
            self._new_partitions.hold(data, UnsentRecord(value, key, headers, delivered))
            self._under_way += 1
            return
        try:
            report = partial(self._report, delivered)
            if headers:
                self._produce(data[0], value, key, data[1], report, headers=headers)
            else:
                # No keyword: passing one is a third of the client's cost of a record.
                self._produce(data[0], value, key, data[1], report)
        except BufferError:
            # The client's limit of bytes. The limit of records is checked by this writer, because
            # the client's own count goes down only some time after the report.
            raise self._refuse_full() from None
        except KafkaException as error:
            if not is_unknown_partition(error):
                asked = on_topic(Operation.WRITE, data.topic)
                raise translate(error, self._address, f"cannot write to {data}", asked) from error
            self._new_partitions.hold(data, UnsentRecord(value, key, headers, delivered))
        except (TypeError, ValueError):
            check_topic_name(data[0])
            raise
        self._under_way += 1

    async def room(self) -> None:
        """Returns when the local queue has room again; at once when it is not full."""
        if self._under_way >= self._records_max:
            self._expect_room()
        if self._full:
            await self._has_room.wait()

    def flush_soon(self) -> None:
        """Sends the queued records without lingering; see `LogWriter.flush_soon`."""
        if self._under_way:
            self._kept.client.flush_soon()

    async def flush(self, timeout_s: float) -> bool:
        """Waits for every queued record; False if records are still under way at the time-out."""
        if not self._under_way:
            return True
        landed = asyncio.get_running_loop().create_future()
        self._flushing.append(landed)
        try:
            async with asyncio.timeout(timeout_s):
                await landed
        except TimeoutError:
            return False
        return True

    async def close(self, timeout_s: float = 5.0) -> None:
        """Flushes, then reports `RetriableError` for records left; safe to call twice."""
        self._produce = self._refuse
        if self._kept.client.started:
            await self.flush(timeout_s)
        await self._new_partitions.close()
        await self._kept.close()
        self._drain()
        assert not self._under_way, "the producer kept a report"
        self._has_room.set()

    def has_many(self) -> bool:
        """Whether so many records are under way that the loop polls."""
        return self._under_way >= _MANY_RECORDS

    def thread_polled(self) -> None:
        """Wakes callers of `room`: the last reports may have come while the queue was full."""
        if self._full:
            self._wake()

    def loop_polls(self, producer: Producer) -> None:
        """Polls on the loop, and passes on the reports."""
        self._wake_due = True  # reports of this poll are passed on below, without a wake
        with suppress(KafkaException):  # a fatal error; the reports of all records follow
            producer.poll(0)
        self._drain()

    def _start(self, *record: object, **headers: object) -> None:
        """Stands in for `produce` in the first append; starts polling."""
        self._start_client(self._kept.client)
        self._produce(*record, **headers)

    def _start_client(self, client: ProducerClient) -> None:
        client.start(self)
        if self._produce != self._refuse:
            self._produce = client.producer.produce

    def _send(self, data: TopicPartition, record: UnsentRecord) -> None:
        """Queues a record whose partition the producer has come to know."""
        report = partial(self._report, record.delivered)
        produce: Callable[..., None] = self._kept.client.producer.produce
        produce(data[0], record.value, record.key, data[1], report, headers=record.headers or [])

    def _fail(self, record: UnsentRecord, error: ConnectorError) -> None:
        self._reports.append((record.delivered, error, _UNKNOWN_OFFSET))
        self._drain()

    def _expect_room(self) -> None:
        self._full = True
        self._has_room.clear()

    def _refuse_full(self) -> RetriableError:
        self._expect_room()
        return RetriableError(
            f"the queue of writer {self._client_id} is full", hint="await room(), append again"
        )

    def _refuse(self, *_: object, **__: object) -> None:
        raise FatalError(f"writer {self._client_id} is closed")

    def _report(self, delivered: Delivered, error: KafkaError | None, message: Message) -> None:
        """Queues the report of one record; called wherever the client is polled."""
        if error is None:
            offset = message.offset()
            failure = None
        else:
            offset = None
            if error.code() == KafkaError._MSG_TIMED_OUT:  # noqa: SLF001 - the client's public name
                self._kept.client.call_loop(self._kept.look)
            failure = translate(
                error,
                self._address,
                f"cannot write to {message.topic()}/{message.partition()}",
                on_topic(Operation.WRITE, message.topic() or ""),
                detail=self._last_error,
            )
        # The report of an idempotent retry of a known record has no offset, or a negative one.
        known = _UNKNOWN_OFFSET if offset is None or offset < 0 else offset
        self._reports.append((delivered, failure, known))
        if not self._wake_due:
            self._wake()

    def _wake(self) -> None:
        self._wake_due = True
        self._kept.client.call_loop(self._drain)

    def _drain(self) -> None:
        """Passes the collected reports on to the callers."""
        self._wake_due = False
        reports = self._reports
        drained = len(reports)
        for _ in range(drained):
            delivered, error, offset = reports.popleft()
            self._under_way -= 1
            try:
                delivered(error, offset)
            except Exception as failure:  # noqa: BLE001 - one caller's bug must not cost the others their reports
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a delivery callback failed", "exception": failure}
                )
        if self._full and (drained or not self._under_way):
            self._full = self._under_way >= self._records_max
            if not self._full:
                self._has_room.set()
        if not self._under_way and self._flushing:
            for landed in self._flushing:
                if not landed.done():
                    landed.set_result(None)
            self._flushing.clear()

    def _note_error(self, error: KafkaError) -> None:
        self._last_error = error.str()
