"""Committed transactions whose number of records nothing promises any more."""

import pytest
from pyspark.sql import DataFrame, SparkSession

from stilltide.pipeline.core.snapshots.aborted import AbortedSet
from stilltide.pipeline.core.snapshots.recovery import Snapshot
from stilltide.pipeline.drivers.snapshots.outcomes import TopicOutcomes
from stilltide.pipeline.jobs.audits.checks.coordinated import Judgement, coordinated_checks, judge
from stilltide.pipeline.jobs.audits.checks.findings import by_transaction, committed_groups
from stilltide.pipeline.jobs.audits.report import Check, CheckResult, FindingKind, Verdict
from stilltide.pipeline.jobs.outcomes import decisions_of
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.headers import TXN
from stilltide.schemas.snapshots.snapshots import SnapshotEnd
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition, TxnId
from tests.support.spark.session import Header, kafka_frame

DATA, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
START, DECIDED, END = 100, 150, 200
IDS = {"orders": b"\1" * 16}
RANGES = tuple(OffsetRange(data, Offset(START), EndOffset(END)) for data in (DATA, OTHER))
ABSORBED, MARKED = TxnId(0, 1), TxnId(0, 2)


def marker(
    start: int,
    end: int,
    *,
    data: TopicPartition = DATA,
    txn: TxnId = MARKED,
    committed: bool = True,
    topic_id: bytes = IDS["orders"],
) -> Marker:
    """An outcome that is still there, and promises two records."""
    return Marker(data, txn, committed, EndOffset(start), EndOffset(end), 2, topic_id)


def records(spark: SparkSession, data: TopicPartition, txn: TxnId | None, first: int) -> DataFrame:
    """Two records of a transaction, or plain ones."""
    headers: list[Header] | None = None if txn is None else [(TXN, txn.to_bytes())]
    rows = [(first, headers), (first + 1, headers)]
    return kafka_frame(spark, rows, topic=data.topic, partition=data.partition)


def judged(
    spark: SparkSession, rows: DataFrame, *found: Marker, shuffled: bool = False
) -> Judgement:
    """What is to say with a snapshot on the first partition that has absorbed all before."""
    end = SnapshotEnd(
        IDS["orders"], EndOffset(DECIDED), EndOffset(0), 1, (), {}, {}, EndOffset(0), ()
    )
    snapshots = {DATA: Snapshot(end, AbortedSet({}))}
    evidence = TopicOutcomes(RANGES, IDS, found, (), {}, snapshots)
    decisions = decisions_of(spark, evidence)._replace(shuffled=shuffled)
    groups = by_transaction(committed_groups(rows, decisions, digest=True))
    return judge(groups, decisions, evidence, 5)


def counts(found: Judgement) -> CheckResult:
    """The answer of the check."""
    (check,) = [one for one in coordinated_checks(found, 5) if one.check is Check.COUNTS]
    return check


UNCHECKED = {
    "no marker is left": [],
    "the only other one has aborted": [marker(160, 162, committed=False)],
    "the only other one lies past the range": [marker(200, 202)],
    "the only other one lies below the range": [marker(90, 100)],
    "the only other one is of a former topic": [marker(160, 162, topic_id=b"\2" * 16)],
    "it is promised on one of its partitions": [marker(160, 162, data=OTHER, txn=ABSORBED)],
}


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(found, id=name, marks=[pytest.mark.slow] if number > 1 else [])
        for number, (name, found) in enumerate(UNCHECKED.items())
    ],
)
def test_counts_of_which_none_could_be_checked_are_unknown(
    spark: SparkSession, found: list[Marker]
):
    """C6: nothing promises how many records any committed transaction of the range has."""
    rows = records(spark, DATA, ABSORBED, 110)
    if found and found[0].txn == ABSORBED:
        rows = rows.unionAll(records(spark, OTHER, ABSORBED, 160))
    check = counts(judged(spark, rows, *found))
    assert (check.verdict, check.figures["unchecked"]) == (Verdict.UNKNOWN, 1)
    assert check.finding_counts == {FindingKind.UNCOUNTED: 1}
    (named,) = check.findings
    assert (named.topic, named.partition, named.offset) == (*DATA, 110)
    assert named.detail == "offsets below 112: counts no longer known"


def test_counts_of_which_only_some_could_be_checked_are_unknown(spark: SparkSession):
    """C6: the range without counts is named, up to the last record that could not be counted."""
    rows = (
        records(spark, DATA, ABSORBED, 110)
        .unionAll(records(spark, DATA, TxnId(0, 3), 140))
        .unionAll(records(spark, DATA, MARKED, 160))
    )
    check = counts(judged(spark, rows, marker(160, 162)))
    assert (check.verdict, check.finding_counts) == (
        Verdict.UNKNOWN,
        {FindingKind.UNCOUNTED: 1},
    )
    assert check.findings[0].detail == "offsets below 142: counts no longer known"
    assert (check.figures, check.looked_at) == ({"committed": 3, "unchecked": 2}, 1)


def test_counts_are_valid_if_every_committed_transaction_was_counted(spark: SparkSession):
    """C6: an aborted transaction below M needs no count."""
    rows = records(spark, DATA, MARKED, 160)
    check = counts(judged(spark, rows, marker(160, 162)))
    assert (check.verdict, check.finding_counts) == (Verdict.VALID, {})
    assert (check.figures, check.looked_at) == ({"committed": 1, "unchecked": 0}, 1)


@pytest.mark.parametrize("found", [[], [marker(200, 202)], [marker(160, 162, committed=False)]])
def test_without_committed_transactions_there_is_nothing_to_check(
    spark: SparkSession, found: list[Marker]
):
    """No count is wrong, and none is unknown: the check is empty."""
    check = counts(judged(spark, records(spark, DATA, None, 110), *found))
    assert (check.verdict, check.figures["unchecked"]) == (Verdict.EMPTY, 0)


def test_what_is_wrong_outranks_what_could_not_be_checked(spark: SparkSession):
    """A promised record is missing: the transaction was looked at, and the check is invalid."""
    check = counts(judged(spark, records(spark, DATA, ABSORBED, 110), marker(160, 162)))
    assert (check.verdict, check.finding_counts) == (
        Verdict.INVALID,
        {FindingKind.MISSING: 1, FindingKind.UNCOUNTED: 1},
    )


def test_a_caller_may_accept_that_counts_are_gone(spark: SparkSession):
    """C6: the range is still named; a check that has counted nothing at all is empty."""
    rows = records(spark, DATA, ABSORBED, 110)
    found = judged(spark, rows)
    verdicts = {it.check: it.verdict for it in coordinated_checks(found, 5, accept_unchecked=True)}
    assert verdicts == {
        Check.HEADERS: Verdict.VALID,
        Check.ORPHANS: Verdict.VALID,
        Check.LATE: Verdict.EMPTY,
        Check.COUNTS: Verdict.EMPTY,
        Check.ATOMICITY: Verdict.VALID,
    }
    found = judged(spark, rows.unionAll(records(spark, DATA, MARKED, 160)), marker(160, 162))
    checks = {it.check: it for it in coordinated_checks(found, 5, accept_unchecked=True)}
    assert {it.verdict for it in checks.values()} == {Verdict.VALID}
    (named,) = checks[Check.COUNTS].findings
    assert (named.kind, named.detail) == (
        FindingKind.ACCEPTED,
        "offsets below 112: counts no longer known",
    )


def test_a_topic_that_compacts_is_never_valid_with_records_of_transactions(spark: SparkSession):
    """C18: the cleaner may have deleted committed records; plain records alone may be compacted."""
    found = judged(spark, records(spark, DATA, MARKED, 160), marker(160, 162))
    topics = [DATA.topic, "another"]
    checks = {it.check: it for it in coordinated_checks(found, 5, compacted=topics)}
    check = checks[Check.COUNTS]
    assert (check.verdict, check.finding_counts) == (Verdict.UNKNOWN, {FindingKind.COMPACTED: 1})
    (named,) = check.findings
    assert (named.topic, named.partition) == DATA
    assert named.detail == "2 records of transactions in a topic that compacts"
    plain = judged(spark, records(spark, DATA, None, 110))
    checks = {it.check: it for it in coordinated_checks(plain, 5, compacted=topics)}
    assert checks[Check.COUNTS].finding_counts == {}


@pytest.mark.slow
def test_outcomes_that_are_shuffled_are_judged_the_same(spark: SparkSession):
    """Beyond the budget of a broadcast: findings of each kind, counts, and what has no count."""
    late, orphan, mixed = TxnId(0, 4), TxnId(0, 5), TxnId(0, 6)
    rows = (
        records(spark, DATA, ABSORBED, 110)
        .unionAll(records(spark, DATA, mixed, 120))
        .unionAll(records(spark, DATA, late, 180))
        .unionAll(records(spark, OTHER, orphan, 110))
    )
    found = [
        marker(160, 162),
        marker(160, 162, txn=late),
        marker(160, 162, txn=orphan),
        marker(160, 162, data=OTHER, txn=mixed, committed=False),
    ]
    few, many = (judged(spark, rows, *found, shuffled=one) for one in (False, True))
    assert many == few
    assert set(many.finding_counts) == {
        FindingKind.MISSING,
        FindingKind.LATE,
        FindingKind.ORPHAN,
        FindingKind.MIXED,
    }
    assert (many.unmarked.total, many.unmarked.mixed) == (2, (mixed,))
