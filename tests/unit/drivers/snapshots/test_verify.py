"""`snapshot list` and `verify` on the memory broker."""

import pytest

from stilltide.pipeline.cli.snapshot import listed_rows, shown_row
from stilltide.pipeline.core.snapshots.verify import DifferenceKind
from stilltide.pipeline.drivers.snapshots.listing import list_snapshots
from stilltide.pipeline.drivers.snapshots.verify import CheckedSnapshot, verify_topic
from stilltide.schemas.snapshots.snapshots import STAR_KEY, end_key, part_key
from stilltide.schemas.topics import TXN_SNAPSHOTS, TopicSpec
from stilltide.schemas.values import EndOffset, TxnId
from tests.support.snapshots.evidence_rig import (
    FIRST,
    ORDERS,
    PART,
    SECOND,
    SERVING,
    SNAPSHOTS,
    EvidenceRig,
)

NOW_MS = 1_700_000_000_000
HELD = TxnId(0, 7)
"""In the rig's part."""


@pytest.fixture
def rig() -> EvidenceRig:
    """Three plain records; then one of each transaction."""
    made = EvidenceRig()
    for txn in (HELD, FIRST, SECOND):
        made.record(txn)
    return made


async def verified(rig: EvidenceRig):
    """The one snapshot, and the kinds of its differences."""
    said: list[str] = []
    found = await verify_topic(rig.connector, "orders", evidence_max=5, progress=said.append)
    assert said
    (checked,) = found.checked
    return checked, [it.kind for it in found.differences]


async def test_what_markers_tell_below_m_is_compared(rig: EvidenceRig):
    """D4: a record past M is not the snapshot's to judge."""
    rig.write(end=rig.end(max_read_position=EndOffset(5)))
    rig.mark(HELD, committed=False)
    rig.mark(SECOND, committed=False)
    checked, kinds = await verified(rig)
    assert kinds == []
    assert checked == CheckedSnapshot(ORDERS, EndOffset(5), 2, 1, 1, 1, 0)


async def test_an_aborted_record_that_is_shown_is_found(rig: EvidenceRig):
    """E1: M passed a transaction whose abort is not in the set."""
    rig.write(end=rig.end(max_read_position=EndOffset(6)))
    rig.mark(FIRST, committed=False)
    checked, kinds = await verified(rig)
    assert kinds == [DifferenceKind.SHOWN_ABORTED]
    assert checked.difference_count == 1


async def test_a_snapshot_that_cannot_be_used_is_a_difference(rig: EvidenceRig):
    """E2: a part is missing; the place and the reason are told."""
    rig.write(end=rig.end(), part=None)
    found = await verify_topic(rig.connector, "orders", evidence_max=5)
    ((kind, data, txn, offset, detail),) = found.differences
    assert (kind, data, txn, offset) == (DifferenceKind.UNUSABLE, SNAPSHOTS, None, None)
    assert detail is not None
    assert "part 1" in detail


async def test_a_snapshot_is_listed_with_its_sizes(rig: EvidenceRig):
    """E2: bytes of end and parts, ids, and how far the end of the data is."""
    rig.write(end=rig.end(unsealed={3: [1, 2]}), star=1)
    (one,) = await list_snapshots(rig.connector)
    assert (one.data, one.partition, one.problem) == (ORDERS, SERVING, None)
    assert (one.aborted_count, one.end_offset, one.behind) == (4, 6, 4)
    (part,) = one.parts
    assert part.bytes == len(part_key(ORDERS, 1)) + len(PART)
    assert one.record is not None
    assert part.bytes is not None
    assert one.bytes == one.record.bytes + part.bytes
    assert one.record.bytes > len(end_key(ORDERS))
    assert (one.record.offset, one.star_covered_to) == (1, 1)


async def test_a_part_that_is_missing_is_listed_as_such(rig: EvidenceRig):
    """An operator sees which one."""
    rig.write(end=rig.end(), part=PART + b"x")
    (one,) = await list_snapshots(rig.connector)
    assert (one.aborted_count, one.parts[0].bytes) == (None, None)
    assert one.problem is not None
    assert "not the one" in one.problem


async def test_parts_without_an_end_are_listed_and_refused(rig: EvidenceRig):
    """E4: an operator sees where they are; a batch job refuses them, as a subscription does."""
    rig.write(end=rig.end())
    rig.broker.append(SNAPSHOTS, end_key(ORDERS), None, None)
    (one,) = await list_snapshots(rig.connector)
    assert (one.data, one.end, one.record, one.behind) == (ORDERS, None, None, None)
    assert one.bytes == one.parts[0].bytes == len(part_key(ORDERS, 1)) + len(PART)
    assert one.problem == "it has parts and no end"
    (row,) = listed_rows([one], NOW_MS)
    assert (row["max_read_position"], row["age_s"], row["parts"]) == (None, None, 1)
    assert shown_row(one, NOW_MS)["problem"] == one.problem
    found = await verify_topic(rig.connector, "orders", evidence_max=5)
    assert [it.kind for it in found.differences] == [DifferenceKind.UNUSABLE]
    assert "no end" in (found.differences[0].detail or "")


async def test_a_snapshot_of_a_topic_that_is_gone_is_listed_as_such(rig: EvidenceRig):
    """E8: deleted, and then created anew."""
    rig.write(end=rig.end())
    rig.broker.delete_topic("orders")
    (gone,) = await list_snapshots(rig.connector)
    assert (gone.end_offset, gone.behind) == (None, None)
    assert gone.problem == "the topic does not exist"
    rig.broker.create_topic(TopicSpec("orders", 1))
    (former,) = await list_snapshots(rig.connector)
    assert former.problem == "it is of a former topic of that name"


async def test_after_a_tombstone_and_compaction_nothing_is_listed(rig: EvidenceRig):
    """A deleted topic's snapshot goes."""
    rig.write(end=rig.end())
    for key in (end_key(ORDERS), part_key(ORDERS, 1), STAR_KEY):
        rig.broker.append(SNAPSHOTS, key, None, None)
    assert await list_snapshots(rig.connector) == []
    rig.broker.topics[TXN_SNAPSHOTS].compact()
    assert await list_snapshots(rig.connector) == []
