import itertools

import pytest

from pipeline.jobs.outcomes import MarkerRecord, latest_markers, mixed_transactions
from schemas import barriers
from schemas.barriers import Barrier, Probe
from schemas.errors import DecodeError
from schemas.markers import Marker, encode_key, encode_value
from schemas.topics import TXN_MARKERS
from schemas.values import EndOffset, TopicPartition, TxnId

ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 1)
FIRST, SECOND = TxnId(0, 1), TxnId(0, 2)


def marker(data: TopicPartition, txn: TxnId, *, committed: bool = True, count: int = 1) -> Marker:
    """A marker over offsets [0, 9)."""
    return Marker(data, txn, committed, EndOffset(0), EndOffset(9), count, b"")


def record(offset: int, written: Marker) -> MarkerRecord:
    """A marker as it lies in the topic."""
    key = encode_key(written.data, written.txn)
    return MarkerRecord(0, offset, key, encode_value(written))


def tombstone(offset: int, data: TopicPartition, txn: TxnId) -> MarkerRecord:
    """The deletion of a marker."""
    return MarkerRecord(0, offset, encode_key(data, txn), None)


def test_the_highest_offset_of_a_key_counts_in_any_order_of_reading():
    """Spark gives no order between tasks; the log's order decides."""
    records = [
        record(5, marker(ORDERS, FIRST, count=2)),
        record(7, marker(ORDERS, FIRST, count=3)),
        record(3, marker(PAYMENTS, FIRST)),
        tombstone(9, PAYMENTS, SECOND),
        record(8, marker(PAYMENTS, SECOND)),
    ]
    expected = {marker(ORDERS, FIRST, count=3), marker(PAYMENTS, FIRST)}
    for order in itertools.permutations(records):
        assert set(latest_markers(order)) == expected


def test_a_marker_behind_a_tombstone_lives_again():
    """A tombstone hides only what lies before it."""
    records = [tombstone(1, ORDERS, FIRST), record(2, marker(ORDERS, FIRST))]
    assert latest_markers(records) == [marker(ORDERS, FIRST)]


def test_barriers_are_no_outcomes():
    """E1: they lie among the markers, for snapshot writers."""
    value = barriers.encode_value(Barrier(2, Probe(b"n", 1), 7, ()))
    barrier = MarkerRecord(3, 5, barriers.encode_key(2), value)
    assert latest_markers([barrier, record(4, marker(ORDERS, FIRST))]) == [marker(ORDERS, FIRST)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"x", b""),
        (encode_key(ORDERS, FIRST), b"\xff"),
        (encode_key(ORDERS, FIRST), b""),
    ],
)
def test_a_record_that_is_no_marker_stops_the_audit_and_is_named(
    key: bytes | None, value: bytes | None
):
    """Never skipped silently: the error carries topic, partition and offset."""
    with pytest.raises(DecodeError) as caught:
        latest_markers([record(0, marker(ORDERS, FIRST)), MarkerRecord(3, 41, key, value)])
    assert caught.value.place == f"{TXN_MARKERS}/3@41"


def test_a_transaction_with_two_outcomes_is_mixed():
    """Commit on one partition and abort on another; two commits are none."""
    found = [
        marker(ORDERS, SECOND),
        marker(PAYMENTS, SECOND, committed=False),
        marker(ORDERS, FIRST),
        marker(PAYMENTS, FIRST),
    ]
    assert mixed_transactions(found) == [SECOND]
