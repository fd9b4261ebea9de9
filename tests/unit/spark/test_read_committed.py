from collections.abc import Sequence

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.spark.read_committed import (
    FLOORS_DDL,
    OUTCOMES_SCHEMA,
    POSITIONS_DDL,
    DecidingFrames,
    Visibility,
    classify,
    committed,
    delivered,
    digest_of_sums,
    digest_sums,
    record_digest,
    with_txn,
)
from stilltide.schemas import digest
from stilltide.schemas.headers import TXN
from stilltide.schemas.values import TxnId
from tests.support.spark.session import kafka_frame

COMMITTED = TxnId(0, 1).to_bytes()
ABORTED = TxnId(0, 2).to_bytes()
UNKNOWN = TxnId(2**64 - 1, 2**64 - 1).to_bytes()
END = 100

Content = tuple[bytes | None, bytes | None]

HEADERS = {
    "null headers": (None, Visibility.PLAIN),
    "no headers": ([], Visibility.PLAIN),
    "foreign headers": ([("trace", COMMITTED), ("TXN", ABORTED)], Visibility.PLAIN),
    "committed": ([(TXN, COMMITTED)], Visibility.VISIBLE),
    "committed behind others": ([("a", None), ("b", b""), (TXN, COMMITTED)], Visibility.VISIBLE),
    "aborted": ([(TXN, ABORTED)], Visibility.HIDDEN),
    "aborted before others": ([(TXN, ABORTED), ("a", b"x")], Visibility.HIDDEN),
    "unknown": ([(TXN, UNKNOWN)], Visibility.UNDECIDED),
    "null value": ([(TXN, None)], Visibility.MALFORMED),
    "empty value": ([(TXN, b"")], Visibility.MALFORMED),
    "15 bytes": ([(TXN, COMMITTED[:15])], Visibility.MALFORMED),
    "17 bytes": ([(TXN, COMMITTED + b"\0")], Visibility.MALFORMED),
    "the same twice": ([(TXN, COMMITTED), (TXN, COMMITTED)], Visibility.MALFORMED),
    "twice with others": ([(TXN, COMMITTED), ("a", b""), (TXN, ABORTED)], Visibility.MALFORMED),
}


def outcomes(spark: SparkSession, *rows: tuple[bytes, bool, int | None]) -> DataFrame:
    """Outcomes of (transaction, committed, end offset) on orders/0."""
    return spark.createDataFrame([("orders", 0, *row) for row in rows], OUTCOMES_SCHEMA)


@pytest.fixture(scope="session")
def known(spark: SparkSession) -> DataFrame:
    """Outcomes of one committed and one aborted transaction, both ended below END."""
    return outcomes(spark, (COMMITTED, True, END), (ABORTED, False, END)).cache()


def classes(records: DataFrame, known: DataFrame | DecidingFrames) -> dict[int, str]:
    """The class of each record by offset."""
    decisions = known if isinstance(known, DecidingFrames) else DecidingFrames(known)
    rows = classify(with_txn(records), decisions).select("offset", "visibility").collect()
    return {row.offset: row.visibility for row in rows}


@pytest.fixture(scope="session")
def class_by_case(spark: SparkSession, known: DataFrame) -> dict[str, str]:
    """The class of a record with each set of headers, found in one Spark job."""
    records = kafka_frame(spark, enumerate(headers for headers, _ in HEADERS.values()))
    found = classes(records, known)
    assert len(found) == len(HEADERS)
    return {case: found[offset] for offset, case in enumerate(HEADERS)}


@pytest.mark.parametrize("case", HEADERS)
def test_a_record_is_classified_by_its_txn_header(case: str, class_by_case: dict[str, str]):
    """D1, D2, D3: plain, visible, hidden, undecided; a malformed header is never taken for none."""
    assert class_by_case[case] == HEADERS[case][1]


def test_a_committed_record_at_or_past_the_end_offset_is_late(
    spark: SparkSession, known: DataFrame
):
    """D1: the last offset below the end is visible, the end offset itself is late."""
    records = kafka_frame(spark, [(o, [(TXN, COMMITTED)]) for o in (END - 1, END, END + 1)])
    assert classes(records, known) == {
        END - 1: Visibility.VISIBLE,
        END: Visibility.LATE,
        END + 1: Visibility.LATE,
    }


def test_an_aborted_record_is_hidden_wherever_it_lands(spark: SparkSession, known: DataFrame):
    """D1: an aborted transaction's end offset does not matter."""
    records = kafka_frame(spark, [(o, [(TXN, ABORTED)]) for o in (0, END, END * 9)])
    assert set(classes(records, known).values()) == {Visibility.HIDDEN}


def test_a_commit_without_an_end_offset_makes_nothing_late(spark: SparkSession):
    """E8: a marker whose offsets belong to a former topic decides, but bounds nothing."""
    records = kafka_frame(spark, [(END * 9, [(TXN, COMMITTED)])])
    found = classes(records, outcomes(spark, (COMMITTED, True, None)))
    assert found == {END * 9: Visibility.VISIBLE}


@pytest.mark.parametrize("place", [("orders", 1), ("payments", 0)])
def test_an_outcome_counts_on_its_own_partition_only(
    spark: SparkSession, known: DataFrame, place: tuple[str, int]
):
    """D2, D6: the outcome on another partition decides nothing here."""
    topic, partition = place
    records = kafka_frame(spark, [(0, [(TXN, COMMITTED)])], topic=topic, partition=partition)
    assert classes(records, known) == {0: Visibility.UNDECIDED}


M = 100
SNAPSHOT_CASES = {
    "below M": (M - 1, TxnId(0, 50), Visibility.VISIBLE),
    "at M": (M, TxnId(0, 50), Visibility.UNDECIDED),
    "below its floor": (5, TxnId(0, 9), Visibility.HIDDEN),
    "below its floor, past M": (M + 5, TxnId(0, 9), Visibility.HIDDEN),
    "at its floor": (6, TxnId(0, 10), Visibility.VISIBLE),
    "of a great coordinator, below its floor": (7, TxnId(2**63 + 1, 2**63), Visibility.HIDDEN),
    "of a great coordinator, at its floor": (8, TxnId(2**63 + 1, 2**63 + 1), Visibility.VISIBLE),
    "of a coordinator between": (9, TxnId(1, 0), Visibility.VISIBLE),
    "in the set": (10, TxnId(0, 60), Visibility.HIDDEN),
    "in the set, past M": (M + 10, TxnId(0, 60), Visibility.HIDDEN),
    "a marker says commit, past M": (M + 1, TxnId(0, 70), Visibility.VISIBLE),
    "a marker says commit, past its end": (M + 50, TxnId(0, 70), Visibility.LATE),
    "a marker says commit, below a floor": (11, TxnId(0, 3), Visibility.LATE),
    "a marker says abort, below M": (12, TxnId(0, 71), Visibility.HIDDEN),
}


def test_a_snapshot_decides_what_no_marker_tells(spark: SparkSession):
    """D4: hidden in the set or below a floor, wherever it lies; else visible below M.

    The quicker filter keeps the same of what is decided.
    """
    decisions = DecidingFrames(
        outcomes(
            spark,
            (TxnId(0, 60).to_bytes(), False, None),
            (TxnId(0, 70).to_bytes(), True, M + 50),
            (TxnId(0, 3).to_bytes(), True, 11),
            (TxnId(0, 71).to_bytes(), False, M),
            (b"", False, None),
        ),
        spark.createDataFrame([("orders", 0, M), ("orders", 1, 5)], POSITIONS_DDL),
        spark.createDataFrame(
            [
                ("orders", 0, coordinator.to_bytes(8), TxnId(coordinator, floor).to_bytes())
                for coordinator, floor in ((0, 10), (2**63 + 1, 2**63 + 1))
            ],
            FLOORS_DDL,
        ),
    )
    rows = [(offset, [(TXN, txn.to_bytes())]) for offset, txn, _ in SNAPSHOT_CASES.values()]
    rows += [
        (20, None),
        (21, [(TXN, b"short")]),
        (22, [("a", b""), (TXN, TxnId(0, 60).to_bytes())]),
    ]
    frame = kafka_frame(spark, rows)
    found = classes(frame, decisions)
    assert found == {offset: visibility for offset, _, visibility in SNAPSHOT_CASES.values()} | {
        20: Visibility.PLAIN,
        21: Visibility.MALFORMED,
        22: Visibility.HIDDEN,
    }
    decided = [offset for offset, it in found.items() if it != Visibility.UNDECIDED]
    kept = committed(frame.filter(F.col("offset").isin(decided)), decisions)
    shown = {Visibility.PLAIN, Visibility.VISIBLE}
    expected = {it for it in decided if found[it] in shown}
    assert {row.offset for row in kept.select("offset").collect()} == expected


def test_plain_and_malformed_records_are_what_they_are_on_either_side_of_m(spark: SparkSession):
    """D3: M decides coordinated records only."""
    positions = spark.createDataFrame([("orders", 0, M)], POSITIONS_DDL)
    decisions = DecidingFrames(outcomes(spark), positions)
    rows = [(5, None), (M, None), (6, [(TXN, b"short")]), (M + 1, [(TXN, b"short")])]
    assert classes(kafka_frame(spark, rows), decisions) == {
        5: Visibility.PLAIN,
        M: Visibility.PLAIN,
        6: Visibility.MALFORMED,
        M + 1: Visibility.MALFORMED,
    }


def test_without_any_outcome_nothing_is_dropped(spark: SparkSession):
    """D2: an empty marker topic leaves coordinated records undecided and plain ones plain."""
    records = kafka_frame(spark, [(0, None), (1, [(TXN, COMMITTED)])])
    none_known = spark.createDataFrame([], OUTCOMES_SCHEMA)
    assert classes(records, none_known) == {0: Visibility.PLAIN, 1: Visibility.UNDECIDED}


def test_headers_leave_the_frame_and_the_join_is_a_broadcast(spark: SparkSession, known: DataFrame):
    """The expensive column is dropped at once and no shuffle of the data is planned."""
    frame = classify(with_txn(kafka_frame(spark, [(0, None)])), DecidingFrames(known))
    assert "headers" not in frame.columns
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "BroadcastHashJoin" in plan
    assert "SortMergeJoin" not in plan


NASTY: list[Content] = [
    (None, None),
    (None, b""),
    (None, b"v"),
    (b"", None),
    (b"", b""),
    (b"k", None),
    (b"k", b"v"),
    (b"\x00", b"\x00\x00"),
    (b"\xff\xfe\x80", b"\xc3\x28"),
    ("schlüssel".encode(), "wert 值".encode()),
    (b"1:", b":"),
    (b"k" * 1000, bytes(range(256)) * 300),
]


def content_frame(spark: SparkSession, content: Sequence[Content]) -> DataFrame:
    """A frame of keys and values."""
    return spark.createDataFrame(content, "key binary, value binary")


def test_spark_and_python_digest_every_record_alike(spark: SparkSession):
    """Null and empty keys and values, and bytes that are no text, give the same number."""
    frame = content_frame(spark, NASTY).select("key", "value", record_digest().alias("digest"))
    for row in frame.collect():
        key, value = (None if field is None else bytes(field) for field in row[:2])
        assert row.digest == digest.record_digest(key, value), (key, value)


def test_digest_sums_join_to_the_exact_content_digest(spark: SparkSession):
    """The two halves carry more than 64 bits together, and leave out what `where` leaves out."""
    content = NASTY * 50
    where = F.coalesce(F.col("key") != F.lit(b"k"), F.lit(True))
    high, low = digest_sums(where)
    row = content_frame(spark, content).repartition(4).agg(high.alias("h"), low.alias("l")).first()
    expected = digest.content_digest((k, v) for k, v in content if k != b"k")
    assert digest_of_sums(row.h, row.l) == expected
    assert expected > 2**64


def test_digest_sums_of_nothing_are_zero(spark: SparkSession):
    """An empty partition has digest 0, not null."""
    high, low = digest_sums(delivered())
    none_known = DecidingFrames(spark.createDataFrame([], OUTCOMES_SCHEMA))
    records = classify(with_txn(kafka_frame(spark, [])), none_known)
    row = records.agg(high.alias("h"), low.alias("l")).first()
    assert digest_of_sums(row.h, row.l) == 0
