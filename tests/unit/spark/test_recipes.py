from pyspark.sql import DataFrame, SparkSession

from stilltide.connectors.spark.read_committed import DecidingFrames, committed
from stilltide.connectors.spark.recipes import with_json, with_protobuf
from stilltide.schemas.headers import TXN
from stilltide.schemas.v1.markers_pb2 import OutcomeMarker
from stilltide.schemas.values import TxnId
from tests.support.spark.session import kafka_frame

SCHEMA = "order string, cents bigint"


def values(spark: SparkSession, *found: bytes | None) -> DataFrame:
    """A frame of values, numbered."""
    return spark.createDataFrame(list(enumerate(found)), "number int, value binary")


def test_json_becomes_columns_and_what_is_none_is_marked(spark: SparkSession):
    """No record is lost, and nothing is guessed: a fault is a fault, and a null is none."""
    texts = [b'{"order": "a", "cents": 7, "more": 1}', b"{}", None, b"{", b"", b'{"cents": "x"}']
    rows = with_json(values(spark, *texts), SCHEMA).orderBy("number").collect()
    assert [row.data and tuple(row.data) for row in rows] == [
        ("a", 7),
        (None, None),
        None,
        None,
        None,
        None,
    ]
    assert [row.faulty for row in rows] == [False, False, False, True, True, True]
    assert with_json(values(spark, b"{}"), SCHEMA).columns == ["number", "value", "data", "faulty"]


def test_protobuf_becomes_columns_and_what_is_none_is_marked(spark: SparkSession):
    """The generated class decodes; 64-bit integers keep their value."""
    message = OutcomeMarker(start_offset=2**62, record_count=3)
    frame = values(spark, message.SerializeToString(), b"\xff", None)
    found = with_protobuf(frame, OutcomeMarker, "start_offset bigint, record_count bigint")
    rows = found.orderBy("number").collect()
    assert [row.data and tuple(row.data) for row in rows] == [(2**62, 3), None, None]
    assert [row.faulty for row in rows] == [False, True, False]


def test_the_headers_of_applications_are_kept(spark: SparkSession):
    """Order and repeated names stay; `txn` is a column, and no headers are null."""
    txn = (TXN, TxnId(0, 1).to_bytes())
    given = [
        [("a", b"1"), txn, ("a", None)],
        [txn],
        [("b", b"")],
        None,
    ]
    none = spark.createDataFrame([("orders", 0, b"", False, None)], OUTCOMES)
    records = kafka_frame(spark, enumerate(given))
    assert "headers" not in committed(records, DecidingFrames(none)).columns
    frame = committed(records, DecidingFrames(none), headers=True)
    rows = {row.offset: row for row in frame.collect()}
    assert [rows[number].txn and bytes(rows[number].txn) for number in range(4)] == [
        txn[1],
        txn[1],
        None,
        None,
    ]
    kept = [rows[number].headers for number in range(4)]
    assert kept == [[("a", b"1"), ("a", None)], None, [("b", b"")], None]


OUTCOMES = "topic string, partition int, txn binary, committed boolean, end_offset bigint"
