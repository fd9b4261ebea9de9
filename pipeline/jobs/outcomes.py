"""Turns markers and snapshots into frames for Spark's joins.

*Source*: docs/protocols D, E8. Markers and snapshots are read and decoded on the driver by the
package's own codecs.

*Invariants*: those of `outcome_table`. A marker of a former topic of the same name still gives the
outcome of its transaction, but its offsets and its record count are not used.
"""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import SparkSession

from stilltide.connectors.spark.read_committed import OUTCOMES_SCHEMA, Decisions, must_shuffle
from stilltide.connectors.spark.source import frame_of_rows, frame_of_table
from stilltide.pipeline.drivers.snapshots.outcomes import TopicOutcomes
from stilltide.pipeline.jobs.outcome_table import OUTCOMES_ARROW_SCHEMA, outcome_table
from stilltide.schemas.values import OffsetRange, TxnId

_PLACE = [pa.field("topic", pa.string()), pa.field("partition", pa.int32())]
_POSITIONS = pa.schema([*_PLACE, pa.field("max_read_position", pa.int64())])
_FLOORS = pa.schema([*_PLACE, pa.field("coordinator", pa.binary()), pa.field("floor", pa.binary())])


def decisions_of(
    spark: SparkSession,
    evidence: TopicOutcomes,
    reads: Sequence[OffsetRange] | None = None,
    *,
    audited: bool = True,
) -> Decisions:
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
        for data, found in snapshots.items()
        for coordinator, floor in found.aborted.floors.items()
    ]
    return Decisions(
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
    sets = [found.aborted for found in evidence.snapshots.values()]
    return sorted(txn for txn in committed if txn in aborted or any(it.holds(*txn) for it in sets))
