"""What every kind of table promises.

*Source*: docs/protocols K2, K5.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from stilltide.connectors.spark.errors import cause_of
from stilltide.pipeline.errors import TableError
from stilltide.schemas.tables.progress import TableProgress

_NOT_WRITABLE = (
    "Permission denied",
    "AccessControlException",
    "AccessDeniedException",
    "Mkdirs failed to create",
    "Read-only file system",
    "No space left on device",
    "No FileSystem for scheme",
)
_MISSING_FORMAT = ("DATA_SOURCE_NOT_FOUND", "Cannot find catalog plugin class")


class PastBatch(NamedTuple):
    """A batch that a table holds.

    Attributes:
        progress: the progress after it.
        stored_ms: when it was stored, milliseconds since 1970.
        records: number of its records; None: the table does not say.
    """

    progress: TableProgress
    stored_ms: int
    records: int | None


class Table(Protocol):
    """A table whose progress is stored with its data.

    *Invariants*: K2 after a crash at any moment the table holds a batch and its progress, or
    neither. K5 of several writers of one batch number at most one succeeds.
    """

    def load(self) -> TableProgress:
        """The progress after the last batch; `NOTHING` for a table without any.

        Raises:
            TableError: there is a table without progress, or with damaged progress.
        """
        ...

    def history(self, batches_max: int) -> list[PastBatch]:
        """The last batches, the latest first; writes nothing, so another process may append.

        Raises:
            TableError: progress is damaged.
        """
        ...

    def append(self, frame: DataFrame, progress: TableProgress) -> None:
        """Stores the records of a batch with its progress; durable when the call returns.

        After an error the batch may be stored or not: `load` tells.

        Raises:
            TableError: another writer has stored a batch of this number, or the table cannot be
                written to.
        """
        ...


@contextmanager
def table_errors(place: str) -> Generator[None]:
    """Turns failures of files and of Spark that are the table's into `TableError`."""
    try:
        yield
    except ConnectionError:
        raise  # of Spark's JVM, not of the table
    except OSError as error:
        raise _not_writable(place, str(error)) from error
    except (PySparkException, Py4JError) as error:
        text = str(error)
        if any(mark in text for mark in _MISSING_FORMAT):
            raise TableError(
                "spark has no source for the table's format",
                detail=cause_of(text),
                hint="start the process's first Spark session with the format's jars: "
                "`SparkOptions(jars=..., settings=...)` of `table_session_options`",
            ) from error
        if any(mark in text for mark in _NOT_WRITABLE):
            raise _not_writable(place, cause_of(text)) from error
        raise


def taken(place: str, number: int) -> TableError:
    """The error of a writer that was not the first with a batch number (K5)."""
    return TableError(
        f"another writer has stored batch {number} in {place}",
        detail="nothing of this process's batch is in the table",
        hint="run one writer for each table",
    )


def damaged(place: str, detail: str) -> TableError:
    """The error of progress that cannot be read."""
    return TableError(
        f"{place} does not hold the progress of a table",
        detail=detail,
        hint="restore it from a copy, or write to another table",
    )


def _not_writable(place: str, detail: str) -> TableError:
    return TableError(
        f"cannot write to the table {place}",
        detail=detail,
        hint="check that the place exists, that this user and Spark's executors may write there,"
        " and that it has free space",
    )
