"""The page of the last audits."""

from stilltide.pipeline.console.views import (
    Cell,
    PageSection,
    ago,
    columns,
    number,
    read_age,
    table,
)
from stilltide.pipeline.core.status.state import Aged, SystemStatus
from stilltide.pipeline.core.status.values import AuditStatus

_AUDITS = columns("report", "verdict", "findings#", "topics", "ended#", "read#")
_KINDS = {"valid": "good", "invalid": "bad", "unknown": "warn"}


def audits(status: SystemStatus) -> tuple[PageSection, ...]:
    """The last audit in each directory of reports."""
    rows = [_audit(name, one, status.now_ms) for name, one in status.audits.items()]
    return (
        PageSection(
            "Last audits",
            note="report.html in the directory of the report has every finding.",
            empty="No directory of reports was named: `stilltide console --audit DIRECTORY`.",
            tables=table("Last audits", _AUDITS, rows),
        ),
    )


def _audit(name: str, one: Aged[AuditStatus], now_ms: int) -> tuple[Cell, ...]:
    found = one.value
    age = read_age(one.read_ms, now_ms)
    if found is None:
        verdict = Cell("unread", "warn" if one.problem else "idle", note=one.problem)
        return (Cell(name, "code"), verdict, number(None), Cell("?"), Cell("?", "num"), age)
    return (
        Cell(name, "code"),
        Cell(found.verdict, _KINDS.get(found.verdict, "idle"), note=one.problem),
        number(found.findings),
        Cell(", ".join(found.topics)),
        Cell(ago(found.ended_ms, now_ms), "num"),
        age,
    )
