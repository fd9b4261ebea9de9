from collections.abc import Sequence

import pytest

from stilltide.pipeline.core.service.session import (
    REQUEST_TIMEOUT_MS_MAX,
    ClientSession,
    GiveUp,
    OwnerSilent,
    Send,
)
from stilltide.schemas.coordinator.transactions import AddPartitions, Describe, Unknown
from stilltide.schemas.retry import Retry
from stilltide.schemas.service.envelopes import Done, Request

CLIENT = b"app" + bytes(16)


def changing(sequence: int) -> AddPartitions:
    """A request that is logged."""
    return AddPartitions(sequence, ())


def session(asked: int = 0) -> ClientSession:
    """A session that made `asked` requests at 0 ms, each to be answered within 20 s."""
    made = ClientSession(CLIENT, 4)
    for sequence in range(1, asked + 1):
        made.made(changing(sequence), 0, 20_000)
    return made


def sent(number: int, acked_through: int) -> Send:
    """The effect that sends request `number`."""
    return Send(Request(CLIENT, number, acked_through, 4, changing(number)))


def test_c1b_requests_are_numbered_from_1():
    """C1b: each request has the next number, and the partition for its answer."""
    one = session()
    assert one.made(changing(1), 0, 20_000) == sent(1, 0)
    assert one.made(changing(2), 0, 20_000) == sent(2, 0)
    assert one.pending == 2


def test_c1b_only_the_first_answer_ends_a_request():
    """C1b: a repeated answer goes to no caller."""
    one = session(asked=1)
    assert one.answered(1, Done(), 0) == Done()
    assert one.answered(1, Unknown(), 0) is None
    assert one.answered(2, Done(), 0) is None
    assert one.pending == 0


@pytest.mark.parametrize(
    ("answered", "acked_through"),
    [((), 0), ((1,), 1), ((2,), 0), ((2, 1), 2), ((1, 3), 1), ((3, 2, 1), 3)],
)
def test_c1b_acked_through_stops_before_the_first_open_request(
    answered: tuple[int, ...], acked_through: int
):
    """C1b: a number may still be asked for again as long as one at or below it is open."""
    one = session(asked=3)
    for number in answered:
        one.answered(number, Done(), 0)
    assert one.acked_through == acked_through
    assert one.made(changing(4), 0, 20_000) == sent(4, acked_through)


def test_c1b_questions_are_not_acknowledged_before_a_change():
    """C1b: a client that only asked and acknowledges answers would be taken for a forgotten one."""
    one = session()
    for number in (1, 2):
        one.made(Describe(number), 0, 20_000)
        one.answered(number, Done(), 0)
    assert one.made(changing(3), 0, 20_000) == sent(3, 0)
    assert one.made(changing(4), 0, 20_000) == sent(4, 0)
    one.answered(3, Done(), 0)
    assert one.made(changing(5), 0, 20_000) == sent(5, 3)


def test_c1b_an_unanswered_request_is_repeated_under_its_number():
    """C1b: repeated after 1, 2, 4, 8, 8 s, each time with the newest acknowledged number."""
    one = session(asked=2)
    one.answered(1, Done(), 0)
    repeats = [ms for ms in range(0, 20_000, 500) if one.tick(ms) == [sent(2, 1)]]
    assert repeats == [1000, 3000, 7000, 15_000]


def test_c1b_a_request_is_given_up_when_its_time_is_over():
    """C1b: the caller fails once, and the request is never sent again."""
    one = session(asked=1)
    assert one.tick(20_000) == [GiveUp(1)]
    assert one.tick(40_000) == []
    assert one.answered(1, Done(), 0) is None
    assert one.made(changing(2), 40_000, 20_000) == sent(2, 1)


def test_c1b_no_request_outlives_the_limit():
    """C1b: the coordinator forgets after an hour, so no client asks for longer than this."""
    one = session()
    one.made(changing(1), 0, 10 * REQUEST_TIMEOUT_MS_MAX)
    assert GiveUp(1) not in one.tick(REQUEST_TIMEOUT_MS_MAX - 1)
    assert one.tick(REQUEST_TIMEOUT_MS_MAX) == [GiveUp(1)]


def test_the_deadline_is_never_late():
    """A driver that sleeps until the deadline misses neither a repeat nor a time-out."""
    one = session()
    assert one.deadline_ms is None
    one.made(changing(1), 100, 20_000)
    assert one.deadline_ms == 1100
    one.made(changing(2), 100, 500)
    assert one.deadline_ms == 600
    assert one.tick(600) == [GiveUp(2)]
    assert one.deadline_ms == 1100
    one.answered(1, Done(), 0)
    assert one.deadline_ms is None


def silence(effects: Sequence[object]) -> list[OwnerSilent]:
    """The effects that tell people of silence."""
    return [effect for effect in effects if isinstance(effect, OwnerSilent)]


def test_people_are_told_once_of_an_owner_that_is_silent():
    """After `silent_ms` without an answer people are told, once until there is an answer again."""
    one = ClientSession(CLIENT, 4, retry=Retry(10), silent_ms=2000)
    one.made(changing(1), 0, 20_000)
    assert one.deadline_ms == 2000
    assert one.tick(1999) == []
    assert one.tick(2000) == [OwnerSilent(2000)]
    one.made(changing(2), 2500, 20_000)
    assert silence(one.tick(9000)) == []
    one.answered(1, Done(), 9500)
    one.answered(2, Done(), 9500)
    one.made(changing(3), 10_000, 20_000)
    assert silence(one.tick(12_500)) == [OwnerSilent(2500)]


def test_a_request_that_waits_while_others_are_answered_is_no_silence():
    """A commit that waits for readers is answered late by an owner that serves."""
    one = ClientSession(CLIENT, 4, silent_ms=2000)
    one.made(changing(1), 0, 20_000)
    one.made(changing(2), 0, 20_000)
    one.answered(2, Done(), 0)
    assert silence(one.tick(3000)) == []


def test_an_owner_that_answers_late_is_not_silent():
    """Each request waits for longer than `silent_ms`, and an answer comes each second."""
    one = ClientSession(CLIENT, 4, retry=Retry(60), silent_ms=2000)
    one.made(changing(1), 0, 20_000)
    one.answered(1, Done(), 1000)
    for number in range(2, 20):
        one.made(changing(number), 1000 * number - 2100, 30_000)
    for number in range(2, 20):
        now_ms = 1000 * number
        assert silence(one.tick(now_ms)) == []
        one.answered(number, Done(), now_ms)
    one.made(changing(20), 19_000, 30_000)
    assert silence(one.tick(20_999)) == []
    assert silence(one.tick(21_000)) == [OwnerSilent(2000)]


def test_silence_is_told_only_where_it_is_asked_for():
    """Workers and operators wait for owners without a line in the log."""
    assert silence(session(asked=1).tick(5000)) == []
