"""Which open transactions hang (KIP-664): what was open before and after its coordinator spoke."""

from stilltide.pipeline.core.native.hanging import judge_open, open_producer_ids
from stilltide.schemas.native.transactions import (
    ActiveProducer,
    DescribedTransaction,
    ListedTransaction,
    TransactionState,
)
from stilltide.schemas.values import Offset, TopicPartition

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
ID = "writer"
PRODUCER = 7


def producer(open_from: int | None, *, number: int = PRODUCER, epoch: int = 0) -> ActiveProducer:
    """As a leader remembers it."""
    start = None if open_from is None else Offset(open_from)
    return ActiveProducer(number, epoch, 0, 1_000, -1, start)


def described(*partitions: TopicPartition, number: int = PRODUCER) -> DescribedTransaction:
    """As a coordinator knows it."""
    return DescribedTransaction(
        ID, 1, TransactionState.ONGOING, number, 0, 60_000, 1_000, partitions
    )


LISTED = [ListedTransaction(ID, PRODUCER, TransactionState.ONGOING)]


def test_what_its_coordinator_has_will_end():
    """Known id, same producer id, and the partition among its own."""
    seen = {A: [producer(5)]}
    (found,) = judge_open(seen, LISTED, {ID: described(A, B)}, seen)
    assert (found.open_from, found.transactional_id, found.hanging) == (5, ID, False)


def test_what_no_coordinator_has_hangs():
    """No such producer id; an id forgotten meanwhile; another producer id; other partitions."""
    seen = {A: [producer(5)]}
    for listed, known in (
        ([], {}),
        (LISTED, {ID: None}),
        (LISTED, {ID: described(A, number=8)}),
        (LISTED, {ID: described(B)}),
    ):
        (found,) = judge_open(seen, listed, known, seen)
        assert found.hanging


def test_what_ended_meanwhile_is_not_judged():
    """Its markers were on their way while the coordinator was asked."""
    for after in (producer(None), producer(9)):
        assert judge_open({A: [producer(5)]}, [], {}, {A: [after]}) == []
    assert judge_open({A: [producer(5)]}, [], {}, {}) == []


def test_what_began_meanwhile_is_not_judged():
    """The coordinator was not asked about it."""
    before = {A: [producer(None)], B: [producer(3, number=1)]}
    after = {A: [producer(5)], B: [producer(3, number=1)]}
    assert [it.data for it in judge_open(before, [], {}, after)] == [B]


def test_partitions_and_offsets_ascend():
    """The first one of a partition is the one that holds its readers."""
    seen = {B: [producer(1)], A: [producer(9, number=1), producer(4, number=2)]}
    found = judge_open(seen, [], {}, seen)
    assert [(it.data, it.open_from) for it in found] == [(A, 4), (A, 9), (B, 1)]


def test_only_open_producers_are_asked_about():
    """The others would make the question long."""
    seen = {A: [producer(None), producer(4, number=2)], B: [producer(2, number=3)]}
    assert open_producer_ids(seen) == {2, 3}


def test_an_aborted_marker_bears_the_newest_epoch():
    """The epoch that was seen last, since an older one would be refused."""
    (found,) = judge_open({A: [producer(5)]}, [], {}, {A: [producer(5, epoch=2)]})
    assert found.producer.producer_epoch == 2
