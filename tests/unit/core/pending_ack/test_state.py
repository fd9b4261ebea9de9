"""What a pending-ack log means, rule by rule (G); conflicts and replays are the stateful test's."""

from itertools import count

import pytest

from stilltide.pipeline.core.pending_ack import machine as machine_module
from stilltide.pipeline.core.pending_ack import state as state_module
from stilltide.pipeline.core.pending_ack import state as transactions_module
from stilltide.pipeline.core.pending_ack import subscription as subscription_module
from stilltide.pipeline.core.pending_ack.machine import AckReply, PendingAckStore
from stilltide.pipeline.core.pending_ack.state import PendingAckState
from stilltide.schemas.pending_ack.acknowledgements import (
    AckAnswer,
    AckBody,
    Acknowledge,
    AckQuestion,
    AckRequest,
    Acks,
    Attach,
    CursorMoved,
    PendingAckRecord,
    Settle,
)
from stilltide.schemas.service.envelopes import Done, RefusalCode, Refused, Request
from stilltide.schemas.values import EndOffset, Offset, Range, SubscriptionId, TopicPartition, TxnId

HOUR_MS = 60 * 60 * 1000
READ = SubscriptionId(TopicPartition("orders", 0), "billing")
OTHER = SubscriptionId(TopicPartition("orders", 1), "billing")
X, Y = TxnId(0, 1), TxnId(0, 2)
FIRST, SECOND = bytes(15) + b"\x01", bytes(15) + b"\x02"
NUMBERS = count(1)


def request(body: AckBody, subscription: SubscriptionId = READ) -> AckRequest:
    """A request."""
    return Request(b"c", next(NUMBERS), 0, 0, AckQuestion(subscription, body))


class Log:
    """Applies requests to one state, as read from a log."""

    def __init__(self) -> None:
        self.state = PendingAckState()

    def ask(self, body: AckBody, at_ms: int = 0, subscription: SubscriptionId = READ) -> AckAnswer:
        """One effective record; its answer."""
        return self.state.apply(request(body, subscription), at_ms)

    def refused(self, body: AckBody, at_ms: int = 0) -> RefusalCode:
        """The code that a request is refused with; it changed nothing."""
        before = self.state.acks(READ)
        answer = self.ask(body, at_ms)
        assert isinstance(answer, Refused)
        assert self.state.acks(READ) == before
        return answer.code


@pytest.fixture
def log() -> Log:
    """A log in which the first member is attached at offset 5."""
    made = Log()
    made.ask(attach(FIRST))
    return made


def attach(member: bytes, cursor: int = 5, *acknowledged: tuple[int, int]) -> Attach:
    """A member's claim."""
    return Attach(member, EndOffset(cursor), ranges(*acknowledged))


def ranges(*bounds: tuple[int, int]) -> tuple[Range, ...]:
    """Ranges."""
    return tuple(Range(Offset(first), EndOffset(end)) for first, end in bounds)


def acknowledge(txn: TxnId, *offsets: int, up_to: int | None = None) -> Acknowledge:
    """By the first member."""
    return Acknowledge(txn, FIRST, tuple(map(Offset, offsets)), up_to)


def commit(txn: TxnId, low_watermark: int = 0) -> Settle:
    """Its coordinator has committed it."""
    return Settle(txn, committed=True, low_watermark=low_watermark)


def test_g_individual_and_cumulative_exclude_each_other(log: Log):
    """G, beyond Pulsar: no record is pending individually in one and cumulatively in another."""
    log.ask(acknowledge(X, 10))
    elsewhere = RefusalCode.PENDING_IN_ANOTHER_TRANSACTION
    assert log.refused(acknowledge(Y, up_to=10)) == elsewhere
    assert log.ask(acknowledge(Y, up_to=9)) == Done()
    assert log.refused(acknowledge(X, 9)) == elsewhere
    assert log.refused(acknowledge(X, up_to=12)) == elsewhere
    assert log.ask(acknowledge(X, 11)) == Done()


def test_g_the_cumulative_slot_moves_forward_only(log: Log):
    """G: what came before is a repeat; what was pending singly below is covered."""
    log.ask(acknowledge(X, 6, up_to=9))
    assert log.ask(acknowledge(X, 7, up_to=8)) == Done()
    (pending,) = log.state.acks(READ).pending
    assert (pending.ranges, pending.cumulative_offset) == ((), 9)
    assert log.refused(acknowledge(Y, up_to=4)) == RefusalCode.ALREADY_ACKNOWLEDGED


def test_g_a_watermark_drops_what_was_never_registered(log: Log):
    """G: a transaction that ended without a settle here is dropped as aborted, everywhere."""
    log.ask(attach(FIRST), subscription=OTHER)
    log.ask(acknowledge(X, 10), subscription=OTHER)
    log.ask(acknowledge(Y, 11))
    log.ask(commit(Y, low_watermark=2))
    assert log.state.acks(OTHER).pending == ()
    assert log.state.acks(OTHER).acknowledged == ()
    assert log.state.acks(READ).acknowledged == ranges((11, 12))
    assert log.refused(acknowledge(X, 12)) == RefusalCode.TRANSACTION_ENDED


def test_g_a_replaced_member_stays_replaced_for_an_hour(log: Log):
    """G: a late duplicate of its claim cannot take the subscription back."""
    log.ask(attach(SECOND), HOUR_MS)
    assert log.refused(attach(FIRST), 2 * HOUR_MS - 1) == RefusalCode.NOT_ATTACHED
    assert isinstance(log.ask(attach(FIRST), 2 * HOUR_MS), Acks)


def test_g3_a_topic_that_was_created_again_has_no_acknowledgements(log: Log):
    """G3: its messages have the offsets of the former one's, and are others."""
    log.ask(Attach(SECOND, EndOffset(5), (), topic_id=b"former" + bytes(10)))
    log.ask(Acknowledge(X, SECOND, (Offset(7),)))
    log.ask(CursorMoved(SECOND, EndOffset(20), ranges((30, 31))))
    known = log.state.base()
    third = bytes(15) + b"\x03"
    acks = log.ask(Attach(third, EndOffset(2), (), topic_id=b"latter" + bytes(10)))
    assert acks == Acks(EndOffset(2), (), (), third)
    log.ask(commit(X))
    assert log.state.acks(READ).cursor == 2
    assert log.refused(Attach(SECOND, EndOffset(5), ())) == RefusalCode.NOT_ATTACHED
    log.state = PendingAckState.from_base(known)  # the id is a part of the base
    acks = log.ask(Attach(third, EndOffset(0), (), topic_id=b"latter" + bytes(10)))
    assert acks == Acks(EndOffset(0), (), (), third)


@pytest.mark.parametrize("topic_id", [b"", b"former" + bytes(10)])
def test_g3_without_another_id_acknowledgements_stay(log: Log, topic_id: bytes):
    """G3: the id of a client that does not know it."""
    log.ask(Attach(SECOND, EndOffset(20), (), topic_id=b"former" + bytes(10)))
    third = bytes(15) + b"\x03"
    acks = log.ask(Attach(third, EndOffset(0), (), topic_id=topic_id))
    assert isinstance(acks, Acks)
    assert acks.cursor == 20


def test_g_a_repeated_claim_is_the_same_attachment(log: Log):
    """G: what a repeat says of the group's commit is old, and changes nothing."""
    log.ask(CursorMoved(FIRST, EndOffset(9), ()))
    assert log.ask(attach(FIRST, 5)) == Acks(EndOffset(9), (), (), FIRST)


def test_g_the_group_s_word_joins_what_is_known(log: Log):
    """G: the next member brings the group's commit; what was committed here stays."""
    log.ask(acknowledge(X, 8))
    log.ask(commit(X))
    taken = log.ask(attach(SECOND, 6, (7, 8), (20, 22)))
    assert taken == Acks(EndOffset(6), ranges((7, 9), (20, 22)), (), SECOND)


def test_g_nobody_acknowledges_without_being_attached(log: Log):
    """G: refused for a member that is not attached, with or without another one attached."""
    wrong = Acknowledge(X, SECOND, (Offset(9),))
    assert log.refused(wrong) == RefusalCode.NOT_ATTACHED
    nobody = log.ask(wrong, subscription=OTHER)
    assert isinstance(nobody, Refused)
    assert nobody.code == RefusalCode.NOT_ATTACHED


def test_the_offsets_held_are_bounded(log: Log, monkeypatch: pytest.MonkeyPatch):
    """Beyond the bound is refused as a whole, until something is settled or committed."""
    monkeypatch.setattr(subscription_module, "HELD_MAX", 3)
    log.ask(acknowledge(X, 10, 12, 14))
    assert log.refused(acknowledge(X, 16)) == RefusalCode.TOO_MANY
    log.ask(commit(X))
    assert log.refused(acknowledge(Y, 16)) == RefusalCode.TOO_MANY
    moved = CursorMoved(FIRST, EndOffset(5), ranges((20, 21)))
    assert log.refused(moved) == RefusalCode.TOO_MANY
    assert log.ask(CursorMoved(FIRST, EndOffset(11), ())) == Done()
    assert log.ask(acknowledge(Y, 16)) == Done()


def test_the_subscriptions_of_a_log_are_bounded(log: Log, monkeypatch: pytest.MonkeyPatch):
    """One more is refused, unless one silent for an hour holds nothing that its group does not."""
    monkeypatch.setattr(state_module, "SUBSCRIPTIONS_MAX", 1)
    refused = log.ask(attach(FIRST), HOUR_MS - 1, OTHER)
    assert isinstance(refused, Refused)
    assert refused.code == RefusalCode.TOO_MANY
    log.ask(acknowledge(X, 9), HOUR_MS - 1)
    assert isinstance(log.ask(attach(FIRST), 2 * HOUR_MS, OTHER), Refused)
    log.ask(commit(X), 2 * HOUR_MS)
    assert isinstance(log.ask(attach(FIRST), 2 * HOUR_MS, OTHER), Refused)
    log.ask(CursorMoved(FIRST, EndOffset(10), ()), 2 * HOUR_MS)
    assert isinstance(log.ask(attach(FIRST), 3 * HOUR_MS, OTHER), Acks)
    assert list(log.state.subscriptions) == [OTHER]


def test_what_is_remembered_of_settled_transactions_is_bounded(
    log: Log, monkeypatch: pytest.MonkeyPatch
):
    """Beyond the bound the oldest gap closes: its transactions acknowledge nothing further."""
    monkeypatch.setattr(transactions_module, "SETTLED_MAX", 2)
    log.ask(acknowledge(TxnId(0, 4), 10))
    for sequence in (3, 5, 7):
        log.ask(commit(TxnId(0, sequence)))
    assert log.refused(acknowledge(TxnId(0, 4), 11)) == RefusalCode.TRANSACTION_ENDED
    assert log.ask(acknowledge(TxnId(0, 6), 11)) == Done()
    log.ask(commit(TxnId(0, 4)))
    assert log.state.acks(READ).acknowledged == ranges((10, 11))


def test_c1_only_the_owner_that_serves_answers():
    """C1: a replay answers nothing, and an owner nothing that another one appended."""
    store = PendingAckStore()
    records = [PendingAckRecord(request(attach(FIRST)), 0)]
    assert store.applied(Offset(0), records, own=False, now_ms=0) == []
    store.serve(Offset(1), 0)
    assert store.applied(Offset(2), records, own=False, now_ms=0) == []
    asked = request(acknowledge(X, 9))
    effects = store.applied(Offset(3), [PendingAckRecord(asked, 0)], own=True, now_ms=0)
    assert effects == [AckReply(asked, Done())]
    assert store.served == {READ}


def test_c16_claims_of_one_entry_get_bounded_answers(monkeypatch: pytest.MonkeyPatch):
    """C16: later claims take effect without an answer; acknowledgements are answered as ever."""
    monkeypatch.setattr(machine_module, "ANSWERED_ITEMS_MAX", 20)
    store = PendingAckStore()
    store.serve(Offset(0), 0)
    offsets = tuple(Offset(100 + 2 * number) for number in range(10))
    asked = [attach(FIRST), Acknowledge(X, FIRST, offsets), *[attach(FIRST)] * 9, attach(SECOND)]
    asked.append(Acknowledge(Y, SECOND, (Offset(99),)))
    records = [PendingAckRecord(request(body), 0) for body in asked]
    answers = [
        it.answer
        for it in store.applied(Offset(1), records, own=True, now_ms=0)
        if isinstance(it, AckReply)
    ]
    assert [type(it) for it in answers] == [Acks, Done, Acks, Acks, Done]
    later = [PendingAckRecord(request(attach(SECOND)), 0)]
    (again,) = store.applied(Offset(2), later, own=True, now_ms=0)
    assert isinstance(again, AckReply)
    assert isinstance(again.answer, Acks)
    assert again.answer.member == SECOND


def test_the_served_are_among_the_held(monkeypatch: pytest.MonkeyPatch):
    """What the log has forgotten is not remembered as served: that is bounded by what is held."""
    monkeypatch.setattr(state_module, "SUBSCRIPTIONS_MAX", 1)
    monkeypatch.setattr(machine_module, "SUBSCRIPTIONS_MAX", 1)
    store = PendingAckStore()
    store.serve(Offset(0), 0)
    asked = [
        (attach(FIRST), READ),
        (acknowledge(X, 9), READ),
        (commit(X), READ),
        (CursorMoved(FIRST, EndOffset(10), ()), READ),
        (attach(FIRST), OTHER),
        (acknowledge(Y, 9), OTHER),
    ]
    for hour, (body, subscription) in enumerate(asked):
        record = PendingAckRecord(request(body, subscription), hour * HOUR_MS)
        store.applied(Offset(hour + 1), [record], own=True, now_ms=0)
    assert store.served == {OTHER}
