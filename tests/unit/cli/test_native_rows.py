"""How native transactions are shown."""

from stilltide.pipeline.cli.native import open_row, position_row
from stilltide.pipeline.core.native.hanging import OpenNativeTransaction
from stilltide.pipeline.drivers.native.open_transactions import StablePosition
from stilltide.schemas.native.transactions import (
    ActiveProducer,
    DescribedTransaction,
    TransactionState,
)
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

DATA = TopicPartition("orders", 0)
NOW_MS = 10_000


def opened(first: int, *, hanging: bool) -> OpenNativeTransaction:
    """Of a producer that wrote last 4 s ago."""
    known = DescribedTransaction("id", 1, TransactionState.ONGOING, 7, 0, 60_000, 1_000, (DATA,))
    producer = ActiveProducer(7, 0, 0, 6_000, -1, Offset(first))
    return OpenNativeTransaction(
        DATA,
        Offset(first),
        producer,
        None if hanging else "id",
        None if hanging else known,
        hanging,
    )


def test_the_first_open_transaction_holds_the_readers():
    """Its name, or its producer's where nobody knows one."""
    ends = EndOffset(5), EndOffset(30)
    both = (opened(5, hanging=True), opened(9, hanging=False))
    row = position_row(StablePosition(DATA, *ends, both), NOW_MS)
    assert (row["held_by"], row["state"], row["idle_s"]) == ("producer 7", "hanging", 4.0)
    assert (row["lag"], row["open"]) == (25, 2)
    row = position_row(StablePosition(DATA, *ends, both[1:]), NOW_MS)
    assert (row["held_by"], row["state"]) == ("id", "Ongoing")


def test_readers_that_nobody_holds():
    """An end read a moment later may lie above the position."""
    row = position_row(StablePosition(DATA, EndOffset(30), EndOffset(30), ()), NOW_MS)
    assert (row["lag"], row["held_by"], row["state"], row["idle_s"]) == (0, None, None, None)


def test_a_transaction_is_never_idle_for_longer_than_open():
    """A copy bears the time of its source."""
    copied = opened(5, hanging=False)
    copied = copied._replace(producer=copied.producer._replace(last_timestamp_ms=10))
    assert open_row(copied, NOW_MS)["idle_s"] == 9.0


def test_a_time_that_is_not_known_is_not_shown():
    """A producer without batches of its own left has none."""
    one = opened(5, hanging=True)
    row = open_row(one._replace(producer=one.producer._replace(last_timestamp_ms=-1)), NOW_MS)
    assert row["idle_s"] is None
