"""Writes a report as findings.parquet, summary.json and report.html in one folder.

*Invariants*: findings.parquet always has the same schema, with the schema's version in its
metadata; each file is written completely or not at all.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stilltide.pipeline.jobs.audits.follow.history import HistoryRow
from stilltide.pipeline.jobs.audits.last import SUMMARY
from stilltide.pipeline.jobs.audits.pages.page import render_page
from stilltide.pipeline.jobs.audits.report import SCHEMA_VERSION, VERDICTS, AuditReport

FINDINGS = "findings.parquet"
PAGE = "report.html"

FINDINGS_SCHEMA = pa.schema(
    [
        pa.field("check", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("txn", pa.string()),
        pa.field("expected", pa.int64()),
        pa.field("found", pa.int64()),
        pa.field("detail", pa.string(), nullable=False),
    ],
    metadata={"stilltide.schema_version": str(SCHEMA_VERSION)},
)
"""The schema of findings.parquet: a row for each listed finding."""


def write_report(report: AuditReport, folder: Path, history: Sequence[HistoryRow] = ()) -> None:
    """Writes the three files; replaces the files of an earlier run.

    Args:
        report: what is written.
        folder: made if it is missing.
        history: runs that the page shows, for audits that go on.

    Raises:
        OSError: the folder cannot be made or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(findings_table(report), folder / f".{FINDINGS}")
    (folder / f".{SUMMARY}").write_text(json.dumps(report.to_dict(), indent=2) + "\n")
    (folder / f".{PAGE}").write_text(render_page(report, history), encoding="utf-8")
    for name in (FINDINGS, SUMMARY, PAGE):
        (folder / f".{name}").replace(folder / name)


def findings_table(report: AuditReport) -> pa.Table:
    """The listed findings of all checks, in `FINDINGS_SCHEMA`."""
    rows = [
        {
            "check": result.check.value,
            "verdict": VERDICTS[finding.kind].value,
            **{name: _encodable(value) for name, value in finding.to_dict().items()},
        }
        for result in report.checks
        for finding in result.findings
    ]
    return pa.Table.from_pylist(rows, schema=FINDINGS_SCHEMA)


def _encodable(value: object) -> object:
    """Text with lone surrogates, which UTF-8 and so Parquet cannot hold, as their escapes."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
