"""C12: how the last transactions ended, told or forgotten, never guessed."""

from hypothesis import given
from hypothesis import strategies as st

from stilltide.pipeline.core.coordinator.base import install, state_of
from stilltide.pipeline.core.coordinator.outcomes import (
    CAUSES_MAX,
    TOLD_MAX,
    AbortCauses,
    OutcomeHistory,
)
from stilltide.pipeline.core.coordinator.state import CoordinatorState
from stilltide.schemas.coordinator.transactions import (
    Abort,
    AbortCause,
    Description,
    End,
    Ended,
    Open,
    Release,
    TimedOut,
    TxnLogRecord,
)
from stilltide.schemas.service.envelopes import Request

CLIENT = b"application-0016"
MANY = 100_000


def filled(history: OutcomeHistory, ends: list[bool]) -> None:
    """Each sequence is opened, and ends at once."""
    for sequence, committed in enumerate(ends):
        history.opened(sequence + 1)
        if committed:
            history.committed(sequence)


@given(st.lists(st.booleans(), max_size=100), st.integers(0, 120))
def test_the_last_outcomes_are_known(ends: list[bool], length: int):
    """Of every length; what lies below is forgotten."""
    history = OutcomeHistory(length)
    filled(history, ends)
    for sequence, committed in enumerate(ends):
        known = sequence >= len(ends) - length
        assert history.has_committed(sequence) == (committed if known else None)


@given(st.lists(st.booleans(), max_size=100), st.integers(0, 120), st.integers(0, 120))
def test_a_base_carries_the_outcomes(ends: list[bool], length: int, next_length: int):
    """The next owner knows what this one knows, as far as its own history reaches."""
    history, successor = OutcomeHistory(length), OutcomeHistory(next_length)
    filled(history, ends)
    successor.replace(history.content(), len(ends))
    for sequence in range(len(ends)):
        known = sequence >= len(ends) - next_length
        assert successor.has_committed(sequence) == (
            history.has_committed(sequence) if known else None
        )


def test_the_history_is_bounded():
    """Its bytes do not grow with the number of transactions, in bases either."""
    history = OutcomeHistory(1000)
    for sequence in range(0, MANY, 50):
        history.opened(sequence + 50)
        history.committed(sequence)
        assert history.size_bytes <= 1000 // 8 + 4096 + 1
    assert len(history.content().committed) <= 1000 // 8 + 1


def told(state: CoordinatorState, sequence: int) -> bool | None:
    """What a client is told of an ended transaction."""
    found = state.describe(sequence, None)
    assert isinstance(found, Description)
    assert found.state == "ENDED"
    return found.committed


def ended_in_every_way(state: CoordinatorState) -> None:
    """Transactions that were committed, aborted, aborted by an operator, timed out and released."""
    bodies = [
        Open(60_000, 5, ()),
        End(0, committed=True, written=(), wait_visible=False),
        End(1, committed=False, written=(), wait_visible=False),
        Abort(2),
        Release((4,)),
    ]
    for number, body in enumerate(bodies, 1):
        state.apply(TxnLogRecord(Request(CLIENT, number, 0, 0, body), 1000))
    state.apply(TxnLogRecord(TimedOut(3), 1000))
    for sequence in (3, 0, 2, 1):
        state.apply(TxnLogRecord(Ended(sequence), 1000))


def test_every_way_to_end_has_its_outcome():
    """Only a commit counts as one; also when the state comes from a base."""
    state, successor = CoordinatorState(), CoordinatorState()
    ended_in_every_way(state)
    install(state_of(state), successor)
    for one in (state, successor):
        assert [told(one, sequence) for sequence in range(5)] == [True, False, False, False, False]


def why(state: CoordinatorState, sequence: int) -> AbortCause | None:
    """What a client is told of the cause of an abort."""
    found = state.describe(sequence, None)
    assert isinstance(found, Description)
    return found.cause


def test_every_abort_has_its_cause():
    """While it is under way and once it has ended, also when the state comes from a base."""
    state, successor = CoordinatorState(), CoordinatorState()
    ended_in_every_way(state)
    bodies = [
        Open(60_000, 3, ()),
        End(5, committed=False, written=(), wait_visible=False),
        Abort(6),
        Abort(5),  # its client was first
    ]
    for number, body in enumerate(bodies, 6):
        state.apply(TxnLogRecord(Request(CLIENT, number, 0, 0, body), 1000))
    state.apply(TxnLogRecord(TimedOut(6), 1000))  # the operator was first
    install(state_of(state), successor)
    by_client, by_operator, late = AbortCause.CLIENT, AbortCause.OPERATOR, AbortCause.TIMED_OUT
    released = not_ended = committed = None
    causes = [committed, by_client, by_operator, late, released, by_client, by_operator, not_ended]
    for one in (state, successor):
        assert [why(one, sequence) for sequence in range(8)] == causes
        assert [sequence for sequence, _ in one.causes.content()] == [1, 2, 3, 5, 6]


def test_causes_are_bounded_and_forgotten_ones_are_not_guessed():
    """Those of the last decisions stay, whatever their sequences; a list tells of fewer."""
    causes = AbortCauses()
    for sequence in range(3000, 0, -1):
        causes.aborted(sequence, AbortCause.TIMED_OUT)
        assert len(causes.content()) < CAUSES_MAX * 1.1
    assert causes.of(3000) is None
    assert [causes.of(it) for it in (1, CAUSES_MAX)] == [AbortCause.TIMED_OUT] * 2
    assert [sequence for sequence, _ in causes.told()] == list(range(TOLD_MAX, 0, -1))


def test_causes_that_a_base_lacks_are_forgotten():
    """What was opened before the base is forgotten; what came later is known."""
    state, successor = CoordinatorState(), CoordinatorState()
    ended_in_every_way(state)
    install(state_of(state)._replace(aborts=()), successor)
    assert [why(successor, it) for it in range(5)] == [None] * 5
    for number, body in enumerate([Open(60_000, 1, ()), Abort(5)], 6):
        successor.apply(TxnLogRecord(Request(CLIENT, number, 0, 0, body), 1000))
    assert why(successor, 5) is AbortCause.OPERATOR
