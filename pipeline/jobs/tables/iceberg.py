"""Iceberg tables: the snapshot of a batch bears the batch's progress as a property.

*Source*: docs/protocols K2, K5.
*Invariants*: a batch is committed only if no data was added since the progress before it was
loaded: the append is an overwrite of nothing, for which Iceberg can check that. Compaction by
others adds no data, and is no conflict.

Refuses: a table with data and without progress: it is another job's, or the snapshot of the last
batch has expired.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.pipeline.errors import TableError
from stilltide.pipeline.jobs.tables.table import PastBatch, damaged, table_errors, taken
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.tables.progress import (
    NOTHING,
    TableProgress,
)

_PROPERTY = "stilltide-progress"
_CONFLICT = ("Found conflicting files", "ValidationException")

CATALOG = "stilltide"
"""The catalog of tables that are named by a path."""


def iceberg_settings(warehouse: str | None) -> dict[str, str]:
    """Settings of a session that writes Iceberg tables.

    Args:
        warehouse: the folder above the namespace of a table that is named by a path; None: the
            session has a catalog of the user's.
    """
    extensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    settings = {"spark.sql.extensions": extensions}
    if warehouse is not None:
        settings |= {
            f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
            f"spark.sql.catalog.{CATALOG}.type": "hadoop",
            f"spark.sql.catalog.{CATALOG}.warehouse": warehouse,
            f"spark.sql.catalog.{CATALOG}.cache-enabled": "false",
        }
    return settings


class IcebergTable:
    """An Iceberg table by its name.

    Args:
        spark: a session with Iceberg's jars and `iceberg_settings`.
        name: catalog, namespace and table, such as `lake.sales.orders`.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self._name = name
        self._quoted = ".".join(f"`{part}`" for part in name.split("."))
        self._loaded_at: int | None = None

    def load(self) -> TableProgress:
        """The progress in the last snapshot that has some."""
        with table_errors(self._name):
            if not self._spark.catalog.tableExists(self._quoted):
                self._loaded_at = None
                return NOTHING
            last, progress = self._look()
        self._loaded_at = last
        if last is None:
            return NOTHING
        if progress is None:
            raise TableError(
                f"{self._name} is an Iceberg table without progress",
                detail="another job has filled the table, or the snapshot of the last batch has"
                " expired",
                hint="write to another table",
            )
        return self._progress(progress)

    def history(self, batches_max: int) -> list[PastBatch]:
        """The last snapshots of ours that have not expired."""
        with table_errors(self._name):
            if not self._spark.catalog.tableExists(self._quoted):
                return []
            rows = self._spark.sql(
                f"SELECT s.summary['{_PROPERTY}'], unix_millis(h.made_current_at),"  # noqa: S608 - a quoted name
                " cast(coalesce(s.summary['added-records'], '0') AS bigint)"
                f" FROM {self._quoted}.history h JOIN {self._quoted}.snapshots s"
                " ON h.snapshot_id = s.snapshot_id WHERE h.is_current_ancestor"
                f" AND s.summary['{_PROPERTY}'] IS NOT NULL"
                f" ORDER BY h.made_current_at DESC LIMIT {int(batches_max)}"
            ).collect()
        return [
            PastBatch(self._progress(progress), stored_ms, records)
            for progress, stored_ms, records in rows
        ]

    def append(self, frame: DataFrame, progress: TableProgress) -> None:
        """One commit of Iceberg."""
        with table_errors(self._name):
            if self._loaded_at is None:
                columns = ", ".join(
                    f"`{column.name}` {column.dataType.simpleString()}" for column in frame.schema
                )
                self._spark.sql(
                    f"CREATE TABLE IF NOT EXISTS {self._quoted} ({columns}) USING iceberg"
                )
            write = (
                frame.writeTo(self._quoted)
                .option(f"snapshot-property.{_PROPERTY}", progress.to_text())
                .option("isolation-level", "serializable")
            )
            if self._loaded_at is not None:
                write = write.option("validate-from-snapshot-id", str(self._loaded_at))
            try:
                write.overwrite(F.lit(False))
            except Exception as error:
                if any(mark in str(error) for mark in _CONFLICT):
                    raise taken(self._name, progress.number) from error
                raise
            self._loaded_at, stored = self._look()
        if stored is None or TableProgress.from_text(stored) != progress:
            raise taken(self._name, progress.number)

    def _progress(self, text: str) -> TableProgress:
        try:
            return TableProgress.from_text(text)
        except DecodeError as error:
            raise damaged(self._name, str(error)) from error

    def _look(self) -> tuple[int | None, str | None]:
        """The present snapshot, and the progress of the last one of ours up to it."""
        rows = self._spark.sql(
            f"SELECT h.snapshot_id, s.summary['{_PROPERTY}'] AS progress"  # noqa: S608 - a quoted name
            f" FROM {self._quoted}.history h JOIN {self._quoted}.snapshots s"
            " ON h.snapshot_id = s.snapshot_id WHERE h.is_current_ancestor"
            " ORDER BY h.made_current_at DESC"
        ).collect()
        if not rows:
            return None, None
        progress = next((row["progress"] for row in rows if row["progress"] is not None), None)
        return int(rows[0]["snapshot_id"]), progress
