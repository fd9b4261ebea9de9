"""Appends committed records to a table, each record exactly once.

*Source*: docs/protocols K1, K2, K3, K4, K5. Blocks.

*Invariants*: after an error the progress is loaded from the table again, so a batch whose fate is
unknown is neither lost nor repeated.

Refuses: what `Increments`, `Table.load` and `Table.append` refuse.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple, Self

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.kafka.config import Cluster
from stilltide.connectors.names import check_topic_names
from stilltide.connectors.spark.errors import check_argument, check_session, spark_errors
from stilltide.pipeline.errors import ConfigError
from stilltide.pipeline.jobs.tables.batches import RECORDS_MAX, IncrementReader, reading_batches
from stilltide.pipeline.jobs.tables.table import Table
from stilltide.pipeline.jobs.tables.target import TableTarget, opened_table, parse_target
from stilltide.schemas.tables.progress import TableProgress

Values = Callable[[DataFrame], DataFrame]
"""Adds columns to a frame of records."""


class StoredBatch(NamedTuple):
    """A batch that is stored.

    Attributes:
        progress: of the table, after the batch.
        records: number of records in the batch.
        offsets: number of offsets that the batch covers.
        left: number of offsets up to the stable ends that are not stored yet.
        elapsed_s: time that the batch took, seconds.
    """

    progress: TableProgress
    records: int
    offsets: int
    left: int
    elapsed_s: float


def append_committed(
    spark: SparkSession,
    cluster: Cluster,
    topics: Sequence[str],
    to: str | TableTarget,
    *,
    records_max: int = RECORDS_MAX,
    by_index: bool = False,
    headers: bool = False,
    values: Values | None = None,
) -> int:
    """Appends the records that were committed since the last call; returns the batch count.

    One caller at a time; to follow topics, call the function repeatedly, or use `stilltide table
    follow`.

    Args:
        spark: a session with the jars of the Kafka source and of the table's format
            (`table_session_options`).
        cluster: addresses of brokers, or a `KafkaConfig` for a cluster with TLS or SASL.
        topics: names of topics, at least one; those of the first call.
        to: the table, such as `delta:/tables/orders` or `parquet:hdfs://namenode/tables/orders`.
        records_max: approximate limit of offsets in a batch, over all partitions; >= 1.
        by_index: as of `committed_batches`.
        headers: as of `committed_batches`; as of the first call.
        values: adds columns to the frame of a batch, such as `with_json` with a schema; as of the
            first call. A record that it leaves out is not in the table.

    Raises:
        TableError: the table is of other topics, damaged, not writable, or another writer was
            faster.
        ConfigError: `to` names no table, or `values` takes a column away.
        Others: as `committed_batches` raises.
    """
    what = Appending(cluster, topics, records_max, by_index, headers, values)
    target = to if isinstance(to, TableTarget) else parse_target(to)
    check_session(spark)
    check_topic_names(topics)
    with opened_table(spark, target) as table, Appender(spark, table, what) as appender:
        return appender.append()


@dataclass(frozen=True)
class Appending:
    """What is appended; attributes as the arguments of `append_committed`."""

    cluster: Cluster
    topics: Sequence[str]
    records_max: int = RECORDS_MAX
    by_index: bool = False
    headers: bool = False
    values: Values | None = None

    def valued(self, frame: DataFrame) -> DataFrame:
        """The frame with the columns that `values` adds.

        Raises:
            ConfigError: `values` returns no frame, or one without a column.
        """
        if self.values is None:
            return frame
        valued = self.values(frame)
        check_argument("what `values` returns", valued, "DataFrame", "columns")
        if gone := [name for name in frame.columns if name not in valued.columns]:
            raise ConfigError(
                f"`values` takes the column {gone[0]} away",
                hint="add columns to those of the frame",
            )
        return valued


class Appender:
    """Appends to one table; its connections stay open from call to call.

    Args:
        spark: the session.
        table: the table; open.
        what: what is appended.
    """

    def __init__(self, spark: SparkSession, table: Table, what: Appending) -> None:
        self._spark = spark
        self._table = table
        self._what = what
        self._open = ExitStack()
        self._reader: IncrementReader | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._forget()

    @property
    def reader(self) -> IncrementReader | None:
        """The present reader; None before the first call, and after an error."""
        return self._reader

    def append(
        self,
        stored: Callable[[StoredBatch], None] = lambda _: None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> int:
        """Appends all that is decided now; returns the count of batches.

        Args:
            stored: called after each batch.
            is_stopped: asked before each batch; true ends the call.

        Raises:
            As `append_committed`; it may be called again after a `RetriableError`.
        """
        try:
            reader = self._opened()
            reader.read_on()
            count = 0
            while not is_stopped() and self._append_one(reader, stored):
                count += 1
        except BaseException:
            self._forget()
            raise
        return count

    def _append_one(self, reader: IncrementReader, stored: Callable[[StoredBatch], None]) -> bool:
        began_s = time.monotonic()
        batch = reader.next_batch()
        if batch is None:
            return False
        counted = Observation("stilltide-table")
        with spark_errors(self._what.cluster, self._what.topics):
            frame = self._what.valued(batch.frame).observe(
                counted, F.count(F.lit(1)).alias("records")
            )
            self._table.append(frame, batch.progress)
            records = int(counted.get["records"])
        reader.stored(batch)
        offsets = sum(bound.end - bound.start for bound in batch.bounds)
        elapsed_s = time.monotonic() - began_s
        stored(StoredBatch(batch.progress, records, offsets, reader.left, elapsed_s))
        return True

    def _opened(self) -> IncrementReader:
        if self._reader is None:
            what = self._what
            with spark_errors(what.cluster, what.topics):
                progress = self._table.load()
            self._reader = self._open.enter_context(
                reading_batches(
                    self._spark,
                    what.cluster,
                    what.topics,
                    progress,
                    records_max=what.records_max,
                    by_index=what.by_index,
                    headers=what.headers,
                )
            )
        return self._reader

    def _forget(self) -> None:
        self._reader = None
        self._open.close()
