"""The acknowledgements of one transaction: claimed at once, sent on tasks, awaited by the commit.

*Source*: docs/protocols G; Pulsar's transactional acknowledgements.

*Invariants*:
- An acknowledgement is sent only after its subscription is registered with the transaction.
- No acknowledgement waits for a round trip; the commit waits for all of them.
- Each claim learns the transaction's end exactly once, when nothing more can be sent.
"""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.errors import OtherClusterError, client_failed
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.values import Offset, SubscriptionId, TxnId

if TYPE_CHECKING:  # a program that only writes does not wait for what reads
    from stilltide.pipeline.drivers.pending_ack.acknowledgements import AcknowledgingDriver
    from stilltide.pipeline.drivers.pending_ack.assigned_partition import AssignedPartition


class Acknowledges(Protocol):
    """A subscription whose messages are acknowledged one by one."""

    @property
    def acknowledging(self) -> "AcknowledgingDriver":
        """Takes acknowledgements of transactions."""
        ...


@dataclass(eq=False, slots=True)
class _Part:
    """Acknowledgements on one assigned partition that are not sent yet."""

    driver: "AcknowledgingDriver"
    partition: "AssignedPartition"
    offsets: list[Offset] = field(default_factory=list[Offset])
    cumulative_offset: Offset | None = None


class TransactionAcks:
    """The acknowledgements of one transaction; used on one event loop only.

    Args:
        cluster_id: Kafka's id of the cluster of the transaction.
        client_id: the secret of the client that opens the transaction (C11).
    """

    def __init__(self, cluster_id: str, client_id: bytes) -> None:
        self._cluster_id = cluster_id
        self._client_id = client_id
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
        """The subscriptions of the messages acknowledged so far."""
        return tuple(part.subscription for part in self._parts)

    @property
    def ended_in(self) -> tuple[SubscriptionId, ...] | None:
        """Subscriptions to settle; None: all that the transaction is registered with (C9).

        A subscription whose registration was never answered is left out: nothing was sent to it.
        """
        if not self._ahead:
            return None
        return tuple(part.subscription for part in self._parts if part not in self._unregistered)

    @property
    def unregistered(self) -> tuple[SubscriptionId, ...]:
        """Subscriptions that the transaction must be registered with."""
        return tuple(it.subscription for it in self._unregistered)

    def claim(self, driver: "AcknowledgingDriver", message: Record, *, cumulative: bool) -> None:
        """Claims a message, or all up to it, for this transaction (G Delivery).

        Raises:
            AcknowledgementError: the message cannot be acknowledged, or an earlier acknowledgement
                failed and so fails the transaction.
            OtherClusterError: the subscription reads another cluster than the transaction writes.
        """
        if driver.cluster_id != self._cluster_id:
            raise other_cluster(message.topic, message.partition, message.offset)
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
        """The transaction was opened ahead, registered with these subscriptions (C9)."""
        self._txn, self._ahead = txn, subscriptions
        for partition in [it for it in self._unregistered if it.subscription in subscriptions]:
            del self._unregistered[partition]

    def registered(self, txn: TxnId, subscriptions: tuple[SubscriptionId, ...]) -> None:
        """The transaction is registered with these: sends what was claimed for them."""
        self._txn = txn
        for partition in [it for it in self._unregistered if it.subscription in subscriptions]:
            del self._unregistered[partition]
        self._send()

    async def gathered(self) -> None:
        """Waits until every acknowledgement is answered.

        Raises:
            AcknowledgementError, RefusedError, RequestTimeoutError: an acknowledgement was
                refused or not answered; the transaction can only be aborted.
        """
        self._send()
        if self._sending:
            self._gathering = asyncio.get_running_loop().create_future()
            await self._gathering
        if self._failure is not None:
            raise self._failure

    def ended(self, failure: str | None) -> None:
        """The transaction has committed (None), or it has failed. Later calls do nothing."""
        if self._over:
            return
        self._over = True
        self._unregistered.clear()
        self._unsent.clear()
        if not self._sending:
            self._tell(failure)
            return
        waiting = asyncio.gather(*self._sending, return_exceptions=True)
        waiting.add_done_callback(lambda _: self._tell(failure))

    def _tell(self, failure: str | None) -> None:
        for partition, part in self._parts.items():
            part.driver.ended(partition, self, failure)

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
            await part.driver.send(part.partition, txn, self._client_id, offsets, cumulative_offset)
        except Exception as error:  # noqa: BLE001 - raised from the commit
            if self._failure is None:
                known = isinstance(error, StilltideError)
                self._failure = error if known else client_failed(error)


def other_cluster(topic: str, partition: int, offset: int) -> OtherClusterError:
    """The error of a message that the transaction's cluster does not hold (C11)."""
    return OtherClusterError(
        "the message is from another cluster than the transaction",
        detail="a transaction acknowledges in the pending-ack stores of its own cluster",
        hint="subscribe at the cluster to which the TransactionClient is connected",
        topic=topic,
        partition=partition,
        offset=offset,
    )
