"""Files that somebody reads, or that a crash leaves, while they are written.

A user of a table format asked whether its log files appear as a whole, since a service had to read
them as soon as they were there. On HDFS a file is there from its first byte on: a driver that died
in between would have left a progress directory that nobody could read any more.
"""

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stilltide.pipeline.jobs.tables.files import HadoopFiles, LocalFiles, TableFiles

TEXT = "x" * 4_000_000
FILES = 3


@pytest.mark.parametrize("kind", ["local", "hadoop"])
def test_a_file_is_there_as_a_whole_or_not_at_all(kind: str, spark: SparkSession, tmp_path: Path):
    """A program that sees it reads all of it; another one of its name leaves nothing."""
    files: TableFiles
    files = HadoopFiles(spark, tmp_path.as_uri()) if kind == "hadoop" else LocalFiles(tmp_path)
    sizes: list[int] = []

    def look() -> None:
        for number in range(FILES):
            path = tmp_path / "folder" / str(number)
            while not path.exists():
                pass
            sizes.append(path.stat().st_size)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    made = [files.create(f"folder/{number}", TEXT) for number in range(FILES)]
    looking.join()
    assert made == [True] * FILES
    assert sizes == [len(TEXT)] * FILES
    assert not files.create("folder/0", "other")
    assert files.read("folder/0") == TEXT
    assert [name for name in files.names("folder") if not name.startswith(".")] == ["0", "1", "2"]
    drafts = [it for it in (tmp_path / "folder").iterdir() if "-" in it.name]
    assert drafts == []
