"""Turns markers and snapshots into frames for Spark's joins.

*Source*: docs/protocols D, E8. Markers and snapshots are read and decoded on the driver by the
package's own codecs.

*Invariants*: those of `outcome_table`. A marker of a former topic of the same name still gives the
outcome of its transaction, but its offsets and its record count are not used.

One Arrow table of all outcomes that can decide records of some ranges.

*Source*: docs/protocols D, E8. Markers and aborted sets are made into columns by numpy, all
partitions and coordinators in one pass: a table for each of them would cost as many times as there
are pairs, and a row for each outcome as many times as there are outcomes.

*Invariants*: a marker outranks an aborted set, so no (topic, partition, transaction) comes twice.
An aborted transaction is left out only with its partition: its records may lie at any offset. A
committed one is left out if it has no record below the end of what is read (C2).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession

from stilltide.connectors.spark.read_committed import OUTCOMES_SCHEMA, DecidingFrames, must_shuffle
from stilltide.connectors.spark.source import frame_of_rows, frame_of_table
from stilltide.pipeline.drivers.snapshots.outcomes import TopicOutcomes
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.values import TXN_ID_BYTES, OffsetRange, TopicPartition, TxnId

OUTCOMES_ARROW_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("txn", pa.binary(), nullable=False),
        pa.field("committed", pa.bool_(), nullable=False),
        pa.field("start_offset", pa.int64()),
        pa.field("end_offset", pa.int64()),
        pa.field("record_count", pa.int64()),
        pa.field("range_start", pa.int64(), nullable=False),
        pa.field("range_end", pa.int64(), nullable=False),
    ]
)
"""One outcome and the range of its partition; offsets and count are null where E8 demands that,
and where the outcome is only in a snapshot."""

_Numbers = npt.NDArray[Any]


def of_current_topic(marker: Marker, evidence: TopicOutcomes) -> bool:
    """Whether the marker's offsets are offsets of the topic as it is now (E8)."""
    return marker.topic_id in (b"", evidence.topic_ids[marker.data.topic])


def outcome_table(
    evidence: TopicOutcomes,
    reads: Sequence[OffsetRange],
    names: Sequence[str],
    *,
    audited: bool,
) -> pa.Table:
    """The outcomes of the partitions of `reads`, as not empty chunks.

    Args:
        evidence: markers and snapshots.
        reads: ranges that are read, each of another partition of the evidence; one or more.
        names: the columns, of `OUTCOMES_ARROW_SCHEMA`.
        audited: whether transactions are wanted that are past the ranges.
    """
    making = _Making(evidence, reads, names)
    markers = evidence.markers
    if len(reads) < len(evidence.data):
        markers = [marker for marker in markers if marker.data in making.numbers]
    if not audited:
        ends = {read.data: read.end for read in reads}
        markers = [
            marker
            for marker in markers
            if not marker.committed
            or marker.start_offset < ends[marker.data]
            or not of_current_topic(marker, evidence)
        ]
    parts = [making.marked(markers), making.aborted(markers), making.malformed()]
    # Spark 4.0 loses every batch after an empty one when it reads a table of several batches.
    return pa.concat_tables(part for part in parts if part.num_rows)


class _Making:
    """Makes the parts of a table; `numbers` numbers the partitions."""

    def __init__(
        self, evidence: TopicOutcomes, reads: Sequence[OffsetRange], names: Sequence[str]
    ) -> None:
        self._evidence = evidence
        self._reads = reads
        self._schema = pa.schema([OUTCOMES_ARROW_SCHEMA.field(name) for name in names])
        self.numbers = {read.data: number for number, read in enumerate(reads)}

    def marked(self, markers: Sequence[Marker]) -> pa.Table:
        """The outcomes of markers."""
        if not markers:
            return self._schema.empty_table()
        count = len(markers)

        def column(index: int, kind: type) -> _Numbers:
            return np.fromiter(map(itemgetter(index), markers), kind, count)

        places = np.fromiter(
            map(self.numbers.__getitem__, map(itemgetter(0), markers)), np.int32, count
        )
        txns = [marker[1] for marker in markers]
        coordinators = np.fromiter(map(itemgetter(0), txns), np.uint64, count)
        sequences = np.fromiter(map(itemgetter(1), txns), np.uint64, count)
        committed = column(2, np.bool_)
        ends = [marker[4] for marker in markers]
        former, without_end = self._former(markers, places), np.zeros(count, dtype=np.bool_)
        if None in ends:
            without_end = np.array([end is None for end in ends])
            ends = [end or 0 for end in ends]
        return self._table(
            places,
            {
                "txn": _ids(coordinators, sequences),
                "committed": pa.array(committed),
                "start_offset": pa.array(column(3, np.int64), mask=former),
                "end_offset": pa.array(
                    np.fromiter(ends, np.int64, count), mask=former | without_end
                ),
                "record_count": pa.array(column(5, np.int64), mask=former | ~committed),
            },
        )

    def _former(self, markers: Sequence[Marker], places: _Numbers) -> _Numbers:
        """Whether each marker's offsets are those of a former topic of the name (E8)."""
        ids = [marker[6] for marker in markers]
        known = {one: number for number, one in enumerate({b"", *ids})}
        numbers = np.fromiter(map(known.__getitem__, ids), np.int64, len(ids))
        current = (self._evidence.topic_ids[read.data.topic] for read in self._reads)
        of_place = np.fromiter((known.get(one, -1) for one in current), np.int64, len(self._reads))
        return (numbers != known[b""]) & (numbers != of_place[places])

    def aborted(self, markers: Sequence[Marker]) -> pa.Table:
        """The ids of aborted sets that have no marker."""
        marked = self._marked_too(markers)
        places: list[int] = []
        coordinators: list[int] = []
        unmarked: list[set[int]] = []
        for data, snapshot in self._evidence.snapshots.items():
            number = self.numbers.get(data)
            if number is None:
                continue
            for coordinator, sequences in snapshot.aborted.by_coordinator().items():
                places.append(number)
                coordinators.append(coordinator)
                unmarked.append(sequences - marked.get((data, coordinator), set()))
        counts = np.fromiter(map(len, unmarked), np.int64, len(unmarked))
        total = int(counts.sum())
        if not total:
            return self._schema.empty_table()
        sequences = np.fromiter(chain.from_iterable(unmarked), np.uint64, total)
        of_coordinator = np.array(coordinators, dtype=np.uint64).repeat(counts)
        numbers = np.array(places, dtype=np.int32).repeat(counts)
        return self._table(numbers, {"txn": _ids(of_coordinator, sequences)})

    def malformed(self) -> pa.Table:
        """The empty transaction of each partition, which malformed headers have."""
        numbers = np.arange(len(self._reads), dtype=np.int32)
        return self._table(numbers, {"txn": pa.repeat(pa.scalar(b"", pa.binary()), len(numbers))})

    def _marked_too(
        self, markers: Sequence[Marker]
    ) -> Mapping[tuple[TopicPartition, int], set[int]]:
        """The ids of aborted sets that have a marker, by partition and coordinator."""
        marked: defaultdict[tuple[TopicPartition, int], set[int]] = defaultdict(set)
        sets = {data: one.aborted for data, one in self._evidence.snapshots.items()}
        if sets:
            for data, txn, *_ in markers:
                if (aborted := sets.get(data)) is not None and aborted.holds(*txn):
                    marked[data, txn.coordinator].add(txn.sequence)
        return marked

    def _table(self, places: _Numbers, columns: Mapping[str, pa.Array]) -> pa.Table:
        """The columns, with those that the partitions give; other columns are null or false."""
        count = len(places)
        at = pa.array(places)
        of_place = {
            "topic": [read.data.topic for read in self._reads],
            "partition": [read.data.partition for read in self._reads],
            "range_start": [read.start for read in self._reads],
            "range_end": [read.end for read in self._reads],
        }
        arrays: list[pa.Array] = []
        for field in self._schema:
            if field.name in columns:
                arrays.append(columns[field.name])
            elif field.name in of_place:
                arrays.append(pa.array(of_place[field.name], field.type).take(at))
            elif field.name == "committed":
                arrays.append(pa.repeat(pa.scalar(value=False), count))
            else:
                arrays.append(pa.nulls(count, field.type))
        return pa.Table.from_arrays(arrays, schema=self._schema)


def _ids(coordinators: _Numbers, sequences: _Numbers) -> pa.Array:
    """The bytes of transactions, as `TxnId.to_bytes` makes them."""
    pairs = np.empty((len(sequences), 2), dtype=">u8")
    pairs[:, 0], pairs[:, 1] = coordinators, sequences
    buffers = [None, pa.py_buffer(pairs)]
    return pa.Array.from_buffers(pa.binary(TXN_ID_BYTES), len(pairs), buffers).cast(pa.binary())


_PLACE = [pa.field("topic", pa.string()), pa.field("partition", pa.int32())]
_POSITIONS = pa.schema([*_PLACE, pa.field("max_read_position", pa.int64())])
_FLOORS = pa.schema([*_PLACE, pa.field("coordinator", pa.binary()), pa.field("floor", pa.binary())])


def decisions_of(
    spark: SparkSession,
    evidence: TopicOutcomes,
    reads: Sequence[OffsetRange] | None = None,
    *,
    audited: bool = True,
) -> DecidingFrames:
    """The frames that decide the records of `reads`.

    Args:
        spark: the session.
        evidence: markers, snapshots and all ranges.
        reads: parts of ranges of `evidence.data`, each of another partition; by default all of it.
        audited: whether the outcomes have all columns of `OUTCOMES_ARROW_SCHEMA`, also of
            transactions past `reads`, or only what `classify` and `committed` need.

    Raises:
        FatalError: there are more outcomes than the driver's heap can hold.
    """
    reads = evidence.data if reads is None else reads
    names = OUTCOMES_ARROW_SCHEMA.names if audited else OUTCOMES_SCHEMA.names
    outcomes = outcome_table(evidence, reads, names, audited=audited)
    shuffled = must_shuffle(spark, outcomes.num_rows)
    within = {read.data for read in reads}
    snapshots = {data: one for data, one in evidence.snapshots.items() if data in within}
    positions = [(*data, found.end.max_read_position) for data, found in snapshots.items()]
    floors = [
        (*data, TxnId(coordinator, 0).to_bytes()[:8], TxnId(coordinator, floor).to_bytes())
        for data, snapshot in snapshots.items()
        for coordinator, floor in snapshot.aborted.floors.items()
    ]
    return DecidingFrames(
        frame_of_table(spark, outcomes),
        frame_of_rows(spark, positions, _POSITIONS) if positions else None,
        frame_of_rows(spark, floors, _FLOORS) if floors else None,
        shuffled,
        outcomes.num_rows,
    )


def mixed_transactions(evidence: TopicOutcomes) -> list[TxnId]:
    """Transactions with a commit marker, and with an abort in a marker or a snapshot; sorted."""
    committed = {marker.txn for marker in evidence.markers if marker.committed}
    aborted = {marker.txn for marker in evidence.markers if not marker.committed}
    sets = [snapshot.aborted for snapshot in evidence.snapshots.values()]
    return sorted(txn for txn in committed if txn in aborted or any(it.holds(*txn) for it in sets))
