"""Records without key for a topic that compacts (H10)."""

from stilltide.pipeline.core.links.copying import Keyless, SourceRecord, Topics
from stilltide.pipeline.core.links.link import (
    AwaitPolicy,
    Copy,
    LeaveOut,
    Link,
    LinkLimits,
    ReadIncarnations,
)
from stilltide.schemas.replication.origins import Incarnation, Origin
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition

A, B, C = map(ClusterName, "abc")
DATA, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
TOPICS = Topics(b"a-------", b"b-------", Offset(0), Offset(0))
ON_C = Incarnation(C, b"c-------")


def serving(*, skips: bool, compacting: str = "t") -> Link[str]:
    """A link that takes records; a payload without letters has no key."""
    keyless = Keyless[str](frozenset({compacting}), skips=skips, lacks_key=lambda it: not it)
    link = Link[str](A, B, LinkLimits(), keyless)
    link.begin()
    link.fenced()
    link.positions_end_read(EndOffset(0))
    link.positions_read(EndOffset(0))
    link.signals_caught_up(0)
    for transaction, data in enumerate((DATA, OTHER), 1):
        link.topics_read(data, TOPICS, 0)
        if not link.accepts_records:
            link.finished(transaction, {data: []}, {data: TOPICS}, -1000)
            link.committed(transaction, -1000)
    return link


def records(*payloads: str, origin: Origin | None = None) -> list[SourceRecord[str]]:
    """Records from offset 0 on."""
    return [(Offset(at), origin, payload) for at, payload in enumerate(payloads)]


def copied(effects: list[object]) -> list[str]:
    """The payloads of the copies."""
    return [one[2] for it in effects if isinstance(it, Copy) for one in it.records]


def test_a_partition_waits_at_the_record_and_others_do_not():
    """Nothing behind the record is copied, however much is read; position is the record."""
    link = serving(skips=False)
    effects = link.records_read(DATA, records("k", "", "k"), EndOffset(9), 0)
    assert copied([*effects]) == ["k"]
    assert AwaitPolicy(DATA, Offset(1)) in effects
    assert link.partitions[DATA].position == 1
    later = link.records_read(DATA, [(Offset(9), None, "k")], EndOffset(10), 0)
    assert copied([*later]) == []
    assert link.partitions[DATA].position == 1
    assert copied([*link.records_read(OTHER, records("k"), EndOffset(1), 0)]) == ["k"]


def test_records_are_left_out_on_request():
    """The position passes them, and they are reported."""
    link = serving(skips=True)
    effects = link.records_read(DATA, records("", "k", "", "l"), EndOffset(5), 0)
    assert copied([*effects]) == ["k", "l"]
    assert LeaveOut(DATA, [Offset(0), Offset(2)]) in effects
    assert link.partitions[DATA].position == 5


def test_a_topic_that_does_not_compact_takes_all():
    """Only topics that are known to compact are looked at."""
    link = serving(skips=False, compacting="other")
    effects = link.records_read(DATA, records("", "k"), EndOffset(2), 0)
    assert copied([*effects]) == ["", "k"]


def test_a_copy_from_elsewhere_is_not_waited_at():
    """H1: a record that is not copied anyway needs no key."""
    link = serving(skips=False)
    foreign = records("", origin=Origin(ON_C, Offset(7)))
    assert link.records_read(DATA, foreign, EndOffset(1), 0) == [ReadIncarnations(DATA)]
    link.incarnations_read(DATA, {ON_C}, 0)
    assert link.partitions[DATA].position == 1
