"""What a member's tracker refuses; its other rules are in tests/stateful."""

import pytest

from stilltide.pipeline.core.pending_ack.cursor import Cursor
from stilltide.pipeline.core.pending_ack.redeliveries import (
    DeadLetter,
    Redeliver,
    RedeliveryPolicy,
)
from stilltide.pipeline.core.pending_ack.tracker import Tracker
from stilltide.pipeline.errors import NotDeliveredError
from stilltide.schemas.pending_ack.acknowledgements import Acks, PendingAcks
from stilltide.schemas.values import EndOffset, Offset, Range, TopicPartition, TxnId

DATA = TopicPartition("orders", 0)
NOTHING = Acks(EndOffset(0), (), (), b"m" * 16)
THEIRS = PendingAcks(TxnId(0, 1), (Range(Offset(1), EndOffset(2)),), None)


def test_g_a_cumulative_acknowledgement_covers_nothing_unseen():
    """A message held back while later ones were delivered is not covered by acknowledging those."""
    cursor = Cursor(Offset(0))
    pending = NOTHING._replace(pending=(THEIRS,))
    tracker = Tracker[str](DATA, cursor, pending, redelivery=RedeliveryPolicy(1))
    assert [tracker.taken(offset, f"{offset}") for offset in range(3)] == [True, False, True]
    (ask,) = tracker.tick(0)
    tracker.described(ask.number, NOTHING, 0)
    with pytest.raises(NotDeliveredError) as released:
        tracker.acknowledge_cumulative(2)
    assert tracker.redelivered(0) == [Redeliver("1", 1)]
    with pytest.raises(NotDeliveredError) as ready:
        tracker.claim_cumulative("X", 2, ready=[1])
    assert released.value.place == ready.value.place == "orders/0@1"
    tracker.claim_cumulative("X", 2)
    assert tracker.unacknowledged == 3


def test_g_a_cumulative_acknowledgement_covers_what_is_to_come_again():
    """The application has had the message once, and may acknowledge it before it comes again."""
    tracker = Tracker[str](DATA, Cursor(Offset(0)), NOTHING, redelivery=RedeliveryPolicy(1))
    assert all(tracker.taken(offset, f"{offset}") for offset in range(3))
    tracker.negative_acknowledge(0, 0, "")
    tracker.acknowledge_cumulative(1)
    tracker.negative_acknowledge(2, 0, "")
    assert tracker.redelivered(5) == [Redeliver("2", 2)]
    tracker.acknowledge_cumulative(2, ready=[2])
    assert tracker.cursor(3) == Cursor(Offset(3))


def test_g_a_cumulative_acknowledgement_passes_over_what_cannot_be_decoded():
    """The application never had the message, whose dead letter acknowledges it in its own time."""
    tracker = Tracker[str](DATA, Cursor(Offset(0)), NOTHING, redelivery=RedeliveryPolicy(1))
    assert all(tracker.taken(offset, f"{offset}") for offset in range(4))
    tracker.negative_acknowledge(1, 0, "no such schema", undecodable=True)
    tracker.acknowledge_cumulative(2)  # it waits for its sender
    assert tracker.cursor(4).offset == 1
    assert tracker.redelivered(0) == [DeadLetter("1", 1, "no such schema")]
    tracker.claim("letter", 1)
    tracker.acknowledge_cumulative(3)  # its transaction is open
    assert tracker.cursor(4).offset == 1
    tracker.committed("letter")
    assert tracker.cursor(4) == Cursor(Offset(4))
