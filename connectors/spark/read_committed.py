"""The read-committed filter in batch: what becomes of each record of a Kafka frame.

*Source*: protocols.md D1-D3, D6; facts: spark.md 3.1. Every function takes and returns DataFrames
(or columns) of the Kafka source's schema and touches no broker.

*Invariants*:
- each record is in exactly one class of `Visibility`; none is dropped,
- a record is never guessed: without an outcome it is undecided (D2),
- a malformed `txn` header withholds its record, it does not make it a plain one.

Refuses nothing: what is wrong with a record is its class.
"""

from enum import StrEnum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows
from pyspark.sql import types as T  # noqa: N812 - likewise

from schemas.digest import DIGEST_BITS
from schemas.headers import TXN
from schemas.values import TXN_ID_BYTES

MALFORMED = "malformed"
VISIBILITY = "visibility"

_DIGEST_HALF_BITS = DIGEST_BITS // 2
_HALF_MASK = (1 << _DIGEST_HALF_BITS) - 1

OUTCOMES_SCHEMA = T.StructType(
    [
        T.StructField("topic", T.StringType(), nullable=False),
        T.StructField("partition", T.IntegerType(), nullable=False),
        T.StructField(TXN, T.BinaryType(), nullable=False),
        T.StructField("committed", T.BooleanType(), nullable=False),
        T.StructField("end_offset", T.LongType(), nullable=True),
    ]
)
"""What `classify` needs of each outcome; one row for each (topic, partition, transaction)."""


class Visibility(StrEnum):
    """What becomes of a record; PLAIN and VISIBLE are delivered, the others are not."""

    PLAIN = "plain"
    """Without a `txn` header (D3)."""
    VISIBLE = "visible"
    """Of a committed transaction (D1)."""
    HIDDEN = "hidden"
    """Of an aborted transaction, wherever it landed (D1)."""
    LATE = "late"
    """Of a committed transaction, but at or past its end offset (D1)."""
    UNDECIDED = "undecided"
    """Of a transaction without a known outcome on this partition (D2)."""
    MALFORMED = "malformed"
    """With a `txn` header that is null, not 16 bytes, or there twice."""


def with_txn(records: DataFrame) -> DataFrame:
    """Replaces `headers` by `txn` (16 bytes, or null) and `malformed` (never null).

    `txn` is null for a plain record and for a malformed one.
    """
    # array_position over the key sub-array is the cheapest form that keeps no array alive past
    # the projection (spark.md 3.1); `get` answers null outside the array, also under ANSI.
    names = F.col("headers.key")
    position = F.array_position(names, TXN)
    value = F.get(F.col("headers"), (position - 1).cast("int"))["value"]
    repeated = F.size(names) - F.size(F.array_remove(names, TXN)) > 1
    wrong = value.isNull() | (F.octet_length(value) != TXN_ID_BYTES) | repeated
    malformed = F.coalesce((position > 0) & wrong, F.lit(False))
    return records.withColumns({TXN: F.when(~malformed, value), MALFORMED: malformed}).drop(
        "headers"
    )


def classify(records: DataFrame, outcomes: DataFrame) -> DataFrame:
    """Adds `visibility`, a value of `Visibility`, to what `with_txn` returned.

    Args:
        records: with `topic`, `partition`, `offset`, `txn` and `malformed`.
        outcomes: of `OUTCOMES_SCHEMA`, keys unique; broadcast to every task.
    """
    keys = [TXN, "topic", "partition"]
    decided = records.join(
        F.broadcast(outcomes.select(*keys, "committed", "end_offset")), on=keys, how="left"
    )
    visibility = (
        F.when(F.col(MALFORMED), Visibility.MALFORMED)
        .when(F.col(TXN).isNull(), Visibility.PLAIN)
        .when(F.col("committed").isNull(), Visibility.UNDECIDED)
        .when(~F.col("committed"), Visibility.HIDDEN)
        .when(F.col("offset") >= F.col("end_offset"), Visibility.LATE)
        .otherwise(Visibility.VISIBLE)
    )
    return decided.withColumn(VISIBILITY, visibility).drop("committed", "end_offset")


def delivered() -> Column:
    """Whether a classified record is one that a reader delivers (D1, D3)."""
    return F.col(VISIBILITY).isin(Visibility.PLAIN.value, Visibility.VISIBLE.value)


def record_digest() -> Column:
    """`schemas.digest.record_digest` of the columns `key` and `value`, as a long."""
    length = F.coalesce(F.octet_length("key"), F.lit(-1)).cast("string")
    content = F.concat(
        F.encode(length, "US-ASCII"),
        F.lit(b":"),
        F.coalesce("key", F.lit(b"")),
        F.coalesce("value", F.lit(b"")),
    )
    digits = F.substring(F.sha2(content, 256), 1, DIGEST_BITS // 4)
    return F.conv(digits, 16, 10).cast("long")


def digest_sums(where: Column) -> tuple[Column, Column]:
    """Two long aggregates over the records `where` holds; `digest_of_sums` joins them.

    A sum of halves is exact up to 2^33 records and costs a fifth of a decimal sum.
    """
    digest = F.when(where, record_digest())
    high = F.sum(F.shiftright(digest, _DIGEST_HALF_BITS))
    low = F.sum(digest.bitwiseAND(_HALF_MASK))
    return F.coalesce(high, F.lit(0)), F.coalesce(low, F.lit(0))


def digest_of_sums(high: int, low: int) -> int:
    """The digest whose `digest_sums` are these."""
    return (high << _DIGEST_HALF_BITS) + low
