"""The page that answers whether everything is well."""

from collections.abc import Sequence
from typing import NamedTuple

from stilltide.pipeline.console import charts
from stilltide.pipeline.console.ids import subject_cell, txn_cell
from stilltide.pipeline.console.views import (
    NOTHING,
    UNKNOWN,
    Card,
    Cell,
    Fact,
    PageSection,
    PageView,
    age_text,
    ago,
    columns,
    number,
    read_age,
    table,
)
from stilltide.pipeline.core.status.findings import StatusFinding, Weight
from stilltide.pipeline.core.status.values import ClusterSeen, SystemStatus
from stilltide.schemas.values import ClusterName

_WELL = "well"


def overview(view: PageView) -> tuple[PageSection, ...]:
    """Findings, clusters, the last half hour of each, workers."""
    status = view.status
    act = [one for one in view.findings if one.weight is Weight.ACT]
    watch = [one for one in view.findings if one.weight is Weight.WATCH]
    return (
        PageSection(
            "Needs a person",
            empty="Nothing needs a person.",
            urgent=bool(act),
            tables=_findings("Findings that need a person", act, status.now_ms),
        ),
        *(
            [
                PageSection(
                    "Worth a look",
                    tables=_findings("Findings that are worth a look", watch, status.now_ms),
                )
            ]
            if watch
            else []
        ),
        PageSection(
            "Clusters", cards=tuple(_cluster(one, act, status.now_ms) for one in status.clusters)
        ),
        *(half_hour(view, cluster, charts.CLUSTER) for cluster in status.clusters),
        PageSection(
            "Workers",
            empty="No worker is known.",
            tables=table(
                "Workers",
                columns("cluster", "host", "version", "coordinators", "read#"),
                _workers(status),
            ),
        ),
    )


def half_hour(
    view: PageView, cluster: ClusterSeen, about: Sequence[charts.TimeSeries]
) -> PageSection:
    """Charts of a cluster."""
    return PageSection(
        f"The last 30 minutes on {cluster.name}",
        empty="No sample yet: the console takes one each ten seconds.",
        charts=charts.charts(about, cluster.name, view.samples, view.status.now_ms),
    )


def _findings(caption: str, findings: Sequence[StatusFinding], now_ms: int) -> tuple:
    rows = [(Cell(finding.cluster or "all"), _finding(finding, now_ms)) for finding in findings]
    return table(caption, columns("cluster", "finding"), rows)


def _finding(finding: StatusFinding, now_ms: int) -> Cell:
    """A finding, with the pages of what it is about."""
    text, cluster = finding.shown(now_ms), ClusterName(finding.cluster)
    pages = tuple(subject_cell(cluster, subject) for subject in finding.subjects)
    return Cell(f"{text}. See" if pages else text, command=finding.command, parts=pages)


def _cluster(cluster: ClusterSeen, act: Sequence[StatusFinding], now_ms: int) -> Card:
    state = _state(cluster)
    if state.text == _WELL and any(it.cluster == cluster.name for it in act):
        state = Cell("needs a person", "bad")
    return Card(cluster.name, cluster.address, state, _facts(cluster, now_ms))


def _state(cluster: ClusterSeen) -> Cell:
    if cluster.away:
        return Cell("away", "bad", note=cluster.brokers.problem)
    if cluster.brokers.value is None:
        return Cell("not read yet", "idle")
    if cluster.workers.value == ():
        return Cell("no worker", "bad")
    coordinators = cluster.coordinators.value or ()
    stopped = cluster.ended.value or any(not coordinator.serving for coordinator in coordinators)
    if cluster.brokers.value.missing or stopped:
        return Cell("degraded", "bad")
    if any(part.problem for _, part in cluster.parts()):
        return Cell("partly unread", "warn")
    return Cell(_WELL, "good")


class ClusterCounts(NamedTuple):
    """The figures of a cluster that is not away.

    Attributes:
        brokers: how many are up, and of how many.
        workers: number of workers; None: not read.
        coordinators: how many serve, and of how many.
        open, ending: number of transactions; None: not read, or not every coordinator has answered.
    """

    brokers: str
    workers: int | None
    coordinators: str
    open: int | None
    ending: int | None


def cluster_counts(cluster: ClusterSeen) -> ClusterCounts:
    """The figures, also for the screen of `stilltide status`."""
    brokers, workers = cluster.brokers.value, cluster.workers.value
    coordinators, unended = cluster.coordinators.value, cluster.transactions.value
    up = UNKNOWN if brokers is None else f"{brokers.up:,}"
    if brokers is not None and brokers.registered:
        up = f"{brokers.up} of {brokers.registered}"
    serving = UNKNOWN
    if coordinators is not None:
        serving = f"{sum(it.serving for it in coordinators)} of {len(coordinators)}"
    counted = unended if unended is not None and not unended.silent else None
    return ClusterCounts(
        up,
        None if workers is None else len(workers),
        serving,
        None if counted is None else counted.open_count + counted.prepared_count,
        None if counted is None else counted.committing_count + counted.aborting_count,
    )


def _facts(cluster: ClusterSeen, now_ms: int) -> tuple[Fact, ...]:
    counts, unended = cluster_counts(cluster), cluster.transactions.value
    oldest = Cell(UNKNOWN if unended is None else NOTHING, "num")
    if unended is not None and unended.oldest is not None:
        txn = txn_cell(cluster.name, unended.oldest.txn)
        oldest = Cell(f"{ago(unended.oldest.opened_ms, now_ms)},", "num", parts=(txn,))
    ended, holds = cluster.ended.value, cluster.holds.value
    facts = (
        ("brokers up", Cell(counts.brokers, "num"), cluster.brokers),
        ("workers", number(counts.workers), cluster.workers),
        ("coordinators serving", Cell(counts.coordinators, "num"), cluster.coordinators),
        ("owners that have ended", number(None if ended is None else len(ended)), cluster.ended),
        ("open transactions", number(counts.open), cluster.transactions),
        ("ending transactions", number(counts.ending), cluster.transactions),
        ("oldest transaction", oldest, cluster.transactions),
        ("readers that wait", number(None if holds is None else len(holds)), cluster.holds),
    )
    return tuple(Fact(name, value, age_text(part, now_ms)) for name, value, part in facts)


def _workers(status: SystemStatus) -> list[tuple[Cell, ...]]:
    return [
        (
            Cell(cluster.name),
            Cell(worker.host, "code"),
            Cell(worker.version or "unknown"),
            Cell(", ".join(map(str, worker.coordinators)) or "none"),
            read_age(cluster.workers.read_ms, status.now_ms),
        )
        for cluster in status.clusters
        for worker in cluster.workers.value or ()
    ]
