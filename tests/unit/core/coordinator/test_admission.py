"""C16: what one client may hold, counting what was appended and not read back yet."""

import pytest

from stilltide.pipeline.core.coordinator.admission import (
    QUESTIONS_IN_FLIGHT_MAX,
    Admission,
    ClientLimits,
    estimated_bytes,
)
from stilltide.pipeline.core.coordinator.machine import TIMING_OUT_MAX, Coordinator, Propose
from stilltide.pipeline.core.coordinator.state import CoordinatorState
from stilltide.schemas.coordinator.transactions import (
    AddPartitions,
    Change,
    End,
    Ended,
    Open,
    Registered,
    Release,
    TimedOut,
    TxnLogRecord,
    Written,
)
from stilltide.schemas.service.envelopes import RefusalCode, Refused, Request
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

CLIENT, OTHER = b"client-012345678", b"other--012345678"
LIMITS = ClientLimits(
    txn_timeout_ms_max=60_000,
    client_transactions_max=10,
    transaction_partitions_max=5,
    client_partitions_max=20,
    client_requests_max=4,
    state_bytes_max=100_000,
)


def partitions(count: int, first: int = 0) -> tuple[Registered, ...]:
    """Registrations with that many partitions."""
    numbers = range(first, first + count)
    return tuple(Registered(TopicPartition("t", it), EndOffset(0), bytes(16)) for it in numbers)


class Rig:
    """An admission and the state that it watches."""

    def __init__(self) -> None:
        self.state = CoordinatorState()
        self.admission = Admission(self.state, LIMITS, lambda: estimated_bytes(self.state))
        self.number = 0

    def take(self, body: Change, client: bytes = CLIENT) -> tuple[Request, Refused | None]:
        """A client's next request, and why it is refused."""
        self.number += 1
        request = Request(client, self.number, 0, 0, body)
        return request, self.admission.take(request, body)

    def done(self, body: Change, client: bytes = CLIENT) -> Refused | None:
        """A request that is logged and read back at once."""
        request, refused = self.take(body, client)
        if refused is None:
            self.state.apply(TxnLogRecord(request, 1000))
            self.admission.ended(request)
        return refused


def limit_of(refused: Refused | None) -> str:
    """The setting that a refusal names."""
    assert refused is not None
    assert refused.code is RefusalCode.LIMIT
    return refused.reason.partition("(setting ")[2].rstrip(")")


@pytest.mark.parametrize(
    ("body", "setting"),
    [
        (Open(5000, 11, ()), "client_transactions_max"),
        (Open(5000, 1, partitions(6)), "transaction_partitions_max"),
        (Open(5000, 5, partitions(5)), "client_partitions_max"),
    ],
)
def test_c16_one_request_beyond_a_bound_is_refused(body: Open, setting: str):
    """C16: the refusal names the setting, and nothing is held."""
    rig = Rig()
    assert limit_of(rig.done(body)) == setting
    assert rig.state.held == {}


def test_c16_requests_on_their_way_count():
    """C16: two requests that pass alone do not pass together before they are read back."""
    rig = Rig()
    first, refused = rig.take(Open(5000, 6, ()))
    assert refused is None
    assert limit_of(rig.take(Open(5000, 6, ()))[1]) == "client_transactions_max"
    assert rig.take(Open(5000, 6, ()), OTHER)[1] is None
    rig.admission.ended(first)  # lost
    assert rig.take(Open(5000, 6, ()))[1] is None


def test_c16_what_has_ended_makes_room():
    """C16: commits, aborts and releases free what their transactions held."""
    rig = Rig()
    assert rig.done(Open(5000, 10, partitions(2))) is None
    assert limit_of(rig.done(Open(5000, 1, ()))) == "client_transactions_max"
    written = (Written(partitions(1)[0].data, Offset(0), EndOffset(1), 1),)
    assert rig.done(End(0, True, written, False)) is None
    assert rig.done(End(1, False, (), False)) is None
    assert rig.done(Release((2, 2, 3))) is None
    assert rig.done(Open(5000, 4, partitions(2))) is None
    assert limit_of(rig.done(Open(5000, 1, ()))) == "client_transactions_max"


def test_c16_partitions_are_added_within_the_bounds():
    """C16: of a transaction, by several requests."""
    rig = Rig()
    assert rig.done(Open(5000, 1, partitions(2))) is None
    assert rig.take(AddPartitions(0, partitions(2, 2)))[1] is None
    assert limit_of(rig.take(AddPartitions(0, partitions(2, 4)))[1]) == "transaction_partitions_max"


def test_c16_requests_in_flight_are_bounded():
    """C16: a client's; those of others pass."""
    rig = Rig()
    for _ in range(4):
        assert rig.take(End(0, False, (), False))[1] is None
    assert limit_of(rig.take(End(0, False, (), False))[1]) == "client_requests_max"
    assert rig.take(End(0, False, (), False), OTHER)[1] is None


def test_c1b_a_repeat_takes_no_second_share():
    """C1b, C16: neither before the first copy is read back, nor after."""
    rig = Rig()
    body = Open(5000, 10, ())
    request, refused = rig.take(body)
    assert refused is None
    assert rig.admission.in_flight(request)
    rig.state.apply(TxnLogRecord(request, 1000))
    rig.admission.ended(request)
    assert not rig.admission.in_flight(request)
    assert rig.admission.take(request, body) is None
    assert limit_of(rig.take(Open(5000, 1, ()))[1]) == "client_transactions_max"


def test_c16_questions_in_flight_are_bounded():
    """C16: each of them may cost a millisecond."""
    admission = Rig().admission
    for _ in range(QUESTIONS_IN_FLIGHT_MAX):
        assert admission.ask(CLIENT) is None
    assert admission.ask(CLIENT) is not None
    admission.answered(CLIENT)
    assert admission.ask(CLIENT) is None


def test_c16_the_memory_of_all_clients_is_bounded():
    """C16: ids are free, so what all clients hold together has a bound, too."""
    rig = Rig()
    refused, number = None, 0
    while refused is None:
        number += 1
        refused = rig.done(Open(5000, 10, partitions(2)), number.to_bytes(16, "big"))
    assert limit_of(refused) == "coordinator_state_mib_max"
    assert estimated_bytes(rig.state) < 2 * LIMITS.state_bytes_max
    assert limit_of(rig.done(End(0, False, (), False), b"a new client-012")) is not None
    assert rig.done(End(0, False, (), False), (1).to_bytes(16, "big")) is None


@pytest.mark.parametrize(
    "body",
    [
        Open(0, 1, ()),
        Open(60_001, 1, ()),
        Open(5000, 0, ()),
        Open(5000, 1001, ()),
        Open(5000, 1, (Registered(TopicPartition("a b", 0), EndOffset(0), bytes(16)),)),
        Open(5000, 1, (Registered(TopicPartition("stilltide.x", 0), EndOffset(0), bytes(16)),)),
        Open(5000, 1, (Registered(TopicPartition("t", 2**31), EndOffset(0), bytes(16)),)),
        Open(5000, 1, (Registered(TopicPartition("t", 0), EndOffset(2**63), bytes(16)),)),
        Open(5000, 1, (Registered(TopicPartition("t", 0), EndOffset(0), b"short"),)),
        Open(5000, 1, (), (), "n" * 101),
        End(2**63, True, (), False),
        End(0, True, (Written(TopicPartition("t", 0), Offset(2**63), EndOffset(2**63), 1),), False),
        Release((2**63,)),
    ],
)
def test_c10_values_out_of_range_are_refused(body: Change):
    """C10: before the request is logged."""
    refused = Rig().done(body)
    assert refused is not None
    assert refused.code is RefusalCode.MALFORMED


def timed_out(coordinator: Coordinator, offset: int, now_ms: int) -> int:
    """Applies the time-outs that are due, ends their transactions; returns how many there were."""
    proposed = [it.body for it in coordinator.tick(now_ms) if isinstance(it, Propose)]
    due = [body for body in proposed if isinstance(body, TimedOut)]
    assert sum(1 for _ in due) <= TIMING_OUT_MAX
    for body in [*due, *(Ended(it.sequence) for it in due)]:
        record = TxnLogRecord(body, now_ms)
        coordinator.applied(Offset(offset), [record], own=True, now_ms=now_ms)
    return len(due)


def test_c16_time_outs_that_come_together_end_in_slices():
    """C16: the next ones are proposed when those before have ended; none is forgotten."""
    coordinator = Coordinator(0)
    coordinator.serve(Offset(0), 1000)
    for number in range(1, 6):
        opened = TxnLogRecord(Request(CLIENT, number, 0, 0, Open(500, 1000, partitions(1))), 1000)
        coordinator.applied(Offset(number), [opened], own=True, now_ms=1000)
    counts = []
    while coordinator.state.transactions:
        assert coordinator.deadline_ms is not None
        assert coordinator.deadline_ms <= 2000
        counts.append(timed_out(coordinator, 6 + len(counts), 2000))
    assert sum(counts) == 5000
    assert max(counts) <= TIMING_OUT_MAX // 2
