"""Who may call a consumer."""

import threading

import pytest

from stilltide.connectors.kafka.consumer.consuming import PollLease

WAIT_S = 10


@pytest.fixture
def ordered() -> threading.Event:
    """Set when the thread is needed."""
    return threading.Event()


@pytest.fixture
def lease(ordered: threading.Event) -> PollLease:
    """Of one consumer."""
    return PollLease(ordered)


def test_the_loop_may_not_call_before_lend(lease: PollLease, ordered: threading.Event):
    """And asks for none by trying."""
    assert not lease.begin()
    assert not ordered.is_set()
    lease.lend()
    assert lease.begin()
    lease.end()


def test_the_loop_never_waits_for_the_thread(lease: PollLease, ordered: threading.Event):
    """It gives the lease back instead, so that the thread brings what there is."""
    lease.lend()
    with lease.of_thread():
        assert not lease.begin()
    assert not lease.lent
    assert ordered.is_set()


def test_the_thread_waits_for_the_loop(lease: PollLease):
    """One of them at a time."""
    lease.lend()
    assert lease.begin()
    order: list[str] = []

    def go_on() -> None:
        with lease.of_thread():
            order.append("thread")

    thread = threading.Thread(target=go_on)
    thread.start()
    order.append("loop")
    lease.end()
    thread.join(WAIT_S)
    assert order == ["loop", "thread"]


def test_what_the_loop_leaves_unused_is_taken_back(lease: PollLease, ordered: threading.Event):
    """Also where orders wake the thread all the time."""
    lease.lend()
    lease.rest()
    assert not lease.lent
    lease.lend()
    ordered.set()
    lease.rest()
    assert lease.lent
    while lease.lent:
        lease.rest()
