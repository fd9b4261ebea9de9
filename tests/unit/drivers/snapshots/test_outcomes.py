"""What a batch job knows of outcomes, and in which order it found out (D2, D4, E4)."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from stilltide.connectors.errors import FatalError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryAdmin, MemoryConnector
from stilltide.pipeline.drivers.snapshots.outcomes import FollowedOutcomes, gather_evidence
from stilltide.pipeline.errors import (
    MarkersTrimmedError,
    SnapshotError,
    SnapshotPartError,
    TopicRecreatedError,
)
from stilltide.schemas.coordinator import markers
from stilltide.schemas.coordinator.markers import (
    Barrier,
    Probe,
    encode_barrier,
    encode_barrier_key,
)
from stilltide.schemas.errors import DecodeError, UnknownVersionError
from stilltide.schemas.snapshots.snapshots import encode_end, encode_part, end_key
from stilltide.schemas.topics import TXN_MARKERS, TXN_SNAPSHOTS, TopicSpec
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition
from tests.support.snapshots.evidence_rig import (
    FIRST,
    MARKERS,
    ORDERS,
    PART,
    PARTITIONS,
    SECOND,
    SNAPSHOTS,
    EvidenceRig,
)


class Interrupted(MemoryConnector):
    """Something happens to the cluster once, just after the end of a partition was read."""

    def __init__(
        self, broker: MemoryBroker, happens: Callable[[], object], *, at: TopicPartition = ORDERS
    ) -> None:
        super().__init__(broker)
        self.left = {at: happens}

    def admin(self) -> MemoryAdmin:
        """An admin that is interrupted."""
        return InterruptedAdmin(self._broker, self.left)


class InterruptedAdmin(MemoryAdmin):
    """See `Interrupted`."""

    def __init__(
        self, broker: MemoryBroker, left: dict[TopicPartition, Callable[[], object]]
    ) -> None:
        super().__init__(broker)
        self._left = left

    async def end_offsets(
        self, partitions: Sequence[TopicPartition], *, committed: bool = False
    ) -> Mapping[TopicPartition, EndOffset]:
        """Reads, and then something happens."""
        found = await super().end_offsets(partitions, committed=committed)
        for place in partitions:
            self._left.pop(place, lambda: None)()
        return found


@pytest.fixture
def rig() -> EvidenceRig:
    """A cluster without any outcome."""
    return EvidenceRig()


async def test_without_a_snapshot_the_markers_tell_everything(rig: EvidenceRig):
    """D5: no end is M = 0 and an empty set; a topic named twice is read once."""
    marker = rig.mark(FIRST)
    found = await gather_evidence(rig.connector, ["orders", "orders"])
    assert found.data == (OffsetRange(ORDERS, 0, 3),)
    assert found.topic_ids == {"orders": rig.topic_id}
    assert found.markers == (marker,)
    assert found.snapshots == {}
    assert found.undecided_tail(found.data[0]) == OffsetRange(ORDERS, 0, 3)


async def test_a_snapshot_stands_for_the_markers_that_were_trimmed(rig: EvidenceRig):
    """D4, E4: markers before K are not missed, those since come on top."""
    rig.mark(FIRST)
    left = rig.mark(SECOND)
    rig.write(end=rig.end(markers_covered_to=EndOffset(1), unsealed={0: [1]}), star=1)
    rig.broker.delete_records(MARKERS, Offset(1))
    found = await gather_evidence(rig.connector, ["orders"])
    assert found.markers == (left,)
    snapshot = found.snapshots[ORDERS]
    assert [snapshot.visible(0, 0, it) for it in (1, 7, 8, 9)] == [False, False, False, True]
    assert found.undecided_tail(found.data[0]) == OffsetRange(ORDERS, 2, 3)


async def test_kept_markers_are_read_only_when_they_are_wanted(rig: EvidenceRig):
    """E9: a batch job begins where the snapshot ends; an audit reads the latest absorbed ones."""
    first = rig.mark(FIRST)
    left = rig.mark(SECOND)
    rig.write(end=rig.end(markers_covered_to=EndOffset(1), unsealed={0: [1]}), star=1)
    assert (await gather_evidence(rig.connector, ["orders"])).markers == (left,)
    found = await gather_evidence(rig.connector, ["orders"], kept_markers_max=100)
    assert found.markers == (first, left)
    assert found.absorbed_to[ORDERS] == 1


async def test_what_all_snapshots_have_absorbed_is_not_missed_by_an_older_end(rig: EvidenceRig):
    """E4: markers begin at K*, where that is above K."""
    rig.mark(FIRST)
    rig.write(end=rig.end(), star=1)
    rig.broker.delete_records(MARKERS, Offset(1))
    assert (await gather_evidence(rig.connector, ["orders"])).markers == ()


async def test_a_marker_written_when_the_data_ended_is_among_them(rig: EvidenceRig):
    """D2: the markers' ends are read last, so no known outcome is left out."""
    connector = Interrupted(rig.broker, lambda: rig.mark(FIRST))
    found = await gather_evidence(connector, ["orders"])
    assert [marker.txn for marker in found.markers] == [FIRST]


async def test_a_snapshot_that_overtakes_the_reading_is_read_too(rig: EvidenceRig):
    """E4: markers that were trimmed meanwhile are absorbed by a newer end."""
    rig.write(end=rig.end())
    rig.mark(FIRST, committed=False)

    def newer() -> None:
        end = rig.end(markers_covered_to=EndOffset(1), unsealed={0: [1]})
        rig.write(end=end, part=None, star=1)
        rig.broker.delete_records(MARKERS, Offset(1))

    found = await gather_evidence(Interrupted(rig.broker, newer), ["orders"])
    assert found.snapshots[ORDERS].visible(0, *FIRST) is False


async def test_markers_that_nothing_stands_for_stop_it(rig: EvidenceRig):
    """E4: a gap that remains when nothing newer is there is an error, with its place."""
    rig.mark(FIRST)
    rig.write(end=rig.end())
    rig.broker.delete_records(MARKERS, Offset(1))
    with pytest.raises(MarkersTrimmedError) as caught:
        await gather_evidence(rig.connector, ["orders"])
    assert caught.value.place == f"{MARKERS}@1"
    assert caught.value.hint


async def test_markers_trimmed_without_any_snapshot_topic_stop_it(rig: EvidenceRig):
    """E4: a cluster that lost its snapshots is not one that never had any."""
    rig.mark(FIRST)
    rig.broker.delete_records(MARKERS, Offset(1))
    rig.broker.delete_topic(TXN_SNAPSHOTS)
    with pytest.raises(MarkersTrimmedError):
        await gather_evidence(rig.connector, ["orders"])


async def test_a_part_that_is_missing_is_looked_for_once_more(rig: EvidenceRig):
    """E4: compaction may run ahead of a reader; a later end is whole."""
    rig.write(end=rig.end(), part=None)
    with pytest.raises(SnapshotPartError, match="part 1"):
        await gather_evidence(rig.connector, ["orders"])
    overtaken = Interrupted(rig.broker, lambda: rig.write(end=rig.end()), at=SNAPSHOTS)
    assert ORDERS in (await gather_evidence(overtaken, ["orders"])).snapshots


@pytest.mark.parametrize("part", [encode_part({0: [7]}), PART[:-1]])
async def test_another_part_than_the_one_that_is_named_is_refused(rig: EvidenceRig, part: bytes):
    """E2: truncated, or of another writer: the checksum tells."""
    rig.write(end=rig.end(), part=part)
    with pytest.raises(SnapshotPartError, match="not the one"):
        await gather_evidence(rig.connector, ["orders"])


async def test_an_end_of_a_later_version_is_refused(rig: EvidenceRig):
    """Never guessed at; the error names topic, partition and offset."""
    value = b"\x08\x09" + encode_end(rig.end())[2:]
    rig.broker.append(SNAPSHOTS, end_key(ORDERS), value, None)
    with pytest.raises(UnknownVersionError) as caught:
        await gather_evidence(rig.connector, ["orders"])
    assert caught.value.place == f"{SNAPSHOTS}@0"


async def test_a_snapshot_of_a_former_topic_is_refused(rig: EvidenceRig):
    """E8: its offsets are not those of the topic that is read."""
    rig.write(end=rig.end(topic_id=b"\xff" * 16))
    with pytest.raises(TopicRecreatedError, match="orders/0"):
        await gather_evidence(rig.connector, ["orders"])


@pytest.mark.parametrize(
    "beyond", [{"max_read_position": EndOffset(4)}, {"floors_valid_from": EndOffset(1)}]
)
async def test_a_snapshot_that_says_more_than_the_log_holds_is_refused(
    rig: EvidenceRig, beyond: dict[str, EndOffset]
):
    """D4: M past the end, or F past the log start, is of a log that lost records."""
    rig.write(end=rig.end(**beyond))
    with pytest.raises(SnapshotError, match="more than the log holds"):
        await gather_evidence(rig.connector, ["orders"])


async def test_retention_before_the_reading_is_no_loss(rig: EvidenceRig):
    """What retention took is not asked for, and a floor that matured then holds (D4)."""
    rig.write(end=rig.end(floors={0: 5}, floors_valid_from=EndOffset(2)))
    rig.broker.delete_records(ORDERS, Offset(2))
    found = await gather_evidence(rig.connector, ["orders"])
    assert found.data == (OffsetRange(ORDERS, 2, 3),)


async def test_snapshots_that_are_not_compacted_are_refused(rig: EvidenceRig):
    """A policy under which ends could vanish; the hint is the command that repairs it."""
    rig.broker.delete_topic(TXN_SNAPSHOTS)
    rig.broker.create_topic(TopicSpec(TXN_SNAPSHOTS, PARTITIONS, {"cleanup.policy": "delete"}))
    with pytest.raises(FatalError, match=r"cleanup\.policy=delete") as caught:
        await gather_evidence(rig.connector, ["orders"])
    assert "kafka-configs.sh" in caught.value.hint


async def test_a_missing_topic_is_named(rig: EvidenceRig):
    """Before anything is read."""
    with pytest.raises(FatalError, match="nowhere"):
        await gather_evidence(rig.connector, ["orders", "nowhere"])


async def test_a_cluster_without_outcomes_says_how_to_get_them(rig: EvidenceRig):
    """Without txn-markers nothing could be decided; the hint is to start a worker."""
    rig.broker.delete_topic(TXN_MARKERS)
    with pytest.raises(FatalError, match="stilltide worker"):
        await gather_evidence(rig.connector, ["orders"])


async def test_outcomes_may_be_none_where_no_worker_ever_ran(rig: EvidenceRig):
    """An audit of native transactions asks so: every range, no marker, no snapshot."""
    rig.broker.delete_topic(TXN_MARKERS)
    found = await gather_evidence(rig.connector, ["orders"], outcomes_required=False)
    assert found.data == (OffsetRange(ORDERS, Offset(0), EndOffset(3)),)
    assert (found.markers, found.snapshots) == ((), {})


async def test_the_last_marker_of_a_key_counts(rig: EvidenceRig):
    """C4: twice is one; a tombstone hides what lies before it; barriers are no outcomes (E1)."""
    rig.mark(FIRST, count=2)
    rig.mark(SECOND)
    rig.broker.append(MARKERS, markers.encode_key(ORDERS, SECOND), None, None)
    last = rig.mark(FIRST, count=3)
    barrier = encode_barrier(Barrier(2, Probe(b"n", 1), 7, ()))
    rig.broker.append(MARKERS, encode_barrier_key(2), barrier, None)
    assert (await gather_evidence(rig.connector, ["orders"])).markers == (last,)
    again = rig.mark(SECOND)
    assert (await gather_evidence(rig.connector, ["orders"])).markers == (last, again)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (markers.encode_key(ORDERS, FIRST), b"\xff"),
        (markers.encode_key(ORDERS, FIRST), b""),
    ],
)
async def test_a_damaged_marker_stops_it_and_is_named(rig: EvidenceRig, key: bytes, value: bytes):
    """Never skipped silently: the error carries topic, partition and offset."""
    rig.mark(SECOND)
    rig.broker.append(MARKERS, key, value, None)
    with pytest.raises(DecodeError) as caught:
        await gather_evidence(rig.connector, ["orders"])
    assert caught.value.place == f"{MARKERS}@1"
    assert "stilltide repair" in caught.value.hint


async def test_what_says_nothing_of_these_topics_is_passed_over(rig: EvidenceRig):
    """B10: foreign keys, damage of other topics, and damage with a later record of that key."""
    elsewhere = TopicPartition("elsewhere", 0)
    key = markers.encode_key(ORDERS, FIRST)
    for foreign in (b"", b"x", b"b", markers.encode_key(TopicPartition("../x", 0), FIRST)):
        rig.broker.append(MARKERS, foreign, b"\xff", None)
    rig.broker.append(MARKERS, markers.encode_key(elsewhere, FIRST), b"\xff", None)
    rig.broker.append(MARKERS, key, b"\xff", None)
    rig.broker.append(MARKERS, key, None, None)
    rig.mark(SECOND)
    evidence = await gather_evidence(rig.connector, ["orders"])
    assert [marker.txn for marker in evidence.markers] == [SECOND]


async def test_followed_evidence_is_that_of_a_new_look():
    """K1: markers, a snapshot that absorbs them, and a marker again; nothing is read twice."""
    rig = EvidenceRig()
    followed = FollowedOutcomes(rig.connector, ["orders"])
    try:
        assert await followed.read_on() == await gather_evidence(rig.connector, ["orders"])
        first = rig.mark(FIRST)
        assert (await followed.read_on()).markers == (first,)
        rig.write(end=rig.end(markers_covered_to=EndOffset(1)))
        seen = await followed.read_on()
        assert seen.markers == ()
        assert seen.snapshots[ORDERS].holds(0, 7)
        second = rig.mark(SECOND, committed=False)
        seen, anew = await followed.read_on(), await gather_evidence(rig.connector, ["orders"])
        assert seen.markers == anew.markers == (second,)
        assert seen.marker_offsets == anew.marker_offsets
        assert seen.snapshots[ORDERS].end == anew.snapshots[ORDERS].end
    finally:
        await followed.close()


async def test_followed_evidence_sees_new_partitions():
    """K3: a topic that gets partitions is looked at again from the beginning."""
    rig = EvidenceRig()
    followed = FollowedOutcomes(rig.connector, ["orders"])
    try:
        rig.mark(FIRST)
        await followed.read_on()
        await rig.connector.admin().add_partitions("orders", 2)
        seen = await followed.read_on()
        assert [read.data for read in seen.data] == [ORDERS, TopicPartition("orders", 1)]
        assert [marker.txn for marker in seen.markers] == [FIRST]
    finally:
        await followed.close()
