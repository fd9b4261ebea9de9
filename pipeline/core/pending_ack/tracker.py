"""What one member has not acknowledged of one partition: a pure machine.

*Source*: protocols.md G; pulsar.md 5.

*Invariants*:
- The cursor is the lowest offset that was taken and is not acknowledged, else the position: it
  follows what is read, so hidden records, control records and gaps are passed.
- An offset is with the application, claimed by one transaction, unsettled, held back, or waiting
  to be delivered again: exactly one of these, and acknowledged when none.
- What is pending in a transaction of anybody is never handed over.
- A cumulative acknowledgement covers nothing that the application has never had, such as what was
  held back for another's transaction while later messages were handed over.
- After a transaction that was aborted, or whose outcome is unknown, the store alone says what has
  become of its messages, in an answer to a question asked later.

*Refuses*, with nothing changed: to acknowledge what was not handed over, what is acknowledged,
and what is pending in another transaction.
"""

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Generic, TypeVar

from stilltide.pipeline.core.pending_ack.cursor import SPAN_MAX, Cursor, always_fits
from stilltide.pipeline.core.pending_ack.ranges import RangeSet
from stilltide.pipeline.errors import (
    AcknowledgementError,
    AlreadyAcknowledgedError,
    NotDeliveredError,
    PendingAcknowledgementError,
)
from stilltide.schemas.pending_ack.acknowledgements import Acks
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

P = TypeVar("P")

ASK_AGAIN_MS = 500


@dataclass(frozen=True, slots=True)
class Ask:
    """Effect: ask the store, and tell `described` what it says under this number."""

    number: int


class Tracker(Generic[P]):
    """One assigned partition, from the store's first answer on.

    Args:
        data: for errors.
        cursor: as committed.
        acks: the store's answer to this member's attachment.
        redelivery_delay_ms: between a negative acknowledgement and the next delivery.
    """

    def __init__(
        self, data: TopicPartition, cursor: Cursor, acks: Acks, *, redelivery_delay_ms: float
    ) -> None:
        self._data = data
        self._fields = cursor.fields
        self._redelivery_delay_ms = redelivery_delay_ms
        self._position: int = cursor.offset
        self._ahead = RangeSet(cursor.acknowledged)  # acknowledged, at or above the position
        self._ahead_end = max((it.end for it in cursor.acknowledged), default=EndOffset(0))
        self._pending = RangeSet()  # pending in transactions of others, likewise
        self._delivered: dict[int, P] = {}
        self._claimed: dict[int, tuple[Hashable, P]] = {}
        self._claims: defaultdict[Hashable, list[int]] = defaultdict(list)
        self._unsettled: dict[int, tuple[int, P]] = {}
        self._held: dict[int, P] = {}
        self._waiting: dict[int, tuple[float, P]] = {}
        self._seen: set[int] = set()  # with the application once, and to come again
        self._due: deque[tuple[float, int]] = deque()
        self._again: deque[int] = deque()
        self._lowest: int = cursor.offset  # never above the cursor
        self._asked = 0
        self._asking = False
        self._ask_at_ms = 0.0
        self._note(acks)

    # Delivery.

    @property
    def unacknowledged(self) -> int:
        """Offsets taken and not acknowledged; their records are kept."""
        others = len(self._unsettled) + len(self._held) + len(self._waiting)
        return len(self._delivered) + len(self._claimed) + others

    def admits(self, offset: int) -> bool:
        """Whether the offset may be taken: whatever is acknowledged then can be committed."""
        if self._fits(offset):
            return True
        self._lowest = min(self._open(), default=offset)
        return self._lowest == offset or self._fits(offset)

    def taken(self, offset: int, payload: P) -> bool:
        """Takes the next record, in offset order; whether to hand it over now."""
        assert offset >= self._position, "records are taken in offset order, each once"
        self._position = offset + 1
        if self._ahead:
            acknowledged = offset in self._ahead
            self._ahead.trim_below(self._position)
            if acknowledged:
                return False
        if self._pending and offset in self._pending:
            self._held[offset] = payload
            return False
        self._delivered[offset] = payload
        return True

    def redelivered(self, now_ms: float) -> list[P]:
        """Records to be handed over again; they count as with the application from now on."""
        while self._due and self._due[0][0] <= now_ms:
            self._again.append(self._due.popleft()[1])
        found: list[P] = []
        while self._again:
            offset = self._again.popleft()
            due = self._waiting.get(offset)
            if due is not None and due[0] <= now_ms:
                del self._waiting[offset]
                self._delivered[offset] = due[1]
                found.append(due[1])
        return found

    # What the application says.

    def acknowledge(self, offset: int) -> None:
        """Takes a message as done.

        Raises:
            AcknowledgementError: not delivered, acknowledged, or pending in a transaction.
        """
        self._pop(offset)

    def acknowledge_cumulative(self, offset: int, ready: Iterable[int] = ()) -> None:
        """Takes a message and all before it as done; as `acknowledge`. O(unacknowledged).

        `ready`: handed over, but not in the application's hands yet. None of these is covered,
        unless it was there before: what nobody has seen cannot be done.
        """
        for one in self._through(offset, None, ready):
            self._pop(one)

    def negative_acknowledge(self, offset: int, now_ms: float) -> None:
        """Has a message delivered again after the delay; twice is once.

        Raises:
            AcknowledgementError: not delivered, acknowledged, or pending in a transaction.
        """
        if offset not in self._waiting:
            due_ms = now_ms + self._redelivery_delay_ms
            self._waiting[offset] = due_ms, self._pop(offset)
            self._seen.add(offset)
            self._due.append((due_ms, offset))

    # Transactions.

    def claim(self, txn: Hashable, offset: int) -> None:
        """Takes a message as acknowledged in a transaction; raises as `acknowledge`."""
        self._claimed[offset] = txn, self._pop(offset)
        self._claims[txn].append(offset)

    def claim_cumulative(self, txn: Hashable, offset: int, ready: Iterable[int] = ()) -> None:
        """As `claim`, of a message and all before it that the transaction has not claimed.

        `ready`: as of `acknowledge_cumulative`.
        """
        for one in self._through(offset, txn, ready):
            self.claim(txn, one)

    def committed(self, txn: Hashable) -> None:
        """The transaction is known to be committed: what it claimed is acknowledged."""
        for offset in self._claims.pop(txn, ()):
            del self._claimed[offset]

    def unsettled(self, txn: Hashable) -> None:
        """The transaction will send no more, and is aborted, or nobody here knows."""
        for offset in self._claims.pop(txn, ()):
            self._unsettled[offset] = self._asked, self._claimed.pop(offset)[1]
            self._seen.add(offset)

    # The store.

    @property
    def deadline_ms(self) -> float | None:
        """When `tick`, or `redelivered`, is due. May be early, never late."""
        dues = [due for due, _ in list(self._due)[:1]]
        if self._again:
            dues.append(0.0)
        if self._must_ask:
            dues.append(self._ask_at_ms)
        return min(dues, default=None)

    def tick(self, now_ms: float) -> list[Ask]:
        """Asks about what is held back or unsettled."""
        if not self._must_ask or now_ms < self._ask_at_ms:
            return []
        self._asking = True
        self._asked += 1
        return [Ask(self._asked)]

    def described(self, number: int, acks: Acks | None, now_ms: float) -> None:
        """Takes the answer to `Ask(number)`; None: there was none, and it is asked again."""
        self._asking = False
        self._ask_at_ms = now_ms + ASK_AGAIN_MS
        if acks is None:
            return
        self._note(acks)
        acknowledged, pending = _acknowledged_in(acks), _pending_in(acks)
        asked_in_time = [it for it, (asked, _) in self._unsettled.items() if asked < number]
        for offset in [it for it in asked_in_time if it not in pending]:
            _, payload = self._unsettled.pop(offset)
            self._settle(offset, payload, done=offset in acknowledged)
        for offset in [it for it in self._held if it not in pending]:
            self._settle(offset, self._held.pop(offset), done=offset in acknowledged)

    def attached_again(self, acks: Acks) -> None:
        """Another member was attached in between; what it has acknowledged is acknowledged."""
        self._note(acks)
        acknowledged = _acknowledged_in(acks)
        for records in (self._delivered, self._waiting):
            for offset in [it for it in records if it in acknowledged]:
                del records[offset]
                self._seen.discard(offset)

    # The cursor.

    def cursor(self, position: int) -> Cursor:
        """What may be committed when everything below `position` was taken or is hidden."""
        position = max(position, self._position)
        self._ahead.trim_below(position)
        edges = [*sorted(self._open()), position]
        acknowledged = RangeSet((one + 1, other) for one, other in pairwise(edges))
        for first, end in self._ahead:
            acknowledged.add(first, end)
        self._lowest = edges[0]
        offset = acknowledged.end_of(edges[0])  # beyond it when nothing is open
        acknowledged.trim_below(offset)
        return Cursor(Offset(offset), acknowledged.ranges(), self._fields)

    @property
    def held_back(self) -> int | None:
        """The lowest offset that was taken and not yet handed over."""
        return min(self._held, default=None)

    @property
    def _must_ask(self) -> bool:
        return not self._asking and bool(self._held or self._unsettled)

    def _fits(self, offset: int) -> bool:
        span = max(offset + 1, self._ahead_end) - self._lowest
        if span <= SPAN_MAX:  # the same as below, for less
            return True
        return always_fits(self.unacknowledged + self._ahead.range_count + 1, span)

    def _open(self) -> Iterable[int]:
        return chain(self._delivered, self._claimed, self._unsettled, self._held, self._waiting)

    def _through(self, offset: int, txn: Hashable, ready: Iterable[int]) -> list[int]:
        """What a cumulative acknowledgement covers and `txn` has not claimed."""
        if offset >= self._position:
            raise self._refusal(offset)
        conflicts = chain(
            self._held,
            self._unsettled,
            (it for it, (claimant, _) in self._claimed.items() if claimant != txn),
        )
        conflict = min((it for it in conflicts if it <= offset), default=None)
        if conflict is not None:
            raise self._refusal(conflict)
        unseen = (it for it in chain(self._waiting, ready) if it not in self._seen)
        first_unseen = min((it for it in unseen if it <= offset), default=None)
        if first_unseen is not None:
            raise self._not_delivered(first_unseen)
        covered = [it for it in chain(self._delivered, self._waiting) if it <= offset]
        if not covered:
            raise self._refusal(offset, acknowledged=True)
        return covered

    def _pop(self, offset: int) -> P:
        self._seen.discard(offset)
        if offset in self._delivered:
            return self._delivered.pop(offset)
        if offset in self._waiting:
            return self._waiting.pop(offset)[1]
        raise self._refusal(offset)

    def _refusal(self, offset: int, *, acknowledged: bool = False) -> AcknowledgementError:
        """Why an offset cannot be acknowledged; `acknowledged`: all that was asked for is."""
        if offset >= self._position:
            return self._not_delivered(offset)
        if acknowledged or offset not in {*self._claimed, *self._unsettled, *self._held}:
            error: AcknowledgementError = AlreadyAcknowledgedError(
                "the message is acknowledged already", hint="acknowledge a message once"
            )
        else:
            error = PendingAcknowledgementError(
                "the message is acknowledged in a transaction that is not settled",
                hint="it is delivered again should that transaction abort",
            )
        error.at(self._data.topic, self._data.partition, offset)
        return error

    def _not_delivered(self, offset: int) -> AcknowledgementError:
        error = NotDeliveredError(
            "the message was not delivered to this member", hint="receive it first"
        )
        error.at(self._data.topic, self._data.partition, offset)
        return error

    def _note(self, acks: Acks) -> None:
        """Takes over what concerns records that were not taken yet."""
        for first, end in _acknowledged_in(acks):
            self._ahead.add(first, end)
            self._ahead_end = max(self._ahead_end, end)
        self._ahead.trim_below(self._position)
        self._pending = _pending_in(acks)
        self._pending.trim_below(self._position)

    def _settle(self, offset: int, payload: P, *, done: bool) -> None:
        if done:
            self._seen.discard(offset)
        else:
            self._waiting[offset] = 0.0, payload
            self._again.append(offset)


def _acknowledged_in(acks: Acks) -> RangeSet:
    return RangeSet([(0, acks.cursor), *acks.acknowledged])


def _pending_in(acks: Acks) -> RangeSet:
    """What is pending in any transaction."""
    pending = RangeSet()
    for _, ranges, cumulative_offset in acks.pending:
        for first, end in ranges:
            pending.add(first, end)
        if cumulative_offset is not None:
            pending.add(0, cumulative_offset + 1)
    return pending
