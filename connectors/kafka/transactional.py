"""Sets of records in native Kafka transactions, through confluent-kafka's blocking calls.

*Source*: protocols.md E3, H1; connectors.base, `TransactionalWriter`; kafka.md 3.

*Invariants*: one thread makes all calls of a writer, in order; each `fence` makes a new producer,
because librdkafka allows nothing after some errors, and after others not to repeat.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from connectors.base import NewRecord
from connectors.errors import ConnectorError, FatalError
from connectors.kafka.config import KafkaConfig, transactional_options
from connectors.kafka.errors import translate
from connectors.kafka.logs import ClientLog

_ROOM_WAIT_S = 0.1

T = TypeVar("T")


class KafkaTransactionalWriter:
    """A `TransactionalWriter`. Connects at `fence`."""

    def __init__(self, config: KafkaConfig, transactional_id: str) -> None:
        self._id = transactional_id
        self._options = transactional_options(config, transactional_id)
        self._address = config.bootstrap_servers
        self._request_timeout_s = config.request_timeout_s
        self._commit_timeout_s = config.delivery_timeout_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=transactional_id)
        self._producer: Producer | None = None
        self._failed: KafkaError | None = None
        self._last_error = ""
        self._closed = False

    async def fence(self) -> None:
        """Takes the transactional id; see `TransactionalWriter.fence`."""
        await self._call(self._fence, f"cannot take transactional id {self._id}")

    async def write(self, records: Sequence[NewRecord]) -> None:
        """Writes a set; see `TransactionalWriter.write`."""
        if not records:
            return
        action = f"cannot write {len(records)} records as {self._id}"
        await self._call(lambda: self._write(records), action)

    async def close(self) -> None:
        """Aborts nothing: what is under way ends first; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._drop)
        await asyncio.to_thread(self._thread.shutdown)

    async def _call(self, call: Callable[[], T], action: str) -> T:
        if self._closed:
            raise FatalError(f"writer {self._id} is closed")
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, call)
        except KafkaException as error:
            raise translate(error, self._address, action, detail=self._last_error) from error

    def _fence(self) -> None:
        self._drop()
        options = {**self._options, "error_cb": self._note_error}
        producer = Producer(options, logger=ClientLog(self._id))
        producer.init_transactions(self._request_timeout_s)
        self._producer = producer

    def _write(self, records: Sequence[NewRecord]) -> None:
        producer = self._producer
        if producer is None:
            raise FatalError(f"writer {self._id} has not been fenced", hint="call fence() first")
        try:
            producer.begin_transaction()
            for record in records:
                self._produce(producer, record)
            producer.commit_transaction(self._commit_timeout_s)
        except (KafkaException, ConnectorError):
            # What the commit raises then only says that some record failed.
            failed = self._failed
            self._drop()
            if failed is not None:
                raise KafkaException(failed) from None
            raise

    def _produce(self, producer: Producer, record: NewRecord) -> None:
        (topic, partition), key, value = record
        while True:
            try:
                producer.produce(topic, value, key, partition, self._reported)
            except BufferError:
                producer.poll(_ROOM_WAIT_S)
            else:
                return

    def _reported(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None and self._failed is None:
            self._failed = error

    def _drop(self) -> None:
        """Gives the producer up; nothing of an unfinished transaction is sent any more."""
        producer, self._producer = self._producer, None
        if producer is not None and len(producer):
            producer.purge()
            producer.flush(self._request_timeout_s)
        self._failed = None

    def _note_error(self, error: KafkaError) -> None:
        self._last_error = error.str()
