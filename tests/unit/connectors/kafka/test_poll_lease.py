"""Who may call a consumer."""

import threading

import pytest

from stilltide.connectors.kafka.consumer.poll_lease import PollLease

WAIT_S = 10


@pytest.fixture
def ordered() -> threading.Event:
    """Set when the thread is needed."""
    return threading.Event()


@pytest.fixture
def turns(ordered: threading.Event) -> PollLease:
    """Of one consumer."""
    return PollLease(ordered)


def test_the_loop_has_no_turn_until_one_is_lent(turns: PollLease, ordered: threading.Event):
    """And asks for none by trying."""
    assert not turns.begin()
    assert not ordered.is_set()
    turns.lend()
    assert turns.begin()
    turns.end()


def test_the_loop_never_waits_for_the_thread(turns: PollLease, ordered: threading.Event):
    """It gives its turns back instead, so that the thread brings what there is."""
    turns.lend()
    with turns.of_thread():
        assert not turns.begin()
    assert not turns.lent
    assert ordered.is_set()


def test_the_thread_waits_for_the_loop(turns: PollLease):
    """One of them at a time."""
    turns.lend()
    assert turns.begin()
    order: list[str] = []

    def go_on() -> None:
        with turns.of_thread():
            order.append("thread")

    thread = threading.Thread(target=go_on)
    thread.start()
    order.append("loop")
    turns.end()
    thread.join(WAIT_S)
    assert order == ["loop", "thread"]


def test_what_the_loop_leaves_unused_is_taken_back(turns: PollLease, ordered: threading.Event):
    """Also where orders wake the thread all the time."""
    turns.lend()
    turns.rest()
    assert not turns.lent
    turns.lend()
    ordered.set()
    turns.rest()
    assert turns.lent
    while turns.lent:
        turns.rest()
