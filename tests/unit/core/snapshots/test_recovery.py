"""Snapshots read from a partition of txn-snapshots (D4, E4, E8)."""

import pytest

from stilltide.pipeline.core.snapshots.recovery import Snapshot, SnapshotTable
from stilltide.pipeline.errors import SnapshotPartError, TopicRecreatedError
from stilltide.schemas.errors import DecodeError, UnknownVersionError
from stilltide.schemas.snapshots.snapshots import (
    AbortedIds,
    SnapshotEnd,
    SnapshotStar,
    checksum,
    encode_end,
    encode_part,
    encode_star,
    end_key,
    part_key,
)
from stilltide.schemas.values import EndOffset, Offset, TopicPartition
from tests.support.snapshots.recovered import recover

P = TopicPartition("orders", 0)
Q = TopicPartition("orders", 1)
ID = b"i" * 16


def part(number: int, aborted: AbortedIds, data: TopicPartition = P) -> tuple[bytes, bytes]:
    """A sealed part."""
    return part_key(data, number), encode_part(aborted)


def end(
    *parts: tuple[bytes, bytes],
    first: int = 1,
    unsealed: AbortedIds | None = None,
    floors: dict[int, int] | None = None,
    data: TopicPartition = P,
) -> tuple[bytes, bytes]:
    """An end with M = 10 and F = 2 that names these parts."""
    value = SnapshotEnd(
        ID,
        EndOffset(10),
        EndOffset(0),
        first,
        tuple(checksum(*one) for one in parts),
        unsealed or {},
        floors or {},
        EndOffset(2),
        (),
    )
    return end_key(data), encode_end(value)


def read(*records: tuple[bytes, bytes | None], only: set[TopicPartition] | None = None):
    """What these records say, read in this order."""
    numbered = ((Offset(7 + n), *one) for n, one in enumerate(records))
    return recover(5, numbered, only=only)


def snapshot(table: SnapshotTable, last: Snapshot | None = None) -> Snapshot:
    """The snapshot of P."""
    found = table.snapshot(P, ID, last)
    assert found is not None
    return found


ONE, TWO = part(1, {0: [3, 1]}), part(2, {0: [9], 4: [1]})


def test_a_snapshot_is_its_end_and_the_parts_it_names():
    """D4: records of aborted transactions are hidden everywhere, others below M are visible."""
    found = snapshot(read(ONE, TWO, end(ONE, TWO, unsealed={0: [7]}, floors={4: 1})))
    hidden = {one for one in range(12) if found.visible(5, 0, one) is False}
    assert hidden == {1, 3, 7, 9}
    assert found.visible(99, 0, 9) is False
    assert found.visible(99, 4, 0) is False
    assert (found.visible(9, 0, 2), found.visible(10, 0, 2)) == (True, None)
    assert found.visible(1, 0, 9) is None


def test_without_an_end_there_is_no_snapshot():
    """D5: neither end nor part is no snapshot; tombstones of both are the same as neither."""
    gone = [(end_key(P), None), (ONE[0], None)]
    for records in ([], [end(), gone[0]], [ONE, end(ONE), *gone], [ONE, end(ONE), *gone[::-1]]):
        table = read(*records)
        assert table.snapshot(P, ID) is None
        table.check_ends()


@pytest.mark.parametrize(
    "records",
    [[ONE], [ONE, end(ONE), (end_key(P), None)], [ONE, TWO, end(ONE, TWO), (end_key(P), None)]],
    ids=["never an end", "end dropped", "end of two dropped"],
)
def test_parts_without_an_end_are_damage(records: list[tuple[bytes, bytes | None]]):
    """E4: a writer puts the end behind its parts, so an end is lost and with it what is hidden."""
    table = read(*records)
    with pytest.raises(SnapshotPartError, match="and no end") as caught:
        table.snapshot(P, ID)
    assert caught.value.place == "stilltide.txn-snapshots/5"
    assert table.without_end() == [P]
    with pytest.raises(SnapshotPartError, match=r"orders/0 has \d parts from 1 on"):
        table.check_ends()
    assert table.snapshot(Q, ID) is None
    table.record_read(Offset(90), *end(ONE))
    table.check_ends()
    assert snapshot(table).visible(5, 0, 3) is False


def test_only_the_last_record_of_a_key_counts():
    """Compaction may have left the others, or not."""
    table = read(end(unsealed={0: [1]}), end(unsealed={0: [2]}))
    assert snapshot(table).visible(5, 0, 1) is True
    assert snapshot(table).visible(5, 0, 2) is False


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([TWO], "part 1 .* is missing"),
        ([ONE], "part 2 .* is missing"),
        ([ONE, TWO, (ONE[0], None)], "part 1 .* is missing"),
        ([ONE, (TWO[0], TWO[1][:-2])], "part 2 .* is not the one its end names"),
        ([ONE, (TWO[0], ONE[1])], "part 2 .* is not the one its end names"),
        ([(ONE[0], TWO[1]), TWO], "part 1 .* is not the one its end names"),
    ],
    ids=["first", "last", "tombstone", "truncated", "another one", "of another number"],
)
def test_a_part_that_is_missing_or_another_one_is_an_error(
    records: list[tuple[bytes, bytes | None]], why: str
):
    """E4: never an empty set; a reader that can read on may do so, and ask again."""
    table = read(*records, end(ONE, TWO))
    with pytest.raises(SnapshotPartError, match=why) as caught:
        table.snapshot(P, ID)
    assert caught.value.place == "stilltide.txn-snapshots/5"
    for number, one in enumerate((ONE, TWO)):
        table.record_read(Offset(90 + number), *one)
    assert snapshot(table).visible(5, 0, 9) is False


def test_a_part_of_another_topic_is_not_taken_for_one():
    """The checksum is of the key too: the same bytes under another key are another part."""
    foreign = part(1, {0: [3, 1]}, Q)
    with pytest.raises(SnapshotPartError):
        read(ONE, end(foreign)).snapshot(P, ID)


def test_a_snapshot_of_a_former_topic_stops_its_reader():
    """E8: its offsets are not those of the topic that is read."""
    with pytest.raises(TopicRecreatedError, match="another topic of that name") as caught:
        read(end()).snapshot(P, b"j" * 16)
    assert caught.value.place == "orders/0"


def test_a_later_snapshot_is_read_on_top_of_the_last_one():
    """Parts that both name are not decoded again; what left them stays hidden by a floor."""
    table = read(ONE, TWO, end(ONE, TWO, unsealed={0: [7]}))
    last = snapshot(table)
    three = part(3, {0: [7]})
    table = read(TWO, three, end(TWO, three, first=2, unsealed={0: [8]}, floors={0: 4}))
    for before in (None, last):
        later = snapshot(table, before)
        hidden = {one for one in range(12) if later.visible(5, 0, one) is False}
        assert hidden == {0, 1, 2, 3, 7, 8, 9}
        assert len(later.aborted) == 4
    assert snapshot(table, last).aborted is last.aborted


def test_a_last_snapshot_with_other_parts_is_of_no_use():
    """Numbers may be used again by a writer whose transaction was aborted; checksums tell."""
    last = snapshot(read(ONE, end(ONE)))
    other = part(1, {0: [2]})
    later = snapshot(read(other, end(other)), last)
    assert later.visible(5, 0, 2) is False
    assert later.aborted is not last.aborted


def test_what_is_not_of_interest_is_not_kept():
    """A reader of some partitions holds the snapshots of those alone."""
    table = read(ONE, end(ONE), part(1, {0: [1]}, Q), end(data=Q), only={Q})
    assert list(table.ends) == [Q]
    assert P not in table._parts


def test_the_star_is_the_last_one_read():
    """E3: for writers; without one, no marker is covered."""
    assert read().star == SnapshotStar(EndOffset(0), {})
    stars = [SnapshotStar(EndOffset(n), {0: n}) for n in (3, 9)]
    assert read(*((b"*", encode_star(one)) for one in stars)).star == stars[1]


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (b"x", b"", DecodeError),
        (end_key(P), b"\xff", DecodeError),
        (end_key(P), b"\x08\x02", UnknownVersionError),
        (b"*", b"\x08\x02", UnknownVersionError),
    ],
    ids=["unknown key", "garbage", "later end", "later star"],
)
def test_a_record_that_is_not_understood_is_named(
    key: bytes, value: bytes, error: type[DecodeError]
):
    """Never skipped silently: the error carries topic, partition and offset."""
    with pytest.raises(error) as caught:
        _ = read(ONE, (key, value)).ends
    assert caught.value.place == "stilltide.txn-snapshots/5@8"


def test_only_the_last_value_of_a_key_is_decoded():
    """E10: what a newer value replaces costs nothing, and its damage does not matter."""
    star = (b"*", encode_star(SnapshotStar(EndOffset(3), {})))
    table = read(ONE, (end_key(P), b"\xff"), end(ONE), (b"*", b"\x08\x02"), star)
    assert list(table.ends) == [P]
    assert read(ONE, (end_key(P), b"\xff"), (end_key(P), None)).ends == {}


def test_a_part_of_a_later_version_is_refused():
    """Parts are decoded when a snapshot is asked for."""
    later = (part_key(P, 1), b"\x08\x02")
    with pytest.raises(UnknownVersionError) as caught:
        read(later, end(later)).snapshot(P, ID)
    assert caught.value.place == "stilltide.txn-snapshots/5"
