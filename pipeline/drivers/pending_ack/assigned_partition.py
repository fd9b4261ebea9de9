"""One assigned partition of a member that acknowledges, and its requests to the pending-ack store.

*Source*: docs/protocols B9, C11, C15, G2, G4.

*Invariants*: each assignment has a new member id, and another one each time it was replaced;
the store learns of a cursor only after the group's commit holds the cursor.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from stilltide.connectors.chance import Chance
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.core.pending_ack.cursor import Cursor
from stilltide.pipeline.core.pending_ack.redeliveries import RedeliveryPolicy
from stilltide.pipeline.core.pending_ack.tracker import Ask, Tracker
from stilltide.pipeline.errors import (
    AlreadyAcknowledgedError,
    NotDeliveredError,
    PendingAcknowledgementError,
    RefusedError,
    RequestTimeoutError,
)
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.pending_ack.acknowledgements import (
    MEMBER_BYTES,
    AckAnswer,
    AckBody,
    Acknowledge,
    Acks,
    Attach,
    CursorMoved,
    DescribeAcks,
)
from stilltide.schemas.retry import ATTACH
from stilltide.schemas.service.envelopes import RefusalCode, Refused
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition, TxnId

_log = get_logger(__name__)

CLAIMS_MAX = 20
"""Claims in a row that the group's coordinator may not confirm: a rebalance may be on its way."""

_REFUSALS = {
    RefusalCode.ALREADY_ACKNOWLEDGED: AlreadyAcknowledgedError,
    RefusalCode.PENDING_IN_ANOTHER_TRANSACTION: PendingAcknowledgementError,
    RefusalCode.NOT_ATTACHED: NotDeliveredError,
}


class AckStore(Protocol):
    """Asks the pending-ack stores, local or remote."""

    async def ask_about(self, subscription: SubscriptionId, body: AckBody) -> AckAnswer:
        """Repeats a request until it is answered; raises `RequestTimeoutError`."""
        ...


class Claimant(NamedTuple):
    """Who claims subscriptions.

    Attributes:
        group_member: Kafka's id of the member of the group, as of the assignment (C15).
        client_name: the client's name in operators' lists.
        topic_id: Kafka's id of the topic that is read (G3).
    """

    group_member: str
    client_name: str
    topic_id: bytes


@dataclass(slots=True)
class FailureCounts:
    """Messages of a partition that failed, since its assignment (G2).

    Attributes:
        redelivered: messages that were prepared to be returned again.
        dead_lettered: messages that were moved to the dead-letter topic.
        foreign_commits: commits with another program's metadata, which was passed over.
    """

    redelivered: int = 0
    dead_lettered: int = 0
    foreign_commits: int = 0


class AssignedPartition:
    """One partition from its assignment to its revocation.

    Attributes:
        subscription: the data partition and the group.
        committed: the cursor that the group's commit holds.
        metadata: the metadata of the group's commit, as text; None: `committed` is not committed.
        tracker: tracks acknowledgements; None until the store has answered the first attachment.
        ready: records to be returned next, in offset order.
        attached: whether this is the store's member, as far as known.
        counts: messages that failed.
        revoked: whether the assignment has ended.
    """

    def __init__(
        self,
        store: AckStore,
        subscription: SubscriptionId,
        committed: Cursor,
        metadata: str | None,
        claimant: Claimant,
        *,
        redelivery: RedeliveryPolicy,
        patient: bool = False,
    ) -> None:
        self.subscription = subscription
        self.committed = committed
        self.metadata = metadata
        self.tracker: Tracker[Record] | None = None
        self.ready: deque[Record] = deque()
        self.attached = False
        self.revoked = False
        self.counts = FailureCounts()
        self._store = store
        self._claimant = claimant
        self._redelivery = redelivery
        self._patient = patient
        self._member = b""
        self._stored_to = 0  # end of what the store still holds as acknowledged, if known
        self._telling = False

    @property
    def data(self) -> TopicPartition:
        """The data partition."""
        return self.subscription.data

    async def attach(self, chance: Chance) -> None:
        """Becomes the store's member, under a new id if it was replaced meanwhile (G Members).

        Raises:
            RefusedError: the store has no room, or the group does not know the member.
            RequestTimeoutError: the store did not answer, and this member is not patient.
        """
        unconfirmed = 0
        while not self.revoked:
            member = chance.token(MEMBER_BYTES)
            offset, acknowledged, _ = self.committed
            claim = Attach(member, EndOffset(offset), acknowledged, *self._claimant)
            answer = await self._answer(claim)
            if self.revoked:
                return  # a member that has left the group is refused
            if answer is None:
                continue
            if isinstance(answer, Acks):
                self._member, self.attached = member, True
                self._take_over(answer)
                return
            assert isinstance(answer, Refused), answer
            unconfirmed += answer.code is RefusalCode.NOT_IN_GROUP
            if (
                answer.code not in {RefusalCode.NOT_ATTACHED, RefusalCode.NOT_IN_GROUP}
                or unconfirmed >= CLAIMS_MAX
            ):
                raise self._refusal(answer)
            await asyncio.sleep(ATTACH.wait_s())

    async def acknowledge(
        self,
        txn: TxnId,
        txn_client_id: bytes,
        offsets: Sequence[Offset],
        cumulative_offset: Offset | None,
    ) -> None:
        """Makes the store acknowledge messages in a transaction of the client with this id (C11).

        Raises:
            AcknowledgementError, RefusedError: refused, with nothing changed.
            RequestTimeoutError: no answer in time.
        """
        if self.revoked:
            raise lost(self.data)
        acknowledged = tuple(offsets)
        answer = await self._ask(
            Acknowledge(txn, self._member, acknowledged, cumulative_offset, txn_client_id)
        )
        if isinstance(answer, Refused):
            raise self._refusal(answer, txn)

    async def tell_cursor(self) -> None:
        """Sends the committed cursor, so that the store forgets the acknowledgements below."""
        if self._telling:
            return
        self._telling = True
        while self._stored_to and not self.revoked:
            sent = self.committed
            answer = await self._answer(
                CursorMoved(self._member, EndOffset(sent.offset), sent.acknowledged)
            )
            if answer is None:
                continue
            if sent.offset >= self._stored_to:
                self._stored_to = 0
            if sent == self.committed or isinstance(answer, Refused):
                break
        self._telling = False

    async def describe(self, ask: Ask) -> None:
        """Asks the store for the outcomes of messages in transactions."""
        answer = await self._answer(DescribeAcks())
        if self.tracker is not None:
            acks = answer if isinstance(answer, Acks) else None
            now_ms = asyncio.get_running_loop().time() * 1000
            self.tracker.described(ask.number, acks, now_ms)

    def cursor_at(self, position: int | None) -> Cursor:
        """What the group has acknowledged, as far as is known here, when reading is at a position.

        The position is that of an assigned partition, so there is one.
        """
        assert position is not None
        return self.committed if self.tracker is None else self.tracker.cursor(position)

    def stored(self, end: int) -> None:
        """The store has acknowledged something below this offset."""
        self._stored_to = max(self._stored_to, end)

    def prepare(self, records: Sequence[Record]) -> None:
        """Adds records to be returned again."""
        self.counts.redelivered += len(records)
        ready = sorted([*records, *self.ready], key=lambda it: it.offset)
        self.ready.clear()
        self.ready.extend(ready)

    def unreturned(self, offset: int) -> Sequence[int]:
        """The offsets of records to be returned next, up to an offset."""
        ready = self.ready
        if not ready or ready[0].offset > offset:  # always so, except after a redelivery
            return ()
        return [it.offset for it in ready if it.offset <= offset]

    def unprepare(self, offset: int, *, cumulative: bool) -> None:
        """Drops records to be returned again about which the application has decided meanwhile."""
        ready = self.ready
        if not ready or ready[0].offset > offset:  # always so, except after a redelivery
            return
        assert self.tracker is not None
        records = [*ready]
        ready.clear()
        for record in records:
            if record.offset == offset or (cumulative and record.offset < offset):
                self.tracker.redeliveries.take_back(record.offset)
            else:
                ready.append(record)

    def revoke(self) -> None:
        """The assignment has ended; another member, or a later assignment, has the partition."""
        self.revoked = True
        self.ready.clear()

    def _take_over(self, acks: Acks) -> None:
        if self.revoked:
            return
        self._stored_to = max([acks.cursor, *(it.end for it in acks.acknowledged)])
        if self.tracker is None:
            self.tracker = Tracker(self.data, self.committed, acks, redelivery=self._redelivery)
        else:
            self.tracker.attached_again(acks)

    async def _answer(self, body: AckBody) -> AckAnswer | None:
        """The answer to a request of this member itself, or None after a time-out.

        Raises:
            RequestTimeoutError: no answer in time, and this member is not patient.
        """
        try:
            return await self._ask(body)
        except RequestTimeoutError as error:
            if not self._patient:
                raise
            _log.warning("store_did_not_answer", data=str(self.data), why=error.primary)
            return None

    async def _ask(self, body: AckBody) -> AckAnswer:
        answer = await self._store.ask_about(self.subscription, body)
        if isinstance(answer, Refused) and answer.code is RefusalCode.NOT_ATTACHED:
            self.attached = False
        return answer

    def _refusal(self, refused: Refused, txn: TxnId | None = None) -> StilltideError:
        """The error of a claim, or of an acknowledgement in a transaction, that was refused."""
        group = self.subscription.group
        asked = f"a member of group {group}"
        if txn is not None:
            asked = f"an acknowledgement of group {group} in transaction {txn}"
        return _REFUSALS.get(refused.code, RefusedError)(
            f"the pending-ack store refused {asked}: {refused.reason}",
            detail=f"code {refused.code.value}; nothing was changed",
            data=self.data,
        )


def lost(data: TopicPartition, offset: int | None = None) -> NotDeliveredError:
    """The error for a message whose partition this member does not have."""
    return NotDeliveredError(
        "the partition of the message is not assigned to this member",
        detail="it never was, or a rebalance has moved it to another member",
        hint="the message is delivered again to the member that has the partition",
        data=data,
        offset=offset,
    )
