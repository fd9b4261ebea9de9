"""The read-committed filter for batch jobs: decides for each record of a Kafka frame.

*Source*: docs/protocols D1, D2, D3, D4, D6. Every function takes and returns DataFrames (or
columns) of the Kafka source's schema and touches no broker.

*Invariants*:
- each record is in exactly one class of `Visibility`; `classify` drops none,
- a record that neither a marker nor a snapshot decides is undecided, never guessed (D2, D4),
- a malformed `txn` header withholds its record; the record is not taken for a plain one.

Refuses nothing: a faulty record gets a class of its own.

Removes aborted native records from a Kafka frame, by ranges of offsets.

*Source*: docs/protocols F3. Spark's source shows no producer ids, so a record that it reads at
read_uncommitted can be recognised as aborted only by its offset. No function here touches a broker.

The table has each range once for every bucket of offsets that the range touches, and a record looks
its own bucket up in one broadcast hash table of longs. Long ranges have coarse buckets, so that the
table grows with the number of ranges and hardly with their lengths.

How outcomes reach the tasks of Spark: as a broadcast, by a shuffle, or not at all.

A broadcast is the fastest join, but every executor holds all outcomes at once, and so does the
driver while it makes the hash table. A shuffle gives each task a part, and may use disk.

*Invariants*: rows and heap alone decide, before any job begins.
"""

import re
from array import array
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows
from pyspark.sql import types as T  # noqa: N812 - as above

from stilltide.connectors.errors import FatalError
from stilltide.connectors.spark.source import frame_of_table
from stilltide.schemas.digest import DIGEST_BITS
from stilltide.schemas.headers import TXN
from stilltide.schemas.values import TXN_ID_BYTES, OffsetRange, TopicPartition

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


class DecidingFrames(NamedTuple):
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
    marked = records.withColumn(TXN, _header())
    if not headers:
        marked = marked.drop("headers")
    is_id = F.octet_length(TXN) == TXN_ID_BYTES
    return marked.withColumn(TXN, F.when(is_id, F.col(TXN)).when(~is_id, _no_id()))


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


def classify(records: DataFrame, decisions: DecidingFrames) -> DataFrame:
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


def committed(records: DataFrame, decisions: DecidingFrames, *, headers: bool = False) -> DataFrame:
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


_LONG = 4096
_SHIFT, _LONG_SHIFT = 8, 16
"""Bits of an offset within a bucket: a range of fewer than `_LONG` offsets touches at most 17
buckets of 256 offsets; longer ranges use buckets of 65536."""

_Offsets = npt.NDArray[np.int64]


class RangeColumns(NamedTuple):
    """Ranges `[first, end)` of one partition, ascending and disjoint.

    Attributes:
        firsts: first offset of each range; type code `q`.
        ends: end offset of each range, exclusive; type code `q`.
    """

    firsts: "array[int]"
    ends: "array[int]"


_NONE = RangeColumns(array("q"), array("q"))


def without_aborted(
    records: DataFrame, reads: Sequence[OffsetRange], aborted: Mapping[TopicPartition, RangeColumns]
) -> DataFrame:
    """The records that are in no aborted range, with unchanged columns.

    Args:
        records: a frame with `topic`, `partition` and `offset`, all within `reads`.
        reads: the ranges of offsets read, each partition once.
        aborted: the aborted ranges of partitions of `reads`; they may go beyond `reads`.
    """
    places = _Places(reads)
    for shift, is_long in ((_SHIFT, False), (_LONG_SHIFT, True)):
        table = places.table(aborted, shift, is_long=is_long)
        if table.num_rows:
            ranges = F.broadcast(frame_of_table(records.sparkSession, table))
            within = places.key(shift) == ranges["aborted_bucket"]
            within &= F.col("offset") >= ranges["aborted_first"]
            within &= F.col("offset") < ranges["aborted_end"]
            records = records.join(ranges, within, "left_anti")
    return records


class _Places:
    """Numbers the partitions, so that bucket and partition are one long."""

    def __init__(self, reads: Sequence[OffsetRange]) -> None:
        self._reads = reads
        self._bases: dict[str, int] = {}
        self._count = 0
        for topic in sorted({read.data.topic for read in reads}):
            self._bases[topic] = self._count
            self._count += 1 + max(read.data.partition for read in reads if read.data[0] == topic)

    def key(self, shift: int) -> Column:
        """The bucket and partition of a record, as one long."""
        number = F.col("partition")
        if len(self._bases) > 1:
            (first, base), *others = self._bases.items()
            bases = F.when(F.col("topic") == first, F.lit(base))
            for topic, base in others:
                bases = bases.when(F.col("topic") == topic, F.lit(base))
            number += bases
        return F.shiftright("offset", shift) * F.lit(self._count).cast("long") + number

    def table(
        self, aborted: Mapping[TopicPartition, RangeColumns], shift: int, *, is_long: bool
    ) -> pa.Table:
        """The short or the long ranges, each once for every bucket that it touches."""
        columns = [
            self._entries(read, aborted.get(read.data, _NONE), shift, is_long)
            for read in self._reads
        ]
        names = ["aborted_bucket", "aborted_first", "aborted_end"]
        return pa.table(
            {
                name: pa.array(np.concatenate(parts))
                for name, parts in zip(names, zip(*columns, strict=True), strict=True)
            }
        )

    def _entries(
        self,
        read: OffsetRange,
        columns: RangeColumns,
        shift: int,
        is_long: bool,  # noqa: FBT001 - private, one caller
    ) -> tuple[_Offsets, _Offsets, _Offsets]:
        firsts = np.frombuffer(columns.firsts, dtype=np.int64).clip(read.start, read.end)
        ends = np.frombuffer(columns.ends, dtype=np.int64).clip(read.start, read.end)
        mine = (firsts < ends) & ((ends - firsts >= _LONG) == is_long)
        firsts, ends = firsts[mine], ends[mine]
        lowest = firsts >> shift
        spans = ((ends - 1) >> shift) - lowest + 1
        which = np.repeat(np.arange(len(spans)), spans)
        buckets = lowest[which] + np.arange(len(which)) - (np.cumsum(spans) - spans)[which]
        number = self._bases[read.data.topic] + read.data.partition
        return buckets * self._count + number, firsts[which], ends[which]


BROADCAST_ROW_BYTES = 320
"""Heap for an outcome of a broadcast: its Arrow form, its row, and its place in the hash table, the
last two for a moment also in transit."""

SHUFFLE_ROW_BYTES = 90
"""Heap for an outcome of a shuffle: its Arrow form in the driver, and what is in transit."""

BROADCAST_SHARE, SHUFFLE_SHARE = 0.4, 0.6
"""Shares of the heap for outcomes; Spark keeps 300 MB and 40 % of the rest from its own data."""

_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d+)\s*([bkmgt]?)b?", re.IGNORECASE)
_EXECUTOR_MEMORY = "spark.executor.memory"


def must_shuffle(spark: SparkSession, rows: int) -> bool:
    """Whether this many outcomes are shuffled, since some heap could not hold a broadcast of them.

    Raises:
        FatalError: the heap holds neither; names rows and heap.
    """
    driver, smallest = heaps(spark)
    if rows * BROADCAST_ROW_BYTES <= smallest * BROADCAST_SHARE:
        return False
    if rows * SHUFFLE_ROW_BYTES > driver * SHUFFLE_SHARE:
        needed = _mib(rows * SHUFFLE_ROW_BYTES / SHUFFLE_SHARE)
        quick = _mib(rows * BROADCAST_ROW_BYTES / BROADCAST_SHARE)
        raise FatalError(
            f"{rows} outcomes of transactions do not fit into a driver with {_mib(driver)} of heap",
            detail=f"they need {needed}, and {quick} to be broadcast",
            hint="give the driver more (--driver-memory, spark-submit --driver-memory), read fewer"
            " partitions at once, or take a snapshot first: it absorbs outcomes",
        )
    return True


def heaps(spark: SparkSession) -> tuple[int, int]:
    """Bytes of the driver's heap, and of the smallest heap of driver and executors."""
    jvm: Any = spark._jvm  # noqa: SLF001 - the heap has no public form in Python
    driver = int(jvm.java.lang.Runtime.getRuntime().maxMemory())
    context = spark.sparkContext
    if str(context.master).startswith("local"):
        return driver, driver
    asked = _SIZE.fullmatch(context.getConf().get(_EXECUTOR_MEMORY, "1g") or "1g")
    executor = int(asked[1]) * _UNITS[asked[2].lower()] if asked else driver
    return driver, min(driver, executor)


def _mib(size: float) -> str:
    return f"{size / 2**20:.0f} MiB"
