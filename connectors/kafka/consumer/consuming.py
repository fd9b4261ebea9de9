"""One confluent-kafka consumer and the thread that polls it, for one reader or for several.

*Source*: docs/internals/kafka-clients.md; connectors.ports, `LogReader`.

*Invariants*: only the thread carries out orders (assign, pause, resume, commit), so the messages of
a poll always belong to the assignment before the poll; messages reach the loop in the order they
were read. A consumer that no broker serves is replaced by another consumer, which reads on from the
same positions. Readers that share a consumer do not wait for each other: a reader that falls behind
gets a consumer of its own.

The loop does not call a consumer that the thread polls, not even for a pause: the client admits one
caller at a time, and a thread that polls again and again keeps other callers out, measured for
seconds. While a backlog lasts, the thread rests and the loop calls `consume` (`PollLease`): only
after the loop has read all messages that the thread brought, and only for the assignment that the
loop knows.

Never waits in `consume`: `consume(n, timeout)` waits for its whole time-out to fill n. So the
thread polls for the first message, and then consumes what has been fetched already.

Orders of the loop to a consumer's thread, and calls of the thread to the loop.

*Invariants*: orders run on the thread, in the order of submission, and each is answered, whatever
it raises; calls run on the loop, in the order in which the thread posted them.

Decides whether a consumer's thread or the event loop may call the consumer.

*Source*: measured. Objects that the thread has made are slow to access for the loop on another
processor, and thread and loop wait for each other's interpreter lock. A loop that polls by itself,
a few records at a time, reads a backlog in a third of the time.

*Invariants*: either the thread or the loop calls the consumer, never both at once; the loop never
waits for the thread. The thread takes back a consumer that the loop does not use, since a client
that is not polled answers no rebalance.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaException, Message

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.config import KafkaConfig, milliseconds
from stilltide.connectors.kafka.consumer.assignments import Assignments, ReaderSlot
from stilltide.connectors.kafka.consumer.health import ConsumerHealth
from stilltide.connectors.kafka.consumer.inbox import Item, PolledBatch
from stilltide.connectors.kafka.errors import Caller, translate
from stilltide.connectors.kafka.logs import LOGGER, ClientLog
from stilltide.schemas.values import TopicPartition

Action = Callable[[Consumer], None]


class Orders:
    """Orders to one thread; the loop calls `submit` and `drop`, the thread calls `obey`.

    Attributes:
        ordered: set when the thread has something to do.
        ended: whether the consumer was closed, or its thread has died.
    """

    _loop: asyncio.AbstractEventLoop

    def __init__(self, address: Caller | str, client_id: str) -> None:
        self._address = address
        self._client_id = client_id
        self._waiting: deque[tuple[Action, asyncio.Future[None]]] = deque()
        self.ordered = threading.Event()
        self.ended = False

    def bind(self) -> None:
        """Makes the running loop the loop that the thread calls."""
        self._loop = asyncio.get_running_loop()

    def submit(self, action: Action) -> "asyncio.Future[None]":
        """Has the thread run `action` between two polls; the future is done when it has run."""
        done = self._loop.create_future()
        self._waiting.append((action, done))
        self.ordered.set()
        return done

    def obey(self, consumer: Consumer) -> bool:
        """Runs every waiting order; returns whether there was one."""
        self.ordered.clear()
        obeyed = False
        while self._waiting:
            action, done = self._waiting.popleft()
            obeyed = True
            try:
                action(consumer)
            except KafkaException as error:
                self.post(_resolve, done, translate(error, self._address, "cannot read"))
            except Exception as error:  # noqa: BLE001 - one reader's order must not end the others
                self.post(_resolve, done, self._unexpected(error))
            else:
                self.post(_resolve, done, None)
        return obeyed

    def _unexpected(self, error: Exception) -> FatalError:
        failure = FatalError(
            f"reader {self._client_id} could not carry out an order", detail=repr(error)
        )
        failure.__cause__ = error
        return failure

    def post(self, call: Callable[..., None], *args: object) -> None:
        """Runs `call` on the loop, after all calls posted before."""
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            # The loop ended without closing its reader, so no task waits for the call.
            self.ended = True

    def end(self) -> None:
        """Makes the thread end."""
        self.ended = True
        self.ordered.set()

    def drop(self) -> None:
        """Fails the orders that an ended thread has not run."""
        while self._waiting:
            _, done = self._waiting.popleft()
            _resolve(done, self.closed_error())

    def closed_error(self) -> FatalError:
        """The error that calls of a closed reader raise."""
        return FatalError(f"reader {self._client_id} is closed")


def _resolve(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
        # No caller waits for the outcome of a pause; this marks the error as seen.
        done.exception()


_UNUSED_S = 0.1


class PollLease:
    """The right to call one consumer.

    Args:
        ordered: the event that wakes the thread: an order waits, or the lease has ended.

    Attributes:
        lent: whether the loop polls and the thread rests.
    """

    def __init__(self, ordered: threading.Event) -> None:
        self._ordered = ordered
        self._lock = threading.Lock()
        self._used_at = 0.0
        self.lent = False

    @contextmanager
    def of_thread(self) -> Iterator[None]:
        """Holds the consumer for calls of the thread; while it is lent, for a short call only."""
        with self._lock:
            yield

    def lend(self) -> None:
        """Lends the consumer to the loop for the next polls."""
        self._used_at = time.monotonic()
        self.lent = True

    def rest(self) -> None:
        """Lets the thread wait until it is needed; ends a lease that the loop does not use."""
        self._ordered.wait(_UNUSED_S)
        if time.monotonic() - self._used_at > _UNUSED_S:
            self.lent = False

    def begin(self) -> bool:
        """Lets the loop call the consumer until `end`; False: the loop may not call it now."""
        if not self.lent:
            return False
        if self._lock.acquire(blocking=False):
            self._used_at = time.monotonic()
            return True
        self.give_back()
        return False

    def end(self) -> None:
        """Ends the loop's calls."""
        self._lock.release()

    def give_back(self) -> None:
        """Ends the lease; the thread polls again."""
        self.lent = False
        self._ordered.set()


POLL_S = 0.02
"""Time between two looks for orders after messages or an order; a look takes 40 us."""

_REST_S = 0.1
"""Longest time between two looks for orders; reached after half a second without messages."""

_REST_GROWTH = 1.2

_BATCH_RECORDS = 1000
_BACKLOG_RECORDS = _BATCH_RECORDS // 2
"""After a poll with so many records, the loop polls instead of the thread."""
_LEASE_RECORDS = 200
"""Records of one poll by the loop: few enough to stay in the processor's cache until handled."""
_CLOSE_S = 10.0


class Membership(Protocol):
    """A group member's part of the consumer's thread."""

    def reads_topic(self, name: str) -> bool:
        """Whether the member has subscribed to a topic; errors of others are dropped."""
        ...

    def is_overtaken(self) -> bool:
        """Whether a rebalance waits to be carried out; messages read meanwhile are dropped."""
        ...

    def rebalance(self, consumer: Consumer) -> None:
        """Carries out the rebalance."""
        ...

    def look(self, consumer: Consumer) -> None:
        """Called between two polls: what the member waits for may be asked for again."""
        ...

    def rejoin(self, consumer: Consumer) -> None:
        """Joins the group with a new consumer; the membership of the old consumer is lost."""
        ...


class ConsumerThread:
    """Runs one consumer on a thread; all methods are called on the loop, except `post`.

    Args:
        config: the cluster.
        options: options of librdkafka.
        slot: slot of the only reader; None: readers share the consumer, each with its own slot.
        membership: membership in the group that assigns partitions; None: the readers assign them.

    Attributes:
        address: the cluster's address and the user, for errors.
        assignments: the readers' assignments, changed by orders.
    """

    _consumer: Consumer

    def __init__(
        self,
        config: KafkaConfig,
        options: Mapping[str, Any],
        slot: ReaderSlot | None = None,
        membership: Membership | None = None,
    ) -> None:
        self.address = config.caller
        self._client_id = str(options["client.id"])
        self._options = options
        self._lines = config.lines
        self._membership = membership
        self._orders = Orders(self.address, self._client_id)
        self._lease = PollLease(self._orders.ordered)
        self.assignments = Assignments(slot)
        self._health = ConsumerHealth(
            config,
            self._client_id,
            self.assignments,
            self._orders.post,
            group=None if membership is None else str(options["group.id"]),
            reads_topic=(lambda _: True) if membership is None else membership.reads_topic,
        )
        self._poll_s = POLL_S
        self._thread: threading.Thread | None = None

    @property
    def ended(self) -> bool:
        """Whether the thread was closed, or has died."""
        return self._orders.ended

    def submit(self, action: Action) -> "asyncio.Future[None]":
        """Has the thread run `action` between two polls, in the order of submission.

        Raises:
            FatalError: the reader is closed, or the client library refuses the options.
        """
        self._start()
        return self._orders.submit(action)

    def post(self, call: Callable[..., None], *args: object) -> None:
        """Runs `call` on the loop, after all calls posted before; called on the thread."""
        self._orders.post(call, *args)

    async def take(self, slot: ReaderSlot) -> Sequence[Item]:
        """The next items of a slot; see `LogReader.read`."""
        if self._lease.lent:
            await asyncio.sleep(0)  # gives other tasks a turn, since `fetch` never waits
            if items := self.fetch(slot):
                return items
        return await slot.inbox.take()

    def fetch(self, slot: ReaderSlot) -> Sequence[Item]:
        """The next items, read on the loop; empty when only the thread may read."""
        if not slot.inbox.is_read_up or not self._lease.begin():
            return ()
        messages: list[Message] = []
        try:
            if not self._orders.ended and slot.generation == slot.inbox.generation:
                messages = self._consumer.consume(_LEASE_RECORDS, 0)
            if self._membership is not None and self._membership.is_overtaken():
                messages = []
            items = self._health.sorted_out(messages, slot)
        except KafkaException as error:
            raise translate(error, self.address, "cannot read") from error
        finally:
            self._lease.end()
        if len(messages) < _LEASE_RECORDS:
            self._lease.give_back()
        return items

    def pause(self, slot: ReaderSlot, partitions: Iterable[TopicPartition]) -> None:
        """Pauses those of the partitions that are assigned.

        The client drops messages that it fetched ahead from a paused partition.
        """
        wanted = frozenset(partitions)
        self._submit_for(slot, lambda consumer: self.assignments.pause(consumer, slot, wanted))

    def resume(self, slot: ReaderSlot, partitions: Iterable[TopicPartition]) -> None:
        """Resumes those of the partitions that are assigned, from their positions."""
        wanted = frozenset(partitions)
        self._submit_for(slot, lambda consumer: self.assignments.resume(consumer, slot, wanted))

    async def close(self) -> None:
        """Ends thread and consumer; every later `take` of the only reader raises `FatalError`.

        Readers that share the consumer have to leave before. A reader whose call of `shown_out` is
        not yet made may read with another consumer by then.
        """
        self._orders.end()
        if (only := self.assignments.only) is not None:
            only.inbox.close(self.closed_error())
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _CLOSE_S)
            self._orders.drop()

    def closed_error(self) -> FatalError:
        """The error that calls of a closed reader raise."""
        return self._orders.closed_error()

    def _submit_for(self, slot: ReaderSlot, action: Action) -> None:
        """Submits an order that no caller waits for; if it fails, the slot's reader fails."""

        def done(order: "asyncio.Future[None]") -> None:
            error = None if order.cancelled() else order.exception()
            if isinstance(error, FatalError):
                slot.inbox.fail(slot.inbox.generation, error)

        self.submit(action).add_done_callback(done)

    def _start(self) -> None:
        if self._orders.ended:
            raise self.closed_error()
        if self._thread is None:
            self._orders.bind()
            try:
                self._make()
            except KafkaException as error:
                raise translate(error, self.address, "cannot make a consumer") from error
            self._thread = threading.Thread(target=self._run, name=self._client_id, daemon=True)
            self._thread.start()

    def _make(self) -> None:
        self._health.watch_new_consumer()
        self._consumer = Consumer(
            {**self._options, "statistics.interval.ms": milliseconds(self._health.look_s)},
            error_cb=self._health.note_error,
            stats_cb=self._health.note_statistics,
            logger=ClientLog(self._client_id, self._lines),
        )

    def _run(self) -> None:
        try:
            while not self._orders.ended:
                with self._lease.of_thread():
                    self._step()
                if self._lease.lent:
                    self._lease.rest()
                elif not self.assignments.reading:
                    self._orders.ordered.wait()
        except Exception as error:  # noqa: BLE001 - every error must reach the loop
            # A dead thread must not look like a silent topic.
            LOGGER.exception("the thread of reader %s died", self._client_id)
            self._orders.ended = True
            failure = FatalError(f"reader {self._client_id} failed", detail=repr(error))
            for slot in self.assignments.slots:
                self.post(slot.inbox.close, failure)
        finally:
            # Not left to `close`: its caller may be cancelled while another waits for an order.
            self.post(self._orders.drop)
            with self._lease.of_thread():  # a thread that died may have lent the consumer
                self._consumer.close()

    def _step(self) -> None:
        if self._orders.obey(self._consumer):
            self._poll_s = POLL_S
        if self._lease.lent or not self.assignments.reading:
            return
        only = self.assignments.only
        if only is None or only.inbox.wait_for_space(POLL_S):
            self._round(self._consumer)
        if only is None:
            self._show_out(self._consumer)
        if self._health.missing is not None:
            self._replace(self._consumer, self._health.missing)

    def _round(self, consumer: Consumer) -> None:
        first = consumer.poll(self._poll_s)
        messages = [] if first is None else [first, *consumer.consume(_BATCH_RECORDS - 1, 0)]
        self._poll_s = POLL_S if messages else min(self._poll_s * _REST_GROWTH, _REST_S)
        if self._membership is not None:
            if self._membership.is_overtaken():
                self._membership.rebalance(consumer)
                return
            self._membership.look(consumer)
        for slot, brought in self.assignments.by_slot(messages):
            items = self._health.sorted_out(brought, slot)
            if items and slot is not None:
                batch = PolledBatch(slot.generation, items, sum(map(len, brought)))
                slot.inbox.count_in(batch)
                if self.assignments.only is not None and len(items) >= _BACKLOG_RECORDS:
                    # Before the post: nothing else tells a loop that waits in `take` of the lease.
                    self._lease.lend()
                self.post(slot.inbox.arrive, batch)

    def _show_out(self, consumer: Consumer) -> None:
        """Takes readers that have fallen behind off this consumer, so that others need not wait."""
        for slot in self.assignments.slots:
            if not slot.inbox.has_space():
                positions, generation = slot.positions(consumer), slot.generation
                self.assignments.leave(consumer, slot)
                self.post(slot.shown_out, generation, positions)

    def _replace(self, stuck: Consumer, missing: str) -> None:
        """Reads on with a new consumer from the same positions; paused partitions stay paused."""
        self._health.note_replaced(missing)
        reached = self.assignments.reached(stuck)
        stuck.close()
        self._make()
        self.assignments.forget_consumer()
        for slot, positions, paused in reached:
            if self._membership is not None:
                slot.clear()
                self._membership.rejoin(self._consumer)
            else:
                self.assignments.assign(self._consumer, slot, positions, slot.generation)
                self.assignments.pause(self._consumer, slot, paused)
