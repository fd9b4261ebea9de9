"""Outcomes of transactions for Spark: the marker topic decoded by the one codec there is.

*Source*: protocols.md D, E8; facts: spark.md 4. Markers are few beside data (one for each
transaction and partition), so they are decoded on the driver and come back as a broadcast frame.

*Invariants*: the latest marker of a key counts, whatever compaction has done; a marker whose
offsets belong to a former topic of the same name still decides, but bounds and promises nothing.

Refuses: a record that is no marker; the error names topic, partition and offset.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from connectors.spark.source import OffsetRange, read_ranges
from pipeline.jobs.scope import Scope
from schemas import markers
from schemas.barriers import Barrier
from schemas.errors import DecodeError
from schemas.markers import Marker
from schemas.topics import TXN_MARKERS
from schemas.values import TxnId

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
"""One outcome and the audited range of its partition; offsets and count null as E8 demands."""


class MarkerRecord(NamedTuple):
    """A record of txn-markers."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def read_markers(spark: SparkSession, bootstrap_servers: str, scope: Scope) -> list[Marker]:
    """The latest marker of every (audited partition, transaction).

    Raises:
        DecodeError: a record is no marker.
    """
    table = (
        read_ranges(spark, bootstrap_servers, scope.markers)
        .select("partition", "offset", F.col("key"), F.col("value"))
        .toArrow()
    )
    columns = [column.to_pylist() for column in table.columns]
    audited = {read.data for read in scope.data}
    records = map(MarkerRecord._make, zip(*columns, strict=True))
    return [marker for marker in latest_markers(records) if marker.data in audited]


def latest_markers(records: Iterable[MarkerRecord]) -> list[Marker]:
    """The marker of the highest offset for each key, tombstoned keys left out; any order in.

    Raises:
        DecodeError: a record is no marker.
    """
    latest: dict[bytes | None, tuple[int, Marker | None]] = {}
    for record in records:
        try:
            marker = markers.decode(record.key, record.value)
        except DecodeError as error:
            raise error.at(TXN_MARKERS, record.partition, record.offset) from None
        if isinstance(marker, Barrier):
            continue
        known = latest.get(record.key)
        if known is None or known[0] < record.offset:
            latest[record.key] = (record.offset, marker)
    return [marker for _, marker in latest.values() if marker is not None]


def of_current_topic(marker: Marker, scope: Scope) -> bool:
    """Whether the marker's offsets are offsets of the topic that is audited (E8)."""
    return marker.topic_id in (b"", scope.topic_ids[marker.data.topic])


def mixed_transactions(found: Iterable[Marker]) -> list[TxnId]:
    """Transactions that committed on one partition and aborted on another, in order."""
    outcomes: defaultdict[TxnId, set[bool]] = defaultdict(set)
    for marker in found:
        outcomes[marker.txn].add(marker.committed)
    return sorted(txn for txn, seen in outcomes.items() if len(seen) > 1)


def outcomes_frame(spark: SparkSession, found: Sequence[Marker], scope: Scope) -> DataFrame:
    """The markers as a frame of `OUTCOMES_ARROW_SCHEMA`."""
    ranges = {read.data: read for read in scope.data}
    rows = [_row(marker, ranges[marker.data], of_current_topic(marker, scope)) for marker in found]
    table = pa.Table.from_pylist(rows, schema=OUTCOMES_ARROW_SCHEMA)
    return spark.createDataFrame(table)


def _row(marker: Marker, audited: OffsetRange, current: bool) -> dict[str, object]:  # noqa: FBT001 - private, one caller
    return {
        "topic": marker.data.topic,
        "partition": marker.data.partition,
        "txn": marker.txn.to_bytes(),
        "committed": marker.committed,
        "start_offset": marker.start_offset if current else None,
        "end_offset": marker.end_offset if current else None,
        "record_count": marker.record_count if current and marker.committed else None,
        "range_start": audited.start,
        "range_end": audited.end,
    }
