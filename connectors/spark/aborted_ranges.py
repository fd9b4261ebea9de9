"""Takes aborted native records out of a Kafka frame, by ranges of offsets.

*Source*: protocols.md F3; facts: spark.md 3.2. Spark's source shows no producer ids, so whatever it
reads at read_uncommitted can only be told by where it lies. No function here touches a broker.

A range is entered under every bucket of offsets that it touches, and a record looks its own bucket
up in one broadcast hash table of longs. Long ranges have coarse buckets, so that the table grows
with the number of ranges and hardly with their lengths.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.spark.frames import frame_of_table
from stilltide.schemas.values import OffsetRange, TopicPartition

_LONG = 4096
_SHIFT, _LONG_SHIFT = 8, 16
"""A range of fewer than `_LONG` offsets touches 17 buckets of 256 at most."""

_Offsets = npt.NDArray[np.int64]


class RangeColumns(NamedTuple):
    """Ranges `[first, end)` of one partition, ascending and disjoint.

    Attributes:
        firsts: of each; of type code `q`.
        ends: likewise.
    """

    firsts: "array[int]"
    ends: "array[int]"


_NONE = RangeColumns(array("q"), array("q"))


def without_aborted(
    records: DataFrame, reads: Sequence[OffsetRange], aborted: Mapping[TopicPartition, RangeColumns]
) -> DataFrame:
    """The records that lie in no aborted range, with the columns they have.

    Args:
        records: with `topic`, `partition` and `offset`, all within `reads`.
        reads: each partition once.
        aborted: of each partition of `reads` that has any; may go beyond what is read.
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
        """Of a record."""
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
        """The ranges of one kind, once for each bucket that they touch."""
        found = [
            self._entries(read, aborted.get(read.data, _NONE), shift, is_long)
            for read in self._reads
        ]
        names = ["aborted_bucket", "aborted_first", "aborted_end"]
        return pa.table(
            {
                name: pa.array(np.concatenate(parts))
                for name, parts in zip(names, zip(*found, strict=True), strict=True)
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
