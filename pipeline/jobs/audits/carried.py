"""What an audit of a window knows of earlier windows, so that each transaction is counted once.

*Source*: docs/protocols C6. A window is the range `[start, end)` of a partition that follows the
ranges of earlier audits.

*Invariants*: the records of a committed transaction are compared with their marker in the window
that holds the transaction's end; until then the records of earlier windows are carried as a number.
A transaction whose marker comes when its end has been audited already is counted again as a whole.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.spark.read_committed import VISIBILITY, DecidingFrames, Visibility
from stilltide.connectors.spark.source import frame_of_rows
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.values import Offset, OffsetRange, TopicPartition, TxnId

_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("txn", pa.binary()),
        ("visibility", pa.string()),
        ("offset", pa.int64()),
        ("last", pa.int64()),
        ("rows", pa.int64()),
    ]
)

_PLACE = [pa.field("topic", pa.string()), pa.field("partition", pa.int32())]
_ORIGINS = pa.schema([*_PLACE, pa.field("origin", pa.int64())])
_AGAIN = pa.schema([*_PLACE, pa.field("txn", pa.binary())])


class CarriedCount(NamedTuple):
    """The number of records of a committed transaction on a partition, in earlier windows.

    Attributes:
        data: the partition.
        txn: the transaction.
        first: offset of the first of the records.
        last: offset of the last one.
        rows: their number, >= 1.
    """

    data: TopicPartition
    txn: TxnId
    first: int
    last: int
    rows: int


@dataclass(frozen=True)
class Carried:
    """What is known of earlier windows; by default nothing, as for an audit that is run once.

    Attributes:
        origins: where the first window of each partition began; a missing partition begins with
            the present window.
        counts: records of transactions that end in the present window or later, and of those in
            `again`.
        again: committed transactions that ended before the present window, to be judged in it.
        goes_on: whether a transaction that ends past the window is judged in a later one.
    """

    origins: Mapping[TopicPartition, Offset] = field(default_factory=dict)
    counts: Sequence[CarriedCount] = ()
    again: Collection[tuple[TopicPartition, TxnId]] = frozenset()
    goes_on: bool = False

    def is_due(self, marker: Marker, read: OffsetRange) -> bool:
        """Whether the records of the marker's transaction are compared with it in this window."""
        end = marker.end_offset
        if end is None:
            return False
        if end <= read.start and read.data in self.origins:
            return (marker.data, marker.txn) in self.again
        return not (self.goes_on and end > read.end)

    def with_counts(self, groups: DataFrame) -> DataFrame:
        """The groups of the window, as `by_transaction` makes them, with the carried counts."""
        rows = [
            (
                *count.data,
                count.txn.to_bytes(),
                Visibility.VISIBLE.value,
                count.first,
                count.last,
                count.rows,
            )
            for count in self.counts
        ]
        if not rows:
            return groups
        carried = frame_of_rows(groups.sparkSession, rows, _SCHEMA)
        return (
            groups.select(*_SCHEMA.names)
            .unionByName(carried)
            .groupBy("topic", "partition", "txn", VISIBILITY)
            .agg(
                F.min("offset").alias("offset"),
                F.max("last").alias("last"),
                F.sum("rows").alias("rows"),
            )
        )

    def due(self, outcomes: DataFrame) -> DataFrame:
        """The outcomes of `is_due`, with the range from the first window on."""
        due = F.lit(True)
        if self.goes_on:
            due = F.col("end_offset") <= F.col("range_end")
        if not self.origins:
            return outcomes.filter(due)
        spark = outcomes.sparkSession
        origins = [(*data, origin) for data, origin in self.origins.items()]
        joined = outcomes.join(
            F.broadcast(frame_of_rows(spark, origins, _ORIGINS)), ["topic", "partition"], "left"
        )
        earlier = (F.col("end_offset") <= F.col("range_start")) & F.col("origin").isNotNull()
        if self.again:
            again = [(*data, txn.to_bytes()) for data, txn in self.again]
            named = frame_of_rows(spark, again, _AGAIN).withColumn("again", F.lit(True))
            joined = joined.join(F.broadcast(named), ["topic", "partition", "txn"], "left")
            earlier &= F.col("again").isNull()
        start = F.coalesce("origin", "range_start")
        return joined.filter(due & ~F.coalesce(earlier, F.lit(False))).withColumn(
            "range_start", start
        )


def crossing(counted: DataFrame, decisions: DecidingFrames) -> tuple[CarriedCount, ...]:
    """The counts to carry on: of committed transactions that end past the window.

    Args:
        counted: the frame that `with_counts` returns.
        decisions: the decisions; their outcomes have the window's range.
    """
    ends_later = decisions.outcomes.filter(
        F.col("record_count").isNotNull() & (F.col("end_offset") > F.col("range_end"))
    ).select("topic", "partition", "txn")
    crossed = counted.filter(F.col(VISIBILITY) == Visibility.VISIBLE.value).join(
        decisions.beside(ends_later), ["topic", "partition", "txn"], "left_semi"
    )
    return tuple(
        sorted(
            CarriedCount(
                TopicPartition(row["topic"], row["partition"]),
                TxnId.from_bytes(bytes(row["txn"])),
                *(row["offset"], row["last"], row["rows"]),
            )
            for row in crossed.collect()
        )
    )


NOTHING = Carried()
