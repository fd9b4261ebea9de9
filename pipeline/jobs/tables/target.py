"""What a table is named by, such as `delta:/tables/orders`, and what Spark needs for it.

*Source*: docs/protocols K5; docs/tables.md.
"""

import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession

from stilltide.connectors.local.jars import format_jars, spark_jars
from stilltide.connectors.spark.errors import check_argument, check_session
from stilltide.connectors.spark.options import SparkOptions
from stilltide.connectors.spark.session import spark_session
from stilltide.pipeline.errors import ConfigError, TableError
from stilltide.pipeline.jobs.tables.delta import DELTA_SETTINGS, DeltaTable
from stilltide.pipeline.jobs.tables.files import HadoopFiles, LocalFiles, TableFiles
from stilltide.pipeline.jobs.tables.iceberg import CATALOG, IcebergTable, iceberg_settings
from stilltide.pipeline.jobs.tables.manifest import ManifestTable, read_manifest_table
from stilltide.pipeline.jobs.tables.parquet import ParquetTable
from stilltide.pipeline.jobs.tables.table import Table, table_errors

_RENAMING = ("hdfs", "viewfs")
"""Schemes of file systems that rename a folder as a whole."""

_DOTS = 2
"""In the name of a table: catalog, namespace, table."""


class TableFormat(StrEnum):
    """The formats of tables."""

    PARQUET = "parquet"
    """Folders of Parquet files; on an object store the same as `manifest`."""
    MANIFEST = "manifest"
    """Parquet files, named by manifests."""
    DELTA = "delta"
    """Delta Lake."""
    ICEBERG = "iceberg"
    """Apache Iceberg."""


class TableTarget(NamedTuple):
    """A table.

    Attributes:
        format: its format.
        place: a local path, or a URI; of an Iceberg table also its name in a catalog.
    """

    format: TableFormat
    place: str

    @property
    def local(self) -> Path | None:
        """The path of a table on a local disk."""
        parts = urlsplit(self.place)
        if not parts.scheme:
            return Path(self.place)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None

    @property
    def iceberg_place(self) -> tuple[str | None, str]:
        """The warehouse of an Iceberg table that is named by a path, and the table's name."""
        if "/" not in self.place:
            return None, self.place
        above, namespace, table = self.uri.rstrip("/").rsplit("/", 2)
        return above, f"{CATALOG}.{namespace}.{table}"

    @property
    def uri(self) -> str:
        """The table's address for Spark."""
        local = self.local
        return self.place if local is None else local.absolute().as_uri()


def parse_target(text: str) -> TableTarget:
    """Reads `FORMAT:PATH`.

    Raises:
        ConfigError: the format is unknown, or there is no path.
    """
    if not isinstance(text, str):
        raise ConfigError(
            f"a table is a {type(text).__name__}, not a text",
            hint="for example delta:/tables/orders",
        )
    name, _, place = text.partition(":")
    if name not in set(TableFormat) or not place:
        raise ConfigError(
            f"{text}: not a table",
            hint="delta:/tables/orders, parquet:/tables/orders or parquet:s3a://bucket/orders",
        )
    target = TableTarget(TableFormat(name), place)
    scheme = urlsplit(place).scheme
    if target.format is TableFormat.ICEBERG and "/" not in place and place.count(".") < _DOTS:
        raise ConfigError(
            f"{text}: not the name of an Iceberg table",
            hint="iceberg:CATALOG.NAMESPACE.TABLE, or a path iceberg:/warehouse/namespace/table",
        )
    if target.format is TableFormat.PARQUET and scheme not in ("", "file", *_RENAMING):
        return target._replace(format=TableFormat.MANIFEST)
    return target


def table_session_options(target: TableTarget, options: SparkOptions) -> SparkOptions:
    """The options of a session that reads Kafka and writes this table.

    Raises:
        JarsError: a jar could not be fetched, or differs from the lock.
    """
    check_argument("target", target, "TableTarget", "format")
    check_argument("options", options, "SparkOptions", "jars")
    jars = [*options.jars] or spark_jars()
    settings = dict(options.settings)
    if target.format is TableFormat.DELTA:
        jars += format_jars("delta")
        settings = {**DELTA_SETTINGS, **settings}
    if target.format is TableFormat.ICEBERG:
        jars += format_jars("iceberg")
        settings = {**iceberg_settings(target.iceberg_place[0]), **settings}
    return replace(options, jars=jars, settings=settings)


@contextmanager
def opened_table(spark: SparkSession, target: TableTarget) -> Generator[Table]:
    """The table; on a local disk, this process is its only writer during the block.

    Raises:
        TableError: the place cannot be written to, or another process writes to the table.
    """
    if target.format is TableFormat.DELTA:
        yield DeltaTable(spark, target.uri)
        return
    if target.format is TableFormat.ICEBERG:
        yield IcebergTable(spark, target.iceberg_place[1])
        return
    local, kind = target.local, _KINDS[target.format]
    if local is None:
        yield kind(files_of(spark, target))
        return
    with table_errors(target.place):
        files = LocalFiles(local)
    with _only_writer(local):
        yield kind(files)


_KINDS = {TableFormat.PARQUET: ParquetTable, TableFormat.MANIFEST: ManifestTable}


@contextmanager
def shown_table(target: TableTarget, options: SparkOptions) -> Generator[Table]:
    """The table, to be looked at while another process may write to it.

    Spark is started only for a table that this process cannot read by itself.

    Raises:
        TableError: there is no folder of that name.
        JarsError, FatalError: as `table_session_options` and `spark_session`.
    """
    local = target.local
    if target.format in _KINDS and local is not None:
        if not local.is_dir():
            raise TableError(f"there is no table {target.place}", hint="correct the path")
        yield _KINDS[target.format](LocalFiles(local))
        return
    with spark_session(table_session_options(target, options)) as spark:
        if target.format is TableFormat.DELTA:
            yield DeltaTable(spark, target.uri)
        elif target.format is TableFormat.ICEBERG:
            yield IcebergTable(spark, target.iceberg_place[1])
        else:
            yield _KINDS[target.format](files_of(spark, target))


def files_of(spark: SparkSession, target: TableTarget) -> TableFiles:
    """The files of a table that is no table of Delta or Iceberg."""
    local = target.local
    with table_errors(target.place):
        return HadoopFiles(spark, target.place) if local is None else LocalFiles(local)


def read_parquet_table(spark: SparkSession, table: str) -> DataFrame:
    """The records of a table of Parquet files, on any file system.

    Args:
        spark: a session.
        table: `parquet:PATH` or `manifest:PATH`, as of `append_committed`.

    Raises:
        ConfigError: it names no such table.
        TableError: there is no table, or a manifest is damaged.
    """
    target = parse_target(table)
    check_session(spark)
    if target.format is TableFormat.MANIFEST:
        return read_manifest_table(spark, files_of(spark, target))
    if target.format is not TableFormat.PARQUET:
        raise ConfigError(
            f"{table}: not a table of Parquet files",
            hint=f"spark.read.format('{target.format.value}') reads it",
        )
    return spark.read.parquet(target.uri)


@contextmanager
def _only_writer(directory: Path) -> Generator[None]:
    """The lock dies with the process."""
    with table_errors(str(directory)):
        file = (directory / ".lock").open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TableError(
                f"another process writes to the table {directory}",
                hint="run one writer for each table",
            ) from error
        yield
