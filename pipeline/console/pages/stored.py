"""The page of snapshots of aborted transactions, and of the index of native ones.

The page of the last audits.
"""

from stilltide.pipeline.console.ids import partition_cell
from stilltide.pipeline.console.views import (
    Cell,
    PageSection,
    age_text,
    ago,
    columns,
    number,
    read_age,
    size,
    table,
)
from stilltide.pipeline.core.status.values import (
    Aged,
    AuditStatus,
    ClusterSeen,
    IndexStatus,
    SnapshotStatus,
    SystemStatus,
)

_SNAPSHOTS = columns(
    "partition",
    "state",
    "max read position#",
    "behind#",
    "aborted#",
    "parts#",
    "size#",
    "written#",
)
_INDEX = columns("partition", "state", "covered to#", "lag#", "ranges#")


def snapshots(status: SystemStatus) -> tuple[PageSection, ...]:
    """Snapshots, then the index, of each cluster."""
    return tuple(
        section
        for cluster in status.clusters
        for section in (_snapshots(cluster, status.now_ms), _index(cluster, status.now_ms))
    )


def _snapshots(cluster: ClusterSeen, now_ms: int) -> PageSection:
    return PageSection(
        f"Snapshots on {cluster.name}",
        note="The max read position is where a snapshot ends: every transaction with a record below"
        " has ended, and the snapshot names those that were aborted. Behind: offsets from there to"
        " the end of the partition.",
        age=age_text(cluster.snapshots, now_ms),
        problem=cluster.snapshots.problem or cluster.brokers.problem,
        hint=cluster.snapshots.hint or cluster.brokers.hint,
        empty="" if cluster.snapshots.value is None else "There is no snapshot.",
        tables=table(
            f"Snapshots on {cluster.name}",
            _SNAPSHOTS,
            [_snapshot(cluster, it, now_ms) for it in cluster.snapshots.value or ()],
        ),
    )


def _snapshot(cluster: ClusterSeen, snapshot: SnapshotStatus, now_ms: int) -> tuple[Cell, ...]:
    return (
        partition_cell(cluster.name, snapshot.data),
        Cell("unusable", "bad", note=snapshot.problem)
        if snapshot.problem
        else Cell("usable", "good"),
        number(snapshot.max_read_position),
        number(snapshot.behind),
        number(snapshot.aborted),
        number(snapshot.parts),
        size(snapshot.bytes),
        Cell(ago(snapshot.written_ms, now_ms), "num"),
    )


def _index(cluster: ClusterSeen, now_ms: int) -> PageSection:
    return PageSection(
        f"Index of aborted native transactions on {cluster.name}",
        age=age_text(cluster.index, now_ms),
        problem=cluster.index.problem or cluster.brokers.problem,
        hint=cluster.index.hint or cluster.brokers.hint,
        empty="" if cluster.index.value is None else "No topic is indexed.",
        tables=table(
            f"Index on {cluster.name}",
            _INDEX,
            [_indexed(cluster, index) for index in cluster.index.value or ()],
        ),
    )


def _indexed(cluster: ClusterSeen, index: IndexStatus) -> tuple[Cell, ...]:
    return (
        partition_cell(cluster.name, index.data),
        Cell("unusable", "bad", note=index.problem) if index.problem else Cell("usable", "good"),
        number(index.covered_to),
        number(index.lag),
        number(index.ranges),
    )


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


def _audit(name: str, read: Aged[AuditStatus], now_ms: int) -> tuple[Cell, ...]:
    audit = read.value
    age = read_age(read.read_ms, now_ms)
    if audit is None:
        verdict = Cell("unread", "warn" if read.problem else "idle", note=read.problem)
        return (Cell(name, "code"), verdict, number(None), Cell("?"), Cell("?", "num"), age)
    return (
        Cell(name, "code"),
        Cell(audit.verdict, _KINDS.get(audit.verdict, "idle"), note=read.problem),
        number(audit.findings),
        Cell(", ".join(audit.topics)),
        Cell(ago(audit.ended_ms, now_ms), "num"),
        age,
    )
