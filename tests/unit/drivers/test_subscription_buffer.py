from connectors.base import Record
from pipeline.drivers.subscription_buffer import DeliveredBuffer
from schemas.values import EndOffset, Offset, TopicPartition

A = TopicPartition("orders", 0)
B = TopicPartition("orders", 1)


def record(data: TopicPartition, offset: int) -> Record:
    """A record whose contents do not matter."""
    return Record(*data, Offset(offset), None, None, None)


def buffer() -> DeliveredBuffer:
    """Two open partitions, both at offset 0."""
    opened = DeliveredBuffer()
    opened.open(A, EndOffset(0))
    opened.open(B, EndOffset(0))
    return opened


def test_partitions_take_turns_and_keep_their_order():
    """A partition that always has records does not starve another."""
    b = buffer()
    b.put(A, [record(A, offset) for offset in range(3)], EndOffset(3))
    b.put(B, [record(B, 0)], EndOffset(1))
    taken = [b.take() for _ in range(5)]
    assert [r and (r.partition, r.offset) for r in taken] == [(0, 0), (1, 0), (0, 1), (0, 2), None]


def test_the_position_follows_what_is_taken():
    """The position is that of the first record not taken, then what lies behind the last."""
    b = buffer()
    b.put(A, [record(A, 4), record(A, 7)], EndOffset(9))
    assert b.position(A) == 4
    b.take()
    assert b.position(A) == 7
    b.take()
    assert b.position(A) == 9
    assert b.positions() == {A: 9, B: 0}


def test_hidden_records_alone_move_the_position():
    """Nothing visible came: the position moves though there is nothing to take."""
    b = buffer()
    b.put(A, [], EndOffset(5))
    assert b.take() is None
    assert b.position(A) == 5


def test_a_dropped_partition_leaves_nothing_behind():
    """Revoked: its records are gone, its position unknown, the others are as before."""
    b = buffer()
    b.put(A, [record(A, 0), record(A, 1)], EndOffset(2))
    b.put(B, [record(B, 0)], EndOffset(1))
    b.drop(A)
    assert b.count == 1
    assert b.position(A) is None
    assert b.take() == record(B, 0)
    assert b.take() is None


def test_a_partition_opened_again_begins_anew():
    """Nothing of an earlier assignment comes back with a later one."""
    b = buffer()
    b.put(A, [record(A, 0)], EndOffset(1))
    b.drop(A)
    b.open(A, EndOffset(8))
    b.put(A, [record(A, 8)], EndOffset(9))
    assert b.take() == record(A, 8)
    assert b.take() is None


def test_taking_below_an_end_offset_leaves_the_rest():
    """Records at or past the end offset, and of other partitions, stay for later."""
    b = buffer()
    b.put(A, [record(A, 0), record(A, 2)], EndOffset(3))
    b.put(B, [record(B, 0)], EndOffset(1))
    assert b.take_below(A, EndOffset(2)) == record(A, 0)
    assert b.take_below(A, EndOffset(2)) is None
    assert b.position(A) == 2
    assert b.count == 2


def test_taking_both_ways_returns_each_record_once():
    """A queue emptied by `take_below` does not stop or repeat the turns."""
    b = buffer()
    b.put(A, [record(A, 0)], EndOffset(1))
    b.take_below(A, EndOffset(1))
    assert b.take() is None
    b.put(A, [record(A, 1)], EndOffset(2))
    assert b.take() == record(A, 1)
    assert b.count == 0
