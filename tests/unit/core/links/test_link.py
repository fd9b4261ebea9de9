"""A link, effect by effect (H1, H2, H3, H4, H5, H6)."""

from collections.abc import Sequence

import pytest

from stilltide.pipeline.core.links.copying import SourceRecord, Topics
from stilltide.pipeline.core.links.link import (
    Begin,
    Commit,
    Copy,
    FenceTarget,
    Fetch,
    Finish,
    Link,
    LinkEffect,
    LinkLimits,
    ReadIncarnations,
    ReadLinkPositions,
    ReadPositionsEnd,
    ReportLost,
    ServeLink,
    StartOver,
)
from stilltide.pipeline.core.offset_index import index
from stilltide.schemas.replication.origins import Incarnation, Origin
from stilltide.schemas.replication.positions import Bucket, BucketKey
from stilltide.schemas.replication.signals import (
    PositionSnapshotRequest,
    PositionSnapshotResponse,
    PositionSnapshots,
    RequestKey,
    ResponseKey,
    SignalKey,
    SnapshotsKey,
    Update,
    UpdateKey,
)
from stilltide.schemas.values import ClusterName, EndOffset, Offset, Range, TopicPartition

A, B, C = map(ClusterName, "abc")
DATA = TopicPartition("t", 0)
ON_A, ON_B, ON_C = b"a-------", b"b-------", b"c-------"
TOPICS = Topics(ON_A, ON_B, Offset(0), Offset(0))
REQUEST = RequestKey(DATA, A)
Rig = Link[str]


def bucket(source: tuple[int, int], target: tuple[int, int], **changes: object) -> Bucket:
    """A bucket of this link without holes, unless `changes` says otherwise."""
    return Bucket(
        ON_A, ON_B, Offset(source[0]), EndOffset(source[1]), Offset(target[0]),
        EndOffset(target[1]), {},
    )._replace(**changes)  # fmt: skip


def request(
    decided_end: int, attempt: int = 0, incarnation: bytes = ON_A
) -> PositionSnapshotRequest:
    """A request of `a`."""
    return PositionSnapshotRequest(bytes([attempt]) * 16, 1, incarnation, EndOffset(decided_end))


def started(*held: Bucket, topics: Topics = TOPICS) -> tuple[Rig, list[LinkEffect[str]]]:
    """A link that serves, with these buckets on the target; and what it did with the topics."""
    link: Rig = Link(A, B, LinkLimits())
    link.begin()
    link.fenced()
    link.positions_end_read(EndOffset(0))
    for number, one in enumerate(held):
        link.bucket_read(BucketKey(A, B, DATA, number), one)
    link.positions_read(EndOffset(0))
    link.signals_caught_up(0)
    return link, link.topics_read(DATA, topics, 0)


def commit(
    link: Rig,
    copies: Sequence[Range | None] = (),
    topics: Topics = TOPICS,
    now_ms: int = 0,
) -> Commit:
    """Ends the transaction under way; nothing else comes between."""
    transaction = link._transaction
    (effect,) = link.finished(transaction, {DATA: copies}, {DATA: topics}, now_ms)
    assert isinstance(effect, Commit)
    link.committed(transaction, now_ms)
    return effect


def settled(*held: Bucket, topics: Topics = TOPICS) -> Rig:
    """A link that has nothing to write."""
    link, effects = started(*held, topics=topics)
    if any(isinstance(one, Finish) for one in effects):
        commit(link, topics=topics, now_ms=-1000)
    return link


def records(*offsets: int, origin: Origin | None = None) -> list[SourceRecord[str]]:
    """Records of the source."""
    return [(Offset(at), origin, f"r{at}") for at in offsets]


def span(first: int, end: int) -> Range:
    """Offsets of the target."""
    return Range(Offset(first), EndOffset(end))


def test_positions_are_known_to_the_end_before_anything_is_copied():
    """H2: another link's open transaction may hide the newest bucket; the end offset says so."""
    link: Rig = Link(A, B, LinkLimits())
    assert link.begin() == [FenceTarget()]
    assert link.fenced() == [ReadPositionsEnd()]
    assert link.positions_end_read(EndOffset(7)) == [ReadLinkPositions(EndOffset(7))]
    assert link.positions_read(EndOffset(5)) == []
    assert not link.accepts_records
    link.bucket_read(BucketKey(A, B, DATA, 0), bucket((0, 9), (0, 3)))
    link.bucket_read(BucketKey(C, B, DATA, 4), bucket((0, 99), (0, 3)))
    assert link.positions_read(EndOffset(7)) == [ServeLink()]
    assert link.topics_read(DATA, TOPICS, 0) == [Fetch(DATA, EndOffset(9))]


def test_the_first_bucket_is_written_when_a_partition_is_seen():
    """H4: a bucket without copies lets signals pass a partition without records."""
    link, effects = started()
    assert effects == [Fetch(DATA, EndOffset(0)), Begin(1), Finish(1, {DATA: 0})]
    assert commit(link).buckets == {DATA: [(0, bucket((0, 0), (0, 0)))]}


def test_records_bucket_and_markers_go_into_one_transaction():
    """H2: everything or nothing; the next one begins when the first is durable."""
    link = settled(bucket((0, 1), (0, 1)))
    effects = link.records_read(DATA, records(1, 3), EndOffset(5), 0)
    assert effects == [Begin(1), Copy(1, DATA, 0, records(1, 3))]
    assert link.signals_read([(REQUEST, request(5))], 0) == []
    assert link.deadline_ms == 50
    assert link.tick(50) == [Finish(1, {DATA: 1})]
    assert not link.accepts_records
    (effect,) = link.finished(1, {DATA: [span(8, 12)]}, {DATA: TOPICS}, 51)
    assert effect == Commit(1, {DATA: [(0, bucket((0, 5), (0, 12)))]}, [(REQUEST, request(5))])
    assert link.finished(1, {DATA: [span(8, 12)]}, {DATA: TOPICS}, 51) == []
    assert link.committed(1, 52) == []
    assert link.committed(1, 53) == []
    assert link.accepts_records


def test_a_full_transaction_ends_at_once():
    """Back-pressure: the driver keeps what it fetched meanwhile."""
    link: Rig = settled(bucket((0, 0), (0, 0)))
    link._limits = LinkLimits(records_max=2)
    effects = link.records_read(DATA, records(0, 1), EndOffset(2), 0)
    assert effects[-1] == Finish(1, {DATA: 1})


def test_a_transaction_ends_when_no_record_has_come_for_a_while():
    """H2: each record puts the end off, up to 50 ms after the begin."""
    link = settled()
    link._limits = LinkLimits(quiet_ms=20)
    link.records_read(DATA, records(0), EndOffset(1), 100)
    assert link.deadline_ms == 120
    link.records_read(DATA, records(1), EndOffset(2), 119)
    assert link.deadline_ms == 139
    assert link.tick(138) == []
    link.records_read(DATA, [], EndOffset(3), 138)
    assert link.deadline_ms == 139, "nothing was copied"
    link.records_read(DATA, records(3), EndOffset(4), 138)
    assert link.deadline_ms == 150
    assert link.tick(150) == [Finish(2, {DATA: 1})]


def test_a_position_without_copies_is_written_once_a_second():
    """H4: foreign and aborted records cost next to nothing."""
    link = settled(bucket((0, 0), (0, 0)))
    link.records_read(DATA, [], EndOffset(5), 10)
    assert commit(link, [None], now_ms=10).buckets == {DATA: [(0, bucket((0, 5), (0, 0)))]}
    assert link.records_read(DATA, [], EndOffset(6), 20) == []
    assert link.records_read(DATA, [], EndOffset(7), 30) == []
    assert link.deadline_ms == 1010
    assert link.tick(1009) == []
    assert link.tick(1010) == [Begin(2), Finish(2, {DATA: 1})]
    assert commit(link, [None]).buckets == {DATA: [(0, bucket((0, 7), (0, 0)))]}


def test_a_marker_that_waits_for_a_position_takes_it_along():
    """H4: a response does not wait for the interval of positions."""
    link = settled(bucket((0, 0), (0, 0)))
    link.records_read(DATA, [], EndOffset(5), 10)
    commit(link, [None], now_ms=10)
    assert link.signals_read([(REQUEST, request(7))], 11) == []
    assert link.records_read(DATA, [], EndOffset(6), 20) == []
    assert link.records_read(DATA, [], EndOffset(7), 30) == [Begin(2), Finish(2, {DATA: 1})]
    assert commit(link, [None]).signals == [(REQUEST, request(7))]


def test_updates_do_not_wait():
    """H4: they are claims about records, not about positions."""
    link = settled(bucket((0, 0), (0, 0)))
    update = Update(0, ON_A, Offset(9), {})
    effects = link.signals_read([(UpdateKey(DATA, A, "g"), update)], 5)
    assert effects == [Begin(1), Finish(1, {})]
    assert commit(link).signals == [(UpdateKey(DATA, A, "g"), update)]


def test_markers_take_effect_in_order_and_the_newest_only():
    """H4: a request of an attempt that is over is not worth copying."""
    link = settled(bucket((0, 0), (0, 0)))
    answer_key, answer = (
        ResponseKey(DATA, A, B),
        PositionSnapshotResponse(b"x" * 16, 1, ON_A, EndOffset(2)),
    )
    read: list[tuple[SignalKey, PositionSnapshotRequest | PositionSnapshotResponse]] = [
        (REQUEST, request(3, 1)),
        (answer_key, answer),
        (REQUEST, request(4, 2)),
    ]
    assert link.signals_read(read, 0) == []
    link.records_read(DATA, [], EndOffset(4), 0)
    assert commit(link, [None]).signals == [(answer_key, answer), (REQUEST, request(4, 2))]


def test_markers_of_others_are_not_copied():
    """H4: what stays on its cluster, what another cluster wrote, what is for another one."""
    link = settled(bucket((0, 0), (0, 0)))
    answer = PositionSnapshotResponse(b"x" * 16, 1, ON_A, EndOffset(0))
    assert link.signals_read(
        [
            (RequestKey(DATA, C), request(0)),
            (ResponseKey(DATA, A, C), answer),
            (ResponseKey(DATA, C, B), answer),
            (SnapshotsKey(DATA, A), PositionSnapshots(ON_A, EndOffset(0), ())),
            (REQUEST, None),
        ],
        0,
    ) == []  # fmt: skip


def test_what_the_target_has_is_not_copied_again():
    """H4: a link that was killed costs no second request; an older one comes to nothing."""
    link: Rig = Link(A, B, LinkLimits())
    link.begin()
    link.positions_end_read(EndOffset(0))
    link.bucket_read(BucketKey(A, B, DATA, 0), bucket((0, 9), (0, 0)))
    link.target_signal_read(REQUEST, request(3, 2))
    link.positions_read(EndOffset(0))
    link.topics_read(DATA, TOPICS, 0)
    assert link.signals_read([(REQUEST, request(2, 1)), (REQUEST, request(3, 2))], 0) == []
    assert link.signals_caught_up(0) == []


def test_a_marker_of_another_incarnation_is_dropped():
    """H4: the decided end of another incarnation means nothing here."""
    link = settled(bucket((0, 9), (0, 0)))
    read = [(REQUEST, request(3, incarnation=b"a-former"))]
    assert link.signals_read(read, 0) == []
    assert list(link._signals.waiting()) == []


def test_only_what_no_link_has_brought_is_copied():
    """H1: whether an origin is a link's is asked of the source's positions, each time it is new."""
    link = settled(bucket((0, 0), (0, 0)))
    known, forwarded = Incarnation(C, ON_C), Incarnation(C, b"another-")
    read = [
        *records(0),
        *records(1, origin=Origin(known, Offset(5))),
        *records(2, origin=Origin(forwarded, Offset(6))),
    ]
    assert link.records_read(DATA, read, EndOffset(4), 0) == [ReadIncarnations(DATA)]
    copied = [read[0], read[2]]
    assert link.incarnations_read(DATA, {known}, 0) == [Begin(1), Copy(1, DATA, 0, copied)]
    assert link.incarnations_read(DATA, {known}, 0) == []
    commit_at = link.tick(100)
    assert commit_at == [Finish(1, {DATA: 1})]
    commit(link, [span(0, 2)])
    read = records(4, origin=Origin(known, Offset(6)))
    assert link.records_read(DATA, read, EndOffset(5), 100) == []
    read = records(5, origin=Origin(forwarded, Offset(7)))
    assert link.records_read(DATA, read, EndOffset(6), 100) == [ReadIncarnations(DATA)]


def test_an_answer_that_comes_while_a_transaction_ends_waits():
    """H1: records whose answer comes while a transaction ends go into the next transaction."""
    link = settled(bucket((0, 0), (0, 0)))
    link.records_read(DATA, records(0), EndOffset(1), 0)
    read = records(1, origin=Origin(Incarnation(C, ON_C), Offset(5)))
    assert link.records_read(DATA, read, EndOffset(2), 0) == [ReadIncarnations(DATA)]
    link.tick(100)
    assert link.incarnations_read(DATA, (), 100) == []
    link.finished(1, {DATA: [span(0, 1)]}, {DATA: TOPICS}, 100)
    assert link.committed(1, 101) == [Begin(2), Copy(2, DATA, 0, read)]


def test_what_left_the_source_is_a_hole_and_is_reported():
    """H5: it is never claimed to be on the target; copying goes on behind it."""
    topics = TOPICS._replace(source_log_start=Offset(7))
    link, effects = started(bucket((0, 3), (0, 3)), topics=topics)
    assert effects[:2] == [ReportLost(DATA, span(3, 7)), Fetch(DATA, EndOffset(7))]
    holes = {Incarnation(A, ON_A): (span(3, 7),)}
    found = commit(link, topics=topics).buckets
    assert found == {DATA: [(1, bucket((7, 7), (3, 3), holes=holes))]}
    link, effects = started(topics=topics)
    assert effects[0] == ReportLost(DATA, span(0, 7)), "a first start above 0 is a hole too"


def test_a_new_source_is_copied_from_its_start():
    """H6: the next bucket is of the new incarnation; the former one stays translated."""
    topics = TOPICS._replace(source=b"a-new---")
    link, effects = started(bucket((0, 3), (0, 3)), topics=topics)
    assert effects[0] == Fetch(DATA, EndOffset(0))
    found = commit(link, topics=topics).buckets
    new = bucket((0, 0), (3, 3), source_incarnation=b"a-new---")
    assert found == {DATA: [(1, new)]}


def test_a_new_target_gets_everything_again():
    """H6: all buckets of the former target incarnation are void."""
    topics = TOPICS._replace(target=b"b-new---")
    link, effects = started(bucket((0, 3), (0, 3)), bucket((3, 9), (3, 5)), topics=topics)
    assert effects[0] == Fetch(DATA, EndOffset(0))
    found = commit(link, topics=topics).buckets
    new = bucket((0, 0), (0, 0), target_incarnation=b"b-new---")
    assert found == {DATA: [(0, None), (1, None), (2, new)]}


@pytest.mark.parametrize("now", [None, TOPICS._replace(target=b"b-new---")])
def test_a_topic_that_changes_meanwhile_aborts_the_transaction(now: Topics | None):
    """H6: offsets of one incarnation are never committed for another."""
    link = settled(bucket((0, 0), (0, 0)))
    link.records_read(DATA, records(0), EndOffset(1), 0)
    link.tick(100)
    topics = {DATA: now} if now else {}
    assert link.finished(1, {DATA: [span(0, 1)]}, topics, 100) == [StartOver(DATA)]


def test_a_long_transaction_fills_several_buckets():
    """H3: copies come by chunks of 10 000 source offsets, each with its place on the target."""
    link = settled(bucket((0, 0), (0, 0)))
    top = index.SPAN_MAX
    read = records(0, 1, top - 1, top, 3 * top)
    effects = link.records_read(DATA, read, EndOffset(3 * top + 5), 0)
    taken = [(one.chunk, len(one.records)) for one in effects if isinstance(one, Copy)]
    assert taken == [(0, 3), (1, 1), (3, 1)], "between the last two is nothing to copy"
    assert link.tick(100) == [Finish(1, {DATA: 4})]
    found = commit(link, [span(0, 3), span(3, 4), None, span(9, 10)])
    assert found.buckets == {
        DATA: [
            (0, bucket((0, top), (0, 3))),
            (1, bucket((top, 3 * top), (3, 4))),
            (2, bucket((3 * top, 3 * top + 5), (9, 10))),
        ]
    }


def test_a_bucket_also_ends_where_the_target_has_grown():
    """H3: others write there too; a look-up reads no more than a bucket's target range."""
    link = settled(bucket((0, 5), (0, 5)))
    link.records_read(DATA, records(5), EndOffset(6), 0)
    link.tick(100)
    first = index.SPAN_MAX
    found = commit(link, [span(first, first + 1)]).buckets
    assert found == {DATA: [(1, bucket((5, 6), (first, first + 1)))]}


def test_buckets_below_the_target_s_log_start_are_dropped():
    """H3: except the last of each source incarnation."""
    held = [bucket((n, n + 1), (n, n + 1)) for n in range(4)]
    link = settled(*held)
    link.records_read(DATA, records(4), EndOffset(5), 0)
    link.tick(100)
    topics = TOPICS._replace(target_log_start=Offset(3))
    found = commit(link, [span(4, 5)], topics).buckets
    assert found == {DATA: [(0, None), (1, None), (3, bucket((3, 5), (3, 5)))]}


def beating() -> Rig:
    """A link that serves, has met its topics, and beats every 5 s."""
    link: Rig = Link(A, B, LinkLimits(beat_interval_ms=5000))
    link.begin()
    link.fenced()
    link.positions_end_read(EndOffset(0))
    link.positions_read(EndOffset(0))
    link.signals_caught_up(-1)
    return link


def test_a_link_at_rest_beats():
    """I13: a beat at the start, and one every 5 s, each in a transaction without anything else."""
    link = beating()
    assert link.deadline_ms == 0
    assert [type(one) for one in link.tick(0)] == [Begin, Finish]
    assert commit(link) == Commit(1, {}, [], beat=True)
    assert link.deadline_ms == 5000
    assert link.tick(4999) == []
    assert link.is_idle
    assert [type(one) for one in link.tick(5000)] == [Begin, Finish]
    assert commit(link, now_ms=5000).beat


def test_a_beat_joins_a_transaction_that_ends_after_it_is_due():
    """I13: a link with work writes its beats with the work, and no more often."""
    link = beating()
    link.topics_read(DATA, TOPICS, 0)
    commit(link)
    link.records_read(DATA, records(5), EndOffset(6), 4990)
    assert link.tick(5040)
    assert commit(link, [span(1, 2)], now_ms=5040).beat
    link.records_read(DATA, records(6), EndOffset(7), 5050)
    assert link.tick(5100)
    assert not commit(link, [span(2, 3)], now_ms=5100).beat
    assert link.deadline_ms == 10_040


def test_a_link_that_only_waits_for_its_next_beat_is_idle():
    """A link that is to stop commits what it took, and does not wait for beats."""
    link = beating()
    assert link.is_idle
    link.topics_read(DATA, TOPICS, 0)
    assert not link.is_idle, "the first bucket is being written"
    commit(link)
    assert link.is_idle
