"""One coordinated transaction of an application: send, commit or abort.

*Source*: protocols.md C1b, C2, C3, C5, C6. D6 is made impossible here: a record leaves only after
its partition is registered with its transaction.
"""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

import structlog

from stilltide.connectors.errors import FatalError, RetriableError
from stilltide.pipeline.client.cluster import ClientCluster
from stilltide.pipeline.client.partition_writes import PartitionWrites
from stilltide.pipeline.client.partitioner import partition_for
from stilltide.pipeline.client.subscription import Message, Subscription
from stilltide.pipeline.client.transaction_acks import TransactionAcks
from stilltide.pipeline.core.coordinator.pool import Used
from stilltide.pipeline.errors import OutcomeUnknownError, RefusedError, TransactionStateError
from stilltide.schemas.coordinator.transactions import (
    AddPartitions,
    AddSubscriptions,
    Answer,
    Done,
    End,
    Open,
    Opened,
    Registered,
    Unknown,
    Written,
)
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.headers import TXN
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition, TxnId

log = structlog.get_logger(__name__)

A = TypeVar("A", Opened, Done)

HELD_RECORDS_MAX = 10_000
"""Records one transaction keeps while partitions are being registered; `send` waits beyond."""


class _Outgoing(NamedTuple):
    value: bytes | None
    key: bytes | None
    headers: Sequence[tuple[str, bytes]]


class Transaction:
    """One transaction; made by `TransactionClient.transaction`, used as a context manager.

    Leaving the block commits; leaving it by an exception aborts.
    """

    def __init__(self, cluster: ClientCluster, *, turn: int, timeout_ms: int) -> None:
        self._cluster = cluster
        self._writer = cluster.writer
        self._turn = turn
        self._timeout_ms = timeout_ms
        self._id: TxnId | None = None
        self._header: list[tuple[str, bytes]] = []
        self._ahead: Mapping[TopicPartition, Registered] = {}  # registered before it began (C9)
        self._writes: dict[TopicPartition, PartitionWrites] = {}
        self._held: dict[TopicPartition, list[_Outgoing]] = {}
        self._held_count = 0
        self._acks = TransactionAcks()
        self._registrar: asyncio.Task[None] | None = None
        self._unreported = 0
        self._flushing: list[asyncio.Future[None]] = []
        self._state = "open"

    @property
    def id(self) -> TxnId | None:
        """The transaction's identity, known once its first partition is registered."""
        return self._id

    @property
    def state(self) -> str:
        """`open`, `committed`, `aborted`, or `unknown` while and after a commit goes unanswered."""
        return self._state

    @property
    def delivered(self) -> dict[TopicPartition, int]:
        """Records known to be durable so far, by partition; they count whatever the outcome."""
        return {data: writes.count for data, writes in self._writes.items()}

    async def __aenter__(self) -> Self:
        await self._cluster.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._state == "open":
                await (self.commit() if error is None else self._abort_quietly())
        finally:
            self._acks.ended(committed=False)  # unless the end is known by now
            self._cluster.gathering.ended(self)
            self._cluster.leave()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        partition: int | None = None,
    ) -> TopicPartition:
        """Writes one record as part of the transaction; returns the partition it goes to.

        Returns before the record is durable; `commit` waits for that. Without `partition` the key
        decides as in Kafka's own producers; without key, one partition per transaction.

        Raises:
            TransactionStateError: the transaction has ended, or a header is named `txn`.
            SystemTopicError: the topic is one of Stilltide's own; nothing was sent.
            FatalError: no such topic or partition, or the record is too large.
        """
        self._must_be_open()
        for name, _ in headers:
            if name == TXN:
                raise TransactionStateError(f"the header `{TXN}` belongs to Stilltide", topic=topic)
        if partition is None or (data := TopicPartition(topic, partition)) not in self._writes:
            data = await self._partition(topic, key, partition)
        writes = self._writes.get(data) or self._registered_ahead(data)
        if writes is None:
            await self._hold(data, _Outgoing(value, key, [*headers]))
            return data
        while not self._append(writes, value, key, headers):
            await self._writer.room()
        return data

    async def acknowledge(self, subscription: Subscription, message: Message) -> None:
        """Acknowledges a message when the transaction commits, and not when it aborts.

        Returns before the acknowledgement is stored; `commit` waits for that. A message of a
        transaction that aborted is delivered again.

        Raises:
            TransactionStateError: the transaction has ended.
            AcknowledgementError: the message was not delivered to the subscription, is
                acknowledged already, or in another transaction. Nothing was changed.
        """
        await self._acknowledge(subscription, message, cumulative=False)

    async def acknowledge_cumulative(self, subscription: Subscription, message: Message) -> None:
        """As `acknowledge`, of a message and all before it in its partition."""
        await self._acknowledge(subscription, message, cumulative=True)

    async def flush(self) -> None:
        """Waits until every record sent so far is durable.

        Raises:
            ConnectorError: a record was not delivered; the transaction can only be aborted.
            RefusedError, RequestTimeoutError: its partitions could not be registered.
        """
        await self._registered()
        if self._unreported:
            self._cluster.gathering.waits(self)
            landed = asyncio.get_running_loop().create_future()
            self._flushing.append(landed)
            await landed
        for writes in self._writes.values():
            if writes.error is not None:
                raise writes.error

    async def commit(self, *, wait_visible: bool = False) -> None:
        """Makes every record of the transaction visible, or raises.

        Returns when the outcome is durable; with `wait_visible` when readers can know it (C5).

        Raises:
            TransactionStateError: the transaction has ended.
            ConnectorError: a record was not delivered; the transaction is aborted (C6).
            RefusedError: the coordinator has ended it, for example because its time was over.
            OutcomeUnknownError: no answer, or none in time; it may have been committed.
        """
        self._must_be_open()
        try:
            await self.flush()
            await self._acks.gathered()
            written = tuple([await self._counted(one) for one in self._writes.values()])
        except StilltideError:
            await self._abort_quietly()
            raise
        self._state = "unknown"
        if self._id is not None:
            try:
                answer = await self._ask_end(self._id, written, wait_visible=wait_visible)
            except RefusedError:
                self._state = "aborted"
                raise
            except StilltideError as error:
                raise self._outcome_unknown(str(error)) from error
            if not isinstance(answer, Done):
                raise self._outcome_unknown("the coordinator no longer remembers the request")
        self._state = "committed"
        self._acks.ended(committed=True)

    async def abort(self) -> None:
        """Hides every record of the transaction for good.

        Raises:
            TransactionStateError: the transaction has ended.
            RequestTimeoutError: no answer in time; its time-out will abort it.
        """
        self._must_be_open()
        self._state = "aborted"
        self._held.clear()
        if self._registrar is not None:
            await asyncio.gather(self._registrar, return_exceptions=True)
        if self._id is not None:
            # With acknowledgements it waits until their messages can be delivered again.
            await self._ask_end(self._id, None, wait_visible=bool(self._acks))

    async def _ask_end(
        self, txn: TxnId, written: tuple[Written, ...] | None, *, wait_visible: bool
    ) -> Answer:
        """Asks for the end, and for a successor; None written: an abort."""
        self._cluster.pool.ending(self._timeout_ms, self._writes, self._acks.subscriptions)
        body = End(
            txn.sequence,
            committed=written is not None,
            written=written or (),
            wait_visible=wait_visible,
            acknowledged_in=self._acks.ended_in,
        )
        return await self._cluster.ask(txn.coordinator, body)

    async def _abort_quietly(self) -> None:
        """Aborts while another error is on its way to the application."""
        try:
            await self.abort()
        except StilltideError as failure:
            log.warning("abort_failed", transaction=str(self._id), why=failure.primary)

    def _must_be_open(self) -> None:
        if self._state != "open":
            raise TransactionStateError(f"the transaction has ended: {self._state}")

    def _outcome_unknown(self, detail: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"whether transaction {self._id} was committed is unknown",
            detail=detail,
            hint="read it back, or ask its coordinator, before you do the work again",
        )

    def _registered_ahead(self, data: TopicPartition) -> PartitionWrites | None:
        """Where the partition is registered already, as with a transaction from stock (C9)."""
        self._take_from_stock(data)
        registered = self._ahead.get(data)
        if registered is None:
            return None
        self._cluster.gathering.sends(self)
        writes = self._writes[data] = PartitionWrites(registered, self._reported)
        return writes

    def _take_from_stock(self, used: Used) -> None:
        """Begins with a transaction that is registered with what is used first, if there is one."""
        if self._id is None and self._registrar is None:
            pooled = self._cluster.pool.take(self._timeout_ms, used)
            if pooled is not None:
                txn = TxnId(self._cluster.coordinator, pooled.sequence)
                self._begun(txn)
                self._ahead = pooled.registered
                self._acks.registered_ahead(txn, pooled.subscriptions)

    def _begun(self, txn_id: TxnId) -> None:
        self._id = txn_id
        self._header = [(TXN, txn_id.to_bytes())]

    async def _partition(
        self, topic: str, key: bytes | None, partition: int | None
    ) -> TopicPartition:
        """Where a record goes that is sent so; raises as `send`."""
        described = self._cluster.topic(topic) or await self._cluster.describe(topic)
        count = described.partition_count
        if partition is None:
            partition = partition_for(key, count, self._turn)
        elif not 0 <= partition < count:
            raise FatalError(f"partition {partition} is not in 0..{count - 1}", topic=topic)
        return TopicPartition(topic, partition)

    async def _hold(self, data: TopicPartition, record: _Outgoing) -> None:
        """Keeps a record until its partition is registered (C2)."""
        self._held.setdefault(data, []).append(record)
        self._held_count += 1
        await self._start_registering()
        if self._held_count > HELD_RECORDS_MAX:
            await self._registered()

    async def _acknowledge(
        self, subscription: Subscription, message: Message, *, cumulative: bool
    ) -> None:
        self._must_be_open()
        self._acks.claim(subscription.acknowledging, message, cumulative=cumulative)
        if self._acks.unregistered:
            self._take_from_stock(self._acks.unregistered[0])
        if self._acks.unregistered:
            await self._start_registering()

    async def _start_registering(self) -> None:
        if self._registrar is None or self._registrar.done():
            await self._registered()  # raises what the last registration failed with
            self._registrar = asyncio.create_task(self._register())

    async def _registered(self) -> None:
        if self._registrar is not None:
            await asyncio.shield(self._registrar)

    async def _register(self) -> None:
        """Registers what is held, one request at a time, and lets its records go."""
        while self._held or self._acks.unregistered:
            partitions = tuple(map(self._cluster.registration, self._held))
            subscriptions = self._acks.unregistered
            txn = self._id
            if txn is None:
                coordinator = self._cluster.coordinator
                body = Open(self._timeout_ms, 1, partitions, subscriptions)
                opened = await self._ask(coordinator, body, Opened)
                txn = TxnId(coordinator, opened.first_sequence)
                self._begun(txn)
            else:
                await self._add(txn, partitions, subscriptions)
            self._acks.registered(txn, subscriptions)
            for registered in partitions:
                await self._let_go(registered)

    async def _add(
        self,
        txn: TxnId,
        partitions: tuple[Registered, ...],
        subscriptions: tuple[SubscriptionId, ...],
    ) -> None:
        """Registers with the open transaction what came later."""
        bodies: list[AddPartitions | AddSubscriptions] = []
        if partitions:
            bodies.append(AddPartitions(txn.sequence, partitions))
        if subscriptions:
            bodies.append(AddSubscriptions(txn.sequence, subscriptions))
        await asyncio.gather(*(self._ask(txn.coordinator, body, Done) for body in bodies))

    async def _ask(
        self, coordinator: int, body: Open | AddPartitions | AddSubscriptions, wanted: type[A]
    ) -> A:
        """Asks what may be asked anew: opening in vain is harmless, registering repeats (C2)."""
        answer = await self._cluster.ask(coordinator, body)
        if isinstance(answer, Unknown):  # the first request after an hour's silence (C1b)
            answer = await self._cluster.ask(coordinator, body)
        if not isinstance(answer, wanted):
            raise self._outcome_unknown("the coordinator no longer remembers the request")
        return answer

    async def _let_go(self, registered: Registered) -> None:
        data = registered.data
        writes = PartitionWrites(registered, self._reported)
        held = self._held.get(data, [])
        if held:
            self._cluster.gathering.sends(self)
        for record in held:  # grows while it is drained, so that order is kept
            while not self._append(writes, *record):
                await self._writer.room()
        self._held_count -= len(held)
        self._held.pop(data, None)
        if self._state == "open":
            self._writes[data] = writes

    def _append(
        self,
        writes: PartitionWrites,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes]],
    ) -> bool:
        """Hands a record to the producer; False while its queue is full."""
        with_txn = [*self._header, *headers] if headers else self._header
        try:
            self._writer.append(writes.data, value, writes.delivered, key=key, headers=with_txn)
        except RetriableError:
            return False
        writes.sent += 1
        self._unreported += 1
        return True

    def _reported(self) -> None:
        self._unreported -= 1
        if self._unreported:
            return
        self._cluster.gathering.durable(self)
        for landed in self._flushing:
            if not landed.done():
                landed.set_result(None)
        self._flushing.clear()

    async def _counted(self, writes: PartitionWrites) -> Written:
        """What the commit says of one partition (C6)."""
        assert writes.count == writes.sent, "a delivery report is missing"
        data, first, end = writes.data, writes.first, writes.end
        known_ends = self._cluster.known_ends
        if writes.unplaced:  # bounds that surely hold the record do as well (C3)
            first, end = writes.start, await self._cluster.end_offset(data)
        known_ends[data] = EndOffset(max(end, known_ends[data]))
        return Written(data, Offset(first), EndOffset(end), writes.count)
