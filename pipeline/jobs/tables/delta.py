"""Delta tables: the commit of a batch bears the batch's number and progress.

*Source*: docs/protocols K2, K4, K5.
*Invariants*: a commit has Delta's transaction (`txnAppId`, `txnVersion`), so that Delta ignores a
batch number that is stored; the commit's user metadata is the progress after it.

Refuses: a table with data and without progress: it is another job's, or Delta has removed the log
entries of the last batch.
"""

from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.pipeline.errors import TableError
from stilltide.pipeline.jobs.tables.table import PastBatch, damaged, table_errors, taken
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.tables.progress import (
    NOTHING,
    TableProgress,
)

APP_ID = "stilltide"
"""The `txnAppId` of commits."""

_MARK = "stilltide-progress"
_COMMITS = 10
"""Of so many commits one is mostly ours: others compact, or clean up."""

DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""Settings of a session that writes Delta tables."""


class DeltaTable:
    """A Delta table by its path.

    Args:
        spark: a session with Delta's jars and `DELTA_SETTINGS`.
        uri: the table's address.
    """

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._spark = spark
        self._uri = uri

    def load(self) -> TableProgress:
        """The progress in the last commit that has some."""
        with table_errors(self._uri):
            if not self._tables().isDeltaTable(self._spark._jsparkSession, self._uri):  # noqa: SLF001 - as below
                return NOTHING
            metadata = self._last_commit()
            if metadata is None and self._spark.read.format("delta").load(self._uri).isEmpty():
                return NOTHING  # somebody has created the table, with columns and properties
        if metadata is None:
            raise TableError(
                f"{self._uri} is a Delta table without progress",
                detail="another job has made the table, or Delta has removed the log entries of"
                " the last batch (delta.logRetentionDuration)",
                hint="write to another table",
            )
        return self._progress(metadata)

    def history(self, batches_max: int) -> list[PastBatch]:
        """The last commits of ours, as far back as Delta keeps log entries."""
        with table_errors(self._uri):
            if not self._tables().isDeltaTable(self._spark._jsparkSession, self._uri):  # noqa: SLF001 - as below
                return []
            return self._past(batches_max + _COMMITS, batches_max) or self._past(None, batches_max)

    def _past(self, commits: int | None, batches_max: int) -> list[PastBatch]:
        """Batches among the last commits, or among all."""
        count = F.col("operationMetrics.numOutputRows").cast("bigint")
        columns = "userMetadata", F.unix_millis("timestamp"), count
        rows = self._commits(commits).select(*columns).limit(batches_max).collect()
        return [
            PastBatch(self._progress(note), stored_ms, records) for note, stored_ms, records in rows
        ]

    def append(self, frame: DataFrame, progress: TableProgress) -> None:
        """One commit of Delta."""
        note = f"{_MARK} {uuid4().hex} {progress.to_text()}"
        with table_errors(self._uri):
            (
                frame.write.format("delta")
                .mode("append")
                .option("txnAppId", APP_ID)
                .option("txnVersion", progress.number)
                .option("userMetadata", note)
                .save(self._uri)
            )
            if self._last_commit() != note:
                raise taken(self._uri, progress.number)

    def _tables(self) -> Any:
        return self._spark._jvm.io.delta.tables.DeltaTable  # type: ignore[union-attr]  # noqa: SLF001 - Delta's Python package would be one more thing to pin

    def _last_commit(self) -> str | None:
        """The user metadata of the last commit of ours."""
        # Spark reads a file for each commit of the history, and a table has one for each batch.
        return self._last_commit_of(_COMMITS) or self._last_commit_of(None)

    def _progress(self, note: str) -> TableProgress:
        """The progress in the user metadata of a commit."""
        try:
            return TableProgress.from_text(note.split(" ", 2)[2])
        except (DecodeError, IndexError) as error:
            raise damaged(self._uri, str(error)) from error

    def _last_commit_of(self, commits: int | None) -> str | None:
        """The same among the last commits, or among all."""
        row = self._commits(commits).select("userMetadata").first()
        return None if row is None else row[0]

    def _commits(self, commits: int | None) -> DataFrame:
        """Commits of ours among the last ones, or among all; the latest first."""
        session = self._spark._jsparkSession  # noqa: SLF001 - as above
        table = self._tables().forPath(session, self._uri)
        history = table.history() if commits is None else table.history(commits)
        return (
            DataFrame(history, self._spark)
            .filter(F.startswith("userMetadata", F.lit(f"{_MARK} ")))
            .orderBy(F.desc("version"))
        )
