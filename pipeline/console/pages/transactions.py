"""The page of transactions that have not ended, and of readers that wait for them."""

from stilltide.pipeline.console.views import (
    NOTHING,
    Cell,
    PageSection,
    age_text,
    ago,
    columns,
    number,
    table,
)
from stilltide.pipeline.core.status.findings import ending_command
from stilltide.pipeline.core.status.state import ClusterSeen, SystemStatus
from stilltide.pipeline.core.status.values import OldestTransaction, ReaderHold

_HOLDS = columns("readers wait at", "for the transaction", "since#", "offsets behind#")
_UNENDED = columns(
    "transaction", "client", "coordinator#", "open for#", "partitions#", "state", "ends by"
)
_KINDS = {"OPEN": "idle", "COMMITTING": "good", "ABORTING": "warn"}


def transactions(status: SystemStatus) -> tuple[PageSection, ...]:
    """Readers that wait, then transactions by age, for each cluster."""
    return tuple(
        section
        for one in status.clusters
        for section in (_waiting(one, status.now_ms), _unended(one, status.now_ms))
    )


def _waiting(one: ClusterSeen, now_ms: int) -> PageSection:
    rows = [_hold(it, one, now_ms) for it in one.holds.value or ()]
    return PageSection(
        f"Readers that wait on {one.name}",
        note="A reader of committed data stops at the first record of a transaction that has not"
        " ended.",
        age=age_text(one.holds, now_ms),
        problem=one.holds.problem or one.brokers.problem,
        hint=one.holds.hint or one.brokers.hint,
        empty="" if one.holds.value is None else "No reader waits.",
        tables=table(f"Readers that wait on {one.name}", _HOLDS, rows),
    )


def _hold(hold: ReaderHold, one: ClusterSeen, now_ms: int) -> tuple[Cell, ...]:
    kind = "native" if hold.native else hold.client
    if hold.hanging:
        kind = "native, hangs: no coordinator will end it"
    return (
        Cell(f"{hold.data}@{hold.offset}", "code", command=ending_command(hold, one.name)),
        Cell(hold.holder, "bad" if hold.hanging else "code", note=kind),
        Cell(ago(hold.since_ms, now_ms), "num"),
        number(hold.behind),
    )


def _unended(one: ClusterSeen, now_ms: int) -> PageSection:
    found = one.transactions.value
    listed = () if found is None else found.listed
    total = 0 if found is None else _total(one)
    silent = ", ".join(map(str, found.silent)) if found is not None else ""
    return PageSection(
        f"Transactions on {one.name} that have not ended",
        note=f"Coordinators that did not answer, and are not counted: {silent}." if silent else "",
        age=age_text(one.transactions, now_ms),
        problem=one.transactions.problem or one.brokers.problem,
        hint=one.transactions.hint or one.brokers.hint,
        empty="" if found is None else "Every transaction has ended.",
        tables=table(
            f"Transactions on {one.name}, the oldest first",
            _UNENDED,
            [_transaction(it, now_ms) for it in listed],
            total,
        ),
    )


def _total(one: ClusterSeen) -> int:
    found = one.transactions.value
    assert found is not None, "asked only for transactions that were read"
    return found.open_count + found.committing_count + found.aborting_count


def _transaction(one: OldestTransaction, now_ms: int) -> tuple[Cell, ...]:
    left_ms = one.opened_ms + one.timeout_ms - now_ms
    ends = "aborted in " + ago(now_ms - left_ms, now_ms) if left_ms > 0 else "due"
    return (
        Cell(one.txn, "code"),
        Cell(one.client or NOTHING),
        Cell(one.txn.partition(":")[0], "num"),
        Cell(ago(one.opened_ms, now_ms), "num"),
        number(one.partition_count),
        Cell(one.state.lower(), _KINDS.get(one.state, "idle")),
        Cell(ends if one.state == "OPEN" else "its markers"),
    )
