"""One partition of a member that acknowledges, and what the member and its store tell each other.

*Source*: protocols.md G.

*Invariants*: an assignment has a member id of its own, and another one each time it was replaced;
the store hears of a cursor only once the group's commit holds it.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from stilltide.connectors.ports.records import Record
from stilltide.pipeline.core.pending_ack.cursor import Cursor
from stilltide.pipeline.core.pending_ack.questions import Ask
from stilltide.pipeline.core.pending_ack.tracker import Tracker
from stilltide.pipeline.errors import (
    AlreadyAcknowledgedError,
    NotDeliveredError,
    PendingAcknowledgementError,
    RefusedError,
)
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.pending_ack.acknowledgements import (
    MEMBER_BYTES,
    AckAnswer,
    AckBody,
    Acknowledge,
    AckRefusalCode,
    AckRefused,
    Acks,
    Attach,
    CursorMoved,
    DescribeAcks,
)
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition, TxnId

ATTACH_AGAIN_S = 0.5

_REFUSALS = {
    AckRefusalCode.ALREADY_ACKNOWLEDGED: AlreadyAcknowledgedError,
    AckRefusalCode.PENDING_IN_ANOTHER_TRANSACTION: PendingAcknowledgementError,
    AckRefusalCode.NOT_ATTACHED: NotDeliveredError,
}


class AckStore(Protocol):
    """The owners of the pending-ack logs, wherever they are."""

    async def ask(self, subscription: SubscriptionId, body: AckBody) -> AckAnswer:
        """One request and its answer; repeated until then. Raises `RequestTimeoutError`."""
        ...


class AssignedPartition:
    """One partition from its assignment to its revocation.

    Attributes:
        subscription: the partition, and the group.
        committed: what the group's commit holds, and its `metadata` as text.
        tracker: None until the store has answered the first attachment.
        ready: records about to be returned, in offset order.
        attached: whether this is the store's member, as far as known.
        revoked: nothing of it is wanted any more.
    """

    def __init__(
        self,
        store: AckStore,
        subscription: SubscriptionId,
        committed: Cursor,
        metadata: str,
        *,
        redelivery_delay_ms: float,
    ) -> None:
        self.subscription = subscription
        self.committed = committed
        self.metadata = metadata
        self.tracker: Tracker[Record] | None = None
        self.ready: deque[Record] = deque()
        self.attached = False
        self.revoked = False
        self._store = store
        self._redelivery_delay_ms = redelivery_delay_ms
        self._member = b""
        self._stored_to = 0  # end of what the store still holds as acknowledged, if known
        self._telling = False

    @property
    def data(self) -> TopicPartition:
        """The data partition."""
        return self.subscription.data

    async def attach(self) -> None:
        """Takes the subscription over; again under a new name if another did so meanwhile.

        Raises:
            RefusedError: the store has no room; RequestTimeoutError: it has no owner.
        """
        while not self.revoked:
            member = secrets.token_bytes(MEMBER_BYTES)
            offset, acknowledged, _ = self.committed
            answer = await self._ask(Attach(member, EndOffset(offset), acknowledged))
            if isinstance(answer, Acks):
                self._member, self.attached = member, True
                self._take_over(answer)
                return
            assert isinstance(answer, AckRefused), answer
            if answer.code is not AckRefusalCode.NOT_ATTACHED:
                raise self._refusal(answer)
            await asyncio.sleep(ATTACH_AGAIN_S)

    async def acknowledge(
        self, txn: TxnId, offsets: Sequence[Offset], cumulative_offset: Offset | None
    ) -> None:
        """Has the store acknowledge messages in a transaction.

        Raises:
            AcknowledgementError, RefusedError: refused, with nothing changed.
            RequestTimeoutError: no answer in time.
        """
        if self.revoked:
            raise lost(self.data)
        answer = await self._ask(Acknowledge(txn, self._member, tuple(offsets), cumulative_offset))
        if isinstance(answer, AckRefused):
            raise self._refusal(answer)

    async def tell_cursor(self) -> None:
        """Lets the store forget what the group's commit holds now, if it holds anything."""
        if self._telling:
            return
        self._telling = True
        while self._stored_to and not self.revoked:
            told = self.committed
            answer = await self._ask(
                CursorMoved(self._member, EndOffset(told.offset), told.acknowledged)
            )
            if told.offset >= self._stored_to:
                self._stored_to = 0
            if told == self.committed or isinstance(answer, AckRefused):
                break
        self._telling = False

    async def describe(self, ask: Ask, now_ms: Callable[[], float]) -> None:
        """Asks what has become of messages in transactions."""
        answer = await self._ask(DescribeAcks())
        if self.tracker is not None:
            acks = answer if isinstance(answer, Acks) else None
            self.tracker.described(ask.number, acks, now_ms())

    def stored(self, end: int) -> None:
        """The store has acknowledged something below this offset."""
        self._stored_to = max(self._stored_to, end)

    def prepare(self, records: Iterable[Record]) -> None:
        """These are to be returned again."""
        ready = sorted([*records, *self.ready], key=lambda it: it.offset)
        self.ready.clear()
        self.ready.extend(ready)

    def unreturned(self, offset: int) -> Sequence[int]:
        """What is about to be returned, up to an offset."""
        ready = self.ready
        if not ready or ready[0].offset > offset:  # as ever, but after a redelivery
            return ()
        return [it.offset for it in ready if it.offset <= offset]

    def unprepare(self, offset: int, *, cumulative: bool) -> None:
        """Takes back what was about to be returned again: it is spoken for by now."""
        ready = self.ready
        if not ready or ready[0].offset > offset:  # as ever, but after a redelivery
            return
        kept = [it for it in ready if it.offset > offset or not (cumulative or it.offset == offset)]
        ready.clear()
        ready.extend(kept)

    def revoke(self) -> None:
        """Another member has it from now on, or this one in another assignment."""
        self.revoked = True
        self.ready.clear()

    def _take_over(self, acks: Acks) -> None:
        if self.revoked:
            return
        self._stored_to = max([acks.cursor, *(it.end for it in acks.acknowledged)])
        if self.tracker is None:
            delay_ms = self._redelivery_delay_ms
            self.tracker = Tracker(self.data, self.committed, acks, redelivery_delay_ms=delay_ms)
        else:
            self.tracker.attached_again(acks)

    async def _ask(self, body: AckBody) -> AckAnswer:
        answer = await self._store.ask(self.subscription, body)
        if isinstance(answer, AckRefused) and answer.code is AckRefusalCode.NOT_ATTACHED:
            self.attached = False
        return answer

    def _refusal(self, refused: AckRefused) -> StilltideError:
        return _REFUSALS.get(refused.code, RefusedError)(
            f"the acknowledgement was refused: {refused.code.value}",
            detail=refused.reason,
            topic=self.data.topic,
            partition=self.data.partition,
        )


def lost(data: TopicPartition, offset: int | None = None) -> NotDeliveredError:
    """The error for a message whose partition this member does not have."""
    return NotDeliveredError(
        "the partition of the message is not assigned to this member",
        detail="it never was, or another member has it since a rebalance",
        hint="whoever has the partition is given the message again",
        topic=data.topic,
        partition=data.partition,
        offset=offset,
    )
