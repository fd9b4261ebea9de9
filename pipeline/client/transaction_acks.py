"""What one transaction acknowledges: claimed at once, sent beside, gathered by the commit.

*Source*: protocols.md G; pulsar.md 5.

*Invariants*:
- An acknowledgement is sent only after its subscription is registered with the transaction.
- No acknowledgement waits for a round trip; the commit waits for all of them.
- What was claimed is told its end exactly once, when nothing more can be sent.
"""

import asyncio
from dataclasses import dataclass, field

from stilltide.connectors.ports.records import Record
from stilltide.pipeline.drivers.pending_ack.acknowledgements import AcknowledgingDriver
from stilltide.pipeline.drivers.pending_ack.assigned_partition import AssignedPartition
from stilltide.pipeline.errors import client_failed
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.values import Offset, SubscriptionId, TxnId


@dataclass(eq=False, slots=True)
class _Part:
    """The share of one assigned partition."""

    driver: AcknowledgingDriver
    partition: AssignedPartition
    offsets: list[Offset] = field(default_factory=list[Offset])
    cumulative_offset: Offset | None = None


class TransactionAcks:
    """Belongs to one transaction and its loop."""

    def __init__(self) -> None:
        self._parts: dict[AssignedPartition, _Part] = {}
        self._unregistered: dict[AssignedPartition, None] = {}
        self._unsent: dict[AssignedPartition, None] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._txn: TxnId | None = None
        self._ahead = frozenset[SubscriptionId]()
        self._gathering: asyncio.Future[None] | None = None
        self._failure: StilltideError | None = None
        self._over = False

    def __bool__(self) -> bool:
        """Whether anything was acknowledged."""
        return bool(self._parts)

    @property
    def subscriptions(self) -> tuple[SubscriptionId, ...]:
        """Those of the messages acknowledged so far."""
        return tuple(it.subscription for it in self._parts)

    @property
    def ended_in(self) -> tuple[SubscriptionId, ...] | None:
        """Those to be settled; None: all that the transaction is registered with (C9).

        Nothing was sent to one whose registration was never answered.
        """
        if not self._ahead:
            return None
        return tuple(it.subscription for it in self._parts if it not in self._unregistered)

    @property
    def unregistered(self) -> tuple[SubscriptionId, ...]:
        """Subscriptions that the transaction must be registered with."""
        return tuple(it.subscription for it in self._unregistered)

    def claim(self, driver: AcknowledgingDriver, message: Record, *, cumulative: bool) -> None:
        """Takes a message, with `cumulative` all before it too, as acknowledged here.

        Raises:
            AcknowledgementError: it cannot be; or one before could not, and the transaction fails.
        """
        if self._failure is not None:
            raise self._failure
        partition = driver.claim(self, message, cumulative=cumulative)
        part = self._parts.get(partition)
        if part is None:
            part = self._parts[partition] = _Part(driver, partition)
            if partition.subscription not in self._ahead:
                self._unregistered[partition] = None
        if cumulative:
            part.cumulative_offset = message.offset
        else:
            part.offsets.append(message.offset)
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send)
        self._unsent[partition] = None

    def registered_ahead(self, txn: TxnId, subscriptions: frozenset[SubscriptionId]) -> None:
        """The transaction was opened on these (C9)."""
        self._txn, self._ahead = txn, subscriptions
        for partition in [it for it in self._unregistered if it.subscription in subscriptions]:
            del self._unregistered[partition]

    def registered(self, txn: TxnId, subscriptions: tuple[SubscriptionId, ...]) -> None:
        """The transaction is registered with these: what was claimed of them is sent."""
        self._txn = txn
        for partition in [it for it in self._unregistered if it.subscription in subscriptions]:
            del self._unregistered[partition]
        self._send()

    async def gathered(self) -> None:
        """Waits until every acknowledgement is answered.

        Raises:
            AcknowledgementError, RefusedError, RequestTimeoutError: one was refused, or not
                answered; the transaction can only be aborted.
        """
        self._send()
        if self._sending:
            self._gathering = asyncio.get_running_loop().create_future()
            await self._gathering
        if self._failure is not None:
            raise self._failure

    def ended(self, *, committed: bool) -> None:
        """The transaction has surely committed; or it has aborted, or nobody knows. Only once."""
        if self._over:
            return
        self._over = True
        self._unregistered.clear()
        self._unsent.clear()
        if not self._sending:
            self._tell(committed=committed)
            return
        waiting = asyncio.gather(*self._sending, return_exceptions=True)
        waiting.add_done_callback(lambda _: self._tell(committed=committed))

    def _tell(self, *, committed: bool) -> None:
        for partition, part in self._parts.items():
            part.driver.ended(partition, self, committed=committed)

    def _send(self) -> None:
        if self._txn is None or self._over:
            return
        for partition in [it for it in self._unsent if it not in self._unregistered]:
            del self._unsent[partition]
            task = asyncio.create_task(self._send_part(self._txn, self._parts[partition]))
            self._sending.add(task)
            task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        waiting = self._gathering
        if not self._sending and waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def _send_part(self, txn: TxnId, part: _Part) -> None:
        offsets, part.offsets = part.offsets, []
        cumulative_offset, part.cumulative_offset = part.cumulative_offset, None
        try:
            await part.driver.send(part.partition, txn, offsets, cumulative_offset)
        except Exception as error:  # noqa: BLE001 - raised from the commit
            if self._failure is None:
                known = isinstance(error, StilltideError)
                self._failure = error if known else client_failed(error)
