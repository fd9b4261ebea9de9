"""Parquet tables: a folder for each batch, which appears by one rename.

*Source*: docs/protocols K2, K5.
*Invariants*: the folder `batch=<number>` holds the records and the progress of a batch. What a
crash leaves has another name, which no reader looks at and which the next writer removes.

Refuses: a file system without an atomic rename of folders; `manifest.py` is for those.
"""

from uuid import uuid4

from pyspark.sql import DataFrame

from stilltide.pipeline.jobs.tables.files import TableFiles
from stilltide.pipeline.jobs.tables.table import PastBatch, damaged, table_errors, taken
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.tables.progress import (
    NOTHING,
    TableProgress,
)

_BATCH, _STAGING, _PROGRESS = "batch=", "_staging-", "_progress.json"


class ParquetTable:
    """A Parquet table with the partition column `batch`.

    Args:
        files: the table's folder; this process is its only writer.
    """

    def __init__(self, files: TableFiles) -> None:
        self._files = files

    def load(self) -> TableProgress:
        """The progress in the last batch's folder; removes what a crash left."""
        with table_errors(self._files.uri):
            names = self._files.names()
            for name in names:
                if name.startswith(_STAGING):
                    self._files.remove(name)
        batches = sorted(name for name in names if name.startswith(_BATCH))
        return self._batch(batches[-1]).progress if batches else NOTHING

    def history(self, batches_max: int) -> list[PastBatch]:
        """The last folders, by the times of their progress."""
        with table_errors(self._files.uri):
            batches = sorted(name for name in self._files.names() if name.startswith(_BATCH))
        return [self._batch(name) for name in batches[: -batches_max - 1 : -1]]

    def _batch(self, name: str) -> PastBatch:
        place = f"{name}/{_PROGRESS}"
        try:
            progress = TableProgress.from_text(self._files.read(place))
            stored_ms = self._files.modified_ms(place)
        except (DecodeError, OSError) as error:
            raise damaged(f"{self._files.uri}/{place}", str(error)) from error
        if _name(progress.number) != name:
            raise damaged(f"{self._files.uri}/{place}", f"it is of batch {progress.number}")
        return PastBatch(progress, stored_ms, None)

    def append(self, frame: DataFrame, progress: TableProgress) -> None:
        """Writes to a folder of another name, then renames the folder (K2)."""
        staged = f"{_STAGING}{uuid4().hex}"
        with table_errors(self._files.uri):
            frame.write.parquet(f"{self._files.uri}/{staged}")
            self._files.create(f"{staged}/{_PROGRESS}", progress.to_text())
            if not self._files.publish(staged, _name(progress.number)):
                self._files.remove(staged)
                raise taken(self._files.uri, progress.number)


def _name(number: int) -> str:
    return f"{_BATCH}{number:010}"
