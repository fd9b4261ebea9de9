from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from stilltide.pipeline.drivers.snapshots.outcomes import TopicOutcomes
from stilltide.pipeline.jobs.audits.checks.findings import (
    by_transaction,
    collect_findings,
    committed_groups,
)
from stilltide.pipeline.jobs.audits.report import Finding, FindingKind
from stilltide.pipeline.jobs.outcomes import decisions_of
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.headers import TXN
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition, TxnId
from tests.support.spark.session import Header, kafka_frame

DATA = TopicPartition("orders", 0)
START, END = 100, 200
TOPIC_ID = b"\1" * 16
RANGES = (OffsetRange(DATA, Offset(START), EndOffset(END)),)


class Case(NamedTuple):
    """A committed transaction: what its marker says, where its records lie, what is found."""

    start: int
    end: int
    promised: int
    offsets: range
    kind: FindingKind | None


CASES = {
    "all there": Case(110, 115, 5, range(110, 115), None),
    "one missing": Case(110, 115, 5, range(110, 114), FindingKind.MISSING),
    "none there": Case(110, 115, 5, range(0), FindingKind.MISSING),
    "one too many": Case(110, 115, 4, range(110, 115), FindingKind.SURPLUS),
    "none promised": Case(110, 115, 0, range(0), None),
    "touches the log start, short": Case(100, 105, 5, range(100, 104), FindingKind.MISSING),
    "cut by the log start": Case(98, 103, 5, range(100, 103), FindingKind.TRIMMED),
    "cut and yet all there": Case(98, 103, 3, range(100, 103), None),
    "cut and too many": Case(98, 103, 2, range(100, 103), FindingKind.SURPLUS),
    "below the log start": Case(90, 100, 5, range(0), None),
    "cut by the end": Case(190, 205, 9, range(190, 195), FindingKind.BEYOND_END),
    "ends at the end, short": Case(190, 200, 9, range(190, 195), FindingKind.MISSING),
    "past the end": Case(200, 205, 5, range(0), None),
}


def findings_of(
    spark: SparkSession, rows: Iterable[tuple[int, list[Header] | None]], *found: Marker
) -> tuple[Counter[FindingKind], list[Finding]]:
    """What is found in these records, given these markers."""
    decisions = decisions_of(spark, TopicOutcomes(RANGES, {"orders": TOPIC_ID}, found, (), {}, {}))
    records = kafka_frame(spark, rows)
    groups = by_transaction(committed_groups(records, decisions, digest=True))
    return collect_findings(groups, decisions, decisions.outcomes, 100)


@pytest.fixture(scope="module")
def kinds(spark: SparkSession) -> dict[str, Finding]:
    """The finding for each case, all found in one pass."""
    found = []
    rows = []
    for sequence, case in enumerate(CASES.values()):
        txn = TxnId(0, sequence)
        start, end = EndOffset(case.start), EndOffset(case.end)
        found.append(Marker(DATA, txn, True, start, end, case.promised, b""))
        rows.extend((offset, [(TXN, txn.to_bytes())]) for offset in case.offsets)
    counts, findings = findings_of(spark, rows, *found)
    assert sum(counts.values()) == len(findings)
    names = list(CASES)
    return {names[finding.txn.sequence]: finding for finding in findings if finding.txn}


@pytest.mark.parametrize("name", CASES)
def test_a_committed_transaction_is_checked_against_its_marker(
    name: str, kinds: dict[str, Finding]
):
    """C6: counts are compared only as far as the audited range proves anything."""
    case, finding = CASES[name], kinds.get(name)
    assert (finding.kind if finding else None) == case.kind
    if finding:
        assert (finding.expected, finding.found) == (case.promised, len(case.offsets))
        assert (finding.topic, finding.partition, finding.offset) == (*DATA, case.start)


def test_an_aborted_transaction_promises_nothing(spark: SparkSession):
    """D1: records of an aborted transaction may be there or not."""
    txn = TxnId(0, 1)
    aborted = Marker(DATA, txn, False, EndOffset(100), EndOffset(105), 5, b"")
    assert findings_of(spark, [(101, [(TXN, txn.to_bytes())])], aborted) == ({}, [])


def test_without_markers_and_records_nothing_is_found(spark: SparkSession):
    """An empty topic is sound."""
    assert findings_of(spark, []) == ({}, [])
