"""One confluent-kafka consumer and the thread that polls it, for one reader or for several.

*Source*: kafka.md 2, 7; connectors.ports, `LogReader`.

*Invariants*: orders reach the consumer on the thread only, so what a poll brought always belongs
to the assignment made before it; everything reaches the loop in the order it was read. A consumer
that no broker serves is replaced by another consumer, which reads on from the same positions.
Readers that share a consumer do not wait for each other: a reader that falls behind is shown out.

The loop orders nothing of the consumer itself, not even a pause: the client lets in one caller at a
time, and a thread that polls again and again keeps everyone else out, measured for seconds. While a
backlog lasts, the thread rests and the loop fetches for itself what is there (`PollLease`): only
after all that the thread brought has been read, and only of the assignment that the loop knows.

Refuses to be clever about waiting: `consume(n, timeout)` would sit out its time-out to fill n, so
the thread polls for the first message and takes along what has been fetched already.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaException, Message

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.config import KafkaConfig, milliseconds
from stilltide.connectors.kafka.consumer.assignments import Assignments, ReaderSlot
from stilltide.connectors.kafka.consumer.health import ConsumerHealth
from stilltide.connectors.kafka.consumer.inbox import Item, PolledBatch
from stilltide.connectors.kafka.consumer.orders import Action, Orders
from stilltide.connectors.kafka.consumer.poll_lease import PollLease
from stilltide.connectors.kafka.errors import translate
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
_LEASE_RECORDS = 200
"""So few are still in the processor's cache when the last of them is handled."""
_CLOSE_S = 10.0


class Membership(Protocol):
    """What a member of a group does with its consumer, on the consumer's thread."""

    def is_overtaken(self) -> bool:
        """Whether a rebalance came that was not carried out; what was read with it is dropped."""
        ...

    def rebalance(self, consumer: Consumer) -> None:
        """Carries the rebalance out."""
        ...

    def rejoin(self, consumer: Consumer) -> None:
        """Joins the group with a new consumer; the membership of the consumer before is lost."""
        ...


class ConsumerThread:
    """Runs one consumer; made, ordered about and closed on the loop.

    Args:
        config: the cluster.
        options: librdkafka's.
        slot: of the one reader; None: readers share the consumer, each with a slot of its own.
        membership: of the group that assigns partitions; None: the readers assign them.

    Attributes:
        address: of the cluster, in errors.
        assignments: what the readers read; orders change it.
    """

    _consumer: Consumer

    def __init__(
        self,
        config: KafkaConfig,
        options: Mapping[str, Any],
        slot: ReaderSlot | None = None,
        membership: Membership | None = None,
    ) -> None:
        self.address = config.bootstrap_servers
        self._client_id = str(options["client.id"])
        self._options = options
        self._membership = membership
        self._orders = Orders(self.address, self._client_id)
        self._lease = PollLease(self._orders.ordered)
        self.assignments = Assignments(slot)
        self._health = ConsumerHealth(config, self._client_id, self.assignments, self._orders.post)
        self._poll_s = POLL_S
        self._thread: threading.Thread | None = None

    @property
    def ended(self) -> bool:
        """Whether it has been closed, or has died."""
        return self._orders.ended

    def submit(self, action: Action) -> "asyncio.Future[None]":
        """Has the thread run `action` between two polls, in the order of submission.

        Raises:
            FatalError: closed, or the client library refuses the options.
        """
        self._start()
        return self._orders.submit(action)

    def post(self, call: Callable[..., None], *args: object) -> None:
        """Runs `call` on the loop, after all that was posted before; on the thread."""
        self._orders.post(call, *args)

    async def take(self, slot: ReaderSlot) -> Sequence[Item]:
        """The next items of a slot; see `LogReader.read`."""
        if self._lease.lent:
            await asyncio.sleep(0)  # a reader that need not wait must not keep others waiting
            if items := self.fetch(slot):
                return items
        return await slot.inbox.take()

    def fetch(self, slot: ReaderSlot) -> Sequence[Item]:
        """The next items, read on the loop; nothing where only the thread can read."""
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
        """Stops fetching those of the partitions that are assigned."""
        wanted = frozenset(partitions)
        self.submit(lambda it: self.assignments.pause(it, slot, wanted))

    def resume(self, slot: ReaderSlot, partitions: Iterable[TopicPartition]) -> None:
        """Fetches again those of the partitions that are assigned, from where they are."""
        wanted = frozenset(partitions)
        self.submit(lambda it: self.assignments.resume(it, slot, wanted))

    async def close(self) -> None:
        """Ends thread and consumer; every later `take` of its only reader raises `FatalError`.

        Readers that share the consumer have left by then; one whose `shown_out` is on its way may
        read with another consumer.
        """
        self._orders.end()
        if (only := self.assignments.only) is not None:
            only.inbox.close(self.closed_error())
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _CLOSE_S)
            self._orders.drop()

    def closed_error(self) -> FatalError:
        """What calls of a closed reader raise."""
        return self._orders.closed_error()

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
            logger=ClientLog(self._client_id),
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
        except Exception as error:  # noqa: BLE001 - whatever it is, the loop must hear of it
            # A dead thread must not look like a silent topic.
            LOGGER.exception("the thread of reader %s died", self._client_id)
            self._orders.ended = True
            failure = FatalError(f"reader {self._client_id} failed", detail=repr(error))
            for slot in self.assignments.slots:
                self.post(slot.inbox.close, failure)
            self.post(self._orders.drop)
        finally:
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
        if self._membership is not None and self._membership.is_overtaken():
            self._membership.rebalance(consumer)
            return
        for slot, brought in self.assignments.by_slot(messages):
            items = self._health.sorted_out(brought, slot)
            if items and slot is not None:
                batch = PolledBatch(slot.generation, items, sum(map(len, brought)))
                slot.inbox.count_in(batch)
                if self.assignments.only is not None and len(items) >= _BACKLOG_RECORDS:
                    self._lease.lend()  # first: nothing else tells a loop that waits again
                self.post(slot.inbox.arrive, batch)

    def _show_out(self, consumer: Consumer) -> None:
        """A reader that has fallen behind holds up no other: it goes on by itself."""
        for slot in self.assignments.slots:
            if not slot.inbox.has_space():
                positions, generation = slot.positions(consumer), slot.generation
                self.assignments.leave(consumer, slot)
                self.post(slot.shown_out, generation, positions)

    def _replace(self, stuck: Consumer, missing: str) -> None:
        """Reads on with a new consumer from the same positions; what is paused stays so."""
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
