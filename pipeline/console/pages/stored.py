"""The page of snapshots of aborted transactions, and of the index of native ones.

The page of the last audits.
"""

from collections.abc import Iterable
from typing import TypeVar

from stilltide.pipeline.console.ids import partition_cell
from stilltide.pipeline.console.views import (
    Cell,
    Choice,
    PageSection,
    PageView,
    Query,
    age_text,
    ago,
    chosen_of,
    cluster_choice,
    columns,
    number,
    read_age,
    rows_each,
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
_NONE_PASSES = "No topic with such a name has one."
_ELSEWHERE = "type a part of the topic, or choose one cluster"

NAME = "snapshots"
PARAMS = ("text", "cluster")

P = TypeVar("P", SnapshotStatus, IndexStatus)


def snapshots(view: PageView) -> tuple[PageSection, ...]:
    """The choice; snapshots, then the index, of each cluster."""
    status, query = view.status, view.query
    clusters = chosen_of(status, query)
    rows_max = rows_each(clusters)
    sections = [
        PageSection(
            "Which snapshots",
            path=NAME,
            choices=(
                Choice("text", "Part of the topic", query.get("text", "")),
                cluster_choice(status, query),
            ),
            links=(Cell("all snapshots", href=NAME),) if query else (),
        )
    ]
    for cluster in clusters:
        sections.append(_snapshots(cluster, query, status.now_ms, rows_max))
        sections.append(_index(cluster, query, status.now_ms, rows_max))
    return tuple(sections)


def _passed(parts: Iterable[P] | None, query: Query) -> list[P]:
    text = query.get("text", "")
    return [part for part in parts or () if text in part.data.topic]


def _snapshots(cluster: ClusterSeen, query: Query, now_ms: int, rows_max: int) -> PageSection:
    passed = _passed(cluster.snapshots.value, query)
    empty = _NONE_PASSES if query.get("text") else "There is no snapshot."
    return PageSection(
        f"Snapshots on {cluster.name}",
        note="The max read position is where a snapshot ends: every transaction with a record below"
        " has ended, and the snapshot names those that were aborted. Behind: offsets from there to"
        " the end of the partition.",
        age=age_text(cluster.snapshots, now_ms),
        problem=cluster.snapshots.problem or cluster.brokers.problem,
        hint=cluster.snapshots.hint or cluster.brokers.hint,
        empty="" if cluster.snapshots.value is None else empty,
        tables=table(
            f"Snapshots on {cluster.name}",
            _SNAPSHOTS,
            [_snapshot(cluster, it, now_ms) for it in passed],
            elsewhere=_ELSEWHERE,
            rows_max=rows_max,
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


def _index(cluster: ClusterSeen, query: Query, now_ms: int, rows_max: int) -> PageSection:
    passed = _passed(cluster.index.value, query)
    empty = _NONE_PASSES if query.get("text") else "No topic is indexed."
    return PageSection(
        f"Index of aborted native transactions on {cluster.name}",
        age=age_text(cluster.index, now_ms),
        problem=cluster.index.problem or cluster.brokers.problem,
        hint=cluster.index.hint or cluster.brokers.hint,
        empty="" if cluster.index.value is None else empty,
        tables=table(
            f"Index on {cluster.name}",
            _INDEX,
            [_indexed(cluster, index) for index in passed],
            elsewhere=_ELSEWHERE,
            rows_max=rows_max,
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
