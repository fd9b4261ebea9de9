"""Turns markers and snapshots into frames for Spark's joins.

*Source*: docs/protocols D, E8. Markers and snapshots are read and decoded on the driver by the
package's own codecs, and become broadcast frames.

*Invariants*: a marker outranks a snapshot. A marker of a former topic of the same name still gives
the outcome of its transaction, but its offsets and its record count are not used.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from stilltide.connectors.spark.frames import frame_of_rows, frame_of_table
from stilltide.connectors.spark.read_committed import OUTCOMES_SCHEMA, Decisions
from stilltide.pipeline.core.snapshots.aborted import AbortedSet
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


_PLACE = [pa.field("topic", pa.string()), pa.field("partition", pa.int32())]
_POSITIONS = pa.schema([*_PLACE, pa.field("max_read_position", pa.int64())])
_FLOORS = pa.schema([*_PLACE, pa.field("coordinator", pa.binary()), pa.field("floor", pa.binary())])


def of_current_topic(marker: Marker, evidence: TopicOutcomes) -> bool:
    """Whether the marker's offsets are offsets of the topic as it is now (E8)."""
    return marker.topic_id in (b"", evidence.topic_ids[marker.data.topic])


def decisions_of(
    spark: SparkSession, evidence: TopicOutcomes, *, audited: bool = True
) -> Decisions:
    """The frames that decide the records of `evidence.data`.

    Args:
        spark: the session.
        evidence: markers, snapshots and the ranges that are read.
        audited: whether the outcomes have all columns of `OUTCOMES_ARROW_SCHEMA`, or only those
            that `classify` and `committed` need.
    """
    outcomes = _outcomes(evidence)
    if not audited:
        outcomes = outcomes.select(OUTCOMES_SCHEMA.names)
    snapshots = evidence.snapshots
    positions = [(*data, found.end.max_read_position) for data, found in snapshots.items()]
    floors = [
        (*data, TxnId(coordinator, 0).to_bytes()[:8], TxnId(coordinator, floor).to_bytes())
        for data, found in snapshots.items()
        for coordinator, floor in found.aborted.floors.items()
    ]
    return Decisions(
        frame_of_table(spark, outcomes),
        frame_of_rows(spark, positions, _POSITIONS) if positions else None,
        frame_of_rows(spark, floors, _FLOORS) if floors else None,
    )


def mixed_transactions(evidence: TopicOutcomes) -> list[TxnId]:
    """Transactions with a commit marker, and with an abort in a marker or a snapshot; sorted."""
    committed = {marker.txn for marker in evidence.markers if marker.committed}
    aborted = {marker.txn for marker in evidence.markers if not marker.committed}
    sets = [found.aborted for found in evidence.snapshots.values()]
    return sorted(txn for txn in committed if txn in aborted or any(it.holds(*txn) for it in sets))


def _outcomes(evidence: TopicOutcomes) -> pa.Table:
    marked: defaultdict[TopicPartition, set[TxnId]] = defaultdict(set)
    rows: list[dict[str, object]] = []
    ranges = {read.data: read for read in evidence.data}
    for marker in evidence.markers:
        marked[marker.data].add(marker.txn)
        rows.append(_row(marker, ranges[marker.data], of_current_topic(marker, evidence)))
    rows += [{**_aborted_in(read), "txn": b""} for read in evidence.data]  # malformed headers
    tables = [pa.Table.from_pylist(rows, schema=OUTCOMES_ARROW_SCHEMA)]
    for data, found in evidence.snapshots.items():
        tables += _aborted(found.aborted, ranges[data], marked[data])
    # Spark 4.0 loses every batch after an empty one when it reads a table of several batches.
    return pa.concat_tables(tables).combine_chunks()


def _row(marker: Marker, read: OffsetRange, current: bool) -> dict[str, object]:  # noqa: FBT001 - private, one caller
    return {
        "topic": marker.data.topic,
        "partition": marker.data.partition,
        "txn": marker.txn.to_bytes(),
        "committed": marker.committed,
        "start_offset": marker.start_offset if current else None,
        "end_offset": marker.end_offset if current else None,
        "record_count": marker.record_count if current and marker.committed else None,
        "range_start": read.start,
        "range_end": read.end,
    }


def _aborted_in(read: OffsetRange) -> dict[str, object]:
    """The common columns of rows of aborted transactions without a marker."""
    return {
        "topic": read.data.topic,
        "partition": read.data.partition,
        "committed": False,
        "range_start": read.start,
        "range_end": read.end,
    }


def _aborted(
    aborted: AbortedSet, read: OffsetRange, marked: Collection[TxnId]
) -> Iterable[pa.Table]:
    """Rows of a set's ids without a marker; made column by column, as there may be millions."""
    for coordinator, held in aborted.by_coordinator().items():
        sequences = held.difference(txn.sequence for txn in marked if txn[0] == coordinator)
        count = len(sequences)
        ids = np.empty((count, 2), dtype=">u8")
        ids[:, 0] = coordinator
        ids[:, 1] = np.fromiter(sequences, dtype=np.uint64, count=count)
        binary = pa.binary(TXN_ID_BYTES)
        txns = pa.Array.from_buffers(binary, count, [None, pa.py_buffer(ids.tobytes())])
        same = _aborted_in(read)
        columns = [
            txns.cast(pa.binary())
            if field.name == "txn"
            else pa.repeat(pa.scalar(same.get(field.name), field.type), count)
            for field in OUTCOMES_ARROW_SCHEMA
        ]
        yield pa.Table.from_arrays(columns, schema=OUTCOMES_ARROW_SCHEMA)
