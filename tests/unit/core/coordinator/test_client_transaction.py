"""C3, C5, C6, C12, C13: how a client's transaction ends; each effect's result is given by hand."""

import pytest

from stilltide.pipeline.core.coordinator.client_transaction import (
    AbortFailed,
    AskDecision,
    AskEnd,
    AskEndAgain,
    AskOutcome,
    AskPrepare,
    ClientTransaction,
    Collect,
    DropRecords,
    EndEffect,
    Ending,
    LookAtTopics,
    PartitionWrites,
    ReadEndOffset,
    ToSettle,
)
from stilltide.pipeline.core.topic_table import KnownTopic, TopicRecreated
from stilltide.pipeline.errors import (
    DecidedOtherwiseError,
    OutcomeUnknownError,
    RefusedError,
    RequestTimeoutError,
    TopicRecreatedError,
    TransactionStateError,
)
from stilltide.schemas.coordinator.prepared_tokens import hash_of
from stilltide.schemas.coordinator.transactions import (
    End,
    EndPrepared,
    Prepare,
    Registered,
    Unknown,
    Written,
)
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.service.envelopes import Done
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition, TxnId

DATA = TopicPartition("orders", 0)
TXN = TxnId(1, 7)
NOTHING = ToSettle(acknowledged=False, ended_in=None)
LOST = StilltideError("not delivered")
REFUSED, LATE = RefusedError("not open"), RequestTimeoutError("no answer")


def transaction(*offsets: int, error: StilltideError | None = None) -> ClientTransaction:
    """A transaction whose records are durable at the offsets, -1 for an unknown one."""
    machine = ClientTransaction()
    machine.begun(TXN)
    machine.topics["orders"] = KnownTopic(b"1", 1)
    writes = PartitionWrites(Registered(DATA, EndOffset(3), b"1"), lambda: None)
    machine.registered(writes)
    writes.sent = len(offsets) + (error is not None)
    for offset in offsets:
        writes.delivered(None, offset)
    if error is not None:
        writes.delivered(error, -1)
    return machine


def recreate(machine: ClientTransaction) -> None:
    """The topic of the transaction is created again."""
    assert machine.topic_recreated(TopicRecreated("orders", b"1", b"2"), ())


def results(ending: Ending, *given: object) -> list[EndEffect]:
    """The effects of an end, whose results are given; an error is thrown."""
    effects = [next(ending)]
    for result in given:
        try:
            thrown = isinstance(result, StilltideError)
            effects.append(ending.throw(result) if thrown else ending.send(result))
        except StopIteration:
            break
    return effects


def end(*written: Written, committed: bool = True, wait_visible: bool = False) -> End:
    """A request to end the transaction."""
    return End(7, committed=committed, written=written, wait_visible=wait_visible)


WRITTEN = Written(DATA, Offset(5), EndOffset(9), 2)


def test_a_commit_counts_what_is_durable():
    """C6: reports come in any order; C3: the end is above the highest offset."""
    machine = transaction(8, 5)
    ending = machine.commit(wait_visible=True)
    asked = AskEnd(end(WRITTEN, wait_visible=True), opens_ahead=True)
    assert results(ending, NOTHING, Done()) == [Collect(), asked]
    assert (machine.state, machine.over) == ("committed", True)


def test_a_record_without_offset_has_wider_bounds():
    """C3: from the start of the registration to an end offset read after the report."""
    ending = transaction(8, -1).commit(wait_visible=False)
    effects = results(ending, NOTHING, EndOffset(20))
    written = Written(DATA, Offset(3), EndOffset(20), 2)
    assert effects == [Collect(), ReadEndOffset(DATA), AskEnd(end(written), opens_ahead=True)]


def test_a_transaction_without_records_commits_without_its_coordinator():
    """Nothing was registered, so nobody waits for an outcome."""
    machine = ClientTransaction()
    assert results(machine.commit(wait_visible=False), NOTHING) == [Collect()]
    assert machine.state == "committed"


def test_what_was_not_delivered_is_aborted():
    """C6: the producer's error is raised after the abort."""
    machine = transaction(5, error=LOST)
    ending = machine.commit(wait_visible=False)
    aborted = AskEnd(end(committed=False), opens_ahead=True)
    assert results(ending, NOTHING, None, NOTHING) == [
        Collect(),
        LookAtTopics(LOST),
        DropRecords(),
        aborted,
    ]
    with pytest.raises(StilltideError, match="not delivered"):
        ending.send(Done())
    assert (machine.state, machine.over) == ("aborted", True)


def test_an_abort_that_fails_is_logged():
    """The application hears of the error that made the transaction abort."""
    ending = transaction(error=LOST).commit(wait_visible=False)
    assert results(ending, NOTHING, None, NOTHING, LATE)[-1] == AbortFailed(LATE)
    with pytest.raises(StilltideError, match="not delivered"):
        next(ending)


def test_a_topic_that_was_created_again_is_not_committed():
    """C13: neither when it was noticed before the commit, nor by the look after an error."""
    machine = transaction(5)
    recreate(machine)
    assert not machine.takes_records
    ending = machine.commit(wait_visible=False)
    aborted = AskEnd(end(committed=False), opens_ahead=False)
    assert results(ending, NOTHING, NOTHING) == [Collect(), DropRecords(), aborted]
    with pytest.raises(TopicRecreatedError):
        ending.send(Done())

    machine = transaction(error=LOST)
    ending = machine.commit(wait_visible=False)
    results(ending, NOTHING)
    recreate(machine)
    assert results(ending, NOTHING) == [DropRecords(), aborted]
    with pytest.raises(TopicRecreatedError) as caught:
        ending.send(Done())
    assert caught.value.__cause__ is LOST


def test_a_topic_of_others_is_no_failure():
    """C13: a topic that was neither used nor registered ahead (C9)."""
    machine = transaction(5)
    change = TopicRecreated("bills", b"1", b"2")
    assert not machine.topic_recreated(change, ())
    assert machine.takes_records
    assert machine.topic_recreated(change, {"bills"})
    assert not machine.takes_records


def test_a_refusal_looks_for_a_topic_that_was_created_again():
    """C13: the coordinator refused, and left the transaction open: it is aborted."""
    machine = transaction(5)
    ending = machine.commit(wait_visible=False)
    assert results(ending, NOTHING, REFUSED)[-1] == LookAtTopics(REFUSED)
    recreate(machine)
    assert results(ending) == [AskEnd(end(committed=False), opens_ahead=False)]
    with pytest.raises(TopicRecreatedError):
        ending.send(Done())
    assert machine.state == "aborted"


@pytest.mark.parametrize(
    ("answers", "effects", "error"),
    [
        ([Done()], [AskEndAgain(end(WRITTEN))], None),
        ([REFUSED, "committed"], [AskEndAgain(end(WRITTEN)), AskOutcome()], None),
        ([REFUSED, "aborted"], [AskEndAgain(end(WRITTEN)), AskOutcome()], RefusedError),
        ([Unknown(), "committed"], [AskEndAgain(end(WRITTEN)), AskOutcome()], None),
        ([REFUSED, "forgotten"], [AskEndAgain(end(WRITTEN)), AskOutcome()], OutcomeUnknownError),
        ([REFUSED, "open"], [AskEndAgain(end(WRITTEN)), AskOutcome()], OutcomeUnknownError),
        ([REFUSED, REFUSED], [AskEndAgain(end(WRITTEN)), AskOutcome()], OutcomeUnknownError),
        ([REFUSED, LATE], [AskEndAgain(end(WRITTEN)), AskOutcome()], OutcomeUnknownError),
        ([LATE], [AskEndAgain(end(WRITTEN))], OutcomeUnknownError),
    ],
)
def test_a_forgotten_answer_is_asked_for(
    answers: list[object], effects: list[EndEffect], error: type[StilltideError] | None
):
    """C12: the request is repeated, then the outcome is asked for; nothing is guessed."""
    machine = transaction(8, 5)
    ending = machine.commit(wait_visible=False)
    results(ending, NOTHING)
    seen: list[EndEffect] = [ending.send(Unknown())]
    raised: type[StilltideError] | None = None
    for answer in answers:
        try:
            thrown = isinstance(answer, StilltideError)
            seen.append(ending.throw(answer) if thrown else ending.send(answer))
        except StopIteration:
            break
        except StilltideError as failure:
            raised = type(failure)
    if error is RefusedError:  # C13 looks once more
        assert isinstance(seen.pop(), LookAtTopics)
        with pytest.raises(RefusedError, match="was aborted"):
            next(ending)
        raised = RefusedError
    assert (seen, raised) == (effects, error)
    state = {None: "committed", RefusedError: "aborted", OutcomeUnknownError: "unknown"}[error]
    assert (machine.state, machine.over) == (state, True)


def test_a_commit_that_is_not_answered_is_unknown():
    """C12: the error says how to ask later."""
    machine = transaction(8, 5)
    ending = machine.commit(wait_visible=False)
    results(ending, NOTHING)
    with pytest.raises(OutcomeUnknownError, match="transaction 1:7") as caught:
        ending.throw(LATE)
    assert "client.outcome" in caught.value.hint
    assert machine.state == "unknown"


def test_an_abort_settles_what_was_acknowledged():
    """G: an abort waits until messages may come again; without any it does not."""
    read = (SubscriptionId(DATA, "g"),)
    ending = transaction(5).abort()
    asked = AskEnd(end(committed=False, wait_visible=True)._replace(acknowledged_in=read), True)
    assert results(ending, ToSettle(acknowledged=True, ended_in=read)) == [DropRecords(), asked]


def test_an_abort_ends_a_commit_that_collects():
    """What the abort gave up is not committed: the commit raises, and asks for nothing."""
    machine = transaction(5)
    committing, aborting = machine.commit(wait_visible=False), machine.abort()
    assert results(committing) == [Collect()]
    assert results(aborting) == [DropRecords()]
    with pytest.raises(TransactionStateError, match="ended: aborted"):
        committing.send(NOTHING)
    assert aborting.send(NOTHING) == AskEnd(end(committed=False), opens_ahead=True)

    machine = transaction(-1)
    committing = machine.commit(wait_visible=False)
    assert results(committing, NOTHING)[-1] == ReadEndOffset(DATA)
    results(machine.abort())
    with pytest.raises(TransactionStateError, match="ended: aborted"):
        committing.send(EndOffset(4))


def test_a_cancelled_commit_leaves_the_transaction_open():
    """Before the request, nothing is decided; afterwards the outcome is unknown."""
    machine = transaction(8, 5)
    ending = machine.commit(wait_visible=False)
    results(ending)
    with pytest.raises(TransactionStateError, match="is being committed"):
        machine.check_open()
    ending.close()
    assert (machine.state, machine.takes_records, machine.over) == ("open", True, False)
    ending = machine.commit(wait_visible=False)
    results(ending, NOTHING)
    ending.close()
    assert (machine.state, machine.takes_records, machine.over) == ("unknown", False, True)


SECRET = b"s" * 32
PREPARE = AskPrepare(Prepare(7, (WRITTEN,), None, hash_of(SECRET)), opens_ahead=True)
PREPARE_AGAIN = AskPrepare(PREPARE.prepare, opens_ahead=False)
GIVE_UP = AskDecision(EndPrepared(7, False, SECRET, False))


def preparing(machine: ClientTransaction, *given: object) -> list[EndEffect]:
    """The effects of `prepare`, whose results are given."""
    return results(machine.prepare(SECRET, ""), NOTHING, *given)[1:]


def test_l1_what_is_prepared_is_what_a_commit_would_count():
    """L1: the same counts, asked for once everything is durable; the transaction goes on."""
    machine = transaction(8, 5)
    assert preparing(machine, Done()) == [PREPARE]
    assert (machine.state, machine.over) == ("prepared", False)


def test_l1_a_forgotten_answer_is_asked_for_once_more():
    """L1: the same content again changes nothing."""
    machine = transaction(8, 5)
    assert preparing(machine, Unknown(), Done()) == [PREPARE, PREPARE_AGAIN]
    assert machine.state == "prepared"


@pytest.mark.parametrize(
    ("given", "effects", "state"),
    [
        ([REFUSED, Done()], [PREPARE, AskEnd(end(committed=False), opens_ahead=False)], "aborted"),
        ([LATE, None], [PREPARE, GIVE_UP], "unknown"),
        (
            [LATE, REFUSED, Done()],
            [PREPARE, GIVE_UP, AskEnd(end(committed=False), opens_ahead=False)],
            "unknown",
        ),
        ([LATE, LATE, None], [PREPARE, GIVE_UP, AbortFailed(LATE)], "unknown"),
        ([Unknown(), Unknown(), None], [PREPARE, PREPARE_AGAIN, GIVE_UP], "unknown"),
    ],
)
def test_l1_what_may_be_prepared_is_given_up(
    given: list[object], effects: list[EndEffect], state: str
):
    """L1: nobody gets the token of a transaction of which it is not known that it is prepared."""
    machine = transaction(8, 5)
    kind = RefusedError if given[0] is REFUSED else OutcomeUnknownError
    ending = machine.prepare(SECRET, "")
    assert results(ending, NOTHING, *given[:-1])[1:] == effects
    with pytest.raises(kind):
        ending.send(given[-1])
    assert (machine.state, machine.over) == (state, True)


def test_l4_what_a_database_may_have_committed_is_not_given_up():
    """L4: the row of the decider may stand, so nobody but a resolver ends the transaction."""
    machine = transaction(8, 5)
    ending = machine.prepare(SECRET, "orders-db")
    prepare = PREPARE.prepare._replace(decider="orders-db")
    assert results(ending, NOTHING)[1:] == [AskPrepare(prepare, opens_ahead=True)]
    with pytest.raises(OutcomeUnknownError, match="resolver asks orders-db"):
        ending.throw(LATE)
    assert (machine.state, machine.over) == ("unknown", True)


def test_l1_a_record_that_was_not_delivered_is_not_prepared():
    """C6, L1: the transaction is aborted, as by a commit."""
    machine = transaction(5, error=LOST)
    ending = machine.prepare(SECRET, "db")
    next(ending)
    assert ending.send(NOTHING) == LookAtTopics(LOST)
    assert ending.send(None) == DropRecords()
    assert ending.send(NOTHING) == AskEnd(end(committed=False), opens_ahead=True)
    with pytest.raises(StilltideError, match="not delivered"):
        ending.send(Done())


@pytest.mark.parametrize("committed", [True, False])
def test_l3_a_decision_may_be_asked_for_again(*, committed: bool):
    """L3: after a time-out the transaction is prepared as before."""
    machine = transaction(8, 5)
    preparing(machine, Done())
    decision = AskDecision(EndPrepared(7, committed, SECRET, wait_visible=False))
    for result in (LATE, None):
        ending = machine.commit(wait_visible=False) if committed else machine.abort()
        assert next(ending) == decision
        if result is LATE:
            with pytest.raises(RequestTimeoutError):
                ending.throw(LATE)
            assert (machine.state, machine.over) == ("prepared", False)
        else:
            assert results_of_last(ending)
    assert (machine.state, machine.over) == ("committed" if committed else "aborted", True)


def results_of_last(ending: Ending) -> bool:
    """Whether the end is over with its last effect."""
    with pytest.raises(StopIteration):
        ending.send(None)
    return True


def test_l3_the_opposite_decision_is_known_afterwards():
    """L3: the state says what stands."""
    machine = transaction(8, 5)
    preparing(machine, Done())
    ending = machine.commit(wait_visible=True)
    next(ending)
    with pytest.raises(DecidedOtherwiseError):
        ending.throw(DecidedOtherwiseError("aborted"))
    assert (machine.state, machine.over) == ("aborted", True)
