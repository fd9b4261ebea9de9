"""The read-committed filter for batch jobs: decides for each record of a Kafka frame.

*Source*: docs/protocols D1-D4, D6. Every function takes and returns DataFrames (or columns) of the
Kafka source's schema and touches no broker.

*Invariants*:
- each record is in exactly one class of `Visibility`; `classify` drops none,
- a record that neither a marker nor a snapshot decides is undecided, never guessed (D2, D4),
- a malformed `txn` header withholds its record; the record is not taken for a plain one.

Refuses nothing: a faulty record gets a class of its own.
"""

from enum import StrEnum
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows
from pyspark.sql import types as T  # noqa: N812 - as above

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
"""Outcomes, as `classify` reads them; one row for each (topic, partition, transaction)."""

POSITIONS_DDL = "topic string, partition int, max_read_position bigint"
"""The max read position (M) of each snapshot: records below it that no outcome, floor or aborted
set hides are visible."""

FLOORS_DDL = "topic string, partition int, coordinator binary, floor binary"
"""The floor of each snapshot and coordinator: the first 8 bytes of the coordinator's transactions,
and all 16 bytes of the first transaction that the floor does not hide. The bytes are big-endian, so
they compare as the numbers do."""


class Decisions(NamedTuple):
    """Frames that decide records; positions and floors are small enough to be broadcast.

    Attributes:
        outcomes: frame of schema `OUTCOMES_SCHEMA` with unique keys. It holds the markers'
            outcomes; as not committed, every id in a snapshot's aborted set; and for each
            partition, as not committed, the empty transaction, which means malformed headers.
        positions: frame of schema `POSITIONS_DDL`; None without any snapshot.
        floors: frame of schema `FLOORS_DDL`; None without any floor.
        shuffled: whether records and outcomes are shuffled to be joined, as for more outcomes than
            each executor can hold; else the outcomes are broadcast.
        outcome_count: number of outcomes.
    """

    outcomes: DataFrame
    positions: DataFrame | None = None
    floors: DataFrame | None = None
    shuffled: bool = False
    outcome_count: int = 0

    def beside(self, outcomes: DataFrame) -> DataFrame:
        """The outcomes, in some form, as the right side of a join with records."""
        if self.shuffled:
            # A sort spills what does not fit; a hash table would have to.
            return outcomes.hint("merge")
        return F.broadcast(outcomes)


class Visibility(StrEnum):
    """The class of a record; only PLAIN and VISIBLE records are delivered."""

    PLAIN = "plain"
    """A record without a `txn` header (D3)."""
    VISIBLE = "visible"
    """A record of a committed transaction, by a marker (D1), or below M and not hidden (D4)."""
    HIDDEN = "hidden"
    """A record, at any offset, of a transaction that aborted (D1) or is below a floor (D4)."""
    LATE = "late"
    """A record of a committed transaction at or past the transaction's end offset (D1)."""
    UNDECIDED = "undecided"
    """A record of a transaction without a known outcome on this partition (D2)."""
    MALFORMED = "malformed"
    """A record with a `txn` header that is null, not 16 bytes, or there twice."""


def with_txn(records: DataFrame) -> DataFrame:
    """Replaces `headers` by `txn` (16 bytes, or null) and `malformed` (never null).

    `txn` is null for a plain record and for a malformed one.
    """
    malformed = F.coalesce(F.col(TXN) == _no_id(), F.lit(False))
    txn = F.when(~malformed, F.col(TXN))
    return _with_header(records).withColumns({TXN: txn, MALFORMED: malformed})


def _with_header(records: DataFrame, *, headers: bool = False) -> DataFrame:
    """Adds `txn`, null for a plain record and empty for a malformed one; may keep `headers`."""
    # Spark computes an expression as often as it is used. So the header becomes a column first:
    # generated code that is too long for the JVM's compiler is slower than everything else here.
    found = records.withColumn(TXN, _header())
    if not headers:
        found = found.drop("headers")
    is_id = F.octet_length(TXN) == TXN_ID_BYTES
    return found.withColumn(TXN, F.when(is_id, F.col(TXN)).when(~is_id, _no_id()))


def _no_id() -> Column:
    return F.lit(b"")


def _header() -> Column:
    """The value of the `txn` header; null without one; empty where it is null or there twice."""
    # Most coordinated records have only this header, and the general form makes two arrays for each
    # record. array_position over the array of keys is the cheapest form that keeps no array alive
    # past the projection; `get` returns null outside the array, also in ANSI mode.
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
    """Adds `visibility`, a value of `Visibility`, to a frame that `with_txn` returned.

    Args:
        records: a frame with `topic`, `partition`, `offset`, `txn` and `malformed`; no record is
            below the F of its partition's snapshot.
        decisions: the frames that decide. A marker's outcome takes precedence over a floor and M.
    """
    outcomes = decisions.outcomes.select(TXN, *_PLACE, "committed", "end_offset")
    decided = records.join(decisions.beside(outcomes), on=[TXN, *_PLACE], how="left")
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


def committed(records: DataFrame, decisions: Decisions, *, headers: bool = False) -> DataFrame:
    """The records that a reader delivers, of records that are all decided; faster than `classify`.

    Replaces `headers` by `txn`, null for a plain record; or, with `headers`, adds `txn` and keeps
    the other headers: null, not empty, for a record without any.

    Args:
        records: frame of schema `KAFKA_DDL`; no record is undecided, or below the F of its
            partition's snapshot.
        decisions: the frames that decide, as for `classify`. A committed transaction below a floor
            has only late records left (E5).
        headers: whether the frame keeps the headers of applications, which costs time.
    """
    # The same join removes malformed records: Spark would push a separate filter down, and then
    # search for the header twice.
    names = {name: f"{name}_withheld" for name in (*_PLACE, TXN)}
    outcomes = decisions.outcomes.withColumnsRenamed(names).select(
        *names.values(), "committed", "end_offset"
    )
    # A join on one long is much faster than a join on bytes and text. Records of equal hashes are
    # then compared by <= and >=, since Spark would add an equality to the join's key.
    same = F.xxhash64(TXN, "partition") == F.xxhash64(names[TXN], names["partition"])
    for mine, theirs in names.items():
        same &= (F.col(mine) <= F.col(theirs)) & (F.col(mine) >= F.col(theirs))
    withheld = ~F.col("committed") | (F.col("offset") >= F.col("end_offset"))
    kept = _with_header(records, headers=headers).join(
        decisions.beside(outcomes), same & withheld, "left_anti"
    )
    if decisions.floors is not None:
        floors = F.broadcast(decisions.floors)
        below = kept[TXN] < floors["floor"]
        for name in _PLACE:
            below &= kept[name] == floors[name]
        below &= F.substring(kept[TXN], 1, _COORDINATOR_BYTES) == floors["coordinator"]
        kept = kept.join(floors, below, "left_anti")
    if headers:
        others = F.filter("headers", lambda one: one["key"] != TXN)
        kept = kept.withColumn("headers", F.when(F.size(others) > 0, others))
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
    """Two long aggregates over the records for which `where` is true; `digest_of_sums` joins them.

    Sums of halves are exact up to 2^33 records and take a fifth of the time of a decimal sum.
    """
    digest = F.when(where, record_digest())
    high = F.sum(F.shiftright(digest, _DIGEST_HALF_BITS))
    low = F.sum(digest.bitwiseAND(_HALF_MASK))
    return F.coalesce(high, F.lit(0)), F.coalesce(low, F.lit(0))


def digest_of_sums(high: int, low: int) -> int:
    """The digest of which `digest_sums` returned these two sums."""
    return (high << _DIGEST_HALF_BITS) + low
