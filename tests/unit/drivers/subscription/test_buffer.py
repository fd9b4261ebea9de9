"""What waits for the application, by partition."""

from collections.abc import Sequence

from stilltide.connectors.ports.readers import FetchedRecord, Record, WrappedRecord
from stilltide.pipeline.core.read_committed.machine import Deliver
from stilltide.pipeline.drivers.subscription.deliveries import Changes, Deliveries
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

A = TopicPartition("orders", 0)
B = TopicPartition("orders", 1)


def record(data: TopicPartition, offset: int) -> Record:
    """A record whose contents do not matter."""
    return Record(*data, Offset(offset), None, None, None)


def buffer() -> Deliveries:
    """Two open partitions, both at offset 0."""
    deliveries = Deliveries(Changes())
    begin(deliveries, A, 0)
    begin(deliveries, B, 0)
    return deliveries


def begin(deliveries: Deliveries, data: TopicPartition, position: int) -> None:
    """Opens a partition to which the group has committed nothing."""
    deliveries.open({data: Offset(position)}, {data: None})


def put(deliveries: Deliveries, data: TopicPartition, offsets: Sequence[int], end: int) -> None:
    """Delivers records with these offsets; the machine's position is `end` then."""
    records: list[FetchedRecord] = [WrappedRecord(record(data, offset)) for offset in offsets]
    batch = Deliver(records, EndOffset(end))
    deliveries.delivered(data, batch)


def test_partitions_take_turns_and_keep_their_order():
    """A partition that always has records does not starve another."""
    b = buffer()
    put(b, A, [0, 1, 2], 3)
    put(b, B, [0], 1)
    taken = [b.next_queue().popleft() for _ in range(4)]
    assert [(r.partition, r.offset) for r in taken] == [(0, 0), (1, 0), (0, 1), (0, 2)]
    assert not b.next_queue()


def test_the_position_follows_what_is_taken():
    """The position is that of the first record not taken, then what lies behind the last."""
    b = buffer()
    put(b, A, [4, 7], 9)
    assert b.position(A) == 4
    b.queue(A).popleft()
    assert b.position(A) == 7
    b.queue(A).popleft()
    assert b.position(A) == 9
    assert {data: it.position for data, it in b.assigned.items()} == {A: 9, B: 0}


def test_hidden_records_alone_move_the_position():
    """Nothing visible came: the position moves though there is nothing to take."""
    b = buffer()
    put(b, A, [], 5)
    assert not b.next_queue()
    assert b.position(A) == 5


def test_a_dropped_partition_leaves_nothing_behind():
    """Revoked: its records are gone, also from a queue handed out; the others are as before."""
    b = buffer()
    put(b, A, [0, 1], 2)
    put(b, B, [0], 1)
    handed_out = b.queue(A)
    b.drop(A)
    assert not handed_out
    assert b.count == 1
    assert b.position(A) is None
    assert list(b.next_queue()) == [record(B, 0)]


def test_a_partition_opened_again_begins_anew():
    """Nothing of an earlier assignment comes back with a later one."""
    b = buffer()
    put(b, A, [0], 1)
    b.drop(A)
    begin(b, A, 8)
    put(b, A, [8], 9)
    assert list(b.queue(A)) == [record(A, 8)]
    assert b.count == 1


def test_an_unknown_partition_has_no_records():
    """A partition that is not assigned is empty and has no position."""
    b = Deliveries(Changes())
    assert not b.queue(A)
    assert not b.next_queue()
    assert b.position(A) is None
