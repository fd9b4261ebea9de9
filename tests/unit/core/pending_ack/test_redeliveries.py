"""G2: the back-off of messages that fail, and the number of their deliveries."""

import pytest

from stilltide.pipeline.core.pending_ack.redeliveries import (
    ERROR_BYTES_MAX,
    DeadLetter,
    Redeliver,
    Redeliveries,
    RedeliveryPolicy,
    bounded,
)


def test_the_back_off_grows_to_its_maximum():
    """First, then times the factor, never above the maximum, also after thousands of failures."""
    redeliveries = Redeliveries[str](RedeliveryPolicy(100, 2, 1000))
    now_ms, waited, deliveries = 0.0, [], []
    for _ in range(3000):
        redeliveries.failed(7, "message", now_ms, "")
        due_ms = redeliveries.deadline_ms
        assert due_ms is not None
        assert redeliveries.due(due_ms - 0.001) == []
        ((offset, again),) = redeliveries.due(due_ms)
        assert isinstance(again, Redeliver)
        assert offset == 7
        waited.append(due_ms - now_ms)
        deliveries.append(again.deliveries)
        now_ms = due_ms
    assert waited[:6] == [100, 200, 400, 800, 1000, 1000]
    assert set(waited[6:]) == {1000}
    assert deliveries[-1] == 3001


def test_a_message_becomes_a_dead_letter_after_its_deliveries():
    """The last failure is not waited for; the effect says how often and why."""
    redeliveries = Redeliveries[str](RedeliveryPolicy(100, deliveries_max=2))
    redeliveries.failed(7, "message", 0, "first")
    assert redeliveries.due(100) == [(7, Redeliver("message", 2))]
    redeliveries.failed(7, "message", 100, "second")
    assert redeliveries.due(100) == [(7, DeadLetter("message", 2, "second"))]


def test_a_delivery_fails_once():
    """An acknowledgement in vain of a message that waits, or was not returned, is no delivery."""
    redeliveries = Redeliveries[str](RedeliveryPolicy(100, 2, deliveries_max=3))
    redeliveries.failed(7, "message", 0, "first")
    del redeliveries.waiting[7]  # it is acknowledged in a transaction, which aborts
    redeliveries.failed(7, "message", 0, "the transaction")
    assert redeliveries.due(199) == []
    assert redeliveries.due(200) == [(7, Redeliver("message", 2))]
    redeliveries.take_back(7)
    redeliveries.failed(7, "message", 200, "the transaction")
    assert redeliveries.due(600) == [(7, Redeliver("message", 2))]
    redeliveries.failed(7, "message", 600, "second")
    assert redeliveries.due(1400) == [(7, Redeliver("message", 3))]
    redeliveries.failed(7, "message", 1400, "third")
    assert redeliveries.due(1400) == [(7, DeadLetter("message", 3, "third"))]


def test_a_message_that_cannot_be_decoded_is_a_dead_letter_at_once():
    """It is never handed over again, whatever number of deliveries is left, and tried again."""
    redeliveries = Redeliveries[str](RedeliveryPolicy(100, 2, deliveries_max=9))
    redeliveries.undecodable(7, "message", 0, "no such schema")
    letter = (7, DeadLetter("message", 1, "no such schema"))
    assert redeliveries.due(0) == [letter]
    redeliveries.failed(7, "message", 0, "its transaction was aborted")
    assert redeliveries.due(199) == []
    assert redeliveries.due(200) == [letter]
    assert redeliveries.is_undecodable(7)
    redeliveries.forget(7)
    assert not redeliveries.is_undecodable(7)


def test_a_dead_letter_that_was_not_sent_comes_again_after_a_back_off():
    """The count and the error stay those of the application's last delivery."""
    redeliveries = Redeliveries[str](RedeliveryPolicy(100, 2, deliveries_max=1))
    redeliveries.failed(7, "message", 0, "of the application")
    for now_ms, due_ms in ((0, 200), (200, 600)):
        letter = DeadLetter("message", 1, "of the application")
        assert redeliveries.due(now_ms) == [(7, letter)]
        redeliveries.failed(7, "message", now_ms, "of the transaction")
        assert redeliveries.due(due_ms - 1) == []
    assert len(redeliveries.due(600)) == 1


def test_a_message_that_was_acknowledged_meanwhile_is_forgotten():
    """A removed message is not due, and a later delivery of its offset counts from one."""
    redeliveries = Redeliveries[str](RedeliveryPolicy(100))
    redeliveries.failed(7, "message", 0, "")
    del redeliveries.waiting[7]
    redeliveries.forget(7)
    assert redeliveries.due(100) == []
    assert not redeliveries.has_failed(7)
    redeliveries.at_once(7, "message")
    assert redeliveries.due(0) == [(7, Redeliver("message", 1))]


def test_messages_that_were_acknowledged_while_waiting_cost_no_memory():
    """Due times of removed messages are dropped, even if they are hours away."""
    redeliveries = Redeliveries[int](RedeliveryPolicy(3_600_000))
    for offset in range(10_000):
        redeliveries.failed(offset, offset, offset, "")
        del redeliveries.waiting[offset]
        redeliveries.forget(offset)
    assert len(redeliveries._due) < 100


@pytest.mark.parametrize("text", ["é" * ERROR_BYTES_MAX, "x" * 5000, "\ud800" * 2000])
def test_the_text_of_an_error_is_bounded(text: str):
    """At most so many bytes, cut between characters; what has no UTF-8 is replaced."""
    kept = bounded(text).encode()
    assert ERROR_BYTES_MAX - 1 <= len(kept) <= ERROR_BYTES_MAX
