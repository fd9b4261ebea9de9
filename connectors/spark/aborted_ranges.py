"""Removes aborted native records from a Kafka frame, by ranges of offsets.

*Source*: docs/protocols F3. Spark's source shows no producer ids, so a record that it reads at
read_uncommitted can be recognised as aborted only by its offset. No function here touches a broker.

The table has each range once for every bucket of offsets that the range touches, and a record looks
its own bucket up in one broadcast hash table of longs. Long ranges have coarse buckets, so that the
table grows with the number of ranges and hardly with their lengths.
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
