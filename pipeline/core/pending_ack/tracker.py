"""Messages of one partition that a member has not acknowledged: a pure machine.

*Source*: docs/protocols G, G2 (rules in `redeliveries`). A member asks the store one question at a
time, spaced by `ATTACH`.

*Invariants*:
- The cursor is the lowest offset that was taken and is not acknowledged, else the position. So the
  cursor passes hidden records, control records and gaps.
- An offset below the position is in exactly one of these states: with the application, claimed by
  one transaction, unsettled, held back, waiting to be delivered again, or acknowledged.
- A message that is pending in any transaction is never handed over.
- A cumulative acknowledgement covers no message that the application has never had, such as one
  held back for another transaction while later messages were handed over. A message that cannot be
  decoded is passed over by it: the message's dead letter acknowledges it.
- After a transaction that was aborted, or whose outcome is unknown, only the store decides about
  the transaction's messages, in the answer to a question asked later.

*Refuses*, with nothing changed: to acknowledge a message that was not handed over, that is
acknowledged, or that is pending in another transaction.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Generic, TypeVar

from stilltide.pipeline.core.offset_index.intervals import RangeSet
from stilltide.pipeline.core.pending_ack.cursor import Ahead, Cursor, acknowledged_in, pending_in
from stilltide.pipeline.core.pending_ack.redeliveries import (
    Redeliveries,
    Redelivery,
    RedeliveryPolicy,
)
from stilltide.pipeline.errors import (
    AcknowledgementError,
    AlreadyAcknowledgedError,
    NotDeliveredError,
    PendingAcknowledgementError,
)
from stilltide.schemas.pending_ack.acknowledgements import Acks
from stilltide.schemas.retry import ATTACH
from stilltide.schemas.values import Offset, TopicPartition


def not_delivered(data: TopicPartition, offset: int) -> AcknowledgementError:
    """The message was not delivered to the application."""
    error = NotDeliveredError(
        "the message was not delivered to this member", hint="receive it first"
    )
    error.at(data.topic, data.partition, offset)
    return error


def already_acknowledged(data: TopicPartition, offset: int) -> AcknowledgementError:
    """The message, or each of several messages, is acknowledged already."""
    error = AlreadyAcknowledgedError(
        "the message is acknowledged already", hint="acknowledge a message once"
    )
    error.at(data.topic, data.partition, offset)
    return error


def pending(data: TopicPartition, offset: int) -> AcknowledgementError:
    """A transaction has acknowledged the message, and the transaction's outcome is not known."""
    error = PendingAcknowledgementError(
        "the message is acknowledged in a transaction that is not settled",
        hint="it is delivered again should that transaction abort",
    )
    error.at(data.topic, data.partition, offset)
    return error


@dataclass(frozen=True, slots=True)
class Ask:
    """Effect: ask the store; pass the answer to `described` with this number."""

    number: int


class Questions:
    """Numbers the questions, ascending."""

    def __init__(self) -> None:
        self._asked = 0
        self._asking = False
        self._ask_at_ms = 0.0

    @property
    def asked(self) -> int:
        """The number of the last question; 0 before the first."""
        return self._asked

    @property
    def deadline_ms(self) -> float | None:
        """When the next question may be asked; None while an answer is awaited."""
        return None if self._asking else self._ask_at_ms

    def tick(self, now_ms: float) -> list[Ask]:
        """Asks, unless an answer is awaited or the last one came less than `ATTACH` ago."""
        if self._asking or now_ms < self._ask_at_ms:
            return []
        self._asking = True
        self._asked += 1
        return [Ask(self._asked)]

    def answered(self, now_ms: float) -> None:
        """Takes note that the question has ended, with an answer or without."""
        self._asking = False
        self._ask_at_ms = now_ms + ATTACH.wait_ms()


P = TypeVar("P")


class Tracker(Generic[P]):
    """One assigned partition, from the store's first answer on.

    Args:
        data: data partition, for errors.
        cursor: cursor that the group has committed.
        acks: store's answer to this member's attachment.
        redelivery: when a message that failed is delivered again, and how often.

    Attributes:
        redeliveries: messages that failed.
    """

    def __init__(
        self, data: TopicPartition, cursor: Cursor, acks: Acks, *, redelivery: RedeliveryPolicy
    ) -> None:
        self._data = data
        self._fields = cursor.fields
        self._position: int = cursor.offset
        self._ahead = Ahead(cursor)
        self._delivered: dict[int, P] = {}
        self._claimed: dict[int, tuple[Hashable, P]] = {}
        self._claims: defaultdict[Hashable, list[int]] = defaultdict(list)
        self._unsettled: dict[int, tuple[int, P, str]] = {}
        self._held: dict[int, P] = {}
        self.redeliveries = Redeliveries[P](redelivery)
        self._open: tuple[Collection[int], ...] = (
            self._delivered,
            self._claimed,
            self._unsettled,
            self._held,
            self.redeliveries.waiting,
        )
        self._lowest: int = cursor.offset  # never above the cursor
        self._questions = Questions()
        self._ahead.note(acks, self._position)

    # Delivery.

    @property
    def unacknowledged(self) -> int:
        """How many offsets were taken and not acknowledged; their messages are kept."""
        return sum(map(len, self._open))

    def admits(self, offset: int) -> bool:
        """Whether the offset may be taken, so that later cursors fit their commit (G Cursor)."""
        if self._ahead.fits(offset, self._lowest, self._open):
            return True
        self._lowest = min(chain.from_iterable(self._open), default=offset)
        return self._lowest == offset or self._ahead.fits(offset, self._lowest, self._open)

    def taken(self, offset: int, payload: P) -> bool:
        """Takes the next message, by offset; returns whether to hand it over now (G Delivery)."""
        assert offset >= self._position, "records are taken in offset order, each once"
        self._position = offset + 1
        ahead = self._ahead
        if ahead.acknowledged:
            acknowledged = offset in ahead.acknowledged
            ahead.acknowledged.trim_below(self._position)
            if acknowledged:
                return False
        if ahead.pending and offset in ahead.pending:
            self._held[offset] = payload
            return False
        self._delivered[offset] = payload
        return True

    def redelivered(self, now_ms: float) -> list[Redelivery[P]]:
        """Removes and returns the messages that are due; all of them count as handed over now.

        A dead letter is handed over to what sends dead letters, which claims the message.
        """
        due = self.redeliveries.due(now_ms)
        self._delivered.update((offset, again.payload) for offset, again in due)
        return [again for _, again in due]

    # Calls of the application.

    def acknowledge(self, offset: int) -> None:
        """Acknowledges a message.

        Raises:
            AcknowledgementError: not delivered, acknowledged, or pending in a transaction.
        """
        self._pop(offset)
        self.redeliveries.forget(offset)

    def acknowledge_cumulative(self, offset: int, ready: Iterable[int] = ()) -> None:
        """Acknowledges a message and all before it; raises as `acknowledge`. O(unacknowledged).

        `ready` are offsets handed over but not yet returned to the application. The call is refused
        if it would cover one of them that the application has never had.
        """
        for covered_offset in self._through(offset, None, ready):
            self.acknowledge(covered_offset)

    def negative_acknowledge(
        self, offset: int, now_ms: float, error: str, *, undecodable: bool = False
    ) -> None:
        """Has a message delivered again after its back-off; a second call changes nothing.

        With `undecodable` its dead letter is sent: the application cannot be given it (G2).

        Raises:
            AcknowledgementError: not delivered, acknowledged, or pending in a transaction.
        """
        if offset not in self.redeliveries.waiting:
            failed = self.redeliveries.undecodable if undecodable else self.redeliveries.failed
            failed(offset, self._pop(offset), now_ms, error)

    # Transactions.

    def claim(self, txn: Hashable, offset: int) -> None:
        """Acknowledges a message in a transaction; raises as `acknowledge`."""
        self._claimed[offset] = txn, self._pop(offset)
        self._claims[txn].append(offset)

    def claim_cumulative(self, txn: Hashable, offset: int, ready: Iterable[int] = ()) -> None:
        """Acknowledges a message and all before it in a transaction; raises as `acknowledge`.

        Messages that the transaction has claimed already are left out. `ready` has the meaning of
        `acknowledge_cumulative`.
        """
        for covered_offset in self._through(offset, txn, ready):
            self.claim(txn, covered_offset)

    def committed(self, txn: Hashable) -> None:
        """The transaction has committed: the messages that it claimed are acknowledged."""
        for offset in self._claims.pop(txn, ()):
            del self._claimed[offset]
            self.redeliveries.forget(offset)

    def unsettled(self, txn: Hashable, error: str) -> None:
        """The transaction sends no more acknowledgements; it is aborted, or its outcome unknown."""
        for offset in self._claims.pop(txn, ()):
            self._unsettled[offset] = self._questions.asked, self._claimed.pop(offset)[1], error

    # The store.

    @property
    def deadline_ms(self) -> float | None:
        """When `tick`, or `redelivered`, is due. May be early, never late."""
        deadlines = [self.redeliveries.deadline_ms]
        if self._held or self._unsettled:
            deadlines.append(self._questions.deadline_ms)
        return min((it for it in deadlines if it is not None), default=None)

    def tick(self, now_ms: float) -> list[Ask]:
        """Asks about messages that are held back or unsettled."""
        return self._questions.tick(now_ms) if self._held or self._unsettled else []

    def described(self, number: int, acks: Acks | None, now_ms: float) -> None:
        """Takes the answer to `Ask(number)`; None: no answer came, and another question follows."""
        self._questions.answered(now_ms)
        if acks is None:
            return
        self._ahead.note(acks, self._position)
        acknowledged, still_pending = acknowledged_in(acks), pending_in(acks)
        asked_in_time = [it for it, (asked, *_) in self._unsettled.items() if asked < number]
        for offset in [it for it in asked_in_time if it not in still_pending]:
            _, payload, error = self._unsettled.pop(offset)
            if offset in acknowledged:
                self.redeliveries.forget(offset)
            else:
                self.redeliveries.failed(offset, payload, now_ms, error)
        for offset in [it for it in self._held if it not in still_pending]:
            payload = self._held.pop(offset)
            if offset not in acknowledged:
                self.redeliveries.at_once(offset, payload)

    def attached_again(self, acks: Acks) -> None:
        """Takes the store's answer, with acknowledgements of a member attached in between."""
        self._ahead.note(acks, self._position)
        acknowledged = acknowledged_in(acks)
        for records in (self._delivered, self.redeliveries.waiting):
            for offset in [it for it in records if it in acknowledged]:
                del records[offset]
                self.redeliveries.forget(offset)

    # The cursor.

    def cursor(self, position: int) -> Cursor:
        """The cursor to commit when every offset below `position` was taken or hides (G Cursor)."""
        position = max(position, self._position)
        self._ahead.acknowledged.trim_below(position)
        edges = [*sorted(chain.from_iterable(self._open)), position]
        acknowledged = RangeSet((low + 1, high) for low, high in pairwise(edges))
        for first, end in self._ahead.acknowledged:
            acknowledged.add(first, end)
        self._lowest = edges[0]
        offset = acknowledged.end_of(edges[0])  # may pass the position when nothing is open
        acknowledged.trim_below(offset)
        return Cursor(Offset(offset), acknowledged.ranges(), self._fields)

    @property
    def held_back(self) -> int | None:
        """The lowest offset that is held back; None: there is none."""
        return min(self._held, default=None)

    def _through(self, offset: int, txn: Hashable, ready: Iterable[int]) -> list[int]:
        """The offsets that a cumulative acknowledgement covers, without those `txn` has claimed."""
        if offset >= self._position:
            raise not_delivered(self._data, offset)
        conflicts = chain(
            self._held,
            self._unsettled,
            (it for it, (claimant, _) in self._claimed.items() if claimant != txn),
        )
        passed_over = self.redeliveries.is_undecodable
        conflict = min(
            (it for it in conflicts if it <= offset and not passed_over(it)), default=None
        )
        if conflict is not None:
            raise pending(self._data, conflict)
        waiting = self.redeliveries.waiting
        unseen = (it for it in chain(waiting, ready) if not self.redeliveries.has_failed(it))
        first_unseen = min((it for it in unseen if it <= offset), default=None)
        if first_unseen is not None:
            raise not_delivered(self._data, first_unseen)
        through = [it for it in chain(self._delivered, waiting) if it <= offset]
        covered = [it for it in through if not passed_over(it)]
        if not covered:
            raise already_acknowledged(self._data, offset)
        return covered

    def _pop(self, offset: int) -> P:
        if offset in self._delivered:
            return self._delivered.pop(offset)
        if offset in self.redeliveries.waiting:
            return self.redeliveries.waiting.pop(offset)[1]
        if offset >= self._position:
            raise not_delivered(self._data, offset)
        if offset in self._claimed or offset in self._unsettled or offset in self._held:
            raise pending(self._data, offset)
        raise already_acknowledged(self._data, offset)
