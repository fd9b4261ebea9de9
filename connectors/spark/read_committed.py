"""The read-committed filter in batch: what becomes of each record of a Kafka frame.

*Source*: protocols.md D1-D4, D6; facts: spark.md 3.1. Every function takes and returns DataFrames
(or columns) of the Kafka source's schema and touches no broker.

*Invariants*:
- each record is in exactly one class of `Visibility`; none is dropped,
- a record is never guessed: what neither a marker nor a snapshot decides is undecided (D2, D4),
- a malformed `txn` header withholds its record, it does not make it a plain one.

Refuses nothing: what is wrong with a record is its class.
"""

from enum import StrEnum
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows
from pyspark.sql import types as T  # noqa: N812 - likewise

from stilltide.schemas.digest import DIGEST_BITS
from stilltide.schemas.headers import TXN
from stilltide.schemas.values import TXN_ID_BYTES

MALFORMED = "malformed"
VISIBILITY = "visibility"

_DIGEST_HALF_BITS = DIGEST_BITS // 2
_HALF_MASK = (1 << _DIGEST_HALF_BITS) - 1

_COORDINATOR_BYTES = TXN_ID_BYTES // 2
_PLACE = ["topic", "partition"]

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

POSITIONS_DDL = "topic string, partition int, max_read_position bigint"
"""Of each snapshot: where what it does not hide is visible up to (M)."""

FLOORS_DDL = "topic string, partition int, coordinator binary, floor binary"
"""Of each snapshot and coordinator: the first 8 bytes of its transactions, and all 16 of the first
one that is not hidden by the floor. Bytes compare as the numbers do, both being big-endian."""


class Decisions(NamedTuple):
    """What decides records; frames that are small enough to be broadcast.

    Attributes:
        outcomes: of `OUTCOMES_SCHEMA`, keys unique: what markers tell, and besides, as not
            committed, every id in a snapshot's aborted set; and for each partition the empty
            transaction, which stands for malformed headers.
        positions: of `POSITIONS_DDL`; None without any snapshot.
        floors: of `FLOORS_DDL`; None without any floor.
    """

    outcomes: DataFrame
    positions: DataFrame | None = None
    floors: DataFrame | None = None


class Visibility(StrEnum):
    """What becomes of a record; PLAIN and VISIBLE are delivered, the others are not."""

    PLAIN = "plain"
    """Without a `txn` header (D3)."""
    VISIBLE = "visible"
    """Of a committed transaction: a marker says so (D1), or it lies below M, not hidden (D4)."""
    HIDDEN = "hidden"
    """Of an aborted transaction, or of one below a floor, wherever it landed (D1, D4)."""
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
    malformed = F.coalesce(F.col(TXN) == _no_id(), F.lit(False))
    txn = F.when(~malformed, F.col(TXN))
    return _with_header(records).withColumns({TXN: txn, MALFORMED: malformed})


def _with_header(records: DataFrame) -> DataFrame:
    """Replaces `headers` by `txn`: null for a plain record, empty for a malformed one."""
    # One column first: what is computed from it twice is short. Code that grows past what the JVM
    # compiles costs more than everything else here.
    found = records.withColumn(TXN, _header()).drop("headers")
    is_id = F.octet_length(TXN) == TXN_ID_BYTES
    return found.withColumn(TXN, F.when(is_id, F.col(TXN)).when(~is_id, _no_id()))


def _no_id() -> Column:
    return F.lit(b"")


def _header() -> Column:
    """The value of the `txn` header; null without one; empty where it is null or there twice."""
    # The general form makes two arrays for each record, and most coordinated records have this one
    # header. array_position over the key sub-array is the cheapest form that keeps no array alive
    # past the projection (spark.md 3.1); `get` answers null outside the array, also under ANSI.
    headers, names = F.col("headers"), F.col("headers.key")
    only = F.get(headers, F.lit(0))
    position = F.array_position(names, TXN)
    value = F.get(headers, (position - 1).cast("int"))["value"]
    repeated = F.size(names) - F.size(F.array_remove(names, TXN)) > 1
    return (
        F.when((F.size("headers") == 1) & (only["key"] == TXN), F.coalesce(only["value"], _no_id()))
        .when(position > 0, F.when(repeated, _no_id()).otherwise(F.coalesce(value, _no_id())))
        .otherwise(F.lit(None))
    )


def classify(records: DataFrame, decisions: Decisions) -> DataFrame:
    """Adds `visibility`, a value of `Visibility`, to what `with_txn` returned.

    Args:
        records: with `topic`, `partition`, `offset`, `txn` and `malformed`; none lies below the F
            of its partition's snapshot.
        decisions: broadcast to every task. What a marker tells outranks a floor and M.
    """
    outcomes = decisions.outcomes.select(TXN, *_PLACE, "committed", "end_offset")
    decided = records.join(F.broadcast(outcomes), on=[TXN, *_PLACE], how="left")
    below_floor = below_position = F.lit(False)
    if decisions.floors is not None:
        decided = _with_floor(decided, decisions.floors)
        below_floor = F.col(TXN) < F.col("floor")
    if decisions.positions is not None:
        decided = decided.join(F.broadcast(decisions.positions), on=_PLACE, how="left")
        below_position = F.col("offset") < F.col("max_read_position")
    unmarked = F.col("committed").isNull()
    visibility = (
        F.when(F.col(MALFORMED), Visibility.MALFORMED)
        .when(F.col(TXN).isNull(), Visibility.PLAIN)
        .when(unmarked & below_floor, Visibility.HIDDEN)
        .when(unmarked & below_position, Visibility.VISIBLE)
        .when(unmarked, Visibility.UNDECIDED)
        .when(~F.col("committed"), Visibility.HIDDEN)
        .when(F.col("offset") >= F.col("end_offset"), Visibility.LATE)
        .otherwise(Visibility.VISIBLE)
    )
    return decided.withColumn(VISIBILITY, visibility).drop(
        "committed", "end_offset", "floor", "max_read_position"
    )


def _with_floor(records: DataFrame, floors: DataFrame) -> DataFrame:
    coordinator = F.substring(TXN, 1, _COORDINATOR_BYTES)
    keyed = records.withColumn("coordinator", coordinator)
    return keyed.join(F.broadcast(floors), on=[*_PLACE, "coordinator"], how="left").drop(
        "coordinator"
    )


def committed(records: DataFrame, decisions: Decisions) -> DataFrame:
    """The records that a reader delivers, of records that are all decided: `classify`, but quicker.

    Replaces `headers` by `txn`, null for a plain record.

    Args:
        records: of schema `KAFKA_DDL`; none is undecided, or below the F of its snapshot.
        decisions: as for `classify`. A committed transaction below a floor has only late records
            left (E5).
    """
    # Malformed records go by the same join: a filter of their own would be pushed down, and have
    # Spark look for the header twice.
    names = {name: f"{name}_withheld" for name in (*_PLACE, TXN)}
    outcomes = decisions.outcomes.withColumnsRenamed(names).select(
        *names.values(), "committed", "end_offset"
    )
    # A join on one long is quicker by far than one on bytes and text. What has the same hash is
    # then compared in a way of which no key is made.
    same = F.xxhash64(TXN, "partition") == F.xxhash64(names[TXN], names["partition"])
    for mine, theirs in names.items():
        same &= (F.col(mine) <= F.col(theirs)) & (F.col(mine) >= F.col(theirs))
    withheld = ~F.col("committed") | (F.col("offset") >= F.col("end_offset"))
    kept = _with_header(records).join(F.broadcast(outcomes), same & withheld, "left_anti")
    if decisions.floors is not None:
        floors = F.broadcast(decisions.floors)
        below = kept[TXN] < floors["floor"]
        for name in _PLACE:
            below &= kept[name] == floors[name]
        below &= F.substring(kept[TXN], 1, _COORDINATOR_BYTES) == floors["coordinator"]
        kept = kept.join(floors, below, "left_anti")
    return kept


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
