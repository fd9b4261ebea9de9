"""Which requests share a record, and when it leaves."""

import asyncio
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.ports.writers import Delivered
from stilltide.pipeline.core.service.session import ClientSession
from stilltide.pipeline.drivers.service.ask.batches import FEW, LIMITS, RequestBatches
from stilltide.pipeline.drivers.service.hindrances import Seldom
from stilltide.schemas.framing import decode_value
from tests.support.coordinator.worker_memory import until

MANY = FEW + 1


class _Case:
    """Batches whose records are kept, and delivered by hand."""

    def __init__(self) -> None:
        session = ClientSession[Any, Any](bytes(22), 0)
        self.seldom = Seldom()
        self.batches = RequestBatches(self, 0, session)
        self.sent: list[list[int]] = []
        self._reports: list[Delivered] = []

    def send(self, owner: int, value: bytes, delivered: Delivered) -> None:
        """Keeps a record."""
        assert owner == 0
        self.sent.append([int(request) for request in decode_value(value)])
        self._reports.append(delivered)

    def ask(self, *numbers: int) -> None:
        """Asks under these numbers, at once."""
        for number in numbers:
            self.batches.append(number, b"%d" % number, f"caller {number}")

    def repeat(self, number: int) -> None:
        """Asks again."""
        self.batches.repeat(number, b"%d" % number)

    def deliver(self, *, lost: bool = False) -> None:
        """Reports the oldest record that is not reported."""
        self._reports.pop(0)(RetriableError("lost") if lost else None, -1 if lost else 7)

    @property
    def unreported(self) -> int:
        """Records without a report."""
        return len(self._reports)


async def turn() -> None:
    """Lets what was asked in this turn of the loop leave."""
    await asyncio.sleep(0)


async def many_in_flight() -> _Case:
    """A case whose first record holds many requests, and is durable."""
    case = _Case()
    case.ask(*range(1, MANY + 1))
    await turn()
    case.deliver()
    return case


async def test_what_is_asked_in_one_turn_shares_a_record():
    """A: nobody asks alone who asks together."""
    case = _Case()
    case.ask(1, 2, 3)
    assert case.sent == []
    await turn()
    assert case.sent == [[1, 2, 3]]


async def test_many_requests_are_in_flight_until_they_are_answered():
    """What is asked meanwhile leaves together, with the answer to the last of them."""
    case = await many_in_flight()
    case.ask(10)
    await turn()
    case.ask(11)
    await turn()
    for number in range(1, MANY):
        case.batches.answered(number)
    assert len(case.sent) == 1
    case.batches.answered(MANY)
    assert case.sent[1:] == [[10, 11]]


async def test_few_requests_are_in_flight_until_they_are_durable():
    """Those who are few do not wait for each other's answers."""
    case = _Case()
    case.ask(*range(1, FEW + 1))
    await turn()
    case.ask(10)
    await turn()
    assert len(case.sent) == 1
    case.deliver()
    assert case.sent[1:] == [[10]]


async def test_nobody_waits_for_a_record_that_was_lost():
    """What gathered behind it leaves; its own requests are repeated by their session."""
    case = _Case()
    case.ask(*range(1, MANY + 1))
    await turn()
    case.ask(10)
    case.deliver(lost=True)
    assert case.sent[1:] == [[10]]


async def test_an_answer_that_is_long_in_coming_holds_nobody_up():
    """Requests gather for a bounded time."""
    case = await many_in_flight()
    began = asyncio.get_running_loop().time()
    case.ask(10)
    await until(lambda: len(case.sent) == 2)
    assert case.sent[1:] == [[10]]
    assert asyncio.get_running_loop().time() - began >= LIMITS.delay_ms_max / 1000 - 0.001


async def test_an_answer_before_the_repetition_left_holds_nobody_up():
    """A record of requests that are answered already waits for no answer."""
    case = await many_in_flight()
    case.repeat(MANY)
    for number in range(1, MANY + 1):
        case.batches.answered(number)
    assert case.sent[1:] == [[MANY]]
    case.ask(10)
    case.deliver()
    assert case.sent[2:] == [[10]]


async def test_closing_hands_on_what_is_gathered():
    """A6; those who wait are returned, once."""
    case = await many_in_flight()
    case.ask(10)
    waiting = case.batches.close()
    assert case.sent[1:] == [[10]]
    assert waiting == [f"caller {number}" for number in (*range(1, MANY + 1), 10)]
    assert case.batches.close() == []


STEPS = st.lists(st.sampled_from(["ask", "repeat", "answer", "deliver", "lose", "turn"]))


@given(STEPS, st.randoms(use_true_random=False))
def test_nothing_is_held_for_ever(steps: list[str], random: Random):
    """Whatever was lost or repeated: with all answered and reported, the next request leaves."""

    async def play() -> None:
        case = _Case()
        asked, open_ = 0, list[int]()
        for step in steps:
            if step == "ask":
                asked += 1
                open_.append(asked)
                case.ask(asked)
            elif step == "turn":
                await turn()
            elif step in ("deliver", "lose") and case.unreported:
                case.deliver(lost=step == "lose")
            elif step in ("repeat", "answer") and open_:
                number = random.choice(open_)
                if step == "repeat":
                    case.repeat(number)
                else:
                    open_.remove(number)
                    assert case.batches.answered(number) == f"caller {number}"
        await turn()
        for number in open_:
            case.batches.answered(number)
        while case.unreported:
            case.deliver()
        assert {number for record in case.sent for number in record} == set(range(1, asked + 1))
        case.ask(asked + 1)
        await turn()
        assert case.sent[-1] == [asked + 1]

    asyncio.run(play())


async def test_a_repetition_that_leaves_with_the_answer_waits_for_nothing():
    """Its request is answered already, so the next one leaves at once."""
    case = _Case()
    case.ask(1)
    await turn()
    for _ in range(MANY):
        case.repeat(1)
    case.deliver(lost=True)
    await turn()
    assert case.sent == [[1], [1] * MANY]
    for _ in range(MANY):
        case.repeat(1)
    assert case.batches.answered(1) == "caller 1"
    assert case.sent == [[1], [1] * MANY, [1] * MANY]
    while case.unreported:
        case.deliver()
    case.ask(2)
    await turn()
    assert case.sent[-1] == [2]
