"""What the witness of acknowledgements lets pass, and what it does not."""

import pytest

from stilltide.schemas.pending_ack.acknowledgements import Acks
from stilltide.schemas.service.envelopes import Done, RefusalCode, Refused
from stilltide.schemas.values import EndOffset
from tests.chaos.pending_ack.history import judged

ENDED = Refused("transaction 1:7 has ended", RefusalCode.TRANSACTION_ENDED)
QUESTION = Acks(EndOffset(0), (), (), b"")


@pytest.mark.parametrize("unseen", [False, True])
def test_what_the_log_says_at_any_place_is_right(*, unseen: bool):
    """B2: a request that lies there twice may have two answers."""
    assert judged(Done(), [Done(), ENDED], unseen=unseen)
    assert judged(ENDED, [Done(), ENDED], unseen=unseen)


@pytest.mark.parametrize("places", [(), (ENDED,)])
def test_what_the_log_says_nowhere_is_a_zombies(places: tuple[Refused, ...]):
    """B3: nobody answers but from an entry that is effective."""
    with pytest.raises(AssertionError, match="answers so"):
        judged(Done(), places, unseen=False)


@pytest.mark.parametrize("places", [(), (ENDED,)])
def test_what_may_lie_where_nobody_has_read_is_not_judged(places: tuple[Refused, ...]):
    """A trim has taken one place of a request, and its other place says something else."""
    assert not judged(Done(), places, unseen=True)


def test_a_question_is_not_judged():
    """It is never logged."""
    assert not judged(QUESTION, (), unseen=False)
