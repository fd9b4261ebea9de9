"""One confluent-kafka consumer and the thread that polls it.

*Source*: kafka.md 2, 7; connectors.base, `LogReader`.

*Invariants*: only the thread touches the consumer, so what a poll brought always belongs to the
assignment made before it; everything reaches the loop in the order the thread saw it. A consumer
that no broker serves is replaced by another, which reads on where it stood.

The loop never calls the consumer, not even to pause: the client lets in one caller at a time, and
a thread that polls again and again keeps everyone else out, measured for seconds.

Refuses to be clever about waiting: `consume(n, timeout)` would sit out its time-out to fill n, so
the thread polls for the first message and takes along what has been fetched already.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from connectors.errors import FatalError, RetriableError
from connectors.kafka.config import KafkaConfig, milliseconds
from connectors.kafka.errors import AWAY, place_of, translate
from connectors.kafka.fetch_watch import LOOKS, FetchWatch
from connectors.kafka.inbox import Batch, Inbox
from connectors.kafka.logs import LOGGER, ClientLog
from connectors.kafka.messages import sort_out
from schemas.values import Offset, TopicPartition

POLL_S = 0.02
"""A thread that has just read or obeyed looks for orders this often; a look takes 40 us."""

_REST_S = 0.1
"""And so often after a rest of half a second."""

_REST_GROWTH = 1.2

_BATCH_RECORDS = 1000
_CLOSE_S = 10.0
_MEET_S = 1.0
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
    the poll brought. `rejoin` has a new consumer join the group of the one it replaces; where there
    is none, the partitions are the caller's, and are assigned again.
    """

    _loop: asyncio.AbstractEventLoop
    _consumer: Consumer
    _watch: FetchWatch
    _met: set[str]

    def __init__(
        self,
        config: KafkaConfig,
        options: Mapping[str, Any],
        settle: Callable[[Consumer], bool] = lambda _: True,
        rejoin: Callable[[Consumer], None] | None = None,
    ) -> None:
        self.inbox = Inbox(config.reader_records_max)
        self.address = config.bootstrap_servers
        self.client_id = str(options["client.id"])
        self._options = options
        self._fetch_timeout_s = config.fetch_timeout_s
        self._settle = settle
        self._rejoin = rejoin
        self._orders: deque[tuple[Callable[[Consumer], None], asyncio.Future[None]]] = deque()
        self._ordered = threading.Event()
        self._poll_s = POLL_S
        self._reading = False
        self._ending = False
        self._all_down = self._begun_anew = False
        self._generation = 0
        self._assigned: Positions = {}
        self._fetched: frozenset[TopicPartition] = frozenset()
        self._missing: str | None = None
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
        wanted = frozenset(partitions)
        self.submit(lambda it: self._pause(it, wanted & self._assigned.keys()))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches again from where they stand those of the partitions that are assigned."""
        wanted = frozenset(partitions)
        self.submit(lambda it: self._resume(it, wanted & self._assigned.keys()))

    def assign(self, consumer: Consumer, positions: Positions, generation: int) -> None:
        """Reads these partitions from now on; on the thread."""
        self._generation = generation
        self._assigned = positions
        self._fetched = frozenset()
        consumer.assign(client_partitions(positions))
        # The client keeps the pause of a partition over an assignment.
        self._resume(consumer, positions.keys())
        self._meet(consumer, {data.topic for data in positions})
        self._reading = self._reading or bool(positions)

    def unassign(self, consumer: Consumer) -> None:
        """Reads nothing any more; on the thread."""
        self._assigned, self._fetched = {}, frozenset()
        consumer.unassign()

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
            try:
                self._make()
            except KafkaException as error:
                raise translate(error, self.address, "cannot make a consumer") from error
            self._thread = threading.Thread(target=self._run, name=self.client_id, daemon=True)
            self._thread.start()

    def _make(self) -> None:
        look_s = self._fetch_timeout_s / LOOKS
        self._watch = FetchWatch(look_s)
        self._missing = None
        self._met = set[str]()
        self._consumer = Consumer(
            {**self._options, "statistics.interval.ms": milliseconds(look_s)},
            error_cb=self._note_error,
            stats_cb=self._note_statistics,
            logger=ClientLog(self.client_id),
        )

    def _run(self) -> None:
        try:
            while not self._ending:
                self._obey(self._consumer)
                if not self._reading:
                    self._ordered.wait()
                elif self.inbox.wait_for_space(POLL_S):
                    self._round(self._consumer)
                if self._missing is not None:
                    self._replace(self._consumer, self._missing)
        except Exception as error:  # noqa: BLE001 - whatever it is, the loop must hear of it
            # A dead thread must not look like a silent topic.
            LOGGER.exception("the thread of reader %s died", self.client_id)
            failure = FatalError(f"reader {self.client_id} failed", detail=repr(error))
            self.post(self.inbox.close, failure)
        finally:
            self._consumer.close()

    def _obey(self, consumer: Consumer) -> None:
        self._ordered.clear()
        while self._orders:
            action, done = self._orders.popleft()
            self._poll_s = POLL_S
            try:
                action(consumer)
            except KafkaException as error:
                self.post(_resolve, done, translate(error, self.address, "cannot read"))
            else:
                self.post(_resolve, done, None)

    def _round(self, consumer: Consumer) -> None:
        first = consumer.poll(self._poll_s)
        messages = [] if first is None else [first, *consumer.consume(_BATCH_RECORDS - 1, 0)]
        self._poll_s = POLL_S if messages else min(self._poll_s * _REST_GROWTH, _REST_S)
        if not self._settle(consumer) or not messages:
            return
        items, failed = sort_out(messages)
        if items:
            self._all_down = self._begun_anew = False
            value_bytes = sum(map(len, messages))
            batch = Batch(self._generation, items, value_bytes)
            self.inbox.count_in(batch)
            self.post(self.inbox.arrive, batch)
        for message in failed:
            self._report(message)

    def _note_statistics(self, statistics: str) -> None:
        """Runs within a poll."""
        self._missing = self._watch.look(statistics, self._fetched, time.monotonic())

    def _replace(self, stuck: Consumer, missing: str) -> None:
        """Reads on with a new consumer where this one stands; what is paused stays so.

        Warns of the first only: while a broker is away there may be many.
        """
        LOGGER.log(
            logging.DEBUG if self._begun_anew else logging.WARNING,
            "reader %s of %s begins again with a new client: for %g s %s",
            self.client_id,
            self.address,
            self._fetch_timeout_s,
            missing,
        )
        self._begun_anew = True
        paused = self._assigned.keys() - self._fetched
        positions = dict(self._assigned)
        for it in stuck.position(client_names(positions)):
            if it.offset >= 0:
                positions[TopicPartition(it.topic, it.partition)] = Offset(it.offset)
        stuck.close()
        self._make()
        if self._rejoin is None:
            self.assign(self._consumer, positions, self._generation)
            self._pause(self._consumer, paused)
        else:
            self._assigned, self._fetched = {}, frozenset()
            self._rejoin(self._consumer)

    def _pause(self, consumer: Consumer, partitions: AbstractSet[TopicPartition]) -> None:
        consumer.pause(client_names(partitions))
        self._fetched -= partitions

    def _resume(self, consumer: Consumer, partitions: AbstractSet[TopicPartition]) -> None:
        consumer.resume(client_names(partitions))
        self._fetched |= partitions

    def _meet(self, consumer: Consumer, topics: set[str]) -> None:
        """Asks where further topics lie; left to itself the client asks within a second."""
        new = topics - self._met
        if self._met and new:
            with contextlib.suppress(KafkaException):
                consumer.list_topics(*(new if len(new) == 1 else ()), timeout=_MEET_S)
        self._met |= new

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
            self._fetched = frozenset()  # nobody waits for more
            self.post(self.inbox.fail, self._generation, failure)


def _resolve(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
        # Of a pause nobody waits for the outcome.
        done.exception()
