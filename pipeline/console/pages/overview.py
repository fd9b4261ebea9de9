"""The page that answers whether everything is well."""

from collections.abc import Sequence

from stilltide.pipeline.console.views import (
    Card,
    Cell,
    Fact,
    PageSection,
    age_text,
    ago,
    columns,
    number,
    read_age,
    table,
)
from stilltide.pipeline.core.status.findings import StatusFinding, Weight
from stilltide.pipeline.core.status.state import ClusterSeen, SystemStatus

_WELL = "well"


def overview(status: SystemStatus, found: Sequence[StatusFinding]) -> tuple[PageSection, ...]:
    """Findings, clusters, workers."""
    act = [one for one in found if one.weight is Weight.ACT]
    watch = [one for one in found if one.weight is Weight.WATCH]
    return (
        PageSection(
            "Needs a person",
            empty="Nothing needs a person.",
            urgent=bool(act),
            tables=_findings("Findings that need a person", act),
        ),
        *(
            [PageSection("Worth a look", tables=_findings("Findings that are worth a look", watch))]
            if watch
            else []
        ),
        PageSection(
            "Clusters", cards=tuple(_cluster(one, act, status.now_ms) for one in status.clusters)
        ),
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


def _findings(caption: str, found: Sequence[StatusFinding]) -> tuple:
    rows = [(Cell(one.cluster or "all"), Cell(one.text, command=one.command)) for one in found]
    return table(caption, columns("cluster", "finding"), rows)


def _cluster(one: ClusterSeen, act: Sequence[StatusFinding], now_ms: int) -> Card:
    state = _state(one)
    if state.text == _WELL and any(it.cluster == one.name for it in act):
        state = Cell("needs a person", "bad")
    return Card(one.name, one.address, state, _facts(one, now_ms))


def _state(one: ClusterSeen) -> Cell:
    if one.away:
        return Cell("away", "bad", note=one.brokers.problem)
    if one.brokers.value is None:
        return Cell("not read yet", "idle")
    if one.workers.value == ():
        return Cell("no worker", "bad")
    coordinators = one.coordinators.value or ()
    stopped = one.ended.value or any(not it.serving for it in coordinators)
    if one.brokers.value.missing or stopped:
        return Cell("degraded", "bad")
    if any(part.problem for _, part in one.parts()):
        return Cell("partly unread", "warn")
    return Cell(_WELL, "good")


def _facts(one: ClusterSeen, now_ms: int) -> tuple[Fact, ...]:
    brokers, workers = one.brokers.value, one.workers.value
    coordinators, unended = one.coordinators.value, one.transactions.value
    up = number(None if brokers is None else brokers.up)
    if brokers is not None and brokers.registered:
        up = Cell(f"{brokers.up} of {brokers.registered}", "num")
    serving = number(None)
    if coordinators is not None:
        serving = Cell(f"{sum(it.serving for it in coordinators)} of {len(coordinators)}", "num")
    counted = unended if unended is not None and not unended.silent else None
    ending = None if counted is None else counted.committing_count + counted.aborting_count
    oldest = Cell("?" if unended is None else "-", "num")
    if unended is not None and unended.oldest is not None:
        oldest = Cell(ago(unended.oldest.opened_ms, now_ms), "num", note=unended.oldest.txn)
    transactions = age_text(one.transactions, now_ms)
    return (
        Fact("brokers up", up, age_text(one.brokers, now_ms)),
        Fact(
            "workers",
            number(None if workers is None else len(workers)),
            age_text(one.workers, now_ms),
        ),
        Fact("coordinators serving", serving, age_text(one.coordinators, now_ms)),
        Fact(
            "owners that have ended",
            number(None if one.ended.value is None else len(one.ended.value)),
            age_text(one.ended, now_ms),
        ),
        Fact(
            "open transactions",
            number(None if counted is None else counted.open_count),
            transactions,
        ),
        Fact("ending transactions", number(ending), transactions),
        Fact("oldest transaction", oldest, transactions),
        Fact(
            "readers that wait",
            number(None if one.holds.value is None else len(one.holds.value)),
            age_text(one.holds, now_ms),
        ),
    )


def _workers(status: SystemStatus) -> list[tuple[Cell, ...]]:
    return [
        (
            Cell(cluster.name),
            Cell(it.host, "code"),
            Cell(it.version or "unknown"),
            Cell(", ".join(map(str, it.coordinators)) or "none"),
            read_age(cluster.workers.read_ms, status.now_ms),
        )
        for cluster in status.clusters
        for it in cluster.workers.value or ()
    ]
