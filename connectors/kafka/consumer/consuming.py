"""One confluent-kafka consumer and the thread that polls it, for one reader or for several.

*Source*: kafka.md 2, 7; connectors.ports, `LogReader`.

*Invariants*: orders reach the consumer on the thread only, so what a poll brought always belongs
to the assignment made before it; everything reaches the loop in the order it was read. A consumer
that no broker serves is replaced by another, which reads on where it stood. Of readers that share
it none waits for another: who falls behind is shown out.

The loop orders nothing of the consumer itself, not even a pause: the client lets in one caller at a
time, and a thread that polls again and again keeps everyone else out, measured for seconds. While a
backlog lasts, the thread rests and the loop fetches what is there for itself (`turns`): only after
all that the thread brought has been read, and only of the assignment that the loop knows.

Refuses to be clever about waiting: `consume(n, timeout)` would sit out its time-out to fill n, so
the thread polls for the first message and takes along what has been fetched already.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from stilltide.connectors.errors import FatalError, RetriableError
from stilltide.connectors.kafka.config import KafkaConfig, milliseconds
from stilltide.connectors.kafka.consumer.fetch_watch import LOOKS, FetchWatch
from stilltide.connectors.kafka.consumer.inbox import Item, PolledBatch
from stilltide.connectors.kafka.consumer.messages import place_of_message, sort_out
from stilltide.connectors.kafka.consumer.poll_lease import PollLease
from stilltide.connectors.kafka.consumer.reader_slot import (
    Positions,
    ReaderSlot,
    client_names,
    client_partitions,
)
from stilltide.connectors.kafka.errors import AWAY, place_of, translate
from stilltide.connectors.kafka.logs import LOGGER, ClientLog
from stilltide.schemas.values import TopicPartition

POLL_S = 0.02
"""A thread that has just read or obeyed looks for orders this often; a look takes 40 us."""

_REST_S = 0.1
"""And so often after a rest of half a second."""

_REST_GROWTH = 1.2

_BATCH_RECORDS = 1000
_BACKLOG_RECORDS = _BATCH_RECORDS // 2
"""A poll that brings so many leaves the next ones to the loop."""
_TURN_RECORDS = 200
"""So few are still in the processor's cache when the last of them is handled."""
_CLOSE_S = 10.0
_MEET_S = 1.0
_WAKE_S = 0.2
"""How long a thread waits for an answer that only wakes the client; without it nothing is lost."""


class Membership(NamedTuple):
    """What a member of a group has to do with its consumer.

    Attributes:
        overtaken: whether a rebalance has come that was not acted on, so that what was read with it
            belongs to nobody.
        act: acts on the rebalance, on the thread.
        rejoin: has a new consumer join the group of the one it replaces.
    """

    overtaken: Callable[[], bool]
    act: Callable[[Consumer], None]
    rejoin: Callable[[Consumer], None]


class ConsumerThread:
    """Runs one consumer; made, ordered about and closed on the loop.

    Args:
        config: the cluster.
        options: librdkafka's.
        seat: of the one reader it serves; without one, whoever assigns has a seat.
        membership: of the group that assigns partitions; without one the readers do.
    """

    _loop: asyncio.AbstractEventLoop
    _consumer: Consumer
    _watch: FetchWatch
    _met: set[str]
    _paused: set[TopicPartition]

    def __init__(
        self,
        config: KafkaConfig,
        options: Mapping[str, Any],
        seat: ReaderSlot | None = None,
        membership: Membership | None = None,
    ) -> None:
        self.address = config.bootstrap_servers
        self.client_id = str(options["client.id"])
        self._options = options
        self._fetch_timeout_s = config.fetch_timeout_s
        self._only = seat
        self._seats = [] if seat is None else [seat]
        self._membership = membership
        self._orders: deque[tuple[Callable[[Consumer], None], asyncio.Future[None]]] = deque()
        self._ordered = threading.Event()
        self._turns = PollLease(self._ordered)
        self._poll_s = POLL_S
        self._reading = False
        self._ending = False
        self._all_down = self._begun_anew = False
        self._missing: str | None = None
        self._thread: threading.Thread | None = None

    @property
    def ended(self) -> bool:
        """Whether it has been closed, or has died."""
        return self._ending

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

    async def take(self, seat: ReaderSlot) -> Sequence[Item]:
        """The next items of a seat; see `LogReader.read`."""
        if self._turns.lent:
            await asyncio.sleep(0)  # a reader that need not wait must not keep others waiting
            if items := self.fetch(seat):
                return items
        return await seat.inbox.take()

    def fetch(self, seat: ReaderSlot) -> Sequence[Item]:
        """The next items, read on the loop; nothing where only the thread can tell."""
        if not seat.inbox.is_read_up or not self._turns.begin():
            return ()
        messages: list[Message] = []
        try:
            if not self._ending and seat.generation == seat.inbox.generation:
                messages = self._consumer.consume(_TURN_RECORDS, 0)
            if self._membership is not None and self._membership.overtaken():
                messages = []
            items = self._sorted_out(messages, seat)
        except KafkaException as error:
            raise translate(error, self.address, "cannot read") from error
        finally:
            self._turns.end()
        if len(messages) < _TURN_RECORDS:
            self._turns.give_back()
        return items

    def pause(self, seat: ReaderSlot, partitions: Iterable[TopicPartition]) -> None:
        """Stops fetching those of the partitions that are assigned."""
        wanted = frozenset(partitions)
        self.submit(lambda it: self._pause(it, seat, wanted))

    def resume(self, seat: ReaderSlot, partitions: Iterable[TopicPartition]) -> None:
        """Fetches again from where they stand those of the partitions that are assigned."""
        wanted = frozenset(partitions)
        self.submit(lambda it: self._resume(it, seat, wanted))

    def assign(
        self, consumer: Consumer, seat: ReaderSlot, positions: Positions, generation: int
    ) -> None:
        """Reads these partitions from now on for this seat; on the thread."""
        if self._only is None:
            self.leave(consumer, seat)
            consumer.incremental_assign(client_partitions(positions))
            self._seats = [*self._seats, seat]
        else:
            consumer.assign(client_partitions(positions))
        seat.take_up(positions, generation)
        # The client keeps the pause of a partition over an assignment, and without it.
        if paused := self._paused & positions.keys():
            self._resume(consumer, seat, paused)
        self._meet(consumer, {data.topic for data in positions})
        self._reading = self._reading or bool(positions)

    def unassign(self, consumer: Consumer, seat: ReaderSlot) -> None:
        """Has the only seat read nothing any more; on the thread."""
        seat.clear()
        consumer.unassign()

    def leave(self, consumer: Consumer, seat: ReaderSlot) -> None:
        """Has one of several seats read nothing any more; on the thread."""
        if seat in self._seats:
            self._seats = [it for it in self._seats if it is not seat]
            consumer.incremental_unassign(client_names(seat.assigned))
            seat.clear()

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
        """Ends thread and consumer; every later `take` of its only reader raises `FatalError`.

        Readers that share it have left by then; one that has yet to be let go may read elsewhere.
        """
        self._ending = True
        if self._only is not None:
            self._only.inbox.close(self.closed_error())
        self._ordered.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _CLOSE_S)
            self._drop_orders()

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
        self._paused = set[TopicPartition]()
        self._consumer = Consumer(
            {**self._options, "statistics.interval.ms": milliseconds(look_s)},
            error_cb=self._note_error,
            stats_cb=self._note_statistics,
            logger=ClientLog(self.client_id),
        )

    def _run(self) -> None:
        try:
            while not self._ending:
                with self._turns.of_thread():
                    self._step()
                if self._turns.lent:
                    self._turns.rest()
                elif not self._reading:
                    self._ordered.wait()
        except Exception as error:  # noqa: BLE001 - whatever it is, the loop must hear of it
            # A dead thread must not look like a silent topic.
            LOGGER.exception("the thread of reader %s died", self.client_id)
            self._ending = True
            failure = FatalError(f"reader {self.client_id} failed", detail=repr(error))
            for seat in self._seats:
                self.post(seat.inbox.close, failure)
            self.post(self._drop_orders)
        finally:
            self._consumer.close()

    def _step(self) -> None:
        self._obey(self._consumer)
        if self._turns.lent or not self._reading:
            return
        if self._only is None or self._only.inbox.wait_for_space(POLL_S):
            self._round(self._consumer)
        if self._only is None:
            self._show_out(self._consumer)
        if self._missing is not None:
            self._replace(self._consumer, self._missing)

    def _drop_orders(self) -> None:
        while self._orders:
            _, done = self._orders.popleft()
            _resolve(done, self.closed_error())

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
        if self._membership is not None and self._membership.overtaken():
            self._membership.act(consumer)
            return
        for seat, brought in self._shared_out(messages):
            items = self._sorted_out(brought, seat)
            if items and seat is not None:
                batch = PolledBatch(seat.generation, items, sum(map(len, brought)))
                seat.inbox.count_in(batch)
                if self._only is not None and len(items) >= _BACKLOG_RECORDS:
                    self._turns.lend()  # first: nothing else tells a loop that waits again
                self.post(seat.inbox.arrive, batch)

    def _sorted_out(self, messages: list[Message], seat: ReaderSlot | None) -> list[Item]:
        """What a reader is given; failures are reported."""
        items, failed = sort_out(messages)
        if items and seat is not None:
            self._all_down = self._begun_anew = False
        for message in failed:
            self._report(message, seat)
        return items

    def _shared_out(
        self, messages: list[Message]
    ) -> Iterable[tuple[ReaderSlot | None, list[Message]]]:
        """What is whose; nobody's are what names no partition, or one that nobody reads now."""
        if self._only is not None or not messages:
            return [(self._only, messages)] if messages else []
        owners = {data: seat for seat in self._seats for data in seat.assigned}
        shares: dict[ReaderSlot | None, list[Message]] = {}
        for message in messages:
            data = place_of_message(message)
            seat = None if data is None else owners.get(data)
            shares.setdefault(seat, []).append(message)
        return shares.items()

    def _show_out(self, consumer: Consumer) -> None:
        """A reader that has fallen behind holds up no other: it goes on by itself."""
        for seat in self._seats:
            if not seat.inbox.has_space():
                positions, generation = seat.positions(consumer), seat.generation
                self.leave(consumer, seat)
                self.post(seat.shown_out, generation, positions)

    def _note_statistics(self, statistics: str) -> None:
        """Runs within a poll."""
        fetched = [data for seat in self._seats for data in seat.fetched]
        self._missing = self._watch.look(statistics, fetched, time.monotonic())

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
        stood = [
            (seat, seat.positions(stuck), seat.assigned.keys() - seat.fetched)
            for seat in self._seats
        ]
        stuck.close()
        self._make()
        if self._only is None:
            self._seats = []
        for seat, positions, paused in stood:
            if self._membership is not None:
                seat.clear()
                self._membership.rejoin(self._consumer)
            else:
                self.assign(self._consumer, seat, positions, seat.generation)
                self._pause(self._consumer, seat, paused)

    def _meet(self, consumer: Consumer, topics: set[str]) -> None:
        """Asks where further topics lie; left to itself the client asks within a second."""
        new = topics - self._met
        if self._met and new:
            with contextlib.suppress(KafkaException):
                consumer.list_topics(*(new if len(new) == 1 else ()), timeout=_MEET_S)
        self._met |= new

    def _pause(
        self, consumer: Consumer, seat: ReaderSlot, partitions: AbstractSet[TopicPartition]
    ) -> None:
        self._paused |= seat.pause(consumer, partitions)

    def _resume(
        self, consumer: Consumer, seat: ReaderSlot, partitions: AbstractSet[TopicPartition]
    ) -> None:
        """Also wakes the client's threads, which look at what was resumed once a second only."""
        resumed = seat.resume(consumer, partitions)
        self._paused -= resumed
        if resumed:
            newest = [ClientPartition(it.topic, it.partition, OFFSET_END) for it in resumed]
            with contextlib.suppress(KafkaException):
                consumer.offsets_for_times(newest, timeout=_WAKE_S)

    def _report(self, message: Message, seat: ReaderSlot | None) -> None:
        """Tells the reader; all of them, unless the message says of which partition it is."""
        error, data = message.error(), place_of_message(message)
        assert error is not None
        if data is None or data.partition < 0:
            self._fail(error, "cannot read", self._seats)
        elif seat is not None:
            self._fail(error, f"cannot read {data}@{message.offset()}", [seat])

    def _note_error(self, error: KafkaError) -> None:
        """Runs within a poll. One broker of several away is no news; all of them away is."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - public, see above
            self._all_down = True
        elif error.code() in AWAY and not self._all_down:
            return
        place = place_of(error)
        told = [it for it in self._seats if place is None or place in it.assigned]
        self._fail(error, "cannot read", told)

    def _fail(self, error: KafkaError, action: str, seats: Sequence[ReaderSlot]) -> None:
        failure = translate(error, self.address, action)
        for seat in seats:
            if isinstance(failure, RetriableError):
                self.post(seat.inbox.away, failure)
            else:
                seat.fetched = frozenset()  # nobody waits for more
                self.post(seat.inbox.fail, seat.generation, failure)


def _resolve(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
        # Of a pause nobody waits for the outcome.
        done.exception()
