"""Begins one transaction, and registers it with the partitions and subscriptions that it uses.

*Source*: docs/protocols C1b, C2, C9.

*Invariants*: one request at a time registers all that waits. A transaction is taken from those
opened ahead only before any registration has begun.
"""

import asyncio
from collections.abc import Mapping
from typing import TypeVar

from stilltide.pipeline.client.cluster import ClientCluster
from stilltide.pipeline.client.transaction_acks import TransactionAcks
from stilltide.pipeline.client.transaction_records import HeldRecord, TransactionRecords
from stilltide.pipeline.core.coordinator.client_transaction import (
    ClientTransaction,
    PartitionWrites,
    outcome_unknown,
)
from stilltide.pipeline.core.coordinator.pool import Used
from stilltide.pipeline.tracing import TransactionTrace
from stilltide.schemas.coordinator.transactions import (
    AddPartitions,
    AddSubscriptions,
    Open,
    Opened,
    Registered,
    Unknown,
)
from stilltide.schemas.service.envelopes import Done
from stilltide.schemas.values import SubscriptionId, TopicPartition, TxnId

A = TypeVar("A", Opened, Done)

HELD_RECORDS_MAX = 10_000
"""Records that one transaction holds while it registers partitions; at the limit `send` waits."""


class TransactionRegistration:
    """The registration of one transaction.

    Args:
        cluster: the client's connections.
        machine: the transaction.
        timeout_ms: the transaction's time-out.
        records: records that are sent when their partition is registered.
        acks: acknowledgements that are sent when their subscription is registered.
        trace: told of what is registered.

    Attributes:
        trace: told of every step of the transaction.
    """

    def __init__(
        self,
        cluster: ClientCluster,
        machine: ClientTransaction,
        timeout_ms: int,
        records: TransactionRecords,
        acks: TransactionAcks,
        *,
        trace: TransactionTrace,
    ) -> None:
        self._cluster = cluster
        self._machine = machine
        self._timeout_ms = timeout_ms
        self._records = records
        self._acks = acks
        self.trace = trace
        self._ahead: Mapping[TopicPartition, Registered] = {}  # registered before it began (C9)
        self._running: asyncio.Task[None] | None = None

    def opened_ahead(self, data: TopicPartition) -> PartitionWrites | None:
        """Opens the partition if the transaction was opened ahead, registered with it (C9)."""
        self.take_from_stock(data)
        registered = self._ahead.get(data)
        if registered is None:
            return None
        writes = self._records.open(registered)
        self._machine.registered(writes)
        return writes

    @property
    def topics_ahead(self) -> set[str]:
        """The topics with which the transaction was registered before it began (C9)."""
        return {data.topic for data in self._ahead}

    def take_from_stock(self, used: Used) -> None:
        """Begins with a transaction opened ahead and registered with `used`, if there is one."""
        if self._machine.id is None and self._running is None:
            pooled = self._cluster.pool.take(self._timeout_ms, used)
            if pooled is not None:
                txn = TxnId(self._cluster.coordinator, pooled.sequence)
                self._begin(txn, ahead=True)
                self._ahead = pooled.registered
                self._acks.registered_ahead(txn, pooled.subscriptions)

    async def start(self) -> None:
        """Registers what waits, on a task; raises the error of a failed registration before."""
        if self._running is None or self._running.done():
            await self.finished()
            self._running = asyncio.create_task(self._register())
            self._running.add_done_callback(_mark_seen)

    async def hold(self, data: TopicPartition, record: HeldRecord) -> None:
        """Keeps a record until its partition is registered (C2); raises as `start`."""
        self._records.hold(data, record)
        await self.start()
        if self._records.held_count > HELD_RECORDS_MAX:
            await self.finished()

    async def finished(self) -> None:
        """Waits for the registration under way; raises its error."""
        if self._running is not None:
            await asyncio.shield(self._running)

    async def stopped(self) -> None:
        """Waits for the registration under way, whether or not it fails."""
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)

    def _begin(self, txn: TxnId, *, ahead: bool) -> None:
        self._machine.begun(txn)
        self._records.belong_to(txn)
        self.trace.opened(str(txn), ahead=ahead)

    async def _register(self) -> None:
        """Registers what waits, one request at a time, and sends the records held for it."""
        while self._records.held or self._acks.unregistered:
            partitions = tuple(map(self._cluster.topics.registration, self._records.held))
            subscriptions = self._acks.unregistered
            txn = self._machine.id
            if txn is None:
                coordinator = self._cluster.coordinator
                body = Open(
                    self._timeout_ms,
                    1,
                    partitions,
                    subscriptions,
                    self._cluster.client_name,
                    self._cluster.options.allow_compacted,
                )
                opened = await self._ask(coordinator, body, Opened)
                txn = TxnId(coordinator, opened.first_sequence)
                self._begin(txn, ahead=False)
            else:
                await self._add(txn, partitions, subscriptions)
            self._acks.registered(txn, subscriptions)
            self.trace.event(
                "register", partitions=len(partitions), subscriptions=len(subscriptions)
            )
            for registered in partitions:
                self._machine.registered(await self._records.let_go(registered))

    async def _add(
        self,
        txn: TxnId,
        partitions: tuple[Registered, ...],
        subscriptions: tuple[SubscriptionId, ...],
    ) -> None:
        """Registers further partitions and subscriptions with the open transaction."""
        bodies: list[AddPartitions | AddSubscriptions] = []
        if partitions:
            allowed = self._cluster.options.allow_compacted
            bodies.append(AddPartitions(txn.sequence, partitions, allowed))
        if subscriptions:
            bodies.append(AddSubscriptions(txn.sequence, subscriptions))
        await asyncio.gather(*(self._ask(txn.coordinator, body, Done) for body in bodies))

    async def _ask(
        self, coordinator: int, body: Open | AddPartitions | AddSubscriptions, wanted: type[A]
    ) -> A:
        """Asks, and repeats a forgotten request: opening or registering twice is harmless (C2)."""
        answer = await self._cluster.ask(coordinator, body)
        if isinstance(answer, Unknown):  # the first request after an hour without requests (C1b)
            answer = await self._cluster.ask(coordinator, body)
        if not isinstance(answer, wanted):
            raise outcome_unknown(
                self._machine.id, "the coordinator no longer remembers the request"
            )
        return answer


def _mark_seen(task: asyncio.Task[None]) -> None:
    """The transaction raises the error, unless its application was cancelled and asks no more."""
    if not task.cancelled():
        task.exception()
