"""The acknowledgements of a group in one data partition, and those pending in transactions.

*Source*: docs/protocols G3, G4, C11, C15; conflict rules as Pulsar's. Pulsar does not compare
cumulative with individual acknowledgements; here no message is pending in two transactions,
whichever kind of acknowledgement they use.
*Invariants*: the cursor never moves back; no pending offset is acknowledged; no offset is pending
in two transactions; acknowledgements in a transaction count only if they name the id of the client
that opened it; a refused request changes nothing; at most `HELD_MAX` ranges and offsets are
held.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from stilltide.pipeline.core.offset_index.intervals import RangeSet, runs_of
from stilltide.schemas.pending_ack.acknowledgements import Acks, BaseSubscription, PendingAcks
from stilltide.schemas.service.envelopes import NO_CLIENT, RefusalCode, Refused
from stilltide.schemas.values import (
    OFFSET_MAX,
    EndOffset,
    Offset,
    Ranges,
    SubscriptionId,
    TopicPartition,
    TxnId,
)

HELD_MAX = 100_000
"""Most acknowledged ranges and pending offsets together; a commit turns offsets into ranges
(G Bounds)."""

REPLACED_MS = 60 * 60 * 1000
"""How long a replaced member is refused; clients stop repeating a request much earlier."""

REPLACED_MAX = 256
"""Most replaced members that are remembered."""


@dataclass(slots=True)
class Pending:
    """One transaction's acknowledgements: single offsets, and all up to `cumulative_offset`.

    `client_key` is that of the transaction's client, as the acknowledgements name it.
    """

    offsets: set[int] = field(default_factory=set[int])
    cumulative_offset: Offset | None = None
    client_key: bytes = NO_CLIENT

    @property
    def highest(self) -> int:
        """The highest of these offsets."""
        up_to = -1 if self.cumulative_offset is None else self.cumulative_offset
        return max(up_to, max(self.offsets, default=-1))


class SubscriptionAcks:
    """The acknowledgements of one group in one data partition.

    Attributes:
        cursor: offset below which every message is acknowledged.
        committed: offset of the group's commit, as last reported by a member.
        acknowledged: acknowledged offsets at or above the cursor.
        pending: pending acknowledgements by transaction, in the order of their first one.
        member: id of the attached member; empty when no member ever was.
        client_key: key of the client that attached the member (C15).
        client_name: name of that client.
        topic_id: Kafka's id of the topic of the acknowledgements; empty: not known.
        replaced: former members and when they were replaced, oldest first.
        last_seen_ms: time of the last request of an attached member.
    """

    def __init__(self) -> None:
        self.cursor = EndOffset(0)
        self.committed = EndOffset(0)
        self.acknowledged = RangeSet(ranges_max=HELD_MAX)
        self.pending: dict[TxnId, Pending] = {}
        self.member = b""
        self.client_key = NO_CLIENT
        self.client_name = ""
        self.topic_id = b""
        self.replaced: dict[bytes, int] = {}
        self.last_seen_ms = 0
        self._holders: dict[int, TxnId] = {}  # by offset: the transaction it is pending in
        self._slot: TxnId | None = None  # the transaction that acknowledges cumulatively

    @property
    def forgettable(self) -> bool:
        """Whether the group's commit holds every acknowledgement that is known here."""
        return not self.pending and not self.acknowledged and self.cursor == self.committed

    @property
    def held_count(self) -> int:
        """Number of acknowledged ranges and pending offsets."""
        return self.acknowledged.range_count + len(self._holders)

    @property
    def individual_count(self) -> int:
        """Number of offsets with a pending individual acknowledgement."""
        return len(self._holders)

    @property
    def cumulative_offset(self) -> Offset | None:
        """The offset up to which, inclusive, one transaction acknowledges cumulatively, or None."""
        return None if self._slot is None else self.pending[self._slot].cumulative_offset

    @property
    def locked_count(self) -> int:
        """Number of offsets that no other transaction may acknowledge; walks over the ranges."""
        up_to = self.cumulative_offset
        if up_to is None:
            return self.individual_count
        acknowledged = self.acknowledged.count_below(up_to + 1)
        return self.individual_count + up_to + 1 - self.cursor - acknowledged

    def of_topic(self, topic_id: bytes) -> "SubscriptionAcks":
        """The acknowledgements in the topic with this id (G3).

        These ones, unless both ids are known and differ: then the former topic is gone, and the
        messages of the new one, at the same offsets, are not acknowledged yet.
        """
        if not self.topic_id or topic_id in {b"", self.topic_id}:
            return self
        new = SubscriptionAcks()
        new.member, new.replaced = self.member, dict(self.replaced)
        return new

    def attach(self, member: bytes, now_ms: int) -> Refused | None:
        """Attaches a member, unless it was replaced before the present one (G Members)."""
        if member == self.member:
            return None
        replaced_ms = self.replaced.get(member)
        if replaced_ms is not None and now_ms < replaced_ms + REPLACED_MS:
            return Refused("another member has replaced this one", RefusalCode.NOT_ATTACHED)
        if self.member:
            self.replaced.pop(self.member, None)
            self.replaced[self.member] = now_ms
        while self.replaced:
            oldest = next(iter(self.replaced))
            fresh = now_ms < self.replaced[oldest] + REPLACED_MS
            if fresh and len(self.replaced) <= REPLACED_MAX:
                break
            del self.replaced[oldest]
        self.member = member
        return None

    def too_many(self, count: int) -> Refused | None:
        """The refusal of `count` more offsets or ranges than fit (G Bounds)."""
        present = self.held_count
        if present + count <= HELD_MAX:
            return None
        reason = (
            f"{present} offsets and ranges are held; with {count} more there are over {HELD_MAX}"
        )
        return Refused(reason, RefusalCode.TOO_MANY)

    def committed_by_group(self, cursor: EndOffset, acknowledged: Ranges) -> None:
        """Takes the group's commit: its offsets are acknowledged, and no longer pending."""
        self.committed = max(self.committed, cursor)
        for first, end in acknowledged:
            self.acknowledged.add(max(first, self.cursor), end)
        self._raise_cursor(cursor)
        self._drop_acknowledged()

    def acknowledge(
        self,
        txn: TxnId,
        offsets: Iterable[Offset],
        cumulative_offset: Offset | None,
        client_key: bytes = NO_CLIENT,
    ) -> Refused | None:
        """Makes all of these offsets pending in a transaction, or none of them (G Conflicts).

        `client_key` is the key of the client that opened the transaction, by the request.
        """
        pending = self.pending.get(txn)
        new: set[int] = set(offsets)
        if pending is not None:
            if pending.client_key != client_key:
                return Refused(
                    f"transaction {txn} belongs to another client", RefusalCode.NOT_OWNER
                )
            new -= pending.offsets
            up_to = pending.cumulative_offset
            if up_to is not None:
                new = {offset for offset in new if offset > up_to}
                if cumulative_offset is not None and cumulative_offset <= up_to:
                    cumulative_offset = None
        refused = self.too_many(len(new)) or self._individual_conflict(txn, new)
        if cumulative_offset is not None:
            refused = refused or self._cumulative_conflict(txn, cumulative_offset)
        if refused or not (new or cumulative_offset is not None):
            return refused
        if pending is None:
            pending = self.pending[txn] = Pending(client_key=client_key)
        pending.offsets |= new
        for offset in new:
            self._holders[offset] = txn
        if cumulative_offset is not None:
            self._slot, pending.cumulative_offset = txn, cumulative_offset
            self._drop(pending, [o for o in pending.offsets if o <= cumulative_offset])
        return None

    def settle(
        self,
        txn: TxnId,
        *,
        committed: bool,
        client_key: bytes = NO_CLIENT,
        log_end: int = OFFSET_MAX,
    ) -> None:
        """Settles a transaction: its pending offsets become acknowledged, or deliverable again.

        Deliverable again, too, if they named another client than the transaction's (C11). No offset
        from `log_end` on is acknowledged.
        """
        pending = self.pending.pop(txn, None)
        if pending is None:
            return
        for offset in pending.offsets:
            del self._holders[offset]
        if self._slot == txn:
            self._slot = None
        if not committed or client_key != pending.client_key:
            return
        for first, end in runs_of(o for o in pending.offsets if o < log_end):
            self.acknowledged.add(first, end)
        cumulative_offset = pending.cumulative_offset
        end = 0 if cumulative_offset is None else min(cumulative_offset + 1, log_end)
        self._raise_cursor(end)

    def acks(self) -> Acks:
        """A copy of the acknowledgements that a member needs to know."""
        pending = tuple(
            PendingAcks(txn, tuple(runs_of(p.offsets)), p.cumulative_offset, p.client_key)
            for txn, p in self.pending.items()
        )
        return Acks(self.cursor, self.acknowledged.ranges(), pending, self.member)

    def base(self, subscription: SubscriptionId) -> BaseSubscription:
        """A copy of the whole state (C8)."""
        replaced = tuple(self.replaced.items())
        return BaseSubscription(
            subscription,
            self.acks(),
            self.committed,
            replaced,
            self.last_seen_ms,
            self.client_key,
            self.client_name,
            self.topic_id,
        )

    @classmethod
    def from_base(cls, base: BaseSubscription) -> "SubscriptionAcks":
        """The state that `base` copied."""
        self = cls()
        self.cursor, self.committed = base.acks.cursor, base.committed
        self.acknowledged = RangeSet(base.acks.acknowledged, ranges_max=HELD_MAX)
        self.member, self.replaced = base.acks.member, dict(base.replaced)
        self.last_seen_ms = base.last_seen_ms
        self.client_key, self.client_name = base.client_key, base.client_name
        self.topic_id = base.topic_id
        for txn, ranges, cumulative_offset, client_key in base.acks.pending:
            offsets = {offset for first, end in ranges for offset in range(first, end)}
            self.pending[txn] = Pending(offsets, cumulative_offset, client_key)
            self._holders.update(dict.fromkeys(offsets, txn))
            if cumulative_offset is not None:
                self._slot = txn
        return self

    def _individual_conflict(self, txn: TxnId, offsets: set[int]) -> Refused | None:
        other = self._slot if self._slot != txn else None
        up_to = -1 if other is None else self.pending[other].cumulative_offset
        assert up_to is not None, "the slot's transaction acknowledges cumulatively"
        for offset in offsets:
            if offset < self.cursor or offset in self.acknowledged:
                return _acknowledged(offset)
            holder = other if offset <= up_to else self._holders.get(offset)
            if holder is not None:
                return _pending_elsewhere(offset, holder)
        return None

    def _cumulative_conflict(self, txn: TxnId, up_to: Offset) -> Refused | None:
        if up_to < self.cursor:
            return _acknowledged(up_to)
        if self._slot not in (None, txn):
            return Refused(
                f"transaction {self._slot} acknowledges cumulatively",
                RefusalCode.PENDING_IN_ANOTHER_TRANSACTION,
            )
        for offset, holder in self._holders.items():
            if offset <= up_to and holder != txn:
                return _pending_elsewhere(offset, holder)
        return None

    def _raise_cursor(self, cursor: int) -> None:
        """Raises the cursor to `cursor`, and further over acknowledged offsets without a gap."""
        self.cursor = self.acknowledged.end_of(max(self.cursor, cursor))
        self.acknowledged.trim_below(self.cursor)

    def _drop_acknowledged(self) -> None:
        """Drops pending acknowledgements of offsets that the group's commit holds."""
        for txn, pending in list(self.pending.items()):
            up_to = pending.cumulative_offset
            if up_to is not None and up_to < self.cursor:
                self._slot, pending.cumulative_offset = None, None
            self._drop(
                pending,
                [o for o in pending.offsets if o < self.cursor or o in self.acknowledged],
            )
            if not pending.offsets and pending.cumulative_offset is None:
                del self.pending[txn]

    def _drop(self, pending: Pending, offsets: Iterable[int]) -> None:
        for offset in offsets:
            pending.offsets.remove(offset)
            del self._holders[offset]


def reset_by(by: bytes, acks: SubscriptionAcks, now_ms: int) -> SubscriptionAcks:
    """The acknowledgements after an operator has reset the group: none, and no member (G4).

    What is pending stays so, and is settled by the outcomes of its transactions. A reset that was
    carried out before, by the id `by`, changes nothing.
    """
    if by in acks.replaced:
        return acks
    state = acks.base(SubscriptionId(TopicPartition("", 0), ""))
    kept = Acks(EndOffset(0), (), state.acks.pending, b"")
    replaced = {**acks.replaced, by: now_ms}
    if acks.member:
        replaced[acks.member] = now_ms
    return SubscriptionAcks.from_base(
        state._replace(
            acks=kept,
            committed=EndOffset(0),
            replaced=tuple(replaced.items()),
            client_key=NO_CLIENT,
            client_name="",
        )
    )


def forget_beyond(acks: SubscriptionAcks, log_end: int) -> None:
    """Forgets what is acknowledged beyond the end of the log, where there is no message (G4)."""
    acks.cursor = EndOffset(min(acks.cursor, log_end))
    acks.committed = EndOffset(min(acks.committed, log_end))
    acks.acknowledged.trim_from(log_end)


def _acknowledged(offset: int) -> Refused:
    reason = f"offset {offset} is acknowledged already"
    return Refused(reason, RefusalCode.ALREADY_ACKNOWLEDGED)


def _pending_elsewhere(offset: int, txn: TxnId) -> Refused:
    reason = f"offset {offset} is pending in transaction {txn}"
    return Refused(reason, RefusalCode.PENDING_IN_ANOTHER_TRANSACTION)
