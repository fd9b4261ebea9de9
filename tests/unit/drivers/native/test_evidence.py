"""F4: what the index does not cover is a problem of its partition, not a partition without."""

from collections.abc import Sequence

import pytest

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError, RetriableError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.drivers.native.evidence import gather_native
from stilltide.pipeline.errors import AbortedIndexError
from stilltide.schemas.native.aborted_index import (
    Coverage,
    coverage_key,
    encode_coverage,
    encode_run,
    run_key,
)
from stilltide.schemas.topics import ABORTED_INDEX, TopicSpec, system_partition, system_topics
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, Range, TopicPartition

PARTITIONS = 3
ORDERS = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
INDEX = TopicPartition(ABORTED_INDEX, system_partition(ORDERS, PARTITIONS))
RECORDS = 9


class Rig:
    """A topic of two partitions, the second one empty, and hands to write its index."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.connector = MemoryConnector(self.broker)
        self.broker.create_topic(TopicSpec("orders", 2))
        for spec in system_topics(coordinators=1, partitions=PARTITIONS):
            if spec.name == ABORTED_INDEX:
                self.broker.create_topic(spec)
        self.fill()

    def fill(self, count: int = RECORDS) -> None:
        """Appends records."""
        for _ in range(count):
            self.broker.append(ORDERS, None, b"v", None)

    def index(
        self, covered_to: int, *ranges: tuple[int, int], covered_from: int = 0, run_count: int = 1
    ) -> None:
        """Writes one run and a coverage."""
        topic_id = self.broker.topics["orders"].description.topic_id
        found = [Range(Offset(first), EndOffset(end)) for first, end in ranges]
        end = EndOffset(covered_to)
        coverage = Coverage(topic_id, Offset(covered_from), end, end, run_count, len(found))
        self.broker.append(
            INDEX, run_key(ORDERS, found[0].first), encode_run(topic_id, found), None
        )
        self.broker.append(INDEX, coverage_key(ORDERS), encode_coverage(coverage), None)


async def test_what_is_covered_has_its_ranges():
    """An empty partition needs no index; one that goes further does no harm."""
    rig = Rig()
    rig.index(RECORDS, (1, 3), (5, 6))
    evidence = await gather_native(rig.connector, ["orders"])
    assert evidence.data == (
        OffsetRange(ORDERS, Offset(0), EndOffset(RECORDS)),
        OffsetRange(OTHER, Offset(0), EndOffset(0)),
    )
    evidence.check()
    assert list(evidence.aborted[ORDERS]) == [(1, 3), (5, 6)]
    assert evidence.covered() == [evidence.data[0]]


async def test_an_index_that_is_behind_covers_what_it_covers():
    """The rest of the partition is a problem, and names what to do."""
    rig = Rig()
    rig.index(7, (1, 3))
    evidence = await gather_native(rig.connector, ["orders"])
    assert evidence.covered() == [OffsetRange(ORDERS, Offset(0), EndOffset(7))]
    with pytest.raises(AbortedIndexError, match="does not cover") as caught:
        evidence.check()
    assert "stilltide index once orders" in caught.value.hint
    within = [OffsetRange(ORDERS, Offset(2), EndOffset(7))]
    evidence = await gather_native(rig.connector, ["orders"], within)
    assert (evidence.problems, evidence.covered()) == ({}, within)


@pytest.mark.parametrize("there", [False, True])
async def test_without_an_index_nothing_is_covered(*, there: bool):
    """Whether or not the cluster has the topic."""
    rig = Rig()
    if not there:
        rig.broker.delete_topic(ABORTED_INDEX)
    evidence = await gather_native(rig.connector, ["orders"])
    assert (list(evidence.problems), evidence.covered()) == ([ORDERS], [])


async def test_an_index_that_begins_late_covers_nothing():
    """What lies below may have aborted."""
    rig = Rig()
    rig.index(RECORDS, (5, 6), covered_from=4)
    evidence = await gather_native(rig.connector, ["orders"])
    assert (list(evidence.problems), evidence.covered()) == ([ORDERS], [])
    rig.broker.delete_records(ORDERS, Offset(4))
    evidence = await gather_native(rig.connector, ["orders"])
    assert evidence.covered() == [OffsetRange(ORDERS, Offset(4), EndOffset(RECORDS))]


async def test_the_index_of_a_former_topic_counts_for_nothing():
    """E8: the same name and offsets, another id."""
    rig = Rig()
    rig.index(RECORDS, (1, 3))
    rig.broker.delete_topic("orders")
    rig.broker.create_topic(TopicSpec("orders", 2))
    rig.fill()
    evidence = await gather_native(rig.connector, ["orders"])
    assert "not indexed" in str(evidence.problems[ORDERS])


async def test_an_index_that_is_not_whole_is_read_again_before_it_is_a_problem():
    """Compaction may have taken a run in favour of one behind what was read."""
    rig = Rig()
    rig.index(RECORDS, (1, 3), run_count=2)
    evidence = await gather_native(rig.connector, ["orders"])
    assert "not whole" in str(evidence.problems[ORDERS])

    class Late(MemoryConnector):
        def admin(self) -> LogAdmin:
            return _Writing(super().admin(), rig)

    evidence = await gather_native(Late(rig.broker), ["orders"])
    assert not evidence.problems
    assert list(evidence.aborted[ORDERS]) == [(1, 3)]


class _Writing:
    """An admin; the rest of the index is written when log starts are asked for the second time."""

    def __init__(self, admin: LogAdmin, rig: Rig) -> None:
        self._admin = admin
        self._rig = rig
        self._asked = 0

    async def start_offsets(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        self._asked += 1
        if self._asked == 2:
            self._rig.index(RECORDS, (1, 3))
        return await self._admin.start_offsets(partitions)

    def __getattr__(self, name: str) -> object:
        return getattr(self._admin, name)


async def test_ranges_that_the_log_does_not_hold_are_refused():
    """Above the last stable offset, below the log start, of no partition, of no topic."""
    rig = Rig()
    rig.index(RECORDS, (1, 3))
    rig.broker.delete_records(ORDERS, Offset(2))
    with pytest.raises(FatalError, match="above the last stable offset 9"):
        await gather_native(
            rig.connector, ["orders"], [OffsetRange(ORDERS, Offset(2), EndOffset(10))]
        )
    with pytest.raises(OffsetOutOfRangeError, match="below the log start 2"):
        await gather_native(
            rig.connector, ["orders"], [OffsetRange(ORDERS, Offset(1), EndOffset(9))]
        )
    none = OffsetRange(TopicPartition("orders", 2), Offset(0), EndOffset(0))
    with pytest.raises(FatalError, match="does not exist"):
        await gather_native(rig.connector, ["orders"], [none])
    with pytest.raises(FatalError, match="does not exist"):
        await gather_native(rig.connector, ["nothing"])


async def test_a_topic_that_changes_meanwhile_is_not_judged():
    """E8: the offsets may be of the one, the index of the other."""
    rig = Rig()
    rig.index(RECORDS, (1, 3))

    class Recreating(MemoryConnector):
        def reader(self, *args: object, **options: object) -> object:
            rig.broker.delete_topic("orders")
            rig.broker.create_topic(TopicSpec("orders", 2))
            return super().reader(*args, **options)

    with pytest.raises(RetriableError, match="changed while"):
        await gather_native(Recreating(rig.broker), ["orders"])
