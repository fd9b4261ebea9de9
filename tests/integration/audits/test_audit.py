import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from stilltide.connectors.errors import FatalError, RetriableError
from stilltide.pipeline.jobs.audits.plan import COORDINATED, EVIDENCE_MAX, AuditPlan, Silent
from stilltide.pipeline.jobs.audits.report import (
    AuditReport,
    Check,
    Finding,
    FindingKind,
    PartitionAudit,
    Verdict,
)
from stilltide.pipeline.jobs.audits.run import run_audit
from stilltide.schemas.headers import TXN
from stilltide.schemas.topics import TXN_MARKERS
from stilltide.schemas.values import EndOffset, Offset, TxnId
from tests.support.spark.topics import (
    TIMEOUT_S,
    HandWriter,
    await_readable,
    create_topics,
    topic_id,
)

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def writer(bootstrap: str, topic_name: str) -> HandWriter:
    """A writer of a new topic of two partitions."""
    create_topics(bootstrap, {topic_name: 2})
    return HandWriter(bootstrap, topic_name)


def audit(bootstrap: str, topics: list[str], evidence_max: int = EVIDENCE_MAX) -> AuditReport:
    """Audits the coordinated transactions on topics, with digests."""
    plan = AuditPlan(topics, checks=COORDINATED, digest=True, evidence_max=evidence_max)
    return run_audit(bootstrap, plan)


def ended(report: AuditReport) -> tuple[int, int]:
    """How many transactions have committed, and aborted."""
    figures = report.result(Check.ATOMICITY).figures
    return figures["committed"], figures["aborted"]


def by_partition(report: AuditReport) -> dict[int, PartitionAudit]:
    """The records of each partition, in a report on one topic."""
    return {one.records.partition: one.records for one in report.partitions}


class Steps(Silent):
    """Progress that remembers the steps."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.notes: list[str] = []

    def step(self, text: str) -> None:
        """Remembers the step."""
        self.seen.append(text)

    def note(self, text: str) -> None:
        """Remembers the part of a step."""
        self.notes.append(text)


def test_what_was_committed_is_counted_and_digested_exactly(bootstrap: str, writer: HandWriter):
    """Committed, aborted and plain records of two topics: counts, digests, verdict valid."""
    other = f"{writer.topic}-other"
    create_topics(bootstrap, {other: 1})
    payments = HandWriter(bootstrap, other)
    committed, aborted = TxnId(0, 1), TxnId(1, 1)
    kept = writer.of_txn(committed, 0, 10)
    lost = writer.of_txn(aborted, 0, 5)
    plain = writer.records(0, 3, ("trace", b"x"))
    bare = writer.records(0, 2)
    paid = payments.of_txn(committed, 0, 4)
    writer.commit(committed, 0, kept)
    payments.commit(committed, 0, paid)
    writer.abort(aborted, 0)

    steps = Steps()
    plan = AuditPlan([writer.topic, other], checks=COORDINATED, digest=True)
    result = run_audit(bootstrap, plan, progress=steps)

    assert result.verdict is Verdict.VALID
    assert {one.check for one in result.checks} == COORDINATED
    assert ended(result) == (1, 1)
    assert tuple(one.records for one in result.partitions) == (
        PartitionAudit(
            topic=writer.topic,
            partition=0,
            start_offset=Offset(0),
            end_offset=EndOffset(20),
            written=20,
            visible=15,
            hidden=len(lost.offsets),
            undecided=0,
            malformed=0,
            late=0,
            plain=5,
            digest=kept.digest + plain.digest + bare.digest,
        ),
        PartitionAudit(writer.topic, 1, Offset(0), EndOffset(0), 0, 0, 0, 0, 0, 0, 0, 0),
        PartitionAudit(other, 0, Offset(0), EndOffset(4), 4, 4, 0, 0, 0, 0, 0, paid.digest),
    )
    assert any("offsets of 3 partitions" in step for step in steps.seen)
    assert any(TXN_MARKERS in note for note in steps.notes)


@pytest.fixture(scope="module")
def planted(bootstrap: str) -> AuditReport:
    """One audit of a topic with one fault on each partition, named in the tests."""
    topic = "audit-planted-faults"
    create_topics(bootstrap, {topic: 10})
    writer = HandWriter(bootstrap, topic)
    whole = TxnId(0, 1)
    writer.commit(whole, 0, writer.of_txn(whole, 0, 4))
    missing = TxnId(0, 2)
    writer.commit(missing, 1, writer.of_txn(missing, 1, 3), count=5)
    late = TxnId(0, 3)
    writer.commit(late, 2, writer.of_txn(late, 2, 4))
    writer.of_txn(late, 2, 1)
    writer.of_txn(TxnId(9, 9), 3, 2)
    writer.records(4, 1, (TXN, b"fifteen bytes.."))
    writer.records(4, 2, (TXN, whole.to_bytes()), (TXN, whole.to_bytes()))
    writer.of_txn(whole, 5, 2)
    surplus = TxnId(0, 4)
    writer.commit(surplus, 6, writer.of_txn(surplus, 6, 3), count=2)
    writer.records(7, 1)
    writer.marker(TxnId(0, 5), 7, committed=True, start=0, end=1, count=4)
    mixed = TxnId(0, 6)
    writer.commit(mixed, 8, writer.of_txn(mixed, 8, 2))
    writer.of_txn(mixed, 9, 2)
    writer.abort(mixed, 9)
    return audit(bootstrap, [topic])


FAULTS = [
    (1, FindingKind.MISSING, 0, TxnId(0, 2), 5, 3),
    (2, FindingKind.LATE, 4, TxnId(0, 3), None, 1),
    (3, FindingKind.UNDECIDED, 0, TxnId(9, 9), None, 2),
    (4, FindingKind.MALFORMED, 0, None, None, 3),
    (5, FindingKind.ORPHAN, 0, TxnId(0, 1), None, 2),
    (6, FindingKind.SURPLUS, 0, TxnId(0, 4), 2, 3),
    (7, FindingKind.MISSING, 0, TxnId(0, 5), 4, 0),
    (None, FindingKind.MIXED, None, TxnId(0, 6), None, None),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[1]}-{fault[0]}")
def test_a_planted_fault_is_found_with_its_evidence(
    fault: tuple[int | None, FindingKind, int | None, TxnId | None, int | None, int | None],
    planted: AuditReport,
):
    """C6, D1, D2, D6: kind, place, transaction and counts of each fault are reported."""
    partition, kind, offset, txn, expected, found = fault
    topic = None if partition is None else "audit-planted-faults"
    assert Finding(kind, topic, partition, offset, txn, expected, found) in planted.findings


def test_nothing_but_the_planted_faults_is_found(planted: AuditReport):
    """Sound transactions beside the faults raise no alarm, and any fault makes it invalid."""
    assert len(planted.findings) == len(FAULTS)
    assert sum(planted.finding_counts.values()) == len(FAULTS)
    assert planted.verdict is Verdict.INVALID


@pytest.mark.parametrize(
    ("partition", "visible", "withheld"),
    [(0, 4, {}), (2, 4, {"late": 1}), (3, 0, {"undecided": 2}), (4, 0, {"malformed": 3})],
)
def test_withheld_records_are_written_but_not_visible(
    partition: int, visible: int, withheld: dict[str, int], planted: AuditReport
):
    """D1, D2: late, undecided and malformed records are counted, none is taken as visible."""
    row = by_partition(planted)[partition]
    found = {name: getattr(row, name) for name in ("late", "undecided", "malformed", "hidden")}
    assert row.visible == visible
    assert found == {"late": 0, "undecided": 0, "malformed": 0, "hidden": 0} | withheld
    assert row.written == visible + sum(withheld.values())


def test_the_latest_marker_of_a_transaction_counts(bootstrap: str, writer: HandWriter):
    """C4: a marker written twice is one; D5: a deleted marker leaves its records undecided."""
    repeated, deleted = TxnId(0, 1), TxnId(0, 2)
    kept = writer.of_txn(repeated, 0, 3)
    for _ in range(2):
        writer.commit(repeated, 0, kept)
    writer.commit(deleted, 1, writer.of_txn(deleted, 1, 2))
    writer.tombstone(deleted, 1)
    found = by_partition(result := audit(bootstrap, [writer.topic]))
    assert (found[0].visible, found[1].undecided) == (3, 2)
    assert result.verdict is Verdict.UNKNOWN
    assert ended(result)[0] == 1


def test_an_open_native_transaction_caps_the_audit(bootstrap: str, writer: HandWriter):
    """The audit ends at the last stable offset; what a commit left behind it stays unproven."""
    txn = TxnId(0, 1)
    before = writer.of_txn(txn, 0, 3)
    native = Producer({"bootstrap.servers": bootstrap, "transactional.id": writer.topic})
    native.init_transactions(TIMEOUT_S)
    native.begin_transaction()
    native.produce(writer.topic, b"open", partition=0)
    assert native.flush(TIMEOUT_S) == 0
    after = writer.of_txn(txn, 0, 2)
    writer.marker(txn, 0, committed=True, start=0, end=after.offsets[-1] + 1, count=5)

    capped = audit(bootstrap, [writer.topic])
    native.abort_transaction(TIMEOUT_S)
    await_readable(bootstrap, writer.topic, after.offsets[-1])
    released = audit(bootstrap, [writer.topic])

    part = by_partition(capped)[0]
    assert (part.end_offset, part.written, part.digest) == (3, 3, before.digest)
    assert capped.verdict is Verdict.UNKNOWN
    assert capped.finding_counts == {FindingKind.BEYOND_END: 1}
    part = by_partition(released)[0]
    assert (part.written, part.visible) == (5, 5)
    assert part.digest == before.digest + after.digest
    assert released.verdict is Verdict.VALID


def test_trimmed_evidence_is_unknown_and_not_missing(bootstrap: str, writer: HandWriter):
    """Deleted by retention: wholly below the log start is out of range, partly is unproven."""
    gone, cut, whole = TxnId(0, 1), TxnId(0, 2), TxnId(0, 3)
    for txn in (gone, cut, whole):
        writer.commit(txn, 0, writer.of_txn(txn, 0, 4))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    place = TopicPartition(writer.topic, 0, 6)
    admin.delete_records([place])[place].result(TIMEOUT_S)

    result = audit(bootstrap, [writer.topic])

    part = by_partition(result)[0]
    assert (part.start_offset, part.written, part.visible) == (6, 6, 6)
    assert result.finding_counts == {FindingKind.TRIMMED: 1}
    assert result.findings[0].txn == cut
    assert result.verdict is Verdict.UNKNOWN


def test_markers_of_a_former_topic_bound_and_promise_nothing(bootstrap: str, writer: HandWriter):
    """E8: offsets and counts of another topic id are not compared with this topic's records."""
    former, current = TxnId(0, 1), TxnId(0, 2)
    writer.marker(former, 0, committed=True, start=0, end=9, count=9, of_topic=b"\1" * 16)
    kept = writer.of_txn(current, 0, 2)
    own = topic_id(bootstrap, writer.topic)
    writer.marker(current, 0, committed=True, start=0, end=2, count=2, of_topic=own)
    result = audit(bootstrap, [writer.topic])
    assert result.verdict is Verdict.VALID
    assert ended(result)[0] == 1
    assert by_partition(result)[0].digest == kept.digest


def test_evidence_is_bounded_and_counts_are_not(bootstrap: str, writer: HandWriter):
    """Thirty undecided transactions: all counted, the first few listed."""
    for sequence in range(30):
        writer.of_txn(TxnId(0, sequence), 0, 1)
    result = audit(bootstrap, [writer.topic], evidence_max=3)
    assert result.finding_counts == {FindingKind.UNDECIDED: 30}
    assert [finding.offset for finding in result.findings] == [0, 1, 2]


def test_a_missing_topic_is_a_typed_error(bootstrap: str, writer: HandWriter):
    """Naming the topic; Spark is not even started."""
    with pytest.raises(FatalError, match=f"{writer.topic}-nowhere") as caught:
        audit(bootstrap, [f"{writer.topic}-nowhere"])
    assert caught.value.hint


def test_a_broker_that_is_away_is_a_typed_error(unused_tcp_port: int):
    """Bounded in time, and the address is named."""
    address = f"127.0.0.1:{unused_tcp_port}"
    with pytest.raises(RetriableError, match=address):
        audit(address, ["orders"])
