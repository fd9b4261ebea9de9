"""One confluent-kafka consumer and the thread that polls it.

*Source*: kafka.md 2, 7; connectors.base, `LogReader`.

*Invariants*: only the thread touches the consumer, so what a poll brought always belongs to the
assignment made before it; everything reaches the loop in the order the thread saw it.

The loop never calls the consumer, not even to pause: the client lets in one caller at a time, and
a thread that polls again and again keeps everyone else out, measured for seconds.

Refuses to be clever about waiting: `consume(n, timeout)` would sit out its time-out to fill n, so
the thread polls for the first message and takes along what has been fetched already.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from connectors.base import EndReached, Record, TimedRecord
from connectors.errors import FatalError, RetriableError
from connectors.kafka.config import KafkaConfig
from connectors.kafka.errors import AWAY, place_of, translate
from connectors.kafka.inbox import Batch, Inbox, Item
from connectors.kafka.logs import LOGGER, ClientLog
from schemas.values import EndOffset, Offset, TopicPartition

POLL_S = 0.02
"""A thread with nothing to read looks for orders this often; costs 0.4 % of a core."""

_BATCH_RECORDS = 1000
_CLOSE_S = 10.0
_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - the client's public name begins so

_FIELDS: tuple[Callable[[Message], Any], ...] = (
    Message.topic,
    Message.partition,
    Message.offset,
    Message.key,
    Message.value,
    Message.headers,
)
_NO_ERROR = {type(None)}
_MESSAGES_ONLY = {Message}
_record_of: Callable[[tuple[Any, ...]], Record] = partial(tuple.__new__, Record)
"""Half the cost of `Record(*fields)`."""

Positions = Mapping[TopicPartition, Offset]


def client_partitions(positions: Positions) -> list[ClientPartition]:
    """Positions as the client library takes them."""
    return [ClientPartition(data[0], data[1], offset) for data, offset in positions.items()]


def client_names(partitions: Iterable[TopicPartition]) -> list[ClientPartition]:
    """Partitions as the client library takes them."""
    return [ClientPartition(data[0], data[1]) for data in partitions]


class ConsumerThread:
    """Runs one consumer; made, ordered about and closed on the loop.

    `settle` runs on the thread after each poll; False means that a rebalance has overtaken what
    the poll brought.
    """

    _loop: asyncio.AbstractEventLoop
    _consumer: Consumer

    def __init__(
        self,
        config: KafkaConfig,
        options: Mapping[str, Any],
        settle: Callable[[Consumer], bool] = lambda _: True,
    ) -> None:
        self.inbox = Inbox(config.reader_records_max)
        self.address = config.bootstrap_servers
        self.client_id = str(options["client.id"])
        self._options = options
        self._settle = settle
        self._orders: deque[tuple[Callable[[Consumer], None], asyncio.Future[None]]] = deque()
        self._ordered = threading.Event()
        self._reading = False
        self._ending = False
        self._all_down = False
        self._generation = 0
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._thread: threading.Thread | None = None

    def submit(self, action: Callable[[Consumer], None]) -> "asyncio.Future[None]":
        """Has the thread run `action` between two polls, in the order of submission.

        Raises:
            FatalError: closed, or the client library refuses the options.
        """
        self._start()
        done = self._loop.create_future()
        self._orders.append((action, done))
        self._ordered.set()
        return done

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops fetching those of the partitions that are assigned."""
        wanted = set(partitions)
        self.submit(lambda it: it.pause(client_names(wanted & self._assigned)))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches again from where they stand those of the partitions that are assigned."""
        wanted = set(partitions)
        self.submit(lambda it: it.resume(client_names(wanted & self._assigned)))

    def assign(self, consumer: Consumer, positions: Positions, generation: int) -> None:
        """Reads these partitions from now on; on the thread."""
        self._generation = generation
        self._assigned = frozenset(positions)
        consumer.assign(client_partitions(positions))
        # The client keeps the pause of a partition over an assignment.
        consumer.resume(client_names(positions))
        self._reading = self._reading or bool(positions)

    def read_on(self) -> None:
        """Polls also without an assignment: a group member's come from a poll; on the thread."""
        self._reading = True

    def post(self, call: Callable[..., None], *args: object) -> None:
        """Runs `call` on the loop, after all that was posted before."""
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            # The loop ended without closing its reader; nobody is left to tell.
            self._ending = True

    async def close(self) -> None:
        """Ends thread and consumer; every waiting and later `take` raises `FatalError`."""
        self._ending = True
        self.inbox.close(self.closed_error())
        self._ordered.set()
        if self._thread is None:
            return
        await asyncio.to_thread(self._thread.join, _CLOSE_S)
        while self._orders:
            _, done = self._orders.popleft()
            _resolve(done, self.closed_error())

    def closed_error(self) -> FatalError:
        """What a closed reader answers."""
        return FatalError(f"reader {self.client_id} is closed")

    def _start(self) -> None:
        if self._ending:
            raise self.closed_error()
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            log = ClientLog(self.client_id)
            try:
                self._consumer = Consumer(
                    dict(self._options), error_cb=self._note_error, logger=log
                )
            except KafkaException as error:
                raise translate(error, self.address, "cannot make a consumer") from error
            self._thread = threading.Thread(target=self._run, name=self.client_id, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        consumer = self._consumer
        try:
            while not self._ending:
                self._obey(consumer)
                if not self._reading:
                    self._ordered.wait()
                elif self.inbox.wait_for_space(POLL_S):
                    self._round(consumer)
        except Exception as error:  # noqa: BLE001 - whatever it is, the loop must hear of it
            # A dead thread must not look like a silent topic.
            LOGGER.exception("the thread of reader %s died", self.client_id)
            failure = FatalError(f"reader {self.client_id} failed", detail=repr(error))
            self.post(self.inbox.close, failure)
        finally:
            consumer.close()

    def _obey(self, consumer: Consumer) -> None:
        self._ordered.clear()
        while self._orders:
            action, done = self._orders.popleft()
            try:
                action(consumer)
            except KafkaException as error:
                self.post(_resolve, done, translate(error, self.address, "cannot read"))
            else:
                self.post(_resolve, done, None)

    def _round(self, consumer: Consumer) -> None:
        first = consumer.poll(POLL_S)
        messages = [] if first is None else [first, *consumer.consume(_BATCH_RECORDS - 1, 0)]
        if not self._settle(consumer) or not messages:
            return
        items, failed = sort_out(messages)
        if items:
            self._all_down = False
            value_bytes = sum(map(len, messages))
            batch = Batch(self._generation, items, value_bytes)
            self.inbox.count_in(batch)
            self.post(self.inbox.arrive, batch)
        for message in failed:
            self._report(message)

    def _report(self, message: Message) -> None:
        error, topic, partition = message.error(), message.topic(), message.partition()
        assert error is not None
        if topic is None or partition is None or partition < 0:
            self._fail(error, "cannot read")
        else:
            self._fail(error, f"cannot read {topic}/{partition}@{message.offset()}")

    def _note_error(self, error: KafkaError) -> None:
        """Runs within a poll. One broker of several away is no news; all of them away is."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - public, see above
            self._all_down = True
        elif error.code() in AWAY and not self._all_down:
            return
        place = place_of(error)
        if place is not None and place not in self._assigned:
            return
        self._fail(error, "cannot read")

    def _fail(self, error: KafkaError, action: str) -> None:
        failure = translate(error, self.address, action)
        if isinstance(failure, RetriableError):
            self.post(self.inbox.away, failure)
        else:
            self.post(self.inbox.fail, self._generation, failure)


def sort_out(messages: list[Message]) -> tuple[list[Item], list[Message]]:
    """Records and ends in their order, and the messages that report an error."""
    errors = list(map(Message.error, messages))
    # Never by `==`: an error of the client compared with None leaves a hidden exception behind.
    if set(map(type, errors)) == _NO_ERROR:
        return [*messages], []
    items: list[Item] = []
    failed: list[Message] = []
    for message, error in zip(messages, errors, strict=True):
        if error is None:
            items.append(message)
        elif error.code() == _END:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            items.append(EndReached(topic, partition, EndOffset(offset)))
        else:
            failed.append(message)
    return items, failed


def converted(items: Sequence[Item]) -> Sequence[Record | EndReached]:
    """What readers return.

    Works column by column, because calls without a line of Python around them cost a third; and on
    the caller's thread, because what another processor has just made is slow to touch.
    """
    if set(map(type, items)) == _MESSAGES_ONLY:
        return _records_of(cast("Sequence[Message]", items))
    messages = [it for it in items if not isinstance(it, EndReached)]
    records = iter(_records_of(messages))
    return [it if isinstance(it, EndReached) else next(records) for it in items]


def timed(items: Sequence[Item]) -> Sequence[Record | EndReached]:
    """What readers return that were asked for times."""
    return [
        made
        if isinstance(made, EndReached) or isinstance(item, EndReached)
        else TimedRecord.at(made, item.timestamp()[1])
        for item, made in zip(items, converted(items), strict=True)
    ]


def _records_of(messages: Sequence[Message]) -> list[Record]:
    columns = [map(field, messages) for field in _FIELDS]
    return list(map(_record_of, zip(*columns, strict=True)))


def _resolve(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
        # Of a pause nobody waits for the outcome.
        done.exception()
