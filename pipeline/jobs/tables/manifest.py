"""Parquet tables on object stores: a manifest for each batch names the batch's files.

*Source*: docs/protocols K2, K5.
*Invariants*: a manifest is written after the files that it names, as one object. Files that no
manifest names are not part of the table.

Refuses nothing of a file system except a folder that can be listed: nothing is renamed after
Spark's own commit of a job.
"""

import json
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from stilltide.pipeline.jobs.tables.files import TableFiles
from stilltide.pipeline.jobs.tables.table import PastBatch, damaged, table_errors, taken
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.tables.progress import (
    NOTHING,
    TableProgress,
)

_MANIFESTS, _DATA = "manifests", "data"
_SUFFIX = ".json"


class ManifestTable:
    """A table whose readers go by its manifests (`read_manifest_table`).

    Args:
        files: the table's folder.
    """

    def __init__(self, files: TableFiles) -> None:
        self._files = files

    def load(self) -> TableProgress:
        """The progress in the last manifest."""
        with table_errors(self._files.uri):
            numbers = _numbers(self._files)
        return _manifest(self._files, numbers[-1])[0] if numbers else NOTHING

    def history(self, batches_max: int) -> list[PastBatch]:
        """The last manifests, by their times."""
        with table_errors(self._files.uri):
            numbers = _numbers(self._files)[: -batches_max - 1 : -1]
            return [
                PastBatch(
                    _manifest(self._files, number)[0], self._files.modified_ms(_name(number)), None
                )
                for number in numbers
            ]

    def append(self, frame: DataFrame, progress: TableProgress) -> None:
        """Writes the files under a name of their own, then the manifest that names them."""
        folder = f"{_DATA}/{progress.number:010}-{uuid4().hex}"
        with table_errors(self._files.uri):
            frame.write.parquet(f"{self._files.uri}/{folder}")
            written = [name for name in self._files.names(folder) if name.endswith(".parquet")]
            body = {
                "progress": progress.to_text(),
                "files": [f"{folder}/{name}" for name in written],
            }
            if not self._files.create(_name(progress.number), json.dumps(body)):
                self._files.remove(folder)
                raise taken(self._files.uri, progress.number)


def read_manifest_table(spark: SparkSession, files: TableFiles) -> DataFrame:
    """The records of all batches that are stored now.

    Raises:
        TableError: there is no table, or a manifest is missing or damaged.
    """
    with table_errors(files.uri):
        numbers = _numbers(files)
    if not numbers or numbers != list(range(1, len(numbers) + 1)):
        raise damaged(f"{files.uri}/{_MANIFESTS}", f"it holds {len(numbers)} manifests, with gaps")
    named = [name for number in numbers for name in _manifest(files, number)[1]]
    return spark.read.parquet(*(f"{files.uri}/{name}" for name in named))


def _numbers(files: TableFiles) -> list[int]:
    names = [name for name in files.names(_MANIFESTS) if name.endswith(_SUFFIX)]
    return sorted(int(name.removesuffix(_SUFFIX)) for name in names if name[0] not in "._")


def _manifest(files: TableFiles, number: int) -> tuple[TableProgress, list[str]]:
    name = _name(number)
    try:
        body = json.loads(files.read(name))
        progress, named = TableProgress.from_text(body["progress"]), list(body["files"])
    except (DecodeError, OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(f"{files.uri}/{name}", str(error)) from error
    if progress.number != number:
        raise damaged(f"{files.uri}/{name}", f"it is of batch {progress.number}")
    return progress, named


def _name(number: int) -> str:
    return f"{_MANIFESTS}/{number:010}{_SUFFIX}"
