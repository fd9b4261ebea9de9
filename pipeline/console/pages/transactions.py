"""The page of transactions: those that readers wait for, open ones, those that ended last."""

from collections import Counter
from collections.abc import Mapping

from stilltide.pipeline.console.views import (
    NOTHING,
    Cell,
    PageSection,
    PageView,
    age_text,
    ago,
    columns,
    number,
    table,
)
from stilltide.pipeline.core.status.asks import EndedAsk, EndedTxn, EndedTxns
from stilltide.pipeline.core.status.findings import deciding_command, ending_command
from stilltide.pipeline.core.status.values import (
    TIME_OUT,
    Aged,
    ClusterSeen,
    OldestTransaction,
    ReaderHold,
    SystemStatus,
)

_HOLDS = columns("readers wait at", "for the transaction", "client", "since#", "offsets behind#")
_UNENDED = columns(
    "transaction", "client", "coordinator#", "open for#", "partitions#", "state", "ends"
)
_ENDED = columns("transaction", "outcome", "ended#", "records#", "partitions")
_OUTCOME_KINDS = {"committed": "good", "aborted": "idle"}
_PARTITIONS_SHOWN = 3
_KINDS = {"OPEN": "idle", "PREPARED": "warn", "COMMITTING": "good", "ABORTING": "warn"}


_END = {
    "PREPARED": "once it is decided",
    "COMMITTING": "once its markers are written",
    "ABORTING": "once its markers are written",
}
"""When a transaction ends; an open one at its time-out at the latest."""


def transactions_asks(status: SystemStatus, _query: object) -> tuple[EndedAsk, ...]:
    """What the page shows beyond the common state; nothing of clusters that are away."""
    return tuple(EndedAsk(cluster.name) for cluster in status.clusters if not cluster.away)


def transactions(view: PageView) -> tuple[PageSection, ...]:
    """Readers that wait, then transactions by age, then ended ones, for each cluster."""
    status = view.status
    return tuple(
        section
        for cluster in status.clusters
        for section in (
            _waiting(cluster, status.now_ms),
            _unended(cluster, status.now_ms),
            _ended(cluster, view.answers.get(EndedAsk(cluster.name), Aged()), status.now_ms),
        )
    )


def _waiting(cluster: ClusterSeen, now_ms: int) -> PageSection:
    rows = [_hold(it, cluster, now_ms) for it in cluster.holds.value or ()]
    return PageSection(
        f"Readers that wait on {cluster.name}",
        note="A reader of committed data stops at the first record of a transaction that has not"
        " ended.",
        age=age_text(cluster.holds, now_ms),
        problem=cluster.holds.problem or cluster.brokers.problem,
        hint=cluster.holds.hint or cluster.brokers.hint,
        empty="" if cluster.holds.value is None else "No reader waits.",
        tables=table(f"Readers that wait on {cluster.name}", _HOLDS, rows),
    )


def _hold(hold: ReaderHold, cluster: ClusterSeen, now_ms: int) -> tuple[Cell, ...]:
    client = Cell("native", "soft") if hold.native else Cell(hold.client or NOTHING, "id")
    if hold.hanging:
        client = Cell("native", "soft", note="hangs: no coordinator will end it")
    return (
        Cell(f"{hold.data}@{hold.offset}", "code", command=ending_command(hold, cluster.name)),
        Cell(hold.holder, "bad" if hold.hanging else "code"),
        client,
        Cell(ago(hold.since_ms, now_ms), "num"),
        number(hold.behind),
    )


def _unended(cluster: ClusterSeen, now_ms: int) -> PageSection:
    transactions = cluster.transactions.value
    listed = () if transactions is None else transactions.listed
    total = 0 if transactions is None else _total(cluster)
    silent = ", ".join(map(str, transactions.silent)) if transactions is not None else ""
    return PageSection(
        f"Transactions on {cluster.name} that have not ended",
        note=f"Coordinators that did not answer, and are not counted: {silent}." if silent else "",
        age=age_text(cluster.transactions, now_ms),
        problem=cluster.transactions.problem or cluster.brokers.problem,
        hint=cluster.transactions.hint or cluster.brokers.hint,
        empty="" if transactions is None else "Every transaction has ended.",
        tables=table(
            f"Transactions on {cluster.name}, the oldest first",
            _UNENDED,
            [_transaction(it, now_ms, cluster.name) for it in listed],
            total,
        ),
    )


def _ended(cluster: ClusterSeen, aged: Aged[EndedTxns], now_ms: int) -> PageSection:
    ended = aged.value.ended if aged.value is not None else ()
    known = cluster.transactions.value
    by = known.aborted_by if known is not None else {}
    reasons = known.reasons if known is not None else {}
    counts = Counter(it.outcome for it in ended)
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    note = f"Of the last {len(ended)}: {outcomes}. " if ended else ""
    return PageSection(
        f"Transactions on {cluster.name} that ended last",
        note=f"{note}Who has aborted a transaction is known of the last ones of each coordinator."
        " `stilltide txn history` shows more.",
        age=age_text(aged, now_ms),
        problem=aged.problem or cluster.brokers.problem,
        hint=aged.hint or cluster.brokers.hint,
        empty="" if aged.value is None else "No marker of an ended transaction is kept.",
        tables=table(
            f"Transactions on {cluster.name} that ended last, the newest first",
            _ENDED,
            [_ended_row(it, now_ms, by, reasons) for it in ended],
        ),
    )


def _ended_row(
    ended: EndedTxn, now_ms: int, by: Mapping[str, str], reasons: Mapping[str, str]
) -> tuple[Cell, ...]:
    shown = ", ".join(map(str, ended.partitions[:_PARTITIONS_SHOWN]))
    more = len(ended.partitions) - _PARTITIONS_SHOWN
    return (
        Cell(str(ended.txn), "code"),
        _outcome(ended, by.get(str(ended.txn), ""), reasons.get(str(ended.txn), "")),
        Cell(ago(ended.ended_ms, now_ms), "num"),
        Cell(NOTHING, "num") if ended.records is None else number(ended.records),
        Cell(shown, note=f"and {more} more" if more > 0 else ""),
    )


def _outcome(ended: EndedTxn, by: str, reason: str) -> Cell:
    """How a transaction ended; by whom, and why, if that is known."""
    if ended.outcome == "aborted" and by == TIME_OUT:
        return Cell("timed out", "warn")
    return Cell(
        ended.outcome,
        _OUTCOME_KINDS.get(ended.outcome, "bad"),
        note=reason or (f"by {by}" if ended.outcome == "aborted" and by else ""),
    )


def _total(cluster: ClusterSeen) -> int:
    transactions = cluster.transactions.value
    assert transactions is not None, "asked only for transactions that were read"
    undecided = transactions.open_count + transactions.prepared_count
    return undecided + transactions.committing_count + transactions.aborting_count


def _note(transaction: OldestTransaction, now_ms: int) -> str:
    if transaction.state == "PREPARED":
        decider = f", decider {transaction.decider}" if transaction.decider else ""
        return f"for {ago(transaction.prepared_ms, now_ms)}{decider}"
    return f"by {transaction.aborted_by}" if transaction.aborted_by else ""


def _deciding(transaction: OldestTransaction, cluster: str) -> str:
    """The command with which an operator decides how a prepared transaction ends."""
    return deciding_command(transaction.txn, cluster) if transaction.state == "PREPARED" else ""


def _transaction(transaction: OldestTransaction, now_ms: int, cluster: str) -> tuple[Cell, ...]:
    left_ms = transaction.opened_ms + transaction.timeout_ms - now_ms
    ends = f"by time-out in {ago(now_ms - left_ms, now_ms)}" if left_ms > 0 else "by time-out, due"
    return (
        Cell(transaction.txn, "code"),
        Cell(transaction.client or NOTHING, "id"),
        Cell(transaction.txn.partition(":")[0], "num"),
        Cell(ago(transaction.opened_ms, now_ms), "num"),
        number(transaction.partition_count),
        Cell(
            transaction.state.lower(),
            _KINDS.get(transaction.state, "idle"),
            note=_note(transaction, now_ms),
        ),
        Cell(_END.get(transaction.state, ends), command=_deciding(transaction, cluster)),
    )
