"""Faust's Kafka transport on the worker's own loop, with fetches that do not delay requests.

Faust runs aiokafka on its own loop and thread, so that slow agents cannot delay heartbeats. The
worker's agents hold the loop for 30 ms at most, and each batch of requests crossed four times
between the loops: with 32 transactions at once that cost a seventh of the throughput.

aiokafka has one fetch under way for each broker. While records of one partition are unread for
0.1 s, as under load, the fetch covers the other partitions only. Requests that arrive meanwhile
wait until that fetch ends, after the whole waiting time, which Faust has fixed at 1.5 s. So a fetch
waits shortly while requests come. At rest no record is unread, and a fetch that covers all
partitions waits longer.

aiokafka decodes header names as UTF-8. One record of another program with another name would keep
every later request of its partition from being read; so the batch of that record is passed over
(D9). A batch is of one producer, and Stilltide's clients write no such names.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.structs import TopicPartition
from faust.transport.drivers import aiokafka
from mode.utils.futures import maybe_async

from stilltide.pipeline.logging import get_logger

FETCH_WAIT_MS = 50
REST_FETCH_WAIT_MS = 250
"""Not longer: after a rebalance the first question waits until the fetch under way has ended."""

REST_AFTER_S = 5.0
"""Time without records after which a consumer rests."""


_LOGGER = logging.getLogger("faust.transport")
"""Else Faust logs under the name of this module, as if the lines were ours."""


class FetchWait:
    """The time in ms that a broker holds back an empty answer, as of now; aiokafka takes it as int.

    Args:
        clock: seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records_s = clock()

    def records_came(self) -> None:
        """Records were taken from the consumer."""
        self._records_s = self._clock()

    def __index__(self) -> int:
        rests = self._clock() > self._records_s + REST_AFTER_S
        return REST_FETCH_WAIT_MS if rests else FETCH_WAIT_MS


_log = get_logger(__name__)


class _Batch:
    """A batch without records if one of them cannot be decoded."""

    def __init__(self, batch: Any, partition: Any) -> None:
        self._batch = batch
        self._partition = partition

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        try:
            return iter([*self._batch])
        except UnicodeDecodeError as error:
            _log.warning(
                "requests_passed_over",
                topic=self._partition.topic,
                partition=self._partition.partition,
                offset=self._batch.base_offset,
                end=self._batch.next_offset,
                why=str(error),
            )
            return iter(())


class _Batches:
    """The batches of a fetch of one partition."""

    def __init__(self, records: Any, partition: Any) -> None:
        self._records = records
        self._partition = partition

    def has_next(self) -> bool:
        return self._records.has_next()

    def next_batch(self) -> _Batch:
        return _Batch(self._records.next_batch(), self._partition)


class DecodableRecords(fetcher.PartitionRecords):
    """aiokafka's records of a fetch of one partition, without batches that it cannot decode."""

    def __init__(self, tp: Any, records: Any, *options: Any, **named: Any) -> None:
        super().__init__(tp, _Batches(records, tp), *options, **named)


class _ConsumerThread(aiokafka.AIOKafkaConsumerThread):
    """A service thread without a thread: runs the calls for that thread on the worker's loop."""

    logger = _LOGGER

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, thread_loop=asyncio.get_running_loop(), **options)
        self._fetch_wait = FetchWait()

    async def start(self) -> None:
        self._thread_started.set()
        await self._default_start()

    async def stop(self) -> None:
        if self._started.is_set() and not self._stopped.is_set():
            self._stopped.set()
            await self._shutdown_thread()

    async def call_thread(self, fun: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return await maybe_async(fun(*args, **options))

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer: Any = super()._create_worker_consumer(transport)
        fetcher.PartitionRecords = DecodableRecords  # aiokafka has no other way to set it
        consumer._fetch_max_wait_ms = self._fetch_wait  # noqa: SLF001 - Faust has no setting for it
        return consumer

    async def _fetch_records(self, *arguments: Any, **options: Any) -> Any:
        # aiokafka sends the next fetch after this call, since records are unread before it.
        records: Any = await super()._fetch_records(*arguments, **options)
        if records:
            self._fetch_wait.records_came()
        return records

    def verify_event_path(self, now: float, tp: Any) -> None:
        # Faust only warns here of partitions that stand still. It fails, and so ends the worker,
        # where a position is not known, as after an offset out of range until a broker answers.
        partition = TopicPartition(tp.topic, tp.partition)
        client: Any = self._ensure_consumer()
        subscription: Any = client._subscription.subscription  # noqa: SLF001 - as Faust does
        if subscription is None or not subscription.assignment.active:
            return
        state = subscription.assignment.state_value(partition)
        if state is not None and state.has_valid_position:
            super().verify_event_path(now, tp)


class _Consumer(aiokafka.Consumer):
    logger = _LOGGER

    def _new_consumer_thread(self) -> _ConsumerThread:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)


class PromptTransport(aiokafka.Transport):
    """A transport whose fetches delay no request (`FetchWait`), and that uses no other thread."""

    Consumer = _Consumer
