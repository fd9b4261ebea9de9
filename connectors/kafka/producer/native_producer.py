"""A producer of native transactions and the one thread that makes its calls.

*Source*: `TransactionalWriter` and `CopyWriter` of connectors.ports;
docs/internals/kafka-clients.md, Producers.

*Invariants*: blocking calls run on one thread at a time, in order; a writer at rest has no thread.
Each `fence` makes a new producer, because librdkafka allows no call after some errors, and no
repetition after others.

Writes sets of records in native transactions, with confluent-kafka's blocking calls.

*Source*: docs/protocols B9, E3, H1, H2; connectors.ports, `TransactionalWriter`;
docs/internals/kafka-clients.md, Producers.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from stilltide.connectors.errors import ConnectorError, FatalError, FencedError, RetriableError
from stilltide.connectors.kafka.config import KafkaConfig, Options, transactional_options
from stilltide.connectors.kafka.errors import REFUSALS, error_of, on_id, on_topic, translate
from stilltide.connectors.kafka.logs import TransactionLog
from stilltide.connectors.ports.readers import NewRecord
from stilltide.schemas.rights import Operation

T = TypeVar("T")

_ATTEMPT_S = 0.25
"""Longest time for which `close` waits for a call that an absent broker does not answer."""

_REST_S = 5.0
"""Time without a call after which a writer's thread ends."""

_PAUSE_S = 0.01
"""Pause between two attempts, one of which may end at once."""

_PURGED = frozenset(
    {
        KafkaError._PURGE_INFLIGHT,  # noqa: SLF001 - the client's public names begin so
        KafkaError._PURGE_QUEUE,  # noqa: SLF001 - as above
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)
"""Codes of records, and of a commit, of a transaction that was refused a topic."""

_HIDING = frozenset({KafkaError._STATE, KafkaError._FATAL})  # noqa: SLF001 - no public names
"""Codes that a call raises after an error, instead of its code."""

_FORGOTTEN = frozenset({KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError.UNKNOWN_PRODUCER_ID})
"""Codes of an id that the brokers have forgotten because it was idle for long. The client reports
the records of the next transaction as purged."""

_UNDELIVERED = KafkaError._INCONSISTENT  # noqa: SLF001 - no public name
"""Code of a commit before which records have failed."""

_TO_ABORT = KafkaError._RETRY  # noqa: SLF001 - no public name
"""Code of a transaction that can only be aborted; another one may succeed."""


_PROMPT_S = 1.0
"""An id that was taken within this time was asked for once, as far as known."""

_LATE_S_MAX = 60.0
"""Time after a request for an id that got no answer in which the request may still arrive."""


class TransactionalIds:
    """What this process knows of the transactional ids of its writers, for one cluster.

    A broker that was frozen, or a slow line, may carry out a request for an id long after the
    client has given it up and has asked again. The broker then fences the writer that has the id,
    as if another process had taken over.

    Attributes:
        exact: the ids whose next copy writer is `ExactCopyWriter` (H11).
        has_small_batches: whether a topic has refused a batch of several records of that writer.
    """

    def __init__(self) -> None:
        self.exact: set[str] = set()
        self.has_small_batches = False
        self._unanswered_s: dict[str, float] = {}

    @contextlib.contextmanager
    def taking(self, transactional_id: str) -> Iterator[None]:
        """Surrounds a call that takes an id; notes whether a request of it may arrive late."""
        began_s = time.monotonic()
        answered = False
        try:
            yield
            answered = True
        finally:
            now_s = time.monotonic()
            if not answered or now_s - began_s > _PROMPT_S:
                self._unanswered_s[transactional_id] = now_s

    def own_fence(self, error: ConnectorError, transactional_id: str) -> ConnectorError:
        """The error, retriable if it is a fence that a late request of this process explains."""
        asked_s = self._unanswered_s.get(transactional_id, -math.inf)
        if not isinstance(error, FencedError) or time.monotonic() - asked_s > _LATE_S_MAX:
            return error
        return RetriableError(
            error.primary,
            detail=f"{error.detail}; a request of this process for the id got no answer, and has"
            " probably arrived late",
            hint="nothing needs to be done: the id is taken again",
        )


class NativeProducer:
    """The common base of the writers of native transactions. Connects at `fence`."""

    def __init__(
        self, config: KafkaConfig, transactional_id: str, options: Options, ids: TransactionalIds
    ) -> None:
        self._id = transactional_id
        self._ids = ids
        self._options = options
        self._address = config.caller
        self._request_timeout_s = config.request_timeout_s
        self._log = TransactionLog(transactional_id, config.lines)
        self._thread: ThreadPoolExecutor | None = None
        self._calls: set[Future[Any]] = set()  # that have not ended
        self._called_s = 0.0
        self._rest: asyncio.TimerHandle | None = None
        self._producer: Producer | None = None
        self._failed: KafkaError | None = None
        self._failed_topic: str | None = None  # of the last record that failed
        self._last_error = ""
        self._closed = False

    async def fence(self) -> None:
        """Takes over the transactional id; another writer that has it is fenced."""
        await self._call(self._fence, f"cannot take transactional id {self._id}")

    async def close(self) -> None:
        """Drops the producer and ends the thread; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        await self._on_thread(self._drop)
        if self._rest is not None:
            self._rest.cancel()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.shutdown)

    def _in_attempts(self, call: Callable[[float], object], timeout_s: float) -> None:
        """Makes a call that goes on when it is repeated, in short attempts.

        `close` need not wait for longer than an attempt.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = max(deadline_s - time.monotonic(), 0)
            try:
                call(min(left_s, _ATTEMPT_S))
            except KafkaException as error:
                is_last = self._closed or left_s <= _ATTEMPT_S
                if is_last or not error_of(error).retriable():
                    raise
                time.sleep(_PAUSE_S)
            else:
                return

    async def _call(self, call: Callable[[], T], action: str) -> T:
        """Runs `call` on the thread; raises errors of the port."""
        if self._closed:
            raise FatalError(f"writer {self._id} is closed")
        with self._translated(action):
            return await self._on_thread(call)

    async def _on_thread(self, call: Callable[[], T]) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=self._id)
        if self._rest is None:
            self._rest = asyncio.get_running_loop().call_later(_REST_S, self._end_thread)
        self._called_s = time.monotonic()
        called = self._thread.submit(call)
        self._calls.add(called)
        called.add_done_callback(self._calls.discard)
        return await asyncio.wrap_future(called)

    def _end_thread(self) -> None:
        """Ends the thread if it rests; called every `_REST_S` while there is one."""
        assert self._thread is not None
        if self._calls or time.monotonic() - self._called_s < _REST_S:
            self._rest = asyncio.get_running_loop().call_later(_REST_S, self._end_thread)
        else:
            self._thread.shutdown(wait=False)
            self._thread = self._rest = None

    @contextlib.contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        try:
            yield
        except (KafkaException, SystemError) as error:
            # Without the traceback, whose frames keep the producer, which then goes on by itself.
            cause = self._cause(error.with_traceback(None))
            raise self._refused(cause, action) from cause

    def _cause(self, error: KafkaException | SystemError) -> KafkaException:
        """The error that the client hides behind `error`, if there is one, else `error`.

        The client raises a fatal error inside of a callback. If another callback follows in the
        same call, the call raises `SystemError`. Later calls raise `_STATE` or `_FATAL`. Calls
        raise `_STATE`, too, after a record has failed: the transaction can only be aborted.

        A commit raises `_INCONSISTENT` when records have failed and the client knows no lasting
        cause, such as a refusal: they were not delivered in time.
        """
        if isinstance(error, KafkaException) and error_of(error).code() not in _HIDING:
            if error_of(error).code() == _UNDELIVERED:
                return KafkaException(self._failed or KafkaError(_TO_ABORT, error_of(error).str()))
            return error
        if self._producer is not None:
            try:
                self._producer.begin_transaction()  # the call that names what went before
            except KafkaException as again:
                if error_of(again).fatal():
                    return again.with_traceback(None)
                return KafkaException(self._failed or KafkaError(_TO_ABORT, error_of(again).str()))
        if isinstance(error, KafkaException):
            return error
        return KafkaException(KafkaError(KafkaError._FAIL, str(error)))  # noqa: SLF001 - no public name

    def _refused(self, cause: KafkaError | KafkaException, action: str) -> ConnectorError:
        """The error of a failed call, of a record if one has failed, else of the id."""
        asked = [on_id(Operation.WRITE, self._id)]
        named = self._named(cause)
        if named.code() in _FORGOTTEN:
            return RetriableError(
                f"{action} at {self._address}: the brokers have forgotten the transactional id",
                detail=f"{named.str()} ({named.name()}): the id was idle for longer than"
                " transactional.id.expiration.ms of the brokers",
                hint="nothing needs to be done: the id is taken again, and the records are written"
                " by another transaction",
            )
        if self._producer is not None:
            with contextlib.suppress(KafkaException):  # a fatal error, which `cause` says
                self._producer.poll(0)  # delivers the client's lines
        if self._log.refused_topic is not None and error_of(cause).code() in {*_PURGED, _TO_ABORT}:
            self._failed_topic = self._log.refused_topic
            cause = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, error_of(cause).str())
        if self._failed_topic is not None:
            asked.append(on_topic(Operation.WRITE, self._failed_topic))
        hidden = "" if named.code() == error_of(cause).code() else named.str()
        detail = hidden or self._last_error
        error = translate(cause, self._address, action, *asked, detail=detail)
        return self._ids.own_fence(error, self._id)

    def _named(self, cause: KafkaError | KafkaException) -> KafkaError:
        """The error for which the client has purged the records of a transaction, if it tells."""
        known = error_of(cause)
        if known.code() not in _PURGED or self._producer is None:
            return known
        try:
            self._producer.begin_transaction()  # as in `_cause`
        except KafkaException as again:
            if error_of(again).code() not in _HIDING:
                return error_of(again)
        return known

    def _fenced(self) -> Producer:
        """The producer; raises `FatalError` if there is none."""
        if self._producer is not None:
            return self._producer
        if self._closed:
            raise FatalError(f"writer {self._id} is closed")
        raise FatalError(f"writer {self._id} has not been fenced", hint="call fence() first")

    def _fence(self) -> None:
        self._drop()
        options = {**self._options, "error_cb": self._note_error}
        self._producer = Producer(options, logger=self._log)
        self._log.refused_topic = None
        try:
            with self._ids.taking(self._id):
                self._in_attempts(self._producer.init_transactions, self._request_timeout_s)
        except KafkaException:
            # Else the client takes the id over later, and fences the producer of the next try.
            self._producer = None
            raise

    def _drop(self) -> None:
        """Drops the producer; queued records of an unfinished transaction are not sent any more."""
        producer, self._producer = self._producer, None
        if producer is not None and len(producer):
            producer.purge()
            # The flush of a fenced producer raises, which does not matter here.
            with contextlib.suppress(KafkaException, SystemError):
                producer.flush(self._request_timeout_s)
        self._failed = None

    def _note_error(self, error: KafkaError) -> None:
        self._last_error = error.str()


_ROOM_WAIT_S = 0.1


class KafkaTransactionalWriter(NativeProducer):
    """A `TransactionalWriter`; `close` waits for the transaction under way, and aborts none."""

    def __init__(self, config: KafkaConfig, transactional_id: str, ids: TransactionalIds) -> None:
        options = transactional_options(config, transactional_id)
        super().__init__(config, transactional_id, options, ids)
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
