"""A naive model of a pending-ack log, with sets of single offsets.

*Source*: rules G. The model shares no code with the state that it checks: no range, no index.
"""

from dataclasses import dataclass, field

from stilltide.pipeline.core.pending_ack.subscription import SubscriptionAcks
from stilltide.schemas.pending_ack.acknowledgements import (
    AckAnswer,
    Acknowledge,
    AckRequest,
    Acks,
    Attach,
    CursorMoved,
    PendingAckRecord,
    Settle,
)
from stilltide.schemas.service.envelopes import Done, RefusalCode, Refused, Request
from stilltide.schemas.values import Ranges, SubscriptionId, TxnId

HOUR_MS = 60 * 60 * 1000
GROUP = "group"
"""The name under which offsets count that the group's commit has acknowledged."""

Codes = RefusalCode


@dataclass
class Held:
    """One subscription: acknowledged offsets, and pending offsets of each transaction.

    `former` are offsets that were acknowledged, or pending, in topics that are gone.
    """

    acknowledged: dict[int, TxnId | str] = field(default_factory=dict)
    pending: dict[TxnId, set[int]] = field(default_factory=dict)
    slot: tuple[TxnId, int] | None = None
    member: bytes = b""
    topic_id: bytes = b""
    former: set[int] = field(default_factory=set)
    replaced_ms: dict[bytes, int] = field(default_factory=dict)

    @property
    def cursor(self) -> int:
        """The lowest offset that is not acknowledged."""
        return next(n for n in range(1000) if n not in self.acknowledged)

    def pending_in(self, offset: int) -> set[TxnId]:
        """Every transaction an offset is pending in."""
        holders = {txn for txn, offsets in self.pending.items() if offset in offsets}
        if self.slot is not None and offset <= self.slot[1] and offset not in self.acknowledged:
            holders.add(self.slot[0])
        return holders


class Judge:
    """Reads every effective record, and knows the right answers."""

    def __init__(self) -> None:
        self.held: dict[SubscriptionId, Held] = {}
        self.settled: dict[TxnId, bool] = {}
        self.low_watermarks: dict[int, int] = {}
        self._now_ms = 0

    def read(self, record: PendingAckRecord) -> set[RefusalCode]:
        """Applies a record; returns the right refusals, or none if the record is legal."""
        request = record.body
        if not isinstance(request, Request):
            return set()
        self._now_ms = max(self._now_ms, record.at_ms)
        subscription, body = request.body
        if isinstance(body, Settle):
            self._settle(subscription, body)
            return set()
        if isinstance(body, Attach):
            return self._attach(self.held.setdefault(subscription, Held()), body)
        held = self.held.get(subscription)
        if held is None or held.member != body.member:
            return {Codes.NOT_ATTACHED}
        if isinstance(body, CursorMoved):
            self._group_commit(held, body.cursor, body.acknowledged)
            return set()
        assert isinstance(body, Acknowledge)
        return self._acknowledge(held, body)

    def has_ended(self, txn: TxnId) -> bool:
        """G: settled, or below the low watermark."""
        return txn in self.settled or txn.sequence < self.low_watermarks.get(txn.coordinator, 0)

    def check_answer(self, request: AckRequest, answer: AckAnswer, right: set[RefusalCode]):
        """C0: the answer agrees with the log up to this record."""
        if right:
            assert isinstance(answer, Refused)
            assert answer.code in right
        elif isinstance(request.body.ask, Attach):
            assert isinstance(answer, Acks)
            self.check_acks(request.body.subscription, answer)
        else:
            assert answer == Done()

    def check_acks(self, subscription: SubscriptionId, acks: Acks):
        """Compares the whole state of one subscription."""
        held = self.held.get(subscription, Held())
        assert acks.cursor == held.cursor
        assert offsets(acks.acknowledged) == {n for n in held.acknowledged if n > held.cursor}
        assert acks.member == held.member
        shown = {one.txn: one for one in acks.pending}
        assert {txn: offsets(one.ranges) for txn, one in shown.items() if one.ranges} == {
            txn: held_offsets for txn, held_offsets in held.pending.items() if held_offsets
        }
        slots = {
            (txn, one.cumulative_offset)
            for txn, one in shown.items()
            if one.cumulative_offset is not None
        }
        assert slots == ({held.slot} if held.slot else set())

    def check_counts(self, subscription: SubscriptionId, counted: SubscriptionAcks):
        """Compares the counts that an operator sees of one subscription."""
        held = self.held[subscription]
        slot = held.slot[1] if held.slot else None
        below = range(0 if slot is None else slot + 1)
        locked = {n for one in held.pending.values() for n in one}
        locked |= {n for n in below if n not in held.acknowledged}
        assert counted.locked_count == len(locked)
        assert counted.individual_count == sum(map(len, held.pending.values()))
        assert counted.cumulative_offset == slot

    def _attach(self, held: Held, body: Attach) -> set[RefusalCode]:
        if body.member == held.member:
            return set()
        if held.replaced_ms.get(body.member, -HOUR_MS) + HOUR_MS > self._now_ms:
            return {Codes.NOT_ATTACHED}
        if held.member:
            held.replaced_ms[held.member] = self._now_ms
        held.member = body.member
        if body.topic_id and held.topic_id and body.topic_id != held.topic_id:
            self._forget(held)
        held.topic_id = body.topic_id or held.topic_id
        self._group_commit(held, body.cursor, body.acknowledged)
        return set()

    def _forget(self, held: Held) -> None:
        """G3: the topic was created again."""
        below = range(0 if held.slot is None else held.slot[1] + 1)
        held.former |= {
            *held.acknowledged,
            *below,
            *(n for one in held.pending.values() for n in one),
        }
        held.acknowledged, held.pending, held.slot = {}, {}, None

    def _group_commit(self, held: Held, cursor: int, ranges: Ranges) -> None:
        for offset in offsets(ranges) | set(range(cursor)):
            held.acknowledged.setdefault(offset, GROUP)
        self._drop_acknowledged(held)

    def _acknowledge(self, held: Held, body: Acknowledge) -> set[RefusalCode]:
        if self.has_ended(body.txn):
            return {Codes.TRANSACTION_ENDED}
        mine = held.pending.get(body.txn, set())
        own_slot = held.slot[1] if held.slot and held.slot[0] == body.txn else -1
        new = {n for n in body.offsets if n not in mine and n > own_slot}
        wrong: set[RefusalCode] = set()
        for offset in new:
            if offset in held.acknowledged:
                wrong.add(Codes.ALREADY_ACKNOWLEDGED)
            elif held.pending_in(offset) - {body.txn}:
                wrong.add(Codes.PENDING_IN_ANOTHER_TRANSACTION)
        up_to = body.cumulative_offset
        if up_to is not None and up_to <= own_slot:
            up_to = None
        if up_to is not None:
            wrong |= self._cumulative_refusals(held, body.txn, up_to)
        if not wrong:
            held.pending.setdefault(body.txn, set()).update(new)
            if up_to is not None:
                held.slot = body.txn, up_to
                held.pending[body.txn] = {n for n in held.pending[body.txn] if n > up_to}
        return wrong

    def _cumulative_refusals(self, held: Held, txn: TxnId, up_to: int) -> set[RefusalCode]:
        others = {one for n in range(up_to + 1) for one in held.pending_in(n)}
        if held.slot is not None:
            others.add(held.slot[0])
        wrong = {Codes.PENDING_IN_ANOTHER_TRANSACTION} if others - {txn} else set()
        return wrong | ({Codes.ALREADY_ACKNOWLEDGED} if up_to < held.cursor else set())

    def _settle(self, subscription: SubscriptionId, body: Settle) -> None:
        held = self.held.get(subscription)
        if held is not None and not self._below(body.txn):
            self._end(held, body.txn, committed=body.committed)
        assert self.settled.setdefault(body.txn, body.committed) == body.committed
        coordinator = body.txn.coordinator
        known = self.low_watermarks.get(coordinator, 0)
        self.low_watermarks[coordinator] = max(known, body.low_watermark)
        for one in self.held.values():
            ended = [txn for txn in one.pending if self._below(txn)]
            for txn in ended:
                self._end(one, txn, committed=False)

    def _below(self, txn: TxnId) -> bool:
        return txn.sequence < self.low_watermarks.get(txn.coordinator, 0)

    def _end(self, held: Held, txn: TxnId, *, committed: bool) -> None:
        pending = held.pending.pop(txn, set())
        if held.slot is not None and held.slot[0] == txn:
            up_to, held.slot = held.slot[1], None
            pending |= {n for n in range(up_to + 1) if n not in held.acknowledged}
        if committed:
            assert not pending & held.acknowledged.keys(), "acknowledged by two transactions"
            held.acknowledged.update(dict.fromkeys(pending, txn))
        self._drop_acknowledged(held)

    def _drop_acknowledged(self, held: Held) -> None:
        for pending in held.pending.values():
            pending.difference_update(held.acknowledged)
        if held.slot is not None and held.slot[1] < held.cursor:
            held.slot = None


def offsets(ranges: Ranges) -> set[int]:
    """Every offset of some ranges."""
    return {offset for first, end in ranges for offset in range(first, end)}
