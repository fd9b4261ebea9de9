"""Finds the first undecided record of each partition, at which readers wait.

*Source*: docs/protocols D2: a reader delivers no record past an undecided one.
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.readers import Fetching, TimedRecord
from stilltide.connectors.spark.read_committed import VISIBILITY, Visibility
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.pipeline.jobs.audits.report import UndecidedRecord
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition, TxnId

FirstUndecided = Mapping[TopicPartition, tuple[Offset, TxnId]]


def first_undecided(transactions: DataFrame) -> FirstUndecided:
    """The offset and transaction of each partition's first undecided record; blocks.

    Args:
        transactions: the frame that `by_transaction` returns.
    """
    first = (
        transactions.where(F.col(VISIBILITY) == Visibility.UNDECIDED)
        .groupBy("topic", "partition")
        .agg(F.min_by("txn", "offset").alias("txn"), F.min("offset").alias("offset"))
    )
    return {
        TopicPartition(row["topic"], row["partition"]): (
            Offset(row["offset"]),
            TxnId.from_bytes(bytes(row["txn"])),
        )
        for row in first.collect()
    }


async def aged(
    connector: Connector, first: FirstUndecided, now_ms: int
) -> tuple[UndecidedRecord, ...]:
    """The first undecided records with their ages, oldest first.

    Args:
        connector: the cluster that holds the records.
        first: the result of `first_undecided`.
        now_ms: the present time, milliseconds since 1970.

    Raises:
        OffsetOutOfRangeError: retention has deleted one of the records meanwhile.
        RetriableError: the broker is away.
    """
    ranges = [OffsetRange(it, offset, EndOffset(offset + 1)) for it, (offset, _) in first.items()]
    shown: list[UndecidedRecord] = []
    reader = connector.reader("audit", timestamps=True, fetching=Fetching.SCANNING)
    async with closing(reader):
        async for records in scan(reader, ranges):
            for record in records:
                assert isinstance(record, TimedRecord)
                _, txn = first[TopicPartition(record.topic, record.partition)]
                age_ms = max(0, now_ms - record.timestamp_ms)  # clocks may differ
                shown.append(
                    UndecidedRecord(record.topic, record.partition, str(txn), record.offset, age_ms)
                )
    return tuple(sorted(shown, key=lambda one: -one.age_ms))
