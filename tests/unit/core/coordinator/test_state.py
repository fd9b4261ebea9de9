from dataclasses import dataclass, field

import pytest

from stilltide.pipeline.core.coordinator.state import (
    ANSWERS_PER_CLIENT_MAX,
    FORGET_AFTER_MS,
    LISTED_MAX,
    LISTED_REGISTRATIONS_MAX,
    TRANSACTIONS_PER_OPEN_MAX,
    CoordinatorState,
    TxnState,
)
from stilltide.schemas.coordinator.transactions import (
    AddPartitions,
    AddSubscriptions,
    Answer,
    Change,
    Description,
    End,
    Ended,
    ForgetClients,
    Listed,
    Open,
    Opened,
    Registered,
    Release,
    TimedOut,
    TxnLogRecord,
    Unknown,
    Written,
)
from stilltide.schemas.log_frames import Fence, Noop
from stilltide.schemas.service.envelopes import Done, Refused, Request, client_key
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition

P = TopicPartition("orders", 0)
Q = TopicPartition("orders", 1)
CLIENT = b"application-0016"
KEY = client_key(CLIENT)

OPEN = Open(60_000, 1, (Registered(P, EndOffset(100), b"id"),))
COMMIT = End(0, True, (), False)
ABORT = End(0, False, (), False)
ADD_Q = AddPartitions(0, (Registered(Q, EndOffset(5), b""),))
ADD_NONE = AddPartitions(0, ())
READ = SubscriptionId(P, "billing")
ADD_READ = AddSubscriptions(0, (READ,))


@dataclass
class Log:
    """A coordinator's log and the state after it."""

    state: CoordinatorState = field(default_factory=CoordinatorState)
    number: int = 0
    at_ms: int = 1000

    def ask(self, body: Change) -> Answer | None:
        """A new request of one client, which has the answers of all before it."""
        self.number += 1
        return self.send(body, self.number, acked_through=self.number - 1)

    def send(
        self, body: Change, number: int, *, acked_through: int = 0, client: bytes = CLIENT
    ) -> Answer | None:
        """Any request."""
        return self.apply(Request(client, number, acked_through, 0, body))

    def apply(self, body: object) -> Answer | None:
        """Any record."""
        return self.state.apply(TxnLogRecord(body, self.at_ms))  # type: ignore[arg-type]

    @property
    def known(self) -> dict[int, tuple[TxnState, set[TopicPartition]]]:
        """State and partitions of each transaction that has not ended."""
        return {n: (t.state, set(t.partitions)) for n, t in self.state.transactions.items()}


def log(*bodies: object) -> Log:
    """A log with these requests and records, one after the other."""
    made = Log()
    for body in bodies:
        if isinstance(body, Open | AddPartitions | AddSubscriptions | End | Release):
            made.ask(body)
        else:
            made.apply(body)
    return made


def test_c0_open_gives_the_next_sequences():
    """C9: `count` transactions, on the same partitions, with consecutive sequences."""
    one = log(OPEN)
    assert one.ask(Open(500, 3, OPEN.partitions)) == Opened(1, 3)
    assert one.ask(OPEN) == Opened(4, 1)
    assert one.known == dict.fromkeys(range(5), (TxnState.OPEN, {P}))


def test_c9_transactions_of_one_open_are_separate():
    """C9: a partition added to one of them is not added to the others."""
    one = log(Open(500, 2, OPEN.partitions), ADD_Q)
    assert one.known == {0: (TxnState.OPEN, {P, Q}), 1: (TxnState.OPEN, {P})}


@pytest.mark.parametrize("count", [0, TRANSACTIONS_PER_OPEN_MAX + 1])
def test_c9_open_of_none_or_too_many_is_refused(count: int):
    """C9: one record must not open without bound."""
    one = log()
    assert isinstance(one.ask(Open(500, count, ())), Refused)
    assert one.state.next_sequence == 0
    assert one.ask(Open(500, TRANSACTIONS_PER_OPEN_MAX, ())) == Opened(0, TRANSACTIONS_PER_OPEN_MAX)


def test_c9_a_release_with_one_that_was_never_opened_releases_none():
    """C9: the client has mistaken its coordinator, so nothing it says of the others is taken."""
    one = log(OPEN)
    assert one.ask(Release((0, 1))) == Refused("transaction 1 was never opened")
    assert one.known == {0: (TxnState.OPEN, {P})}


def test_c9_released_transactions_no_longer_hold_the_watermark_back():
    """C7, C9: an unused one counts as ended at once, and leaves nothing to be driven."""
    one = log(Open(500, 3, OPEN.partitions), Release((0, 2)))
    assert (one.state.low_watermark, list(one.known)) == (1, [1])


def test_c9_a_release_of_too_many_is_refused():
    """C9: one record must not release without bound."""
    one = log(OPEN)
    answer = one.ask(Release((0,) * (TRANSACTIONS_PER_OPEN_MAX + 1)))
    assert answer == Refused("release of 1001 transactions at once")
    assert one.known == {0: (TxnState.OPEN, {P})}


MOVES: list[tuple[str, tuple[object, ...], Change | TimedOut | Ended, str | None, str | None]] = [
    ("OPEN", (), COMMIT, "COMMITTING", "done"),
    ("OPEN", (), ABORT, "ABORTING", "done"),
    ("OPEN", (), TimedOut(0), "ABORTING", None),
    ("OPEN", (), Ended(0), "OPEN", None),
    ("OPEN", (), Release((0,)), None, "done"),
    ("COMMITTING", (COMMIT,), Release((0,)), "COMMITTING", "done"),
    ("ABORTING", (ABORT,), Release((0,)), "ABORTING", "done"),
    ("ended", (COMMIT, Ended(0)), Release((0,)), None, "done"),
    ("released", (Release((0,)),), Release((0, 0)), None, "done"),
    ("released", (Release((0,)),), COMMIT, None, "refused"),
    ("released", (Release((0,)),), ADD_NONE, None, "refused"),
    ("released", (Release((0,)),), TimedOut(0), None, None),
    ("COMMITTING", (COMMIT,), COMMIT, "COMMITTING", "done"),
    ("COMMITTING", (COMMIT,), ABORT, "COMMITTING", "refused"),
    ("COMMITTING", (COMMIT,), TimedOut(0), "COMMITTING", None),
    ("COMMITTING", (COMMIT,), ADD_NONE, "COMMITTING", "refused"),
    ("COMMITTING", (COMMIT,), Ended(0), None, None),
    ("ABORTING", (ABORT,), ABORT, "ABORTING", "done"),
    ("ABORTING", (ABORT,), COMMIT, "ABORTING", "refused"),
    ("COMMITTING", (COMMIT,), ADD_READ, "COMMITTING", "refused"),
    ("ABORTING", (ABORT,), ADD_NONE, "ABORTING", "refused"),
    ("ABORTING", (ABORT,), Ended(0), None, None),
    ("ABORTING by time", (TimedOut(0),), COMMIT, "ABORTING", "refused"),
    ("ended", (COMMIT, Ended(0)), COMMIT, None, "refused"),
    ("ended", (COMMIT, Ended(0)), ABORT, None, "refused"),
    ("ended", (COMMIT, Ended(0)), ADD_NONE, None, "refused"),
    ("ended", (COMMIT, Ended(0)), ADD_READ, None, "refused"),
    ("ended", (COMMIT, Ended(0)), Ended(0), None, None),
    ("ended", (ABORT, Ended(0)), TimedOut(0), None, None),
]


@pytest.mark.parametrize(
    ("before", "body", "after", "answer"),
    [move[1:] for move in MOVES],
    ids=[f"{move[0]} {type(move[2]).__name__} {move[4]} {n}" for n, move in enumerate(MOVES)],
)
def test_c0_every_move(
    before: tuple[object, ...], body: object, after: str | None, answer: str | None
):
    """C0: legal moves are made, a repeated end is done, everything else changes nothing."""
    one = log(OPEN, *before)
    given = (
        one.ask(body)
        if isinstance(body, AddPartitions | AddSubscriptions | End | Release)
        else one.apply(body)
    )
    assert type(given) is {"done": Done, "refused": Refused, None: type(None)}[answer]
    assert [state.value for state, _ in one.known.values()] == ([after] if after else [])
    assert one.state.next_sequence == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (End(1, True, (), False), "transaction 1 was never opened"),
        (AddPartitions(7, ()), "transaction 7 was never opened"),
        (End(0, False, (), False), "transaction 0 is COMMITTING"),
    ],
)
def test_c0_a_refusal_says_why(body: Change, reason: str):
    """C0: the reason names the transaction and its state."""
    assert log(OPEN, COMMIT).ask(body) == Refused(reason)


def test_c0_an_ended_transaction_is_told_from_one_never_opened():
    """C0: the refusal shows whether the transaction has ended or was never opened."""
    assert log(OPEN, COMMIT, Ended(0)).ask(COMMIT) == Refused("transaction 0 has ended")


@pytest.mark.parametrize("body", [Noop(), Fence(b"n" * 16), TimedOut(9), Ended(9)])
def test_c0_records_about_nothing_change_nothing(body: object):
    """B5, C0: no-ops, fences, and time-outs or ends of transactions that are not held."""
    one = log(OPEN)
    assert one.apply(body) is None
    assert one.known == {0: (TxnState.OPEN, {P})}


@pytest.mark.parametrize("start_offset", [50, 100, 150])
def test_c2_the_first_registration_wins(start_offset: int):
    """C2: a repeat neither raises nor lowers the start offset."""
    again = Registered(P, EndOffset(start_offset), b"other")
    one = log(OPEN)
    assert one.ask(AddPartitions(0, (again,))) == Done()
    assert one.state.transactions[0].partitions == {P: OPEN.partitions[0]}


def test_g_a_subscription_is_registered_once():
    """G: each is settled once, in the order of registration, however often it was named."""
    pay = SubscriptionId(Q, "billing")
    one = log(Open(500, 1, (), (READ, READ)), AddSubscriptions(0, (pay, READ)))
    assert one.state.transactions[0].subscriptions == (READ, pay)


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("used", [(), (READ,), (READ, READ)])
def test_c9_only_what_was_acknowledged_in_is_settled(
    used: tuple[SubscriptionId, ...], *, committed: bool
):
    """C9: registered ahead, the others are forgotten; each is named once."""
    one = log(Open(500, 1, (), (SubscriptionId(Q, "billing"), READ)))
    assert one.ask(End(0, committed, (), False, used)) == Done()
    assert one.state.transactions[0].subscriptions == tuple(dict.fromkeys(used))


def test_c9_no_end_acknowledges_where_it_is_not_registered():
    """G: refused, and nothing was changed: the end with what is true follows."""
    other = SubscriptionId(Q, "billing")
    one = log(Open(500, 1, (), (READ,)))
    for committed in (True, False):
        refused = one.ask(End(0, committed, (), False, (READ, other)))
        assert refused == Refused(f"{other} is not registered with transaction 0")
    assert one.state.transactions[0].state is TxnState.OPEN
    assert one.ask(End(0, True, (), False, (READ,))) == Done()
    assert one.state.transactions[0].subscriptions == (READ,)


def test_c2_the_first_of_one_request_wins():
    """C2: also within one request."""
    one = log(Open(500, 1, (*OPEN.partitions, Registered(P, EndOffset(150), b""))))
    assert one.state.transactions[0].partitions == {P: OPEN.partitions[0]}


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ([(Q, 100, 101, 1)], "orders/1 is not registered"),
        ([(P, 99, 101, 1)], "1 records in [99, 101) of orders/0, registered from 100"),
        ([(P, 100, 102, 3)], "3 records in [100, 102)"),
        ([(P, 100, 102, 0)], "0 records in [100, 102)"),
        ([(P, 102, 100, 1)], "1 records in [102, 100)"),
        ([(P, 100, 101, 1), (P, 102, 103, 1)], "a partition is named twice"),
    ],
    ids=["unregistered", "below the start", "too many", "none", "backwards", "twice"],
)
def test_c6_a_commit_whose_counts_cannot_be_true_is_refused(
    written: list[tuple[TopicPartition, int, int, int]], reason: str
):
    """C6: refused with the numbers, and the transaction stays open for a true commit."""
    one = log(OPEN)
    answer = one.ask(End(0, True, tuple(_written(*each) for each in written), False))
    assert isinstance(answer, Refused)
    assert reason in answer.reason
    assert one.state.transactions[0].state is TxnState.OPEN
    assert one.ask(End(0, True, (_written(P, 100, 102, 2),), False)) == Done()
    assert one.state.transactions[0].written == (_written(P, 100, 102, 2),)


def _written(data: TopicPartition, first: int, end: int, count: int) -> Written:
    return Written(data, Offset(first), EndOffset(end), count)


def test_c6_a_repeated_commit_keeps_the_counts_of_the_first():
    """C0, C6: a repeated commit does not change the durable counts."""
    first = _written(P, 100, 102, 2)
    one = log(OPEN, End(0, True, (first,), False))
    assert one.ask(End(0, True, (_written(P, 100, 150, 9),), False)) == Done()
    assert one.state.transactions[0].written == (first,)


def test_c1b_a_repeated_request_has_no_second_effect():
    """C1b: the same answer, and no second transaction."""
    one = log()
    assert one.send(OPEN, 1) == Opened(0, 1)
    assert one.send(COMMIT, 2) == Done()
    assert one.send(OPEN, 1) == Opened(0, 1)
    assert one.send(COMMIT, 2) == Done()
    assert one.state.next_sequence == 1


def test_c1b_a_repeated_refusal_stays_one():
    """C1b: what was refused once does not take effect when it has become legal."""
    one = log()
    assert isinstance(one.send(COMMIT, 1), Refused)
    assert one.send(OPEN, 2) == Opened(0, 1)
    assert isinstance(one.send(COMMIT, 1), Refused)
    assert one.known == {0: (TxnState.OPEN, {P})}


def test_c1b_clients_have_numbers_of_their_own():
    """C1b: the same number of another client is another request."""
    one = log()
    assert one.send(OPEN, 1) == Opened(0, 1)
    assert one.send(OPEN, 1, client=b"other") == Opened(1, 1)


def test_c1b_an_acknowledged_request_is_ignored():
    """C1b: a late copy of what the client has the answer to is neither done nor answered."""
    one = log()
    one.send(OPEN, 1)
    one.send(OPEN, 3, acked_through=2)
    assert one.send(OPEN, 1) is None
    assert one.send(OPEN, 2) is None
    assert one.send(OPEN, 3, acked_through=2) == Opened(1, 1)
    assert one.state.next_sequence == 2


def test_c1b_acknowledged_answers_are_not_kept():
    """C1b: memory is bounded by what the client has not acknowledged."""
    one = log()
    for number in range(1, 100):
        one.send(ADD_NONE, number, acked_through=max(0, number - 10))
    assert len(one.state.clients[KEY].answers) == 10
    one.send(ADD_NONE, 5000, acked_through=4999)
    assert list(one.state.clients[KEY].answers) == [5000]


def test_c1b_a_client_that_acknowledges_nothing_is_bounded():
    """C1b: beyond the limit it is refused and nothing is remembered."""
    one = log()
    for number in range(1, ANSWERS_PER_CLIENT_MAX + 1):
        one.send(ADD_NONE, number)
    assert isinstance(one.send(OPEN, ANSWERS_PER_CLIENT_MAX + 1), Refused)
    assert len(one.state.clients[KEY].answers) == ANSWERS_PER_CLIENT_MAX
    assert one.state.next_sequence == 0


def test_c1b_a_forgotten_client_is_answered_unknown_never_refused():
    """C1b: what may have been done before is not guessed at, whatever order repeats come in."""
    one = log(OPEN, COMMIT, Ended(0))
    _forget(one)
    assert one.send(ADD_NONE, 5, acked_through=2) == Unknown()
    assert one.send(COMMIT, 3, acked_through=2) == Unknown()
    assert one.send(ADD_NONE, 5, acked_through=2) == Unknown()


def test_c1b_a_forgotten_client_is_served_again():
    """C1b: only what it asked up to its return is unknown; the next request is carried out."""
    one = log(OPEN)
    _forget(one)
    assert one.send(OPEN, 2, acked_through=1) == Unknown()
    assert one.send(OPEN, 3, acked_through=1) == Opened(1, 1)


def test_c1b_a_client_whose_first_request_never_arrived_is_served_in_the_end():
    """C1b: it gave that one up, so it seems to have been forgotten; it is not shut out."""
    one = log()
    assert one.send(OPEN, 2, acked_through=1) == Unknown()
    assert one.send(OPEN, 3, acked_through=2) == Opened(0, 1)


def test_c0_a_client_that_has_spoken_since_is_not_forgotten():
    """C0: the owner proposed it while a request was on its way; log order decides."""
    one = log(OPEN)
    one.at_ms += FORGET_AFTER_MS
    one.ask(OPEN)
    one.apply(ForgetClients((KEY, b"nobody")))
    assert one.send(OPEN, 2, acked_through=1) == Opened(1, 1)


def _forget(one: Log) -> None:
    one.at_ms += FORGET_AFTER_MS
    one.apply(ForgetClients((KEY,)))
    assert one.state.clients == {}


def test_c7_every_sequence_below_the_watermark_has_ended():
    """C7: the watermark is the oldest sequence that has not ended, or the next sequence."""
    one = log()
    marks = [one.state.low_watermark]
    for body in (
        Open(500, 3, ()),
        End(1, False, (), False),
        Ended(1),
        COMMIT,
        Ended(0),
        End(2, True, (), False),
        Ended(2),
    ):
        one = _next(one, body)
        marks.append(one.state.low_watermark)
    assert marks == [0, 0, 0, 0, 0, 2, 2, 3]


def _next(one: Log, body: object) -> Log:
    if isinstance(body, Ended):
        one.apply(body)
    else:
        one.ask(body)  # type: ignore[arg-type]
    return one


def test_describe_tells_open_ended_and_unknown_transactions_apart():
    """C0: three different answers."""
    one = log(OPEN, OPEN, COMMIT, Ended(0))
    assert one.state.describe(1, KEY) == Description(
        1, "OPEN", 1000, 60_000, OPEN.partitions, client_key=KEY
    )
    assert one.state.describe(0, KEY) == Description(0, "ENDED", 0, 0, (), committed=True)
    assert one.state.describe(2, KEY) == Refused("transaction 2 was never opened")


def test_list_shows_what_has_not_ended():
    """C7: by sequence, with the low watermark."""
    one = log(Open(500, 3, ()), COMMIT, Ended(0), End(2, False, (), False))
    listed = one.state.list_transactions(None)
    assert isinstance(listed, Listed)
    assert [(t.sequence, t.state) for t in listed.transactions] == [(1, "OPEN"), (2, "ABORTING")]
    assert listed.low_watermark == 1


def test_a_list_comes_in_pages():
    """C16: pages of bounded size show each transaction once; the last page says that it is."""
    one = log(*[Open(500, 1000, ())] * 2, Open(500, 1, ()), COMMIT, Ended(0))
    first = one.state.list_transactions(None)
    second = one.state.list_transactions(None, first.next_sequence)
    assert [len(it.transactions) for it in (first, second)] == [LISTED_MAX, LISTED_MAX]
    assert (first.next_sequence, second.next_sequence) == (LISTED_MAX + 1, 0)
    found = [it.sequence for page in (first, second) for it in page.transactions]
    assert found == list(range(1, 2 * LISTED_MAX + 1))


def test_a_page_ends_with_many_registrations():
    """C16: a page of transactions with many partitions has fewer transactions."""
    partitions = tuple(
        Registered(TopicPartition("orders", it), EndOffset(0), b"") for it in range(1000)
    )
    one = log(*[Open(500, 1, partitions)] * 15)
    listed = one.state.list_transactions(None)
    assert len(listed.transactions) == LISTED_REGISTRATIONS_MAX // 1000
    assert listed.next_sequence == LISTED_REGISTRATIONS_MAX // 1000
