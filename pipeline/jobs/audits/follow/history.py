"""The history of audits that go on: `history.parquet`, one row for each run.

*Invariants*: rows are ordered by run, each run once: a run that is repeated after a crash replaces
its row. The file is replaced by one rename.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from stilltide.pipeline.jobs.audits.report import AuditReport

HISTORY = "history.parquet"

SHOWN_MAX = 100
"""Runs that the page shows: the last ones."""

KEPT_MAX = 100_000
"""Runs that the file holds: the last ones; two months of a run each minute."""

HISTORY_SCHEMA = pa.schema(
    [
        pa.field("run", pa.int64(), nullable=False),
        pa.field("began_ms", pa.int64(), nullable=False),
        pa.field("elapsed_s", pa.float64(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("findings", pa.int64(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("behind", pa.int64(), nullable=False),
    ]
)


class HistoryRow(NamedTuple):
    """One run.

    Attributes:
        run: its number, from 1 on.
        began_ms: its begin, milliseconds since 1970.
        elapsed_s: its duration.
        verdict: the verdict on everything up to this run.
        findings: number of findings up to this run.
        records: number of records that were checked up to this run.
        behind: offsets up to the last stable offsets that are not checked yet.
    """

    run: int
    began_ms: int
    elapsed_s: float
    verdict: str
    findings: int
    records: int
    behind: int


def row_of(run: int, report: AuditReport) -> HistoryRow:
    """The row of a run."""
    partitions = report.partitions
    return HistoryRow(
        run,
        report.began_ms,
        round(report.elapsed_s, 3),
        report.verdict.value,
        sum(report.finding_counts.values()),
        sum(partition.records.written for partition in partitions),
        sum(one.last_stable_offset - one.records.end_offset for one in partitions),
    )


def write_history(directory: Path, row: HistoryRow) -> Sequence[HistoryRow]:
    """Stores the row of a run; returns the last `SHOWN_MAX` rows, oldest first.

    Raises:
        OSError, pyarrow.ArrowException: the file cannot be read or written.
    """
    path, staged = directory / HISTORY, directory / f".{HISTORY}"
    rows: list[HistoryRow] = []
    if path.exists():
        rows = [HistoryRow(**one) for one in pq.read_table(path).to_pylist()]
    rows = [*(one for one in rows if one.run < row.run), row][-KEPT_MAX:]
    table = pa.Table.from_pylist([row._asdict() for row in rows], schema=HISTORY_SCHEMA)
    with staged.open("wb") as file:
        pq.write_table(table, file)
        file.flush()
        os.fsync(file.fileno())
    staged.replace(path)
    return rows[-SHOWN_MAX:]
