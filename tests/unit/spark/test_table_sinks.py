"""Rules K2 and K5 on files: a batch is there with its progress, or not at all, and only once."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from stilltide.pipeline.errors import ConfigError, TableError
from stilltide.pipeline.jobs.tables.files import HadoopFiles, LocalFiles, TableFiles
from stilltide.pipeline.jobs.tables.manifest import ManifestTable, read_manifest_table
from stilltide.pipeline.jobs.tables.parquet import ParquetTable
from stilltide.pipeline.jobs.tables.table import Table
from stilltide.pipeline.jobs.tables.target import TableFormat, opened_table, parse_target
from stilltide.schemas.tables.progress import NOTHING, TableProgress
from stilltide.schemas.values import Offset, TopicPartition

MakeFiles = Callable[[SparkSession, Path], TableFiles]


def progress(number: int) -> TableProgress:
    """Five offsets for each batch."""
    positions = {TopicPartition("orders", 0): Offset(5 * number)}
    return TableProgress(number, {"orders": b"i" * 16}, positions)


def records(spark: SparkSession, number: int) -> DataFrame:
    """The records of a batch."""
    return spark.range(5 * number - 5, 5 * number).withColumnRenamed("id", "offset")


def offsets(frame: DataFrame) -> list[int]:
    """The records of a table."""
    return sorted(row["offset"] for row in frame.collect())


def local(_: SparkSession, folder: Path) -> TableFiles:
    """Python's own files."""
    return LocalFiles(folder)


def hadoop(spark: SparkSession, folder: Path) -> TableFiles:
    """The same disk by Hadoop's interface, as HDFS is reached."""
    return HadoopFiles(spark, folder.as_uri())


class WithoutRename(LocalFiles):
    """An object store: a file appears as a whole when it is created, and nothing is renamed."""

    def publish(self, staged: str, name: str) -> bool:
        """Copies file after file, so that a crash leaves a part of the folder."""
        raise AssertionError(f"{staged} would become {name} file by file")


def without_rename(_: SparkSession, folder: Path) -> TableFiles:
    """As of an object store."""
    return WithoutRename(folder)


def check_history(table: Table) -> None:
    """Two batches, the latest first, each with its time."""
    last, first = table.history(5)
    assert [last.progress, first.progress] == [progress(2), progress(1)]
    assert 0 < first.stored_ms <= last.stored_ms <= time.time() * 1000
    assert table.history(1) == [last]


@pytest.mark.parametrize("files_in", [local, hadoop])
def test_a_folder_of_parquet_appears_by_its_rename(
    files_in: MakeFiles, spark: SparkSession, tmp_path: Path
):
    """K2: what a crash leaves is not part of the table, and the next writer removes it."""
    files = files_in(spark, tmp_path)
    table, other = ParquetTable(files), ParquetTable(files)
    assert table.load() == NOTHING
    table.append(records(spark, 1), progress(1))
    (tmp_path / "_staging-left").mkdir()
    records(spark, 9).write.parquet(str(tmp_path / "_staging-left" / "part"))
    assert offsets(spark.read.parquet(str(tmp_path))) == list(range(5))
    assert other.load() == progress(1)
    assert [path.name for path in tmp_path.iterdir()] == ["batch=0000000001"]
    table.append(records(spark, 2), progress(2))
    with pytest.raises(TableError, match="another writer has stored batch 2"):
        other.append(records(spark, 2), progress(2))
    assert other.load() == progress(2)
    check_history(other)
    assert offsets(spark.read.parquet(str(tmp_path))) == list(range(10))
    assert not list(tmp_path.glob("_staging*"))


@pytest.mark.parametrize("files_in", [without_rename, hadoop])
def test_a_manifest_names_the_files_of_a_batch(
    files_in: MakeFiles, spark: SparkSession, tmp_path: Path
):
    """K2: files without a manifest are not read; the second writer of a number gets an error."""
    files = files_in(spark, tmp_path)
    table, other = ManifestTable(files), ManifestTable(files)
    assert table.load() == NOTHING
    with pytest.raises(TableError, match="0 manifests"):
        read_manifest_table(spark, files)
    table.append(records(spark, 1), progress(1))
    records(spark, 2).write.parquet(str(tmp_path / "data" / "0000000002-crashed"))
    assert other.load() == progress(1)
    assert offsets(read_manifest_table(spark, files)) == list(range(5))
    table.append(records(spark, 2), progress(2))
    with pytest.raises(TableError, match="another writer has stored batch 2"):
        other.append(records(spark, 2), progress(2))
    assert table.load() == progress(2)
    check_history(other)
    assert offsets(read_manifest_table(spark, files)) == list(range(10))
    (tmp_path / "manifests" / "0000000001.json").write_text("{")
    with pytest.raises(TableError, match="does not hold the progress"):
        read_manifest_table(spark, files)


def test_a_local_table_has_one_writer(spark: SparkSession, tmp_path: Path):
    """K5: a second one is refused before it reads anything."""
    target = parse_target(f"parquet:{tmp_path}/table")
    with (
        opened_table(spark, target),
        pytest.raises(TableError, match="another process writes to the table"),
        opened_table(spark, target),
    ):
        """Never entered."""


@pytest.mark.parametrize(
    ("text", "format_"),
    [
        ("parquet:/tables/orders", TableFormat.PARQUET),
        ("parquet:hdfs://name/orders", TableFormat.PARQUET),
        ("parquet:s3a://bucket/orders", TableFormat.MANIFEST),
        ("manifest:/tables/orders", TableFormat.MANIFEST),
        ("delta:s3a://bucket/orders", TableFormat.DELTA),
        ("iceberg:lake.sales.orders", TableFormat.ICEBERG),
    ],
)
def test_an_object_store_gets_manifests(text: str, format_: TableFormat):
    """A file system whose rename copies file by file never has a table that needs one."""
    assert parse_target(text).format is format_


@pytest.mark.parametrize("text", ["orders", "parquet:", "csv:/tables/orders", "iceberg:orders"])
def test_what_names_no_table_is_refused(text: str):
    """The error shows how a table is named."""
    with pytest.raises(ConfigError, match="not "):
        parse_target(text)


def test_a_path_of_an_iceberg_table_is_warehouse_namespace_and_table():
    """The files are where the path says."""
    assert parse_target("iceberg:/data/lake/orders").iceberg_place == (
        "file:///data",
        "stilltide.lake.orders",
    )
