import pytest

from stilltide.pipeline.core.coordinator.machine import (
    ENDED_DELAY_MS,
    FORGET_EVERY_MS,
    AnnouncePartitions,
    Coordinator,
    CoordinatorEffect,
    EndParticipants,
    Propose,
    ReadEnds,
    Reply,
    WriteBase,
)
from stilltide.pipeline.core.coordinator.state import FORGET_AFTER_MS
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.coordinator.transactions import (
    Abort,
    AbortCause,
    AddPartitions,
    AddSubscriptions,
    Change,
    Describe,
    Description,
    End,
    Ended,
    ForgetClients,
    Listed,
    ListTransactions,
    LogBody,
    Open,
    Opened,
    Registered,
    Release,
    TimedOut,
    TxnLogRecord,
    Written,
)
from stilltide.schemas.log_frames import Noop
from stilltide.schemas.retry import STEP
from stilltide.schemas.service.envelopes import Done, Refused, Request, client_key
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition, TxnId

P = TopicPartition("orders", 0)
Q = TopicPartition("orders", 1)
PARTITIONS = (Registered(P, EndOffset(100), b"p"), Registered(Q, EndOffset(7), b"q"))
OPEN = Open(5000, 1, PARTITIONS)
WRITTEN = (Written(P, Offset(101), EndOffset(104), 2),)
COMMIT = End(0, True, WRITTEN, False)
ABORT = End(0, False, (), False)
NOW_MS = 1_000_000
CLIENT = bytes(16)
KEY = client_key(CLIENT)

NEW = AnnouncePartitions([P, Q])
MARKERS_OF_COMMIT = [
    Marker(P, TxnId(3, 0), True, EndOffset(100), EndOffset(104), 2, b"p"),
]


class Log:
    """A log and the coordinator that owns it; one client asks."""

    def __init__(self) -> None:
        self.records: list[TxnLogRecord] = []
        self.number = 0
        self.coordinator = Coordinator(3)
        self.coordinator.serve(Offset(0), NOW_MS)

    def request(self, body: Change) -> Request:
        """The client's next request."""
        self.number += 1
        return Request(CLIENT, self.number, 0, 0, body)

    def add(
        self, body: LogBody | Change, *, own: bool = True, now_ms: int = NOW_MS
    ) -> list[CoordinatorEffect]:
        """One effective entry of one record."""
        if isinstance(body, Open | AddPartitions | AddSubscriptions | End | Release | Abort):
            body = self.request(body)
        self.records.append(TxnLogRecord(body, now_ms))
        offset = Offset(len(self.records))  # behind the fence at 0
        return self.coordinator.applied(offset, self.records[-1:], own=own, now_ms=now_ms)

    def last_request(self) -> Request:
        """What an answer refers to."""
        return next(one.body for one in self.records[::-1] if isinstance(one.body, Request))

    def reply(self, answer: Opened | Done | Refused) -> Reply:
        """The answer to the last request."""
        return Reply(self.last_request(), answer)

    def take_over(self, now_ms: int = NOW_MS) -> list[CoordinatorEffect]:
        """Another owner replays the log, silently, and serves."""
        self.coordinator = Coordinator(3)
        assert self.coordinator.deadline_ms is None
        for number, record in enumerate(self.records, 1):
            applied = self.coordinator.applied(Offset(number), [record], own=False, now_ms=now_ms)
            assert applied == []
        return self.coordinator.serve(Offset(len(self.records) + 1), now_ms)


def opened(*bodies: LogBody | Change) -> Log:
    """A log with transaction 0 open on P and Q, and these entries behind it."""
    log = Log()
    for body in (OPEN, *bodies):
        log.add(body)
    return log


def test_c1_an_owner_answers_its_own_entry():
    """C1: the answer follows the entry that makes it true, a refusal too."""
    log = Log()
    assert log.add(OPEN) == [log.reply(Opened(0, 1)), NEW]
    assert log.add(AddPartitions(0, ())) == [log.reply(Done())]
    assert log.add(AddPartitions(4, ())) == [log.reply(Refused("transaction 4 was never opened"))]


def test_e7_each_new_data_partition_is_announced_once():
    """E7: the first registration on a partition is announced; a refused one is not.

    Another owner does not know what was announced, and does it again.
    """
    other = TopicPartition("payments", 2)
    add = AddPartitions(0, (PARTITIONS[0], Registered(other, EndOffset(0), b"o")))
    log = opened()
    assert log.add(add._replace(sequence=9)) == [
        log.reply(Refused("transaction 9 was never opened"))
    ]
    assert log.add(add) == [log.reply(Done()), AnnouncePartitions([other])]
    assert log.add(OPEN) == [log.reply(Opened(1, 1))]
    log.take_over()
    assert log.add(OPEN) == [log.reply(Opened(2, 1)), NEW]


def test_the_answers_of_an_entry_come_first():
    """A client that is answered goes on while the rest is done."""
    log = opened(OPEN)
    ends = [COMMIT, COMMIT._replace(sequence=1)]
    records = [TxnLogRecord(log.request(end), NOW_MS) for end in ends]
    effects = log.coordinator.applied(Offset(9), records, own=True, now_ms=NOW_MS)
    assert [type(it) for it in effects] == [Reply, Reply, EndParticipants, EndParticipants]


def test_c1_an_owner_does_not_answer_for_its_predecessor():
    """C1: the client asks the new owner again, and is answered from that entry."""
    log = Log()
    assert log.add(OPEN, own=False) == [NEW]


def test_c1_an_ignored_request_is_not_answered():
    """C1b: a request whose answer the client has acknowledged is not answered again."""
    log = opened()
    acked = Request(CLIENT, 2, 1, 0, AddPartitions(0, ()))
    log.add(acked)
    assert log.add(Request(CLIENT, 1, 0, 0, OPEN)) == []


def test_c1_questions_are_answered_from_the_state():
    """C1: `asked` after the no-op was read answers from the log's state."""
    log = opened(ABORT)
    described = log.coordinator.asked(log.request(Describe(0)), operator=False)  # type: ignore[arg-type]
    aborting = Description(0, "ABORTING", NOW_MS, 5000, PARTITIONS, client_key=KEY)
    assert described == aborting._replace(cause=AbortCause.CLIENT)
    listed = log.coordinator.asked(log.request(ListTransactions()), operator=True)  # type: ignore[arg-type]
    assert isinstance(listed, Listed)
    assert listed.transactions == (described,)
    assert (listed.open_count, listed.committing_count, listed.aborting_count) == (0, 0, 1)
    assert listed.aborts == ((0, AbortCause.CLIENT),)


def test_a_list_names_the_place_in_the_log_that_it_tells_of():
    """As long as the log ends there, the same question has the same answer."""
    log = opened()
    before = log.coordinator.asked(log.request(ListTransactions()), operator=True)  # type: ignore[arg-type]
    log.add(ABORT)
    after = log.coordinator.asked(log.request(ListTransactions()), operator=True)  # type: ignore[arg-type]
    assert isinstance(before, Listed)
    assert isinstance(after, Listed)
    assert after.as_of == before.as_of + 1 == log.coordinator.read_to
    assert log.coordinator.changed_at == before.as_of
    log.add(Noop())
    assert log.coordinator.read_to == after.as_of + 1
    assert log.coordinator.changed_at == before.as_of


def test_c4_a_commit_writes_a_marker_for_every_partition_written_to():
    """C3, C4, C6: markers have the client's end and count; partitions without records get none."""
    log = opened()
    ended = EndParticipants(0, True, MARKERS_OF_COMMIT, (), KEY)
    assert log.add(COMMIT) == [log.reply(Done()), ended]


def test_c4_ended_is_proposed_only_after_the_markers():
    """C4: nothing ends before every marker is acknowledged."""
    log = opened(COMMIT)
    assert log.coordinator.tick(NOW_MS + 4999) == []
    assert log.coordinator.appending() == []
    assert log.coordinator.participants_ended(0, NOW_MS) == []
    assert log.coordinator.appending() == [Propose(Ended(0))]
    assert log.coordinator.appending() == []
    assert log.add(Ended(0)) == []
    assert log.coordinator.participants_ended(0, NOW_MS) == []
    assert log.coordinator.appending() == []
    assert log.coordinator.state.transactions == {}


def test_c4_ended_waits_for_an_entry_to_join_but_not_for_ever():
    """C4: `Ended` joins another entry, and is an entry of its own only if none is appended."""
    log = opened(COMMIT)
    log.coordinator.participants_ended(0, NOW_MS)
    log.coordinator.participants_ended(0, NOW_MS + 1)
    assert log.coordinator.deadline_ms == NOW_MS + ENDED_DELAY_MS
    assert log.coordinator.tick(NOW_MS + ENDED_DELAY_MS - 1) == []
    assert log.coordinator.tick(NOW_MS + ENDED_DELAY_MS) == [Propose(Ended(0))]
    assert log.coordinator.deadline_ms == NOW_MS + 5000


def test_c3_an_abort_reads_the_ends_first():
    """C3: the end offset is the partition's own, read when ABORTING is effective."""
    log = opened()
    assert log.add(ABORT) == [log.reply(Done()), ReadEnds(0, (P, Q))]
    ends = {P: EndOffset(110), Q: EndOffset(9)}
    assert log.coordinator.ends_read(0, ends) == [
        EndParticipants(
            0,
            False,
            [
                Marker(P, TxnId(3, 0), False, EndOffset(100), EndOffset(110), 0, b"p"),
                Marker(Q, TxnId(3, 0), False, EndOffset(7), EndOffset(9), 0, b"q"),
            ],
            (),
            KEY,
        )
    ]


def test_e8_a_deleted_partition_has_no_end_offset():
    """E8: its marker is written without one, so the transaction can end."""
    log = opened(ABORT)
    [effect] = log.coordinator.ends_read(0, {P: EndOffset(110)})
    assert isinstance(effect, EndParticipants)
    assert [one.end_offset for one in effect.markers] == [110, None]


@pytest.mark.parametrize("before", [(), (COMMIT,), (ABORT, Ended(0))])
def test_c3_ends_that_nobody_waits_for_are_ignored(before: tuple[LogBody | Change, ...]):
    """C3: only an aborting transaction takes its ends from the log."""
    log = opened(*before)
    assert log.coordinator.ends_read(0, {P: EndOffset(1), Q: EndOffset(1)}) == []


@pytest.mark.parametrize("body", [End(0, True, (), False), End(0, False, (), False)])
def test_c4_a_transaction_without_partitions_ends_too(body: End):
    """C4: a transaction without partitions has no markers to wait for."""
    log = Log()
    log.add(Open(5000, 1, ()))
    assert log.add(body) == [log.reply(Done()), EndParticipants(0, body.committed, [], (), KEY)]


@pytest.mark.parametrize("end", [End(0, True, (), False), End(0, False, (), False)])
def test_c4_every_registered_subscription_is_settled_before_the_end(end: End):
    """C4, G: each once, however often it was registered."""
    orders, pay = SubscriptionId(P, "billing"), SubscriptionId(Q, "billing")
    log = Log()
    log.add(Open(5000, 1, (), (orders,)))
    assert log.add(AddSubscriptions(0, (orders, pay))) == [log.reply(Done())]
    assert log.add(end) == [
        log.reply(Done()),
        EndParticipants(0, end.committed, [], (orders, pay), KEY),
    ]


def test_c5_wait_visible_answers_when_every_marker_is_durable():
    """C5: `Ended` is not waited for; a repeat meanwhile waits too."""
    log = opened()
    waiting = log.request(End(0, True, WRITTEN, True))
    assert log.add(waiting) == [EndParticipants(0, True, MARKERS_OF_COMMIT, (), KEY)]
    assert log.add(waiting) == []
    assert set(log.coordinator.participants_ended(0, NOW_MS)) == {Reply(waiting, Done())}
    log.add(Ended(0))
    assert log.add(waiting) == [Reply(waiting, Done())]


def test_c5_a_repeat_behind_the_markers_is_answered_with_the_end():
    """C5: the first answer was lost; the repeat waits for `Ended`, which is on its way."""
    log = opened(COMMIT)
    log.coordinator.participants_ended(0, NOW_MS)
    waiting = log.request(End(0, True, WRITTEN, True))
    assert log.add(waiting) == []
    assert log.add(Ended(0)) == [Reply(waiting, Done())]


def test_c5_wait_visible_does_not_delay_a_refusal():
    """C5: a refused commit is answered at once."""
    log = opened(ABORT)
    assert log.add(End(0, True, (), True)) == [
        log.reply(Refused("transaction 0 was aborted by its client"))
    ]


def test_c7_a_transaction_times_out():
    """C7: proposed at its time, not before; aborted when the proposal is effective."""
    log = opened()
    assert log.coordinator.deadline_ms == NOW_MS + 5000
    assert log.coordinator.tick(NOW_MS + 4999) == []
    assert log.coordinator.tick(NOW_MS + 5000) == [Propose(TimedOut(0))]
    assert log.add(TimedOut(0)) == [ReadEnds(0, (P, Q))]


def test_c7_an_ended_transaction_does_not_time_out():
    """C7: when the time-out of an ended transaction comes, nothing is proposed."""
    log = opened(COMMIT, Ended(0))
    (base,) = log.coordinator.tick(NOW_MS + 5000)
    assert isinstance(base, WriteBase)


def test_c7_a_commit_in_front_of_the_time_out_wins():
    """C0, C7: log order decides between them."""
    log = opened()
    log.coordinator.tick(NOW_MS + 5000)
    log.add(COMMIT)
    assert log.add(TimedOut(0)) == []
    assert log.coordinator.state.transactions[0].state.value == "COMMITTING"


@pytest.mark.parametrize(
    ("before", "again"),
    [
        ((COMMIT,), EndParticipants(0, True, MARKERS_OF_COMMIT, (), KEY)),
        ((ABORT,), ReadEnds(0, (P, Q))),
    ],
)
def test_c4_what_is_lost_on_the_way_is_done_again(
    before: tuple[Change, ...], again: CoordinatorEffect
):
    """C4: a failed marker, read or proposal only costs time."""
    log = opened(*before)
    log.coordinator.lost(0, NOW_MS)
    assert log.coordinator.tick(NOW_MS + STEP.wait_ms() - 1) == []
    assert log.coordinator.tick(NOW_MS + STEP.wait_ms()) == [again]
    assert log.coordinator.tick(NOW_MS + 3 * STEP.wait_ms()) == []


def test_c7_a_lost_time_out_is_proposed_again():
    """B5, C7: an append that will never be effective does not keep a transaction open."""
    log = opened()
    log.coordinator.tick(NOW_MS + 5000)
    log.coordinator.lost(0, NOW_MS + 5000)
    assert log.coordinator.tick(NOW_MS + 5000 + STEP.wait_ms()) == [Propose(TimedOut(0))]


def test_c4_a_new_owner_drives_what_its_predecessor_left():
    """C4: a new owner has no effects while it replays, then completes what the log contains."""
    log = opened(COMMIT)
    assert log.take_over() == [EndParticipants(0, True, MARKERS_OF_COMMIT, (), KEY)]


def test_c7_a_new_owner_times_out_by_the_time_of_the_opening():
    """C7: a change of owners does not prolong a transaction."""
    log = opened()
    assert log.take_over(NOW_MS + 4000) == []
    assert log.coordinator.deadline_ms == NOW_MS + 5000
    assert log.coordinator.tick(NOW_MS + 5000) == [Propose(TimedOut(0))]


def test_c5_a_repeated_commit_waits_at_the_new_owner():
    """C5: the client asks again, and is answered when the transaction has ended."""
    log = opened()
    waiting = log.request(End(0, True, WRITTEN, True))
    log.add(waiting)
    log.take_over()
    assert log.add(waiting) == []
    assert log.add(Ended(0)) == [Reply(waiting, Done())]


def test_c1b_silent_clients_are_forgotten():
    """C1b: proposed once they have been silent for an hour, and only those."""
    log = opened(ABORT, Ended(0))
    later_ms = NOW_MS + FORGET_AFTER_MS
    log.add(Request(b"busy", 1, 0, 0, OPEN), now_ms=later_ms)
    log.add(Ended(0))
    effects = log.coordinator.tick(later_ms)
    assert Propose(ForgetClients((KEY,))) in effects
    log.add(ForgetClients((KEY,)), now_ms=later_ms)
    assert set(log.coordinator.state.clients) == {client_key(b"busy")}


def test_c1b_clients_are_looked_over_once_a_minute():
    """C1b: the walk over all clients is not paid for at every tick."""
    log = opened(ABORT, Ended(0))
    later_ms = NOW_MS + FORGET_AFTER_MS
    log.add(Request(b"busy", 1, 0, 0, ABORT), now_ms=later_ms)
    forgotten = Propose(ForgetClients((KEY,)))
    assert forgotten in log.coordinator.tick(later_ms)
    assert forgotten not in log.coordinator.tick(later_ms + FORGET_EVERY_MS - 1)
    assert forgotten in log.coordinator.tick(later_ms + FORGET_EVERY_MS)


def test_ended_transactions_leave_nothing_behind():
    """Memory is bounded by the transactions that are held, not by those of the last hour."""
    log = Log()
    for sequence in range(5000):
        log.add(Open(60_000, 1, ()))
        log.add(End(sequence, False, (), False))
        log.add(Ended(sequence))
    assert len(log.coordinator._due) <= 1002
    assert not log.coordinator._driving
    assert not log.coordinator._waiting
    assert not log.coordinator._ending
