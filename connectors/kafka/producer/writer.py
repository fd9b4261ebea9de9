"""A log writer on confluent-kafka's plain producer.

*Source*: docs/internals/kafka-clients.md, Producers: the asyncio producer of the same package
gathers batches by itself, so a lone record took 100 ms to 1 s.

*Invariants*: one report per append, on the loop, in librdkafka's order unless the writer was
hurried; a thousand reports wake the loop once. After a record has timed out, a producer that has
lost its brokers is replaced (`KeptClient`).

Threads: the polling thread (`ProducerPolling`) and the flushing thread (`Hurrier`) only append to
`_reports` and wake the loop; everything else runs on the loop. `_wake_due` is cleared before the
reports are counted, so a report that is not counted finds `_wake_due` cleared and wakes the loop
again.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from stilltide.connectors.errors import ConnectorError, FatalError, RetriableError
from stilltide.connectors.kafka.authorization import on_topic
from stilltide.connectors.kafka.config import KafkaConfig, producer_options
from stilltide.connectors.kafka.errors import translate
from stilltide.connectors.kafka.logs import ClientLog
from stilltide.connectors.kafka.producer.client import ProducerClient
from stilltide.connectors.kafka.producer.kept_client import KeptClient
from stilltide.connectors.kafka.producer.new_partitions import (
    NewPartitions,
    UnsentRecord,
    is_unknown_partition,
)
from stilltide.connectors.names import check_topic_name
from stilltide.connectors.ports.writers import Delivered, NewHeaders
from stilltide.schemas.rights import Operation
from stilltide.schemas.values import TopicPartition

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
        if self._new_partitions.held and data in self._new_partitions.held:
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

    def hurry(self) -> None:
        """Sends the queued records without lingering; see `LogWriter.hurry`."""
        if self._under_way:
            self._kept.client.hurry()

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
