"""Reads the result of the last audit in a directory of reports, for `stilltide status`.

*Invariants*: neither Spark nor PyArrow is imported.
"""

import asyncio
import json
from pathlib import Path

from stilltide.pipeline.core.status.values import AuditStatus
from stilltide.pipeline.errors import ReportError

SUMMARY = "summary.json"


async def last_audit(directory: Path) -> AuditStatus:
    """The result of the last audit that was written to a directory.

    Raises:
        ReportError: the directory holds no report, or one that cannot be read.
    """
    return await asyncio.to_thread(_read, directory)


def _read(directory: Path) -> AuditStatus:
    try:
        summary = json.loads((directory / SUMMARY).read_text())
        return AuditStatus(
            summary["verdict"],
            sum(sum(one["finding_counts"].values()) for one in summary["checks"]),
            tuple(summary["topics"]),
            round(summary["began_ms"] + summary["elapsed_s"] * 1000),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportError(
            f"{directory} holds no report of an audit",
            detail=f"{type(error).__name__}: {error}",
            hint="name the --report directory of `stilltide audit run` or `follow`",
        ) from error
